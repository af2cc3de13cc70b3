"""Waiting for a call: from any process, until it is settled by whoever, or until patience ends."""

from __future__ import annotations

import asyncio

import pytest

from tests.crash import tools
from tests.crash.fixtures import Start
from tests.crash.process import Answered
from tests.doubt.scenes import ASKED, KEY, in_doubt, lossy
from tests.support.houses import OpenHouse
from tollhouse import State, Tollhouse, destructive, happened, tool
from tollhouse.errors import Held, HouseClosed, InDoubt, UnknownCall
from tollhouse.testing.receiver import Receiver


async def test_call_of_another_process_is_waited_for(start: Start, house_store_url: str, receiver: Receiver) -> None:
    """The waiter holds nothing and polls: it hears of the outcome that the other process wrote."""
    receiver.fault("hold_after_effect")
    worker = await start(house_store_url, {"tests.crash.tools:credits": {"url": receiver.url}})
    call = worker.ask("call", "credit", ASKED, key=KEY)
    await receiver.await_for_effects(1)
    async with Tollhouse.open(house_store_url, tools=tools.credits(receiver.url)) as house:
        waiting = asyncio.ensure_future(house.wait(KEY))
        await asyncio.sleep(0)
        receiver.release()
        record = await waiting
        assert (record.state, record.result) == (State.SUCCEEDED, (await call)["value"])
        assert [line.kind for line in record.history] == ["departed", "outcome"]


async def test_decision_in_another_process_ends_the_wait(start: Start, house_store_url: str) -> None:
    """A doubt waits for people wherever they are."""
    worker = await start(house_store_url, {"tests.doubt.lossy_tools:tools": {}})
    with pytest.raises(Answered):
        await worker.ask("call", "credit", ASKED, key=KEY)
    async with Tollhouse.open(house_store_url, tools=[lossy()]) as house:
        waiting = asyncio.ensure_future(house.wait(KEY))
        await worker.ask("resolve", KEY, {"happened": "cr-1"}, by="ada", reason="seen")
        assert (await waiting).result == "cr-1"


async def test_wait_that_runs_out_says_what_the_call_is_and_denies_nothing(open_house: OpenHouse) -> None:
    """A waiter's patience is no decision: the call stays as it was, and can be waited for again."""

    @tool(destructive())
    async def delete_account(account: str, cents: int) -> str:
        return "gone"

    house = await open_house(lossy(), delete_account)
    await in_doubt(house)
    with pytest.raises(Held):
        await house.call(delete_account, ASKED, key="held")
    with pytest.raises(InDoubt):
        await house.wait(KEY, timeout_s=0.05)
    with pytest.raises(Held):
        await house.wait("held", timeout_s=0.05)
    assert (await house.get("held")).state is State.HELD
    waiting = asyncio.ensure_future(house.wait(KEY, timeout_s=20))
    await house.resolve(KEY, happened("cr-1"), by="ada", reason="seen")
    assert (await waiting).state is State.SUCCEEDED


async def test_settled_call_is_not_waited_for(open_house: OpenHouse) -> None:
    """Even without any patience."""
    house = await open_house(lossy())
    await in_doubt(house)
    await house.resolve(KEY, happened("cr-1"), by="ada", reason="seen")
    assert (await house.wait(KEY, timeout_s=0.0)).result == "cr-1"


async def test_unknown_key_is_not_waited_for(open_house: OpenHouse) -> None:
    """Nothing says that it will ever come."""
    house = await open_house()
    with pytest.raises(UnknownCall):
        await house.wait("no-such-call", timeout_s=5)


async def test_closing_ends_the_wait(open_house: OpenHouse) -> None:
    """Who waits for ever is told that the house is gone."""
    house = await open_house(lossy())
    await in_doubt(house)
    waiting = asyncio.ensure_future(house.wait(KEY))
    await asyncio.sleep(0.05)
    await house.close()
    async with asyncio.timeout(5):
        with pytest.raises(HouseClosed):
            await waiting
