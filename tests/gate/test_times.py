"""Time: an attempt's timeout and a call's deadline end waits, never attempts; nobody's slowness is another's."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.houses import OpenHouse, settled_down
from tollhouse import CallContext, State, Tollhouse, dedup, external, read, tool, write
from tollhouse.errors import CallFailed, CallNotSent, InDoubt, InvalidSetting
from tollhouse.gate.sending import Sending
from tollhouse.ledger.record import Attempt
from tollhouse.testing.receiver import Receiver


class Gatekeeper:
    """Holds a ``def`` tool in its thread until it is let go."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.let_go = threading.Event()
        self.effects = 0

    async def is_entered(self) -> None:
        """Return once a tool is inside."""
        await asyncio.to_thread(self.entered.wait, 10)

    def act(self) -> int:
        """Have an effect once let go."""
        self.entered.set()
        assert self.let_go.wait(10)
        self.effects += 1
        return self.effects


# case H09
async def test_a_def_tool_that_ignores_its_timeout_delays_nobody(open_house: OpenHouse) -> None:
    """The caller hears *in doubt* in time; twenty other calls beside it are not delayed; the late result settles."""
    keeper = Gatekeeper()

    @tool(external(attempt_timeout_s=0.5))
    def slow() -> int:
        return keeper.act()

    @tool(write())
    def quick(number: int) -> int:
        return number

    settled = asyncio.Event()
    house = await open_house(slow, quick, on_event=lambda kind, _: settled.set() if kind == "doubt_settled" else None)
    first = asyncio.create_task(house.call(slow, key="slow"))
    others = await asyncio.gather(*(house.call(quick, {"number": n}, key=f"quick-{n}") for n in range(20)))
    assert [other.value for other in others] == list(range(20))
    with pytest.raises(InDoubt) as caught:
        await first
    assert isinstance(caught.value.__cause__, TimeoutError)
    assert caught.value.sent == "maybe"
    assert keeper.effects == 0
    assert (await house.get("slow")).attempts[0].running
    keeper.let_go.set()
    await settled.wait()
    again = await house.call(slow, key="slow")
    assert (again.value, again.replayed, keeper.effects) == (1, True, 1)


# case H12
async def test_a_timeout_after_sending_is_a_doubt_and_nothing_is_sent_again(
    open_house: OpenHouse, receiver: Receiver
) -> None:
    """A receiver that commits slowly has one effect, however often its caller comes back."""
    receiver.fault("hold_after_effect", collection="credits")

    @tool(external(attempt_timeout_s=0.5))
    async def credit(ctx: CallContext) -> Any:
        return (await ctx.http.post(f"{receiver.url}/v1/credits", json={})).json()

    house = await open_house(credit)
    for _ in range(3):
        with pytest.raises(InDoubt):
            await house.call(credit, key="k")
    assert len(receiver.effects("credits")) == len(receiver.requests("credits")) == 1
    assert (await house.get("k")).state is State.IN_DOUBT


async def test_a_slow_async_tool_is_not_cancelled_and_its_late_result_settles(open_house: OpenHouse) -> None:
    """The wait ends at ``attempt_timeout_s``; the attempt ends when it ends."""
    go, ended = asyncio.Event(), asyncio.Event()

    @tool(external(attempt_timeout_s=0.4))
    async def pay() -> str:
        await go.wait()
        ended.set()
        return "late"

    house = await open_house(pay)
    with pytest.raises(InDoubt):
        await house.call(pay, key="k")
    go.set()
    after = await settled_down(house, "k")
    assert (after.state, after.result, ended.is_set()) == (State.SUCCEEDED, "late", True)
    assert [line.kind for line in after.history] == ["departed", "wait_ended", "late_outcome"]


async def test_a_late_failure_leaves_the_doubt_and_a_late_rejection_settles_it(open_house: OpenHouse) -> None:
    """What comes late counts by its own strength."""
    go = asyncio.Event()

    @tool(external(attempt_timeout_s=0.4, rejects=PermissionError))
    async def pay(how: str) -> None:
        await go.wait()
        raise PermissionError if how == "rejected" else ValueError

    house = await open_house(pay)
    for how in ("rejected", "lost"):
        with pytest.raises(InDoubt):
            await house.call(pay, {"how": how}, key=how)
    go.set()
    assert (await settled_down(house, "rejected")).state is State.FAILED
    assert (await settled_down(house, "lost")).state is State.IN_DOUBT
    with pytest.raises(CallFailed):
        await house.call(pay, {"how": "rejected"}, key="rejected")


async def test_a_def_tool_that_found_no_thread_in_time_was_not_sent(open_house: OpenHouse) -> None:
    """It never began, and never will: when a thread is free at last, the attempt is over."""
    keeper = Gatekeeper()
    ran = []

    @tool(external())
    def block() -> int:
        return keeper.act()

    @tool(external(attempt_timeout_s=0.4))
    def wait_in_line() -> str:
        ran.append(1)
        return "at last"

    house = await open_house(block, wait_in_line, threads=1)
    first = asyncio.create_task(house.call(block, key="block"))
    await keeper.is_entered()
    with pytest.raises(CallNotSent) as caught:
        await house.call(wait_in_line, key="k")
    assert caught.value.sent == "no"
    keeper.let_go.set()
    assert (await first).value == 1
    assert ran == []
    assert (await house.call(wait_in_line, key="k")).value == "at last"
    assert ran == [1]


@pytest.mark.parametrize("effect", [external(attempt_timeout_s=0.2), read(attempt_timeout_s=0.2, max_attempts=1)])
async def test_what_no_thread_took_in_time_is_kept_nowhere(open_house: OpenHouse, effect: Any) -> None:
    """Threads may be stuck for as long as a house is open; what came in vain meanwhile takes no room in it."""
    keeper = Gatekeeper()

    @tool(external())
    def block() -> int:
        return keeper.act()

    @tool(effect)
    def wait_in_line() -> None:
        raise AssertionError("never called")

    house = await open_house(block, wait_in_line, threads=1)
    first = asyncio.create_task(house.call(block, key="block"))
    await keeper.is_entered()
    await asyncio.gather(*(house.call(wait_in_line, key=f"k{n}") for n in range(3)), return_exceptions=True)
    threads = house._core.threads
    assert (len(threads._waiting), len(threads._unfinished), threads.leaked) == (0, 1, 0)
    assert len(house._core.running) == 1
    keeper.let_go.set()
    assert (await first).value == 1


async def test_threads_that_nobody_waits_for_are_counted_until_they_end(open_house: OpenHouse) -> None:
    """A tool that never returns costs a thread; how many do can be seen."""
    keeper = Gatekeeper()

    @tool(external(attempt_timeout_s=0.5))
    def slow(number: int) -> int:
        return keeper.act()

    @tool(read(attempt_timeout_s=0.5, max_attempts=1))
    def look() -> int:
        return keeper.act()

    house = await open_house(slow, look)
    calls = [house.call(slow, {"number": n}, key=f"k{n}") for n in range(3)]
    await asyncio.gather(*calls, house.call(look), return_exceptions=True)
    threads = house._core.threads
    assert threads.leaked == 4
    keeper.let_go.set()
    for n in range(3):
        await settled_down(house, f"k{n}")
    while threads.leaked:  # noqa: ASYNC110 - the read's thread tells nobody
        await asyncio.sleep(0.005)


async def test_closing_a_house_leaves_a_thread_its_doubt(open_house: OpenHouse) -> None:
    """What cannot be stopped is not declared over: its caller hears of the doubt, and the lease runs on to its end."""
    keeper, entered = Gatekeeper(), asyncio.Event()

    @tool(external())
    def slow() -> int:
        return keeper.act()

    @tool(external())
    async def stopped() -> None:
        entered.set()
        await asyncio.Event().wait()

    house = await open_house(slow, stopped, grace_s=0.05)
    calls = [asyncio.create_task(house.call(each, key=each.name)) for each in (slow, stopped)]
    await entered.wait()
    await keeper.is_entered()
    await house.close()
    for call in calls:
        with pytest.raises(InDoubt):
            await call
    after = await open_house(slow, stopped)
    ended, left = await after.get("stopped"), await after.get("slow")
    assert (ended.state, ended.attempts[0].running) == (State.IN_DOUBT, False)
    assert (left.state, left.attempts[0].running) == (State.IN_DOUBT, True)
    owner = await after.store.owner(left.raw.tenant, left.attempts[0].owner)
    assert owner is not None
    assert owner.ended_at_us is None
    keeper.let_go.set()


# -- settings tighten, and only tighten ------------------------------------------------------------------------------


async def test_a_call_may_not_loosen_its_contract(open_house: OpenHouse) -> None:
    """The setting is named; nothing is written."""

    @tool(external(dedup=dedup.by_key(hours=24), max_attempts=2, attempt_timeout_s=5, deadline_s=20))
    async def pay() -> None: ...

    house = await open_house(pay)
    looser: list[dict[str, Any]] = [{"max_attempts": 3}, {"attempt_timeout_s": 5.1}, {"deadline_s": 21}]
    for options in looser:
        with pytest.raises(InvalidSetting, match=next(iter(options))) as caught:
            await house.call(pay, key="k", **options)
        assert caught.value.sent == "no"
    assert await house.list() == []
    limits: dict[str, Any] = {"max_attempts": 1, "attempt_timeout_s": 1.0, "deadline_s": 2.0}
    await house.call(pay, key="k", **limits)
    recorded = (await house.get("k")).raw.limits
    assert (recorded.max_attempts, recorded.attempt_timeout_s, recorded.deadline_s) == (1, 1.0, 2.0)


@pytest.mark.parametrize("level", ["contract", "house", "call"])
async def test_max_attempts_is_the_number_of_sendings_wherever_it_is_set(open_house: OpenHouse, level: str) -> None:
    """Contract, house or call: the least of them is what the receiver sees."""
    sendings = []
    contract: Any = {"max_attempts": 2} if level == "contract" else {}

    @tool(external(dedup=dedup.by_key(hours=24)), **contract)
    async def pay(ctx: CallContext) -> None:
        sendings.append(ctx.attempt)
        raise ConnectionResetError

    house = await open_house(pay, **({"max_attempts": 2} if level == "house" else {}))
    options: dict[str, Any] = {"max_attempts": 2} if level == "call" else {}
    with pytest.raises(InDoubt):
        await house.call(pay, key="k", **options)
    assert sendings == [1, 2]


@pytest.mark.parametrize("level", ["contract", "house", "call"])
async def test_attempt_timeout_ends_the_wait_wherever_it_is_set(open_house: OpenHouse, level: str) -> None:
    """Contract, house or call: the least of them is how long the caller waits."""
    contract: Any = {"attempt_timeout_s": 0.4} if level == "contract" else {}
    go = asyncio.Event()

    @tool(external(), **contract)
    async def pay() -> None:
        await go.wait()

    house = await open_house(pay, **({"attempt_timeout_s": 0.4} if level == "house" else {}))
    options: dict[str, Any] = {"attempt_timeout_s": 0.4} if level == "call" else {}
    with pytest.raises(InDoubt):
        await asyncio.wait_for(house.call(pay, key="k", **options), 5)
    go.set()


@pytest.mark.parametrize("level", ["contract", "house", "call"])
async def test_deadline_ends_all_sendings_wherever_it_is_set(open_house: OpenHouse, level: str) -> None:
    """Contract, house or call: once the least of them is over, nothing is sent again."""
    contract: Any = {"deadline_s": 1.2} if level == "contract" else {}
    sendings: list[float] = []

    @tool(external(dedup=dedup.by_key(hours=24), max_attempts=50), **contract)
    async def pay() -> None:
        sendings.append(time.monotonic())
        raise ConnectionResetError

    house = await open_house(pay, **({"deadline_s": 1.2} if level == "house" else {}))
    options: dict[str, Any] = {"deadline_s": 1.2} if level == "call" else {}
    with pytest.raises(InDoubt):
        await asyncio.wait_for(house.call(pay, key="k", **options), 5)
    assert 1 < len(sendings) < 50
    assert sendings[-1] - sendings[0] < 1.3


OUT_OF_BOUNDS: list[tuple[str, Any]] = [
    ("max_attempts", 0),
    ("attempt_timeout_s", -1),
    ("deadline_s", 0),
    ("threads", 0),
    ("threads", None),
    ("grace_s", None),
    ("store_wait_s", None),
    ("doubt_alarm_s", None),
    ("lease_s", "30"),
    ("renew_every_s", "often"),
    ("tools", None),
    ("gates", 7),
    ("store_wait_s", 1e300),
    ("deadline_s", 1e11),
    ("secrets", {"token": "t"}),
    ("on_event", "print"),
    ("x", 1),
]


@pytest.mark.parametrize(("name", "value"), OUT_OF_BOUNDS)
async def test_a_setting_of_a_house_out_of_bounds_is_refused(tmp_path: Path, name: str, value: Any) -> None:
    """Before the store is opened."""
    with pytest.raises(InvalidSetting, match=name):
        await Tollhouse.open(f"sqlite:///{tmp_path / 'never-made.db'}", **{name: value})
    assert not list(tmp_path.iterdir())


async def test_the_pause_before_a_resend_is_not_taken_off_its_own_time(
    open_house: OpenHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt has its whole time from the moment at which it begins, and pauses grow."""
    pauses: list[tuple[float, float]] = []
    start = Sending.start

    def watched(sending: Sending, attempt: Attempt, *, delay_s: float = 0.0) -> None:
        pauses.append((delay_s, (attempt.send_by_us - attempt.started_at_us) / 1e6))
        start(sending, attempt, delay_s=delay_s)

    @tool(external(dedup=dedup.by_key(hours=24), max_attempts=4, attempt_timeout_s=7, deadline_s=60))
    async def pay(ctx: CallContext) -> None:
        raise ConnectionResetError

    monkeypatch.setattr(Sending, "start", watched)
    house = await open_house(pay)
    with pytest.raises(InDoubt):
        await house.call(pay, key="k")
    assert [round(whole - delay_s, 3) for delay_s, whole in pauses] == [7.0] * 4
    assert pauses[0][0] == 0 < pauses[1][0] < pauses[3][0]
