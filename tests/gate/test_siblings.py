"""Siblings of one model response are no repeats of each other; calls of other responses are."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.houses import OpenHouse
from tollhouse import Tool, destructive, external, tool
from tollhouse.errors import Held


class Slow:
    """A tool whose attempts wait until they are released."""

    def __init__(self) -> None:
        self._arrived: asyncio.Queue[int] = asyncio.Queue()
        self._release = asyncio.Event()

        @tool(external())
        async def charge(cents: int) -> int:
            self._arrived.put_nowait(cents)
            await self._release.wait()
            return cents

        self.charge: Tool[int] = charge

    async def departed(self, number: int) -> None:
        """Return when so many attempts are under way."""
        async with asyncio.timeout(10):
            for _ in range(number):
                await self._arrived.get()

    def release(self) -> None:
        self._release.set()


async def test_siblings_of_one_group_all_depart(open_house: OpenHouse) -> None:
    """Equal calls of one response depart side by side: the model asked for both."""
    slow = Slow()
    house = await open_house(slow.charge)
    calls = [
        asyncio.create_task(house.call(slow.charge, {"cents": 5}, key=f"turn-1.{index}", scope="run-1", group="turn-1"))
        for index in range(3)
    ]
    await slow.departed(len(calls))
    slow.release()
    assert [outcome.state for outcome in await asyncio.gather(*calls)] == ["succeeded"] * 3


async def test_call_of_another_group_beside_siblings_is_held(open_house: OpenHouse) -> None:
    """A later response that asks for the same again is a repeat of any sibling that is unsettled."""
    slow = Slow()
    house = await open_house(slow.charge)
    calls = [
        asyncio.create_task(house.call(slow.charge, {"cents": 5}, key=f"turn-1.{index}", scope="run-1", group="turn-1"))
        for index in range(2)
    ]
    await slow.departed(len(calls))
    with pytest.raises(Held):
        await house.call(slow.charge, {"cents": 5}, key="turn-2.0", scope="run-1", group="turn-2")
    slow.release()
    await asyncio.gather(*calls)


async def test_siblings_that_need_approval_are_held_for_that_alone(open_house: OpenHouse) -> None:
    """Two siblings wait for two approvals; neither is called a repeat of the other."""

    @tool(destructive())
    async def drop(table: str) -> None:
        """Drop a table."""

    house = await open_house(drop)
    for index in range(2):
        with pytest.raises(Held):
            await house.call(drop, {"table": "t"}, key=f"turn-1.{index}", scope="run-1", group="turn-1")
    held = await house.list(state="held")
    assert [call.raw.repeat_of for call in held] == [None, None]
