"""The crash points of runs: each is passed by a life that has everything in it, and none is a dead name."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.houses import on_one_store
from tests.support.runs import Bank, agent, calls
from tollhouse.errors import StoreUnavailable
from tollhouse.house.running import open_runs
from tollhouse.models.book import ModelBook
from tollhouse.models.retry import Patience
from tollhouse.runs.agents import Limits
from tollhouse.runs.drivers.local import LocalDriver
from tollhouse.testing.crashpoints import RUN_POINTS, Action, Crash, Crashes, CrashingModel, crashing_house


@pytest.mark.parametrize("name", RUN_POINTS)
def test_named_point_can_be_laid_out(name: str) -> None:
    """Each is a point for each action."""
    for action in Action:
        assert Crash(name, action).point == name


async def test_every_point_is_passed(shared_store_url: str, house_tenant: str, bank: Bank) -> None:
    """A run that asks, waits, is answered, corrected, stopped at a limit, let on, and one that fails, pass them all."""
    crashes = Crashes()
    scripts: dict[str, Any] = {
        "clerk": [
            calls(("credit", {"account": "a1", "cents": 5})),
            calls(("ask_person", {"question": "How much?"})),
            "no JSON",
            '{"paid": 5}',
        ],
        "failing": [{"fail": "model_refused_request"}],
    }
    clerk = agent(tools=("credit",), questions=True, output_schema={"type": "object"}, limits=Limits(turns=3))
    agents = {"clerk": clerk, "failing": agent("failing")}
    model = CrashingModel(ModelBook(scripts=scripts, patience=Patience(attempts=1)), crashes)
    async with crashing_house(
        shared_store_url, crashes, tools=bank.tools, tenant=house_tenant, background=False
    ) as house:
        runs = await open_runs(house, agents, model)
        driver = LocalDriver(runs)
        run = await runs.start("clerk", "go", by="ada")
        await (await runs.claim(run.record)).release()
        await runs.start("failing", "go", by="ada")
        await driver.settle()
        run = await runs.get(run.id)
        await runs.answer(run.id, run.waiting[0].id, "five", by="bob")
        await driver.settle()
        await runs.raise_limits(run.id, {"turns": 9}, by="bob")
        await driver.settle()
        assert (await runs.get(run.id)).output == {"paid": 5}
    assert set(RUN_POINTS) - set(crashes.reached) == set()


@on_one_store
async def test_raising_before_a_commit_leaves_it_undone_and_after_it_done(
    shared_store_url: str, house_tenant: str
) -> None:
    """The two moments of a start differ in what the store holds."""
    for moment, started in (("before", False), ("after", True)):
        crashes = Crashes(Crash(f"{moment}_run_start", Action.RAISE))
        async with crashing_house(shared_store_url, crashes, tenant=f"{house_tenant}-{moment}") as house:
            runs = await open_runs(house, {"clerk": agent()}, ModelBook(scripts={"clerk": ["done"]}))
            with pytest.raises(StoreUnavailable):
                await runs.start("clerk", "go", by="ada", key="k")
            assert (await runs.start("clerk", "go", by="ada", key="k")).started_before is started
