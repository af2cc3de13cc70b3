"""Repeats by a model: the same tool and arguments again in one scope wait for people; siblings of one response do
not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.houses import OpenHouse
from tollhouse import State, approval, external, hold_repeats, read, tool, write
from tollhouse.errors import CallFailed, Held, InDoubt, Refused

sent: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_sent_yet() -> None:
    sent.clear()


@tool(external(rejects=PermissionError))
async def pay(cents: int, how: str = "well") -> int:
    """Pay; lose the answer, or be refused, if told so."""
    sent.append(cents)
    if how == "lost":
        raise ConnectionResetError
    if how == "refused":
        raise PermissionError
    return cents


async def paid(
    house: Any, key: str, cents: int = 5, how: str = "well", scope: str | None = "run-1", **more: Any
) -> Any:
    """A call in a scope."""
    return await house.call(more.pop("tool", pay), {"cents": cents, "how": how}, key=key, scope=scope, **more)


async def test_a_repeat_of_a_doubt_waits_for_people(open_house: OpenHouse) -> None:
    """The model did not hear an answer and asks again under another key: a person decides, and is told of the twin."""
    house = await open_house(pay)
    with pytest.raises(InDoubt):
        await paid(house, "a", how="lost")
    with pytest.raises(Held) as caught:
        await paid(house, "b", how="lost")
    assert "repeats a" in caught.value.cause
    assert caught.value.sent == "no"
    record = await house.get("b")
    assert (record.state, record.raw.repeat_of) == (State.HELD, "a")
    assert sent == [5]
    await house.approve("b", by="ada")
    with pytest.raises(InDoubt):
        await paid(house, "b", how="lost")
    assert sent == [5, 5]


async def test_a_repeat_is_the_same_tool_arguments_and_scope(open_house: OpenHouse) -> None:
    """Anything else is another call, and a call without a scope has no repeats."""

    @tool(external(), name="pay_other")
    async def other(cents: int, how: str = "well") -> int:
        sent.append(cents)
        return cents

    house = await open_house(pay, other)
    with pytest.raises(InDoubt):
        await paid(house, "a", how="lost")
    await paid(house, "b", cents=6)
    await paid(house, "c", tool=other, how="lost")
    for key, scope in (("d", "run-2"), ("e", None)):
        with pytest.raises(InDoubt):
            await paid(house, key, how="lost", scope=scope)
    with pytest.raises(Held):
        await paid(house, "f", how="lost")


async def test_a_settled_call_has_no_repeats_unless_the_contract_says_for_how_long(open_house: OpenHouse) -> None:
    """``within_s`` also looks at calls that were settled lately; failed ones too, refused ones never."""

    @tool(external(on_repeat=hold_repeats(within_s=60), rejects=PermissionError), name="slowly")
    async def slowly(cents: int, how: str = "well") -> int:
        sent.append(cents)
        if how == "refused":
            raise PermissionError
        return cents

    house = await open_house(pay, slowly)
    await paid(house, "a")
    await paid(house, "b")
    await paid(house, "c", tool=slowly)
    with pytest.raises(Held):
        await paid(house, "d", tool=slowly)
    with pytest.raises(CallFailed):
        await paid(house, "e", cents=7, tool=slowly, how="refused")
    with pytest.raises(Held):
        await paid(house, "f", cents=7, tool=slowly, how="refused")
    assert sent == [5, 5, 5, 7]


async def test_a_refused_twin_is_none(open_house: OpenHouse) -> None:
    """What a person denied had no effect, and asking again asks them again."""
    house = await open_house(pay)
    with pytest.raises(InDoubt):
        await paid(house, "a", how="lost")
    with pytest.raises(Held):
        await paid(house, "b", how="lost")
    await house.deny("b", by="ada", reason="wait for the first")
    with pytest.raises(Refused):
        await paid(house, "b", how="lost")
    with pytest.raises(Held, match="repeats a"):
        await paid(house, "c", how="lost")


async def test_a_held_call_is_a_twin_as_well(open_house: OpenHouse) -> None:
    """Unsettled is unsettled: two equal requests for approval are one question too many."""

    @tool(external(approval=True))
    async def wire(cents: int) -> None: ...

    house = await open_house(wire)
    with pytest.raises(Held):
        await house.call(wire, {"cents": 5}, key="a", scope="run-1")
    with pytest.raises(Held, match="repeats a"):
        await house.call(wire, {"cents": 5}, key="b", scope="run-1")
    asked = (await house.get("b")).approval
    assert asked is not None
    assert asked.covers_repeat
    assert "requires approval" in asked.reason


async def test_siblings_of_one_response_are_no_repeats(open_house: OpenHouse) -> None:
    """A model that asks for two equal payments at once means two; the same again in its next response is a repeat."""
    gate, all_in = asyncio.Event(), asyncio.Barrier(4)

    @tool(external())
    async def gift(cents: int) -> int:
        sent.append(cents)
        await all_in.wait()
        await gate.wait()
        return len(sent)

    house = await open_house(gift)
    calls = [
        asyncio.create_task(house.call(gift, {"cents": 5}, key=f"1.{n}", scope="run-1", group="1")) for n in range(3)
    ]
    await all_in.wait()
    for key, group in (("2.0", "2"), ("3.0", None)):
        with pytest.raises(Held):
            await house.call(gift, {"cents": 5}, key=key, scope="run-1", group=group)
    gate.set()
    assert [(await call).state for call in calls] == [State.SUCCEEDED] * 3
    assert sent == [5, 5, 5]


async def test_siblings_that_need_approval_are_asked_about_one_by_one(open_house: OpenHouse) -> None:
    """Neither repeats the other."""

    @tool(external(approval=approval()))
    async def wire(cents: int) -> None: ...

    house = await open_house(wire)
    for key in ("1.0", "1.1"):
        with pytest.raises(Held):
            await house.call(wire, {"cents": 5}, key=key, scope="run-1", group="1")
        assert (await house.get(key)).raw.repeat_of is None


async def test_of_many_twins_at_the_same_moment_one_departs(open_house: OpenHouse) -> None:
    """The check is part of commit 1: callers who do not see each other meet there."""
    gate = asyncio.Event()

    @tool(write())
    async def save(cents: int) -> None:
        sent.append(cents)
        await gate.wait()

    house, other = await open_house(save), await open_house(save)
    calls = [
        asyncio.create_task(each.call(save, {"cents": 5}, key=f"k{n}-{m}", scope="run-1"))
        for n in range(10)
        for m, each in enumerate((house, other))
    ]
    done, pending = await asyncio.wait(calls, return_when=asyncio.ALL_COMPLETED, timeout=0.5)
    assert (len(done), len(pending)) == (19, 1)
    assert {type(each.exception()) for each in done} == {Held}
    gate.set()
    await pending.pop()
    assert sent == [5]


async def test_a_contract_may_allow_repeats(open_house: OpenHouse) -> None:
    """``on_repeat="allow"``: every key is a call. Reads repeat as they like."""

    @tool(external(on_repeat="allow"))
    async def ring(bell: str) -> None:
        sent.append(bell)
        raise ConnectionResetError

    @tool(read(max_attempts=1))
    async def look(bell: str) -> str:
        return bell

    house = await open_house(ring, look)
    for key in ("a", "b"):
        with pytest.raises(InDoubt):
            await house.call(ring, {"bell": "x"}, key=key, scope="run-1")
    await asyncio.gather(*(house.call(look, {"bell": "x"}, scope="run-1") for _ in range(5)))
    assert sent == ["x", "x"]


async def test_the_same_key_again_is_never_its_own_repeat(open_house: OpenHouse) -> None:
    """A replay is a replay, in whatever scope it is asked for."""
    house = await open_house(pay)
    with pytest.raises(InDoubt):
        await paid(house, "a", how="lost")
    with pytest.raises(InDoubt):
        await paid(house, "a", how="lost")
    await paid(house, "b")
    assert (await paid(house, "b")).replayed
    assert (await paid(house, "b", scope="run-2")).replayed
