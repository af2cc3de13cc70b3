"""The last check before bytes leave, and what an attempt that fails before or after it is taken for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.support.houses import OpenHouse, interfering, settled_down
from tollhouse import (
    Accepted,
    AttemptOutcome,
    CallContext,
    NotSent,
    Rejected,
    State,
    Tollhouse,
    did_not_happen,
    external,
    happened,
    read,
    tool,
)
from tollhouse.errors import CallFailed, CallNotSent, InDoubt, InvalidKey, Refused, TollhouseError
from tollhouse.gate import context as context_module

Check = Callable[[CallContext], Awaitable[None]]


async def confirm(ctx: CallContext) -> None:
    """The check of an ``async def`` tool."""
    await ctx.confirm()


async def confirm_in_thread(ctx: CallContext) -> None:
    """The check of a ``def`` tool, where such a tool runs."""
    await asyncio.to_thread(ctx.confirm_sync)


@pytest.fixture
def every_check_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commit 1 stands in for no check, as if time had passed since."""
    monkeypatch.setattr(context_module, "COMMIT_IS_CHECK_US", -1)


# case C55
@pytest.mark.parametrize("departs", ["at_start", "at_confirm"])
async def test_a_bug_before_the_check_is_not_sent_only_where_the_contract_says_so(
    open_house: OpenHouse, departs: Any
) -> None:
    """*Provably never dispatched* and *may have run* have two codes and two messages."""
    broken = [True]

    @tool(external(departs=departs))
    async def pay(ctx: CallContext) -> str:
        if broken:
            raise KeyError("account")
        await ctx.confirm()
        return "paid"

    house = await open_house(pay)
    expected, code = (CallNotSent, "call_not_sent") if departs == "at_confirm" else (InDoubt, "call_in_doubt")
    with pytest.raises(expected) as caught:
        await house.call(pay, key="k")
    assert caught.value.code == code
    assert isinstance(caught.value.__cause__, KeyError)
    if departs == "at_start":
        assert caught.value.sent == "maybe"
        assert (await house.get("k")).state is State.IN_DOUBT
        return
    assert caught.value.sent == "no"
    assert (await house.get("k")).state is State.READY
    broken.clear()
    outcome = await house.call(pay, key="k")
    assert (outcome.value, outcome.attempts) == ("paid", 2)


async def test_a_bug_after_the_check_is_a_doubt(open_house: OpenHouse) -> None:
    """From the check on something may have left, whatever the exception."""

    @tool(external(departs="at_confirm"))
    async def pay(ctx: CallContext) -> None:
        await ctx.confirm()
        raise KeyError("id")

    @tool(external(departs="at_confirm"))
    def pay_in_thread(ctx: CallContext) -> None:
        ctx.confirm_sync()
        raise KeyError("id")

    house = await open_house(pay, pay_in_thread)
    for each in (pay, pay_in_thread):
        with pytest.raises(InDoubt) as caught:
            await house.call(each, key=each.name)
        assert isinstance(caught.value.__cause__, KeyError)
        assert (await house.get(each.name)).state is State.IN_DOUBT


class Declined(Exception):
    """What a library raises when the receiver said no."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


def is_declined(error: BaseException) -> bool:
    """A predicate that fails on what it does not expect."""
    return bool(error.code == "declined")  # type: ignore[attr-defined]


OUTCOMES: list[tuple[Callable[[], BaseException], AttemptOutcome, State, type[TollhouseError], str]] = [
    (lambda: NotSent("no route"), AttemptOutcome.NOT_SENT, State.READY, CallNotSent, "no"),
    (lambda: Rejected("no such account"), AttemptOutcome.REJECTED, State.FAILED, CallFailed, "yes"),
    (lambda: Declined("declined"), AttemptOutcome.REJECTED, State.FAILED, CallFailed, "yes"),
    (lambda: PermissionError("not yours"), AttemptOutcome.REJECTED, State.FAILED, CallFailed, "yes"),
    (lambda: Declined("maybe later"), AttemptOutcome.UNKNOWN, State.IN_DOUBT, InDoubt, "maybe"),
    (lambda: ValueError("bad reply"), AttemptOutcome.UNKNOWN, State.IN_DOUBT, InDoubt, "maybe"),
    (TimeoutError, AttemptOutcome.UNKNOWN, State.IN_DOUBT, InDoubt, "maybe"),
    (lambda: ConnectionRefusedError("refused"), AttemptOutcome.UNKNOWN, State.IN_DOUBT, InDoubt, "maybe"),
    (lambda: SystemExit(1), AttemptOutcome.UNKNOWN, State.IN_DOUBT, InDoubt, "maybe"),
    (asyncio.CancelledError, AttemptOutcome.UNKNOWN, State.IN_DOUBT, InDoubt, "maybe"),
    (GeneratorExit, AttemptOutcome.UNKNOWN, State.IN_DOUBT, InDoubt, "maybe"),
    (StopIteration, AttemptOutcome.UNKNOWN, State.IN_DOUBT, InDoubt, "maybe"),
]


async def test_an_exception_is_unknown_until_proven_otherwise(open_house: OpenHouse) -> None:
    """Proof is the tool's own word, or the contract's; everything else may have taken effect. Sync or async."""

    @tool(external(rejects=[is_declined, PermissionError, 409]))
    async def act(number: int) -> None:
        raise OUTCOMES[number][0]()

    @tool(external(rejects=[is_declined, PermissionError, 409]))
    def act_in_thread(number: int) -> None:
        raise OUTCOMES[number][0]()

    house = await open_house(act, act_in_thread)
    for each in (act, act_in_thread):
        for number, (raised, outcome, state, error, sent) in enumerate(OUTCOMES):
            with pytest.raises(error) as caught:
                await house.call(each, {"number": number}, key=f"{each.name}-{number}")
            record = await house.get(f"{each.name}-{number}")
            assert (record.attempts[0].outcome, record.state, caught.value.sent) == (outcome, state, sent), number
            assert (cause := caught.value.__cause__) is not None
            assert isinstance(cause, type(raised())) or isinstance(cause.__cause__, StopIteration | GeneratorExit)


async def test_an_exception_that_fails_when_it_is_read_is_recorded_all_the_same(open_house: OpenHouse) -> None:
    """Foreign code runs while an exception is looked at; no caller waits for ever because of it."""

    class Hostile(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

        @property
        def response(self) -> Any:
            raise RuntimeError("no response")

    @tool(external(rejects=[409]))
    async def act() -> None:
        raise Hostile

    house = await open_house(act)
    with pytest.raises(InDoubt):
        await house.call(act, key="k")
    record = await house.get("k")
    assert record.error is not None
    assert record.error["type"] == "Hostile"


@pytest.mark.parametrize("declared", [True, False])
async def test_long_work_is_accepted_under_its_reference_and_absence_does_not_end_it(
    open_house: OpenHouse, declared: bool
) -> None:
    """Raised or returned, declared or not: the receiver confirmed a job, so a look-up that sees nothing proves
    nothing; only a word about the job does."""
    answers = [did_not_happen("no such entry"), did_not_happen("cancelled", job_status="cancelled")]

    def look(record: Any) -> Any:
        return answers.pop(0)

    @tool(external(accepts=declared, absent_after_s=0), reconcile=look)
    async def start(raised: bool) -> Any:
        if raised:
            raise Accepted("job-1")
        return Accepted("job-2")

    house = await open_house(start)
    for raised, reference in ((True, "job-1"), (False, "job-2")):
        outcome = await house.call(start, {"raised": raised}, key=reference)
        assert (outcome.state, outcome.reference, outcome.value) == (State.ACCEPTED, reference, None)
        assert (await house.call(start, {"raised": raised}, key=reference)).state is State.ACCEPTED
    assert (await house.reconcile("job-1")).state is State.ACCEPTED
    assert (await house.reconcile("job-1")).state is State.FAILED


async def test_errors_are_bounded_and_show_no_secret(open_house: OpenHouse) -> None:
    """The record keeps type and a short message, without credentials, query strings or the tool's own secrets."""

    @tool(external())
    async def act(ctx: CallContext) -> None:
        where = "https://user:pa55@shop.example/pay?token=t0ken"
        raise ValueError(f"{where} refused {ctx.secrets['api']} " + "x" * 10_000)

    house = await open_house(act, secrets=lambda _tool: {"api": "s3cret"})
    with pytest.raises(InDoubt) as caught:
        await house.call(act, key="k")
    record = await house.get("k")
    assert record.error is not None
    assert len(record.error["message"]) <= 500
    for text in (str(caught.value), str(record.error), str(record.history)):
        for secret in ("pa55", "t0ken", "s3cret"):
            assert secret not in text
    assert "shop.example/pay" in record.error["message"]


async def test_a_secret_that_begins_like_another_hides_both_whole(open_house: OpenHouse) -> None:
    """No rest of the longer one is left over, in whatever order they are granted."""

    @tool(external())
    async def act(ctx: CallContext) -> None:
        raise ValueError(f"refused {ctx.secrets['long']}")

    house = await open_house(act, secrets=lambda _tool: {"short": "live", "long": "live-4711"})
    with pytest.raises(InDoubt) as caught:
        await house.call(act, key="k")
    assert "4711" not in str(caught.value)


@pytest.mark.parametrize("secret", [b"s3cret", 4711, None])
async def test_a_secret_that_is_no_text_stops_the_call_before_it_departs(open_house: OpenHouse, secret: Any) -> None:
    """It could not be kept out of an error, which is too late to find out once something was sent."""

    @tool(external())
    async def act() -> None:
        raise ValueError("never called")

    house = await open_house(act, secrets=lambda _tool: {"api": secret})
    with pytest.raises(Refused, match="secrets") as caught:
        await house.call(act, key="k")
    assert caught.value.sent == "no"
    assert await house.list() == []


# -- the check says no ---------------------------------------------------------------------------------------------


async def refused(
    house: Tollhouse, tools: Any, meanwhile: Callable[[], Awaitable[Any]], asked: asyncio.Event, go: asyncio.Event
) -> Any:
    """The call whose attempt was checked after something happened meanwhile."""
    call = asyncio.create_task(house.call(tools, key="k"))
    await asked.wait()
    await meanwhile()
    go.set()
    with pytest.raises(Exception) as caught:  # noqa: PT011 - each test says which below
        await call
    return caught.value


@pytest.mark.usefixtures("every_check_reads")
@pytest.mark.parametrize("check", [confirm, confirm_in_thread])
@pytest.mark.parametrize("event", ["settled", "set aside", "cancelled", "lost fences"])
async def test_the_check_refuses_what_may_not_send_any_more(open_house: OpenHouse, event: str, check: Check) -> None:
    """Settled or set aside by another process, cancelled there, or a store that cannot be asked: nothing leaves."""
    asked, go, refusals, effects = asyncio.Event(), asyncio.Event(), [], []

    @tool(external(departs="at_confirm"))
    async def pay(ctx: CallContext) -> None:
        asked.set()
        await go.wait()
        try:
            await check(ctx)
        except NotSent as no:
            refusals.append(no)
            raise
        effects.append(1)

    house = await open_house(pay, interfering=True)
    other = await open_house(pay)

    async def meanwhile() -> None:
        match event:
            case "settled":
                await other.resolve("k", happened("by hand"), reason="seen", by="ada", force=True)
            case "set aside":
                await other.resolve("k", did_not_happen("looked"), reason="stuck", by="ada", force=True)
            case "cancelled":
                await other.cancel("k", by="ada")
            case _:
                interfering(house).lose_fences = True

    await refused(house, pay, meanwhile, asked, go)
    assert effects == []
    assert len(refusals) == 1
    after = await settled_down(house, "k")
    assert after.attempts[0].outcome is AttemptOutcome.NOT_SENT
    expected = {"settled": State.SUCCEEDED, "set aside": State.FAILED, "cancelled": State.READY}
    assert after.state is expected.get(event, State.READY)
    # Nothing was sent although somebody said that it had happened: that must be looked at.
    assert after.contradicted is (event == "settled")


async def test_the_check_refuses_after_the_time_is_up(open_house: OpenHouse) -> None:
    """Nobody waits for the attempt any more, so it may not begin to have an effect either."""
    refusals: list[BaseException] = []
    over = asyncio.Event()

    @tool(external(attempt_timeout_s=0.4, departs="at_confirm"))
    async def pay(ctx: CallContext) -> None:
        await asyncio.sleep(ctx.remaining_s + 0.01)
        try:
            await ctx.confirm()
        except NotSent as no:
            refusals.append(no)
            over.set()
            raise

    house = await open_house(pay)
    with pytest.raises((InDoubt, CallNotSent)):
        await house.call(pay, key="k")
    await over.wait()
    assert "out of time" in str(refusals[0])
    assert (await settled_down(house, "k")).state is State.READY


async def test_the_check_refuses_once_the_lease_is_over(open_house: OpenHouse) -> None:
    """A process that could not renew knows by its own clock that others may have set it aside; it asks nobody."""
    refusals: list[BaseException] = []

    @tool(external(departs="at_confirm"))
    async def pay(ctx: CallContext) -> None:
        await asyncio.sleep(1.05)
        try:
            await ctx.confirm()
        except NotSent as no:
            refusals.append(no)
            raise

    house = await open_house(pay, interfering=True, lease_s=1.0)
    interfering(house).lose_renewals = True
    with pytest.raises(CallNotSent):
        await house.call(pay, key="k")
    assert "lease" in str(refusals[0])
    assert interfering(house).fences == 0


async def test_the_check_refuses_when_the_attempt_has_ended(open_house: OpenHouse) -> None:
    """What a tool leaves running behind its back sends nothing."""
    kept: list[CallContext] = []

    @tool(external())
    async def pay(ctx: CallContext) -> str:
        kept.append(ctx)
        return "paid"

    house = await open_house(pay)
    await house.call(pay, key="k")
    with pytest.raises(NotSent, match="ended"):
        await kept[0].confirm()


async def test_a_departure_heard_of_late_is_checked_again(open_house: OpenHouse) -> None:
    """A process may stand still between the commit and its hearing of it; meanwhile a person may settle the call."""

    @tool(external())
    async def pay(ctx: CallContext) -> None:
        await ctx.confirm()
        sent.append(ctx.attempt)

    sent: list[int] = []
    house, other = await open_house(pay, interfering=True), await open_house(pay)
    store = interfering(house)
    store.hold_next()
    call = asyncio.ensure_future(house.call(pay, key="k"))
    await store.held.wait()
    await other.resolve("k", did_not_happen("nothing there"), reason="looked", by="ada", force=True)
    await asyncio.sleep(context_module.COMMIT_IS_CHECK_US / 1e6)
    store.let_go()
    with pytest.raises(CallFailed):
        await call
    assert sent == []
    assert not (await other.get("k")).contradicted


async def test_a_check_soon_after_commit_1_reads_nothing(
    open_house: OpenHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Soon after it began, commit 1 is itself the check; every further send is checked anew."""
    monkeypatch.setattr(context_module, "COMMIT_IS_CHECK_US", 60_000_000)  # however busy this machine is

    @tool(external())
    async def pay(ctx: CallContext) -> None:
        await ctx.confirm()
        first.append(store.fences)
        await ctx.confirm()

    first: list[int] = []
    house = await open_house(pay, interfering=True)
    store = interfering(house)
    await house.call(pay, key="k")
    assert first == [0]
    assert store.fences == 1


@pytest.mark.usefixtures("every_check_reads")
async def test_a_second_check_that_is_refused_says_nothing_about_the_first_send(open_house: OpenHouse) -> None:
    """The first send passed its check, so the call is in doubt although the last word was no."""

    @tool(external(departs="at_confirm"))
    async def pay(ctx: CallContext) -> None:
        await ctx.confirm()
        interfering(house).lose_fences = True
        await ctx.confirm()

    house = await open_house(pay, interfering=True)
    with pytest.raises(InDoubt):
        await house.call(pay, key="k")
    assert (await house.get("k")).attempts[0].outcome is AttemptOutcome.UNKNOWN


@pytest.mark.usefixtures("every_check_reads")
async def test_a_blocking_check_on_the_event_loop_says_no_instead_of_blocking(open_house: OpenHouse) -> None:
    """``confirm_sync`` in an ``async def`` tool would wait for the very loop it stands on."""

    @tool(external(departs="at_confirm"))
    async def pay(ctx: CallContext) -> None:
        ctx.confirm_sync()

    house = await open_house(pay)
    with pytest.raises(CallNotSent, match=r"ctx\.confirm"):
        await asyncio.wait_for(house.call(pay, key="k"), 2.0)


# -- what a context knows --------------------------------------------------------------------------------------------


async def test_a_context_knows_its_call(open_house: OpenHouse, house_tenant: str) -> None:
    """Key, wire key, attempt, who asked, how long there is, and the secrets that the tool was granted."""
    seen: list[Any] = []

    @tool(external(attempt_timeout_s=5))
    async def pay(cents: int, ctx: CallContext) -> None:
        seen.append((ctx.key, ctx.idempotency_key, ctx.attempt, ctx.tenant, ctx.principal, ctx.secrets))
        assert 0 < ctx.remaining_s <= 5
        assert abs(ctx.deadline - time.time() - ctx.remaining_s) < 0.5
        assert ctx.subkey("mail") == f"{ctx.idempotency_key}/mail" == ctx.subkey("mail")
        with pytest.raises(InvalidKey):
            ctx.subkey("a/b")

    house = await open_house(pay, secrets=lambda name: {"of": name}, principal="ada")
    await house.call(pay, {"cents": 1}, key="k")
    await house.call(pay, {"cents": 1}, key="k2", by="bob")
    assert seen == [
        ("k", f"{house_tenant}:k", 1, house_tenant, "ada", {"of": "pay"}),
        ("k2", f"{house_tenant}:k2", 1, house_tenant, "bob", {"of": "pay"}),
    ]


async def test_secrets_that_cannot_be_had_stop_the_call_before_it_departs(open_house: OpenHouse) -> None:
    """Nothing is written or sent, the key stays free, and no secret is shown."""
    broken = [True]

    @tool(external())
    async def pay(ctx: CallContext) -> str:
        return ctx.secrets["api"]

    @tool(read())
    async def look(ctx: CallContext) -> str:
        return ctx.secrets["api"]

    def secrets(_tool: str) -> dict[str, str]:
        if broken:
            raise RuntimeError("vault s3cret away")
        return {"api": "s3cret"}

    house = await open_house(pay, look, secrets=secrets)
    for each in (pay, look):
        with pytest.raises(Exception, match="secrets") as caught:
            await house.call(each, key=each.name)
        assert caught.value.code == "call_refused"  # type: ignore[attr-defined]
        assert caught.value.sent == "no"  # type: ignore[attr-defined]
        assert "s3cret" not in str(caught.value)
    assert await house.list() == []
    broken.clear()
    assert (await house.call(pay, key="pay")).value == "s3cret"
    assert (await house.call(look, key="look")).value == "s3cret"


@pytest.mark.parametrize("effect", [external(), read()], ids=["effect", "read"])
async def test_a_def_function_that_wraps_an_async_one_is_run_to_its_end(open_house: OpenHouse, effect: Any) -> None:
    """What it returns is still to be done: until then nothing happened."""

    async def charge() -> str:
        effects.append(1)
        return "ch-1"

    @tool(effect)
    def pay() -> Any:
        return charge()

    effects: list[int] = []
    outcome = await (await open_house(pay)).call(pay, key="k")
    assert (outcome.value, outcome.problem, effects) == ("ch-1", None, [1])
