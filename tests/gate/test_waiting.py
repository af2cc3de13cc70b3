"""Callers of one key in one process: one sends and all get its outcome; whoever leaves stops nobody and nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.houses import OpenHouse, interfering, settled_down
from tollhouse import AttemptOutcome, CallContext, State, dedup, external, read, tool
from tollhouse.errors import CallFailed, CallInFlight, CallNotSent, InDoubt


class Door:
    """A tool's way to the world: it counts, and waits until it is opened."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.opened = asyncio.Event()
        self.effects = 0

    async def go(self) -> int:
        self.entered.set()
        await self.opened.wait()
        self.effects += 1
        return self.effects


async def test_a_hundred_callers_of_one_key_make_one_effect(open_house: OpenHouse) -> None:
    """All get the value; all but one are told that it was recorded before."""
    door = Door()

    @tool(external())
    async def pay() -> int:
        return await door.go()

    house = await open_house(pay)
    calls = [asyncio.create_task(house.call(pay, key="k")) for _ in range(100)]
    await door.entered.wait()
    door.opened.set()
    outcomes = await asyncio.gather(*calls)
    assert [outcome.value for outcome in outcomes] == [1] * 100
    assert sum(not outcome.replayed for outcome in outcomes) == 1
    assert len((await house.get("k")).attempts) == 1


async def test_a_hundred_callers_all_hear_a_failure(open_house: OpenHouse) -> None:
    """Failed replays as failure, to those who waited as to those who come later."""

    @tool(external(rejects=ValueError))
    async def pay() -> None:
        raise ValueError("no such account")

    house = await open_house(pay)
    outcomes = await asyncio.gather(*(house.call(pay, key="k") for _ in range(100)), return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {CallFailed}
    assert len((await house.get("k")).attempts) == 1


async def test_a_caller_that_does_not_wait_is_told_at_once(open_house: OpenHouse) -> None:
    """``wait=False``: in flight, which is neither a failure nor a reason to send."""
    door = Door()

    @tool(external())
    async def pay() -> int:
        return await door.go()

    house = await open_house(pay)
    first = asyncio.create_task(house.call(pay, key="k"))
    await door.entered.wait()
    with pytest.raises(CallInFlight) as caught:
        await house.call(pay, key="k", wait=False)
    assert (caught.value.code, caught.value.sent, caught.value.key) == ("call_in_flight", "maybe", "k")
    door.opened.set()
    assert (await first).value == 1
    assert (await house.call(pay, key="k", wait=False)).replayed


async def test_a_waiting_caller_may_bound_its_wait(open_house: OpenHouse) -> None:
    """Its ``deadline_s`` ends its own wait, nothing else."""
    door = Door()

    @tool(external())
    async def pay() -> int:
        return await door.go()

    house = await open_house(pay)
    first = asyncio.create_task(house.call(pay, key="k"))
    await door.entered.wait()
    with pytest.raises(CallInFlight):
        await house.call(pay, key="k", deadline_s=0.05)
    door.opened.set()
    assert (await first).value == 1


async def test_a_waiter_that_leaves_disturbs_nobody(open_house: OpenHouse) -> None:
    """Only the caller who sent ends the wait for all; a waiter's cancel is its own affair."""
    door = Door()

    @tool(external())
    async def pay() -> int:
        return await door.go()

    house = await open_house(pay)
    first = asyncio.create_task(house.call(pay, key="k"))
    await door.entered.wait()
    waiters = [asyncio.create_task(house.call(pay, key="k")) for _ in range(3)]
    await asyncio.sleep(0.03)
    waiters[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiters[0]
    door.opened.set()
    assert {(await each).value for each in (first, *waiters[1:])} == {1}
    assert not (await house.get("k")).raw.cancel_asked


async def test_a_cancelled_caller_leaves_a_doubt_at_once_and_the_attempt_goes_on(open_house: OpenHouse) -> None:
    """Cancel ends the wait, not the attempt; its late result settles the doubt."""
    door, told = Door(), []

    @tool(external())
    async def pay() -> int:
        return await door.go()

    def listen(kind: str, facts: Any) -> None:
        told.append((kind, facts["key"]))
        doubted.set() if kind == "doubt_appeared" else settled.set()

    doubted, settled = asyncio.Event(), asyncio.Event()
    house = await open_house(pay, on_event=listen)
    call = asyncio.create_task(house.call(pay, key="k"))
    await door.entered.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await doubted.wait()
    doubt = await house.get("k")
    assert (doubt.state, doubt.attempts[0].running, doubt.raw.cancel_asked) == (State.IN_DOUBT, True, True)
    with pytest.raises(InDoubt):
        await house.call(pay, key="k")
    assert door.effects == 0
    door.opened.set()
    await settled.wait()
    after = await house.call(pay, key="k")
    assert (after.value, after.replayed, door.effects) == (1, True, 1)
    assert told == [("doubt_appeared", "k"), ("doubt_settled", "k")]


async def test_a_caller_cancelled_during_the_first_commit_sends_nothing(open_house: OpenHouse) -> None:
    """Nobody waits for the attempt any more, so it never starts; the call is not left departed."""
    door = Door()

    @tool(external())
    async def pay() -> int:
        return await door.go()

    house = await open_house(pay, interfering=True)
    store = interfering(house)
    store.hold_next()
    call = asyncio.create_task(house.call(pay, key="k"))
    await store.held.wait()
    assert (await house.get("k")).state is State.DEPARTED
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    store.let_go()
    left = await settled_down(house, "k")
    assert left.state is State.READY
    assert [attempt.outcome for attempt in left.attempts] == [AttemptOutcome.NOT_SENT]
    assert not door.entered.is_set()
    door.opened.set()
    assert (await house.call(pay, key="k")).value == 1


async def test_nobody_takes_an_attempt_that_is_just_beginning_for_a_lost_one(open_house: OpenHouse) -> None:
    """Between the commit and the start, a same-key caller that reads the row waits like any other."""
    door = Door()

    @tool(external())
    async def pay() -> int:
        return await door.go()

    house = await open_house(pay, interfering=True)
    store = interfering(house)
    store.hold_next()
    first = asyncio.create_task(house.call(pay, key="k"))
    await store.held.wait()
    second = asyncio.create_task(house.call(pay, key="k"))
    await asyncio.sleep(0.05)
    assert (await house.get("k")).state is State.DEPARTED
    store.let_go()
    door.opened.set()
    assert [(await each).value for each in (first, second)] == [1, 1]
    assert len((await house.get("k")).attempts) == 1


# case C58
async def test_cancel_while_the_tool_prepares_stops_the_effect(open_house: OpenHouse) -> None:
    """The signal is checked again just before the effect: nothing was sent, and the call says so."""
    asked, token, effects = asyncio.Event(), asyncio.Event(), []

    @tool(external())
    async def pay(ctx: CallContext) -> None:
        asked.set()
        await token.wait()
        await ctx.confirm()
        effects.append(1)

    house = await open_house(pay)
    call = asyncio.create_task(house.call(pay, key="k"))
    await asked.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    token.set()
    after = await settled_down(house, "k")
    assert effects == []
    assert (after.state, after.attempts[0].outcome) == (State.READY, AttemptOutcome.NOT_SENT)


async def test_cancel_by_name_stops_what_has_not_left(open_house: OpenHouse) -> None:
    """``house.cancel``: the attempt's next check says no; its caller hears that nothing was sent."""
    asked, token, effects = asyncio.Event(), asyncio.Event(), []

    @tool(external(departs="at_confirm"))
    async def pay(ctx: CallContext) -> None:
        asked.set()
        await token.wait()
        await ctx.confirm()
        effects.append(1)

    house = await open_house(pay)
    call = asyncio.create_task(house.call(pay, key="k"))
    await asked.wait()
    await house.cancel("k", by="ada")
    token.set()
    with pytest.raises(CallNotSent) as caught:
        await call
    assert caught.value.sent == "no"
    assert effects == []


async def test_cancel_forbids_every_resend(open_house: OpenHouse) -> None:
    """A resend is a departure, too: after a cancel, dedup sends nothing again."""
    entered, go = asyncio.Event(), asyncio.Event()
    sendings = []

    @tool(external(dedup=dedup.by_key(hours=24)))
    async def pay(ctx: CallContext) -> None:
        sendings.append(ctx.attempt)
        entered.set()
        await go.wait()
        raise ConnectionResetError

    house = await open_house(pay)
    call = asyncio.create_task(house.call(pay, key="k"))
    await entered.wait()
    await house.cancel("k", by="ada")
    go.set()
    with pytest.raises(InDoubt):
        await call
    with pytest.raises(InDoubt):
        await house.call(pay, key="k")
    assert sendings == [1]


async def test_siblings_that_raise_or_leave_cancel_nobody(open_house: OpenHouse) -> None:
    """Attempts live in the house's own tasks: a task group that fails around them changes nothing."""
    door = Door()

    @tool(external())
    async def credit() -> int:
        return await door.go()

    @tool(read(max_attempts=1))
    async def lookup() -> None:
        await door.entered.wait()
        raise ValueError("not there")

    house = await open_house(credit, lookup)
    with pytest.raises(BaseExceptionGroup):
        async with asyncio.TaskGroup() as group:
            group.create_task(house.call(credit, key="c"))
            group.create_task(house.call(lookup, key="l"))
    door.opened.set()
    assert (await settled_down(house, "c")).state is State.SUCCEEDED
    assert (await house.get("l")).state is State.FAILED
    assert (await house.call(credit, key="c")).value == 1
    assert door.effects == 1
