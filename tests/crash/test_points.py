"""The crash points themselves: each exists where its name says, and none can be reached outside a crashing house."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.crash import tools
from tests.crash.listening import eventually
from tests.crash.process import ROOT
from tollhouse import Accepted, Tollhouse, approval, did_not_happen, external, happened, read, tool, unknown
from tollhouse.contract.tool import Tool
from tollhouse.errors import Held, InDoubt, StoreFull, StoreUnavailable
from tollhouse.testing.crashpoints import POINTS, Action, Crash, Crashes, crashing_house
from tollhouse.testing.receiver import Receiver


def kinds_of_tools(answers: list[Any]) -> list[Tool[Any]]:
    """Tools whose calls pass every commit there is. ``answers``: what the look-up says, in order."""
    stuck = asyncio.Event()

    def void(result: str) -> str:
        return f"void of {result}"

    @tool(external(), compensate=void)
    async def credit() -> str:
        return "cr-1"

    @tool(external(absent_after_s=0.0), reconcile=lambda _call: answers.pop(0))
    async def lossy() -> str:
        raise ConnectionResetError("the reply was lost")

    @tool(external(attempt_timeout_s=0.05))
    async def slow() -> str:
        await stuck.wait()
        return "never"

    @tool(external(accepts=True))
    async def export() -> Accepted:
        return Accepted("job-7")

    @tool(external(approval=approval(expires_s=0.2)))
    async def guarded() -> str:
        return "guarded"

    @tool(read())
    async def look() -> int:
        return 1

    return [credit, lossy, slow, export, guarded, look]


async def everything(house: Tollhouse, other: Tollhouse, lose_lease: Callable[[], None]) -> None:
    """Calls that together pass every point: sent, looked up, decided, held, expired, reported, undone, set aside."""
    await house.call("credit", key="credit")
    await house.compensate("credit", by="ada", reason="undo")
    await house.call("look", key="look")
    await house.call("export", key="export")
    await house.report("export", happened("file"), reference="job-7")
    with pytest.raises(InDoubt):
        await house.call("lossy", key="lossy")
    await house.reconcile("lossy")
    await house.reconcile("lossy")
    await house.retry("lossy", by="ada", reason="again")
    with pytest.raises(Held):
        await house.call("guarded", key="guarded", by="agent")
    await asyncio.sleep(0.25)
    await house.services.round()
    with pytest.raises(InDoubt):
        await house.call("slow", key="slow")
    await house.call("keyed_credit", {"account": "a1", "cents": 1}, key="keyed")
    lose_lease()

    async def set_aside() -> bool:
        await other.services.round()
        return (await other.get("slow")).attempts[0].lost is not None

    await eventually(set_aside)


@pytest.mark.parametrize("name", POINTS)
def test_named_point_can_be_laid_out(name: str) -> None:
    """Each is a point for each action."""
    for action in Action:
        assert Crash(name, action).point == name


def test_point_that_does_not_exist_is_refused() -> None:
    """A test that waits for a point that never comes would pass for nothing."""
    for name in ("before_nothing", "departure", "", "after_commit"):
        with pytest.raises(ValueError, match="crash point"):
            Crash(name)
    assert Crash("inside_anything").point == "inside_anything"


def test_crash_happens_at_its_time_for_its_key_and_so_often() -> None:
    """Counted from 1, over the passages that concern its key."""
    crashes = Crashes(Crash("before_outcome", Action.RAISE, nth=2, times=2, key="a", error=StoreFull))
    happened_at = []
    for number in range(1, 6):
        crashes.reach("before_outcome", "b")
        try:
            crashes.reach("before_outcome", "a")
        except StoreFull:
            happened_at.append(number)
    assert happened_at == [2, 3]


async def test_raising_before_a_commit_leaves_it_undone_and_after_it_done(house_store_url: str) -> None:
    """The two moments differ in what the store holds, and in nothing else that the caller could see."""
    for moment, rows in (("before", 0), ("after", 1)):
        crashes = Crashes(Crash(f"{moment}_hold", Action.RAISE))
        offered = kinds_of_tools([])
        async with crashing_house(
            house_store_url, crashes, tools=offered, tenant=f"t-{moment}", background=False
        ) as house:
            with pytest.raises(StoreUnavailable):
                await house.call("guarded", key="guarded")
            assert sum((await house.count()).values()) == rows


async def test_function_that_is_made_to_fail_is_a_doubt(house_store_url: str) -> None:
    """After the function returned, a failure inside this process says nothing about its effect."""
    crashes = Crashes(Crash("after_function", Action.RAISE, error=RuntimeError))
    async with crashing_house(house_store_url, crashes, tools=kinds_of_tools([]), background=False) as house:
        with pytest.raises(InDoubt):
            await house.call("credit", key="credit")


async def test_every_point_is_passed_by_a_call_that_lives_through_it(house_store_url: str, receiver: Receiver) -> None:
    """No name in the table is dead: a life that has everything in it passes them all."""
    crashes = Crashes()
    answers = [unknown(), did_not_happen("not there")]
    offered = [*kinds_of_tools(answers), *tools.keyed(receiver.url)]
    receiver.mode("credits", keyed=True)
    receiver.fault("reset_after_effect")
    settings: dict[str, Any] = {"background": False, "grace_s": 0.0}
    async with (
        crashing_house(house_store_url, crashes, tools=offered, lease_s=0.4, **settings) as house,
        crashing_house(house_store_url, crashes, tools=offered, lease_s=30.0, **settings) as other,
    ):
        await everything(house, other, lambda: house._core.keeper.stop(end=False))
    assert set(POINTS) - set(crashes.reached) == set()


def test_production_never_imports_them() -> None:
    """Opening and using a house loads nothing of the testing package."""
    script = """
import asyncio, sys
from tollhouse import Tollhouse, external, tool

@tool(external())
async def credit() -> str:
    return "cr-1"

async def main():
    async with Tollhouse.open("sqlite:///:memory:", volatile=True, tools=[credit]) as house:
        await house.call(credit, key="k")
        await house.services.round()

asyncio.run(main())
assert not [name for name in sys.modules if name.startswith("tollhouse.testing")]
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30, cwd=ROOT)
