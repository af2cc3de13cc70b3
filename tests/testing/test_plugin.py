"""The pytest plugin gives a project houses over real stores, time that passes on demand, and a faulty receiver."""

from __future__ import annotations

import pytest

from tollhouse import destructive, external, tool
from tollhouse.errors import InDoubt, Refused
from tollhouse.testing.plugin import HouseMaker
from tollhouse.testing.receiver import Receiver

pytest_plugins = ["pytester"]


@tool(destructive())
async def wipe(name: str) -> str:
    """Delete something."""
    return name


async def test_time_passes_on_demand(house: HouseMaker) -> None:
    """A hold expires when its day has passed, without waiting for it; the house keeps its lease."""
    async with house(wipe) as opened:
        with pytest.raises(Exception, match="waits for people"):
            await opened.call(wipe, {"name": "a"}, key="wipe-a")
        house.clock.advance(86_401)
        await opened.services.round()
        assert (await opened.get("wipe-a")).state == "refused"
        with pytest.raises(Refused):
            await opened.call(wipe, {"name": "a"}, key="wipe-a")
        with pytest.raises(Exception, match="waits for people"):
            await opened.call(wipe, {"name": "b"}, key="wipe-b")


async def test_two_houses_share_the_store_of_a_test(house: HouseMaker) -> None:
    """What one process wrote, the next one finds."""

    @tool(external())
    async def lose() -> None:
        """Lose the reply."""
        raise ConnectionResetError

    async with house(lose) as first:
        with pytest.raises(InDoubt):
            await first.call(lose, key="lost")
    async with house() as second:
        assert (await second.get("lost")).state == "in_doubt"


def test_the_receiver_counts(tollhouse_receiver: Receiver) -> None:
    """It listens in a process of its own, with an empty book."""
    assert tollhouse_receiver.running
    assert tollhouse_receiver.effects() == []


def test_a_project_gets_the_fixtures_by_installing(pytester: pytest.Pytester) -> None:
    """The entry point makes them known; nothing has to be imported."""
    pytester.makepyfile("""
        import asyncio
        def test_house(house):
            async def main():
                async with house() as opened:
                    return await opened.count()
            assert sum(asyncio.run(main()).values()) == 0
    """)
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
