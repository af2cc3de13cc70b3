"""Closing a house: what is under way gets its grace, what cannot be stopped is not waited for, nothing is lost."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import Any

import pytest

from tests.crash.listening import Heard, eventually, kinds
from tests.crash.process import ROOT
from tests.doubt.scenes import ASKED, KEY
from tests.support.houses import OpenHouse, interfering
from tollhouse import AttemptOutcome, CallContext, State, Tollhouse, did_not_happen, external, happened, tool
from tollhouse.contract.tool import Tool
from tollhouse.errors import CallNotSent, HouseClosed, InDoubt, TollhouseError

LEASE_S = 0.5


class Slow:
    """A tool that begins, and ends when it is told to."""

    def __init__(self) -> None:
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()

    def tool(self) -> Tool[str]:
        """`credit`."""

        @tool(external())
        async def credit(account: str, cents: int) -> str:
            self.begun.set()
            await self.go_on.wait()
            return "cr-1"

        return credit


async def test_attempt_under_way_is_waited_for_within_the_grace(open_house: OpenHouse) -> None:
    """Closing drains: the outcome is written, and the caller gets it."""
    slow = Slow()
    house = await open_house(slow.tool(), grace_s=20.0)
    call = asyncio.ensure_future(house.call("credit", ASKED, key=KEY))
    await slow.begun.wait()
    closing = asyncio.ensure_future(house.close())
    await asyncio.sleep(0.05)
    assert not closing.done()
    slow.go_on.set()
    await closing
    assert (await call).value == "cr-1"
    assert (await (await open_house()).get(KEY)).state is State.SUCCEEDED


async def test_attempt_beyond_the_grace_is_stopped_and_in_doubt(open_house: OpenHouse) -> None:
    """It may have had its effect: unknown, said to its caller and written, at once and not after the lease."""
    slow = Slow()
    house = await open_house(slow.tool(), grace_s=0.05)
    call = asyncio.ensure_future(house.call("credit", ASKED, key=KEY))
    await slow.begun.wait()
    await house.close()
    with pytest.raises(InDoubt):
        await call
    record = await (await open_house()).get(KEY)
    assert (record.state, record.attempts[0].outcome) == (State.IN_DOUBT, AttemptOutcome.UNKNOWN)
    assert not record.raw.cancel_asked


async def test_closed_house_refuses_everything(open_house: OpenHouse) -> None:
    """With one code, before anything is read or sent; closing again does nothing."""
    slow = Slow()
    slow.go_on.set()
    house = await open_house(slow.tool())
    await house.call("credit", ASKED, key=KEY)
    await house.close()
    await house.close()
    asked: list[Any] = [
        house.call("credit", ASKED, key="other"),
        house.call("credit", ASKED, key=KEY),
        house.get(KEY),
        house.count(),
        house.wait(KEY),
        house.reconcile(KEY),
        house.resolve(KEY, happened(), by="ada", reason="seen"),
        house.report(KEY, happened(), reference="x"),
        house.approve(KEY, by="ada"),
        house.deny(KEY, by="ada", reason="no"),
        house.edit(KEY, {}, by="ada"),
        house.retry(KEY, by="ada", reason="again"),
        house.cancel(KEY, by="ada"),
        house.overturn(KEY, by="ada", reason="no"),
        house.uphold(KEY, by="ada", reason="yes"),
        house.compensate(KEY, by="ada", reason="undo"),
    ]
    for one in asked:
        with pytest.raises(HouseClosed) as closed:
            await one
        assert closed.value.sent == "no"
    with pytest.raises(HouseClosed):
        await house.list()


async def test_gracefully_closed_house_gives_its_lease_up(open_house: OpenHouse) -> None:
    """Nobody need wait for its end to know that nothing runs there."""
    house = await open_house(lease_s=600.0)
    owner_id = house._core.owner_id
    await house.close()
    other = await open_house()
    owner = await other.store.owner(other._core.tenant, owner_id)
    assert owner is not None
    assert owner.ended_at_us is not None


async def test_thread_that_goes_on_keeps_its_attempt_until_the_lease_ends(open_house: OpenHouse) -> None:
    """A thread cannot be stopped, so after closing it still counts as out: absence proves nothing about it."""
    begun, go_on = threading.Event(), threading.Event()

    @tool(external(absent_after_s=0.0), reconcile=lambda _call: did_not_happen())
    def credit(account: str, cents: int) -> str:
        begun.set()
        go_on.wait(20)
        return "cr-1"

    house = await open_house(credit, grace_s=0.05, lease_s=LEASE_S)
    call = asyncio.ensure_future(house.call("credit", ASKED, key=KEY))
    await asyncio.to_thread(begun.wait, 20)
    async with asyncio.timeout(10):
        await house.close()
    with pytest.raises((InDoubt, HouseClosed)):
        await call
    other = await open_house(credit, lease_s=LEASE_S)
    owner = await other.store.owner(other._core.tenant, house._core.owner_id)
    assert owner is not None
    assert owner.ended_at_us is None
    record = await other.reconcile(KEY)
    assert (record.state, record.attempts[0].running) == (State.IN_DOUBT, True)

    async def swept() -> bool:
        return await other.services.round() > 0 and (await other.get(KEY)).attempts[0].lost is not None

    await eventually(swept)
    assert (await other.reconcile(KEY)).state is State.IN_DOUBT
    go_on.set()


STUCK = """
import asyncio, sys, threading, time
from tollhouse import Tollhouse, external, tool

@tool(external(attempt_timeout_s=0.2))
def stuck() -> str:
    threading.Event().wait()
    return "never"

async def main():
    async with Tollhouse.open(sys.argv[1], tools=[stuck], grace_s=0.1, lease_s=1.0) as house:
        try:
            await house.call(stuck, key="k")
        except Exception as error:
            print(error.code, flush=True)

asyncio.run(main())
print("left", flush=True)
"""
STUCK_SYNC = """
import sys, threading
from tollhouse import Tollhouse, external, tool

@tool(external(attempt_timeout_s=0.2))
def stuck() -> str:
    threading.Event().wait()
    return "never"

with Tollhouse.open_sync(sys.argv[1], tools=[stuck], grace_s=0.1, lease_s=1.0) as house:
    try:
        house.call(stuck, key="k")
    except Exception as error:
        print(error.code, flush=True)
print("left", flush=True)
"""


@pytest.mark.parametrize("script", [STUCK, STUCK_SYNC], ids=["async", "sync"])
async def test_thread_that_never_returns_does_not_keep_the_process(house_store_url: str, script: str) -> None:
    """The interpreter ends although the tool never will."""
    run = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-W", "error", "-c", script, house_store_url],
        capture_output=True,
        text=True,
        timeout=30,
        cwd=ROOT,
        check=False,
    )
    assert (run.returncode, run.stdout.split()) == (0, ["call_in_doubt", "left"]), run.stderr
    heard = Heard()
    async with Tollhouse.open(house_store_url, lease_s=1.0, on_event=heard) as house:
        await heard.until("owner_lost")
        record = await house.get("k")
        assert (record.state, record.attempts[0].lost) == (State.IN_DOUBT, "dead")


async def test_house_closed_while_its_store_is_away_still_closes(open_house: OpenHouse) -> None:
    """The outcome cannot be written; the caller knows, and the next process finds a doubt."""
    slow = Slow()
    house = await open_house(slow.tool(), interfering=True, grace_s=0.3, lease_s=LEASE_S)
    call = asyncio.ensure_future(house.call("credit", ASKED, key=KEY))
    await slow.begun.wait()
    interfering(house).fail_next("before", times=1000)
    slow.go_on.set()
    with pytest.raises(TollhouseError) as away:
        await call
    assert (away.value.code, away.value.sent) == ("store_unavailable", "yes")
    async with asyncio.timeout(10):
        await house.close()
    other = await open_house(lease_s=LEASE_S)

    async def in_doubt() -> bool:
        await other.services.round()
        return (await other.get(KEY)).state is State.IN_DOUBT

    await eventually(in_doubt)
    assert await kinds(other, KEY) == ["departed", "owner_lost"]


async def test_departure_acknowledged_after_closing_sends_nothing(open_house: OpenHouse) -> None:
    """The lease is given up by then, so whoever looks at the call may settle it: nothing of it may leave any more."""
    sent = []

    @tool(external())
    async def credit(ctx: CallContext) -> None:
        await ctx.confirm()
        sent.append(ctx.attempt)

    house = await open_house(credit, grace_s=0.05, interfering=True)
    store = interfering(house)
    store.hold_next()
    call = asyncio.ensure_future(house.call(credit, key=KEY))
    await store.held.wait()
    await house.close()
    store.let_go()
    with pytest.raises(HouseClosed) as closed:
        await call
    assert (closed.value.sent, sent) == ("maybe", [])


async def test_departure_acknowledged_within_the_grace_is_waited_for(open_house: OpenHouse) -> None:
    """A call whose commit is under way belongs to what is drained."""

    @tool(external())
    async def credit() -> str:
        return "cr-1"

    house = await open_house(credit, grace_s=20.0, interfering=True)
    store = interfering(house)
    store.hold_next()
    call = asyncio.ensure_future(house.call(credit, key=KEY))
    await store.held.wait()
    closing = asyncio.ensure_future(house.close())
    await asyncio.sleep(0.05)
    assert not closing.done()
    store.let_go()
    await closing
    assert (await call).value == "cr-1"


async def test_cancelled_closing_goes_on(open_house: OpenHouse) -> None:
    """A lease that was renewed for ever after would keep the calls of the house from everybody."""
    slow = Slow()
    house = await open_house(slow.tool(), grace_s=20.0, lease_s=600.0)
    owner_id = house._core.owner_id
    call = asyncio.ensure_future(house.call("credit", ASKED, key=KEY))
    await slow.begun.wait()
    closing = asyncio.ensure_future(house.close())
    await asyncio.sleep(0.05)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    slow.go_on.set()
    await house.close()
    assert (await call).value == "cr-1"
    other = await open_house()
    owner = await other.store.owner(other._core.tenant, owner_id)
    assert owner is not None
    assert owner.ended_at_us is not None


async def test_attempt_that_had_not_begun_when_its_house_closed_was_not_sent(open_house: OpenHouse) -> None:
    """It waited for a thread: its function never ran, so there is nothing to doubt."""
    begun, go_on = threading.Event(), threading.Event()

    @tool(external())
    def credit(account: str, cents: int) -> None:
        begun.set()
        go_on.wait(20)

    house = await open_house(credit, grace_s=0.05, threads=1)
    first = asyncio.ensure_future(house.call("credit", ASKED, key=KEY))
    await asyncio.to_thread(begun.wait, 20)
    queued = asyncio.ensure_future(house.call("credit", ASKED, key="queued"))
    while len(house._core.running) < 2:  # noqa: ASYNC110 - nobody tells that it waits for a thread
        await asyncio.sleep(0.005)
    await house.close()
    go_on.set()
    with pytest.raises(InDoubt):
        await first
    with pytest.raises(CallNotSent) as caught:
        await queued
    assert caught.value.sent == "no"
    record = await (await open_house()).get("queued")
    assert (record.state, record.attempts[0].outcome) == (State.READY, AttemptOutcome.NOT_SENT)


async def test_attempt_that_ends_after_its_house_closed_is_not_called_unsent(open_house: OpenHouse) -> None:
    """A tool that cannot be stopped has had its effect; that it could not be written down says nothing against it."""
    slow, stopped, unstoppable = Slow(), asyncio.Event(), asyncio.Event()

    @tool(external())
    async def credit(account: str, cents: int) -> None:
        slow.begun.set()
        for event in (slow.go_on, unstoppable):
            try:
                await event.wait()
            except asyncio.CancelledError:
                stopped.set()

    house = await open_house(credit, grace_s=0.05)
    call = asyncio.ensure_future(house.call("credit", ASKED, key=KEY))
    await slow.begun.wait()
    await house.close()
    assert stopped.is_set()
    unstoppable.set()
    with pytest.raises(HouseClosed) as caught:
        await call
    assert caught.value.sent == "maybe"
