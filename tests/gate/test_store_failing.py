"""A store that fails before commit 1, between the commits, or after commit 2, and bookkeeping that fails after
success: the caller hears the truth about what was sent, and nothing is sent twice."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from tests.support.houses import OpenHouse, interfering, quiet, settled_down, until
from tollhouse import AttemptOutcome, CallContext, Rejected, State, dedup, external, hold_repeats, read, tool
from tollhouse.errors import (
    CallFailed,
    Held,
    InDoubt,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
    StoreUnavailable,
    TollhouseError,
)
from tollhouse.gate import leftovers
from tollhouse.gate import sending as sending_module
from tollhouse.gate.results import Unavailable

sent: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_sent_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    sent.clear()
    monkeypatch.setattr(sending_module, "BACKOFF_FIRST_S", 0.02)
    monkeypatch.setattr(leftovers, "PAUSE_FIRST_S", 0.02)


@tool(external())
async def pay(cents: int = 5) -> str:
    """Pay."""
    sent.append(cents)
    return f"paid {cents}"


ERRORS = [
    StoreUnavailable("The store is away."),
    StoreFull("The store is full."),
    StoreReadOnly("The store is read-only."),
    StoreLocked("The store is locked."),
]


# case H03
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_store_that_fails_at_commit_1_sends_nothing(open_house: OpenHouse, when: Any) -> None:
    """The caller hears so; once it is back, the same key runs once, whether the commit had been applied or not."""
    house = await open_house(pay, interfering=True)
    for number, error in enumerate(ERRORS):
        interfering(house).fail_next(when, error=error)
        with pytest.raises(StoreUnavailable) as caught:
            await house.call(pay, key=f"k{number}")
        assert caught.value.code == error.code
        assert caught.value.sent == "no"
        assert caught.value.key == f"k{number}"
        assert "same key" in caught.value.remedy
        assert sent == []
        outcome = await house.call(pay, key=f"k{number}")
        assert outcome.value == "paid 5"
        assert sent == [5]
        assert outcome.attempts == (2 if when == "after" else 1)
        outcomes = [attempt.outcome for attempt in (await house.get(f"k{number}")).attempts]
        assert outcomes == [AttemptOutcome.NOT_SENT] * (when == "after") + [AttemptOutcome.HAPPENED]
        sent.clear()


# case H03
async def test_a_departure_that_was_not_acknowledged_is_put_back_with_no_caller(open_house: OpenHouse) -> None:
    """Applied, but never heard of: the call does not stay departed for as long as the process lives."""
    house = await open_house(pay, interfering=True)
    interfering(house).fail_next("after")
    with pytest.raises(StoreUnavailable):
        await house.call(pay, key="k")
    record = await until(house, "k", lambda call: call.state is not State.DEPARTED)
    assert (record.state, record.attempts[0].outcome) == (State.READY, AttemptOutcome.NOT_SENT)
    assert sent == []


async def test_a_caller_need_not_wait_until_it_is_put_back(
    open_house: OpenHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process knows that the attempt never started, so the same key goes at once."""
    monkeypatch.setattr(leftovers, "PAUSE_FIRST_S", 60)
    house = await open_house(pay, interfering=True, grace_s=0.05)
    interfering(house).fail_next("after")
    interfering(house).fail_next("before")
    with pytest.raises(StoreUnavailable):
        await house.call(pay, key="k")
    await interfering(house).all_failed()
    assert (await house.get("k")).state is State.DEPARTED
    outcome = await house.call(pay, key="k")
    assert (outcome.value, sent) == ("paid 5", [5])


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_store_that_fails_when_an_approved_call_departs_sends_nothing(open_house: OpenHouse, when: Any) -> None:
    """The approval is not lost with it."""

    @tool(external(approval=True))
    async def wire() -> str:
        sent.append(1)
        return "wired"

    house = await open_house(wire, interfering=True)
    with pytest.raises(Held):
        await house.call(wire, key="k")
    await house.approve("k", by="ada")
    interfering(house).fail_next(when)
    with pytest.raises(StoreUnavailable) as caught:
        await house.call(wire, key="k")
    assert (caught.value.sent, sent) == ("no", [])
    assert (await house.call(wire, key="k")).value == "wired"
    assert sent == [1]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_store_that_fails_when_a_call_is_held_sends_nothing(open_house: OpenHouse, when: Any) -> None:
    """A question that could not be written down is asked again."""

    @tool(external(approval=True))
    async def wire() -> None: ...

    house = await open_house(wire, interfering=True)
    interfering(house).fail_next(when)
    with pytest.raises(StoreUnavailable) as caught:
        await house.call(wire, key="k")
    assert caught.value.sent == "no"
    with pytest.raises(Held):
        await house.call(wire, key="k")
    assert [call.state for call in await house.list()] == [State.HELD]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_store_that_fails_at_commit_2_keeps_the_outcome_until_it_is_back(
    open_house: OpenHouse, when: Any
) -> None:
    """The caller hears at once that it was sent; the outcome is written as soon as that is possible, and replays."""
    house = await open_house(pay, interfering=True)

    @tool(external())
    async def act(cents: int) -> str:
        interfering(house).fail_next(when, times=2)
        sent.append(cents)
        if cents == 0:
            raise Rejected("nothing to pay")
        if cents < 0:
            raise ValueError("reply lost")
        return f"paid {cents}"

    house = await open_house(act, interfering=True)
    for cents, told in ((5, "yes"), (0, "yes"), (-5, "maybe")):
        with pytest.raises(StoreUnavailable) as caught:
            await house.call(act, {"cents": cents}, key=f"k{cents + 5}")
        assert caught.value.sent == told
        assert "written when the store is back" in caught.value.remedy
        await quiet(house)
    assert (await house.call(act, {"cents": 5}, key="k10")).value == "paid 5"
    with pytest.raises(CallFailed):
        await house.call(act, {"cents": 0}, key="k5")
    with pytest.raises(InDoubt):
        await house.call(act, {"cents": -5}, key="k0")
    assert sent == [5, 0, -5]


async def test_same_key_callers_wait_for_an_outcome_that_is_not_written_yet(open_house: OpenHouse) -> None:
    """The attempt is over but its outcome is still in memory: nobody takes it for lost, and nobody is told that
    nothing was sent."""

    @tool(external())
    async def act() -> str:
        interfering(house).fail_next("before", times=1000)
        sent.append(1)
        return "done"

    house = await open_house(act, interfering=True)
    for told in ("yes", "maybe"):
        with pytest.raises(StoreUnavailable) as caught:
            await house.call(act, key="k")
        assert caught.value.sent == told
    interfering(house).recover()
    assert (await house.call(act, key="k")).value == "done"
    assert sent == [1]


async def test_a_full_store_keeps_the_outcome_without_its_body(open_house: OpenHouse) -> None:
    """Succeeded is what matters; the first caller and every replay are told that the value had no room."""

    @tool(external())
    async def act() -> str:
        interfering(house).fail_next("before", error=StoreFull("The store is full."))
        return "x" * 100_000

    house = await open_house(act, interfering=True)
    for replayed in (False, True):
        outcome = await house.call(act, key="k")
        assert (outcome.state, outcome.replayed, outcome.problem) == (State.SUCCEEDED, replayed, "no_space")
        assert isinstance(outcome.value, Unavailable)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_store_that_fails_at_a_resend_neither_loses_nor_doubles_it(open_house: OpenHouse, when: Any) -> None:
    """The end of one attempt and the beginning of the next are one commit, repeated under one id until it is known."""

    @tool(external(dedup=dedup.by_key(hours=24)))
    async def act(ctx: CallContext) -> str:
        sent.append(ctx.attempt)
        if ctx.attempt == 1:
            interfering(house).fail_next(when)
            raise ConnectionResetError
        return "done"

    house = await open_house(act, interfering=True)
    with pytest.raises(StoreUnavailable) as caught:
        await house.call(act, key="k")
    assert caught.value.sent == "maybe"
    outcome = await house.call(act, key="k")
    assert (outcome.value, outcome.attempts, sent) == ("done", 2, [1, 2])
    record = await house.get("k")
    assert [attempt.outcome for attempt in record.attempts] == [AttemptOutcome.UNKNOWN, AttemptOutcome.HAPPENED]
    begun = [line.facts["attempt"] for line in record.history if line.kind in ("departed", "resent")]
    assert begun == [attempt.id for attempt in record.attempts]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_store_that_fails_when_the_wait_ends_leaves_no_attempt_that_nobody_runs(
    open_house: OpenHouse, when: Any
) -> None:
    """A resend after a timeout that was not acknowledged is known not to have started."""
    entered, go = asyncio.Event(), asyncio.Event()

    @tool(external(dedup=dedup.by_key(hours=24), attempt_timeout_s=0.5, max_attempts=2))
    async def act(ctx: CallContext) -> str:
        sent.append(ctx.attempt)
        entered.set()
        await go.wait()
        return "done"

    house = await open_house(act, interfering=True)
    call = asyncio.create_task(house.call(act, key="k"))
    await entered.wait()
    interfering(house).fail_next(when)
    with pytest.raises(StoreUnavailable) as caught:
        await call
    assert caught.value.sent == "maybe"
    go.set()
    record = await settled_down(house, "k")
    assert record.state is State.SUCCEEDED
    assert record.result == "done"
    assert sent == [1]


async def told_by(call: Any) -> Any:
    """What a caller got or was told."""
    try:
        return await call
    except TollhouseError as error:
        return error


@pytest.mark.parametrize("when", ["before", "after"])
async def test_whichever_write_fails_there_is_one_effect_and_no_call_stays_departed(
    open_house: OpenHouse, when: Any
) -> None:
    """Fail the nth write of a call that is sent twice, for n = 1, 2, 3, until none fails any more."""

    @tool(external(dedup=dedup.by_key(hours=24)))
    async def act(key: str, ctx: CallContext) -> str:
        if key not in effects:
            effects.append(key)
            raise ConnectionResetError
        return "done"

    effects: list[str] = []
    house = await open_house(act, interfering=True)
    store = interfering(house)
    for n in range(5):
        key = f"k{n}"
        store.fail_nth(n, when)
        told: Any = await asyncio.wait_for(told_by(house.call(act, {"key": key}, key=key)), 30)
        assert isinstance(told, StoreUnavailable) is (n < 3), "each of three commits was failed once"
        assert (getattr(told, "sent", "yes") == "no") is (n == 0)
        store.recover()
        outcome = await house.call(act, {"key": key}, key=key)
        assert outcome.value == "done", n
        await quiet(house)
        assert (await house.get(key)).state is State.SUCCEEDED
        assert effects.count(key) == 1


# -- after the outcome -----------------------------------------------------------------------------------------------


# case C53
async def test_a_listener_that_raises_changes_nothing(open_house: OpenHouse) -> None:
    """The outcome is on record before anybody is told; a client that comes again finds it under the same key."""
    house_told: list[str] = []

    def listen(kind: str, _facts: Any) -> None:
        house_told.append(kind)
        raise RuntimeError("listener broken")

    @tool(external(approval=True))
    async def wire() -> str:
        sent.append(1)
        return "wired"

    @tool(external())
    async def lose() -> None:
        raise ConnectionResetError

    house = await open_house(wire, lose, on_event=listen)
    with pytest.raises(Held):
        await house.call(wire, key="k")
    await house.approve("k", by="ada")
    assert (await house.call(wire, key="k")).value == "wired"
    assert (await house.call(wire, key="k")).replayed
    with pytest.raises(InDoubt):
        await house.call(lose, key="k2")
    assert (house_told, sent) == (["call_held", "doubt_appeared"], [1])


@pytest.fixture
def broken_log_handler() -> Iterator[None]:
    """Somebody's log handler that raises."""

    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError("disk full")

    handler = Broken()
    logging.getLogger("tollhouse").addHandler(handler)
    yield
    logging.getLogger("tollhouse").removeHandler(handler)


# case C53
@pytest.mark.usefixtures("broken_log_handler")
async def test_a_log_handler_that_raises_changes_nothing(open_house: OpenHouse) -> None:
    """No caller waits for ever because a line could not be logged."""

    @tool(external())
    async def lose() -> None:
        raise ConnectionResetError

    house = await open_house(lose, pay)
    with pytest.raises(InDoubt):
        await asyncio.wait_for(house.call(lose, key="k"), 30)
    assert (await house.call(pay, key="k2")).value == "paid 5"


class Costs:
    """A cost that fails as often as told."""

    def __init__(self, failures: int) -> None:
        self.failures = failures

    def __call__(self, arguments: Any, result: Any) -> Decimal:
        if self.failures:
            self.failures -= 1
            raise ZeroDivisionError
        return Decimal(arguments["cents"]) / 100


# case H13
async def test_a_cost_that_cannot_be_booked_leaves_the_success_and_a_gap_that_is_repaired(
    open_house: OpenHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Succeeded stands; the gap is shown in the history, and closed by the services when that is possible."""
    from tollhouse.gate import costs

    monkeypatch.setattr(costs, "REPAIR_AFTER_US", 1000)

    @tool(external(cost=Costs(failures=2)))
    async def act(cents: int) -> str:
        sent.append(cents)
        return "done"

    house = await open_house(act, background=True, every_s=0.02)
    outcome = await house.call(act, {"cents": 250}, key="k")
    assert (outcome.state, outcome.value) == (State.SUCCEEDED, "done")
    record = await until(house, "k", lambda call: call.attempts[0].cost is not None)
    assert record.attempts[0].cost == "2.5"
    kinds = [line.kind for line in record.history]
    assert kinds[:3] == ["departed", "outcome", "bookkeeping_gap"]
    assert kinds[-1] == "gap_repaired"
    assert (record.state, record.result, sent) == (State.SUCCEEDED, "done", [250])


# case H13
async def test_costs_are_booked_once_for_each_sending_and_never_for_a_replay(open_house: OpenHouse) -> None:
    """Nothing sent costs nothing; a read that ran twice cost twice."""
    tries: list[int] = []

    @tool(read(cost=Decimal("0.10")))
    async def look() -> int:
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionResetError
        return 1

    @tool(external(cost=0.25, departs="at_confirm"))
    async def act(ctx: CallContext) -> None:
        tries.append(2)
        if tries.count(2) == 1:
            raise KeyError("bug")
        await ctx.confirm()

    house = await open_house(look, act)
    for _ in range(2):
        await house.call(look, key="r")
    with pytest.raises(TollhouseError):
        await house.call(act, key="a")
    await house.call(act, key="a")
    assert [attempt.cost for attempt in (await house.get("r")).attempts] == ["0.10", "0.10"]
    assert [attempt.cost for attempt in (await house.get("a")).attempts] == [None, "0.25"]


async def test_a_house_that_closes_while_its_store_is_away_lets_nobody_wait_for_ever(open_house: OpenHouse) -> None:
    """The outcome that could not be written becomes a doubt, visible to whoever opens the store next."""

    @tool(external())
    async def act() -> str:
        interfering(house).fail_next("before", times=1000)
        sent.append(1)
        return "done"

    house = await open_house(act, interfering=True, lease_s=0.4, grace_s=0.1)
    with pytest.raises(StoreUnavailable):
        await house.call(act, key="k")
    await asyncio.wait_for(house.close(), 10)
    after = await open_house(act, background=True, lease_s=0.4)
    record = await until(after, "k", lambda call: call.state is not State.DEPARTED)
    assert record.state is State.IN_DOUBT
    assert sent == [1]


async def test_repeats_that_meet_a_failing_store_are_still_one(open_house: OpenHouse) -> None:
    """Held or departed, the twin check is part of the commit that may be repeated."""

    @tool(external(on_repeat=hold_repeats(within_s=60)))
    async def act() -> None:
        sent.append(1)

    house = await open_house(act, interfering=True)
    interfering(house).fail_next("after")
    with pytest.raises(StoreUnavailable):
        await house.call(act, key="a", scope="run-1")
    with pytest.raises(Held):
        await house.call(act, key="b", scope="run-1")
    await house.call(act, key="a", scope="run-1")
    assert sent == [1]
