"""The commit budget: two durable commits for an effect, one for a read, none for a replay."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.houses import OpenHouse
from tollhouse import CallContext, Tollhouse, dedup, external, read, tool
from tollhouse.errors import CallFailed, Held, InDoubt, InvalidArguments
from tollhouse.testing.receiver import Receiver


@tool(external(rejects=PermissionError))
async def pay(cents: int) -> int:
    """Pay; refuse nothing, lose the answer of 13."""
    if cents < 0:
        raise PermissionError
    if cents == 13:
        raise ConnectionResetError
    return cents


@tool(read())
async def look(cents: int) -> int:
    """Look."""
    return cents


def commits(house: Tollhouse) -> int:
    """Durable commits so far."""
    return house.store.counters.commits


async def test_an_effect_takes_two_commits_and_a_read_one(open_house: OpenHouse) -> None:
    """That is the floor and the budget, with and without a key for the read, whatever the outcome."""
    house = await open_house(pay, look)
    for number in range(20):
        await house.call(pay, {"cents": number + 20}, key=f"k{number}")
    assert commits(house) == 40
    for number in range(20):
        await house.call(look, {"cents": number})
        await house.call(look, {"cents": number}, key=f"r{number}")
    assert commits(house) == 40 + 40
    with pytest.raises(CallFailed):
        await house.call(pay, {"cents": -1}, key="failed")
    with pytest.raises(InDoubt):
        await house.call(pay, {"cents": 13}, key="doubt")
    assert commits(house) == 80 + 4


async def test_replays_conflicts_and_mistakes_commit_nothing(open_house: OpenHouse) -> None:
    """What changes nothing is not written."""
    house = await open_house(pay, look)
    await house.call(pay, {"cents": 1}, key="k")
    await house.call(look, {"cents": 1}, key="r")
    before = commits(house)
    for _ in range(5):
        assert (await house.call(pay, {"cents": 1}, key="k")).replayed
        assert (await house.call(look, {"cents": 1}, key="r")).replayed
        with pytest.raises(InvalidArguments):
            await house.call(pay, {"cents": "x"}, key="k2")
    assert commits(house) == before


async def test_callers_at_the_same_time_share_commits(open_house: OpenHouse) -> None:
    """A hundred effects at once need far fewer commits than two each."""
    house = await open_house(pay)
    await asyncio.gather(*(house.call(pay, {"cents": 100 + n}, key=f"k{n}") for n in range(100)))
    assert commits(house) <= 100
    assert house.store.counters.writes == 200


async def test_a_resend_takes_one_commit_more(open_house: OpenHouse) -> None:
    """The end of one attempt and the beginning of the next are one commit."""

    @tool(external(dedup=dedup.by_key(hours=24)))
    async def act(ctx: CallContext) -> int:
        if ctx.attempt == 1:
            raise ConnectionResetError
        return ctx.attempt

    house = await open_house(act)
    await house.call(act, key="k")
    assert commits(house) == 3


async def test_ctx_http_adds_no_commit(open_house: OpenHouse, receiver: Receiver) -> None:
    """The check before bytes leave reads, if anything."""

    @tool(external())
    async def credit(ctx: CallContext) -> int:
        await ctx.http.get(f"{receiver.url}/v1/accounts")
        return (await ctx.http.post(f"{receiver.url}/v1/credits", json={})).status_code

    house = await open_house(credit)
    assert (await house.call(credit, key="k")).value == 201
    assert commits(house) == 2


async def test_an_approved_effect_takes_one_commit_for_each_step(open_house: OpenHouse) -> None:
    """Held, approved, departed, ended."""

    @tool(external(approval=True))
    async def wire() -> None: ...

    house = await open_house(wire)
    with pytest.raises(Held):
        await house.call(wire, key="k")
    await house.approve("k", by="ada")
    await house.call(wire, key="k")
    assert commits(house) == 4
