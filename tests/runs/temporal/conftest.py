"""Runs driven through a real Temporal server: stages whose houses are its workers, and a look at workflows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any

import pytest
from temporalio.client import Client, WorkflowHandle

from tests.support.runs import OpenStage, Script, Stage, Watched, house_over
from tests.support.temporal import TemporalServer
from tollhouse import Tool
from tollhouse.house.running import open_runs
from tollhouse.ledger.run_record import RunQuery
from tollhouse.models.book import ModelBook
from tollhouse.models.retry import Patience
from tollhouse.runs.agents import Agent
from tollhouse.runs.drivers.temporal import TemporalDriver
from tollhouse.runs.drivers.temporal_client import connected
from tollhouse.runs.subagents import agent_tools
from tollhouse.testing.plugin import Clock

EVERY_S = 0.05
"""How often drivers of tests look at their store."""


class TemporalStage(Stage):
    """A stage whose houses are all workers of one task queue."""

    workers: list[TemporalDriver]
    client: Client

    async def settle(self) -> None:
        """Return once no run can go on now."""
        async with asyncio.timeout(30):
            while not await self._is_still():  # noqa: ASYNC110 - what moves a run may be any worker
                await asyncio.sleep(0.01)

    async def _is_still(self) -> bool:
        """Nothing may go on, nothing is under way, and nothing moved while that was read."""
        before = await self._versions()
        waiting = await self.runs.store.runs_to_take(self.runs.tenant, "temporal", 1)
        after = await self._versions()
        busy = any(driver.in_hand for driver in self.workers)
        return not waiting and not busy and before == after and "running" not in after.values()

    async def _versions(self) -> dict[tuple[str, int], str]:
        return {(run.id, run.record.version): run.state for run in await self.runs.list(RunQuery(limit=1000))}

    def workflow(self, run_id: str) -> WorkflowHandle[Any, Any]:
        """The workflow of a run, as Temporal knows it."""
        return self.client.get_workflow_handle(f"{self.runs.tenant}:{run_id}")

    async def work(self, runs: Any, address: str, **options: Any) -> TemporalDriver:
        """One more worker, started."""
        driver = await TemporalDriver.connect(runs, address, every_s=EVERY_S, **options)
        driver.start()
        self.workers.append(driver)
        return driver

    async def close_workers(self) -> None:
        """Have nobody drive any more."""
        await asyncio.gather(*(driver.stop(0.1) for driver in self.workers))
        self.workers.clear()


@pytest.fixture
def way() -> str:
    """How runs are driven here."""
    return "temporal"


@pytest.fixture
async def open_stage(
    shared_store_url: str, house_tenant: str, temporal_server: TemporalServer
) -> AsyncIterator[OpenStage]:
    """As in the tests of the loop, with two houses that are workers of one Temporal server.

    ``workers``: how many of them begin to work at once; ``options``: of their drivers.
    """
    opened: list[TemporalStage] = []
    clock = Clock()

    async def open_one(
        *tools: Tool[Any], agents: Sequence[Agent] = (), houses: int = 2, settings: Mapping[str, Any] | None = None,
        server: TemporalServer = temporal_server, workers: int = 2, options: Mapping[str, Any] | None = None,
        **scripts: Script,
    ) -> Stage:  # fmt: skip
        model = Watched(ModelBook(scripts=scripts, patience=Patience(attempts=1)))
        known = {each.name: each for each in agents}
        stage = TemporalStage([], [], model, clock, "temporal")
        stage.workers, stage.client = [], await connected(server.address, None)
        for earlier in opened:  # its workers do not have what this stage's agents need
            await earlier.close_workers()
        opened.append(stage)
        for number in range(houses):
            given = (*tools, *agent_tools(known.values(), partial(stage.all_runs.__getitem__, number)))
            wanted = {"tenant": house_tenant, **(settings or {})}
            stage.houses.append(await house_over(shared_store_url, clock, given, wanted))
            stage.all_runs.append(await open_runs(stage.houses[-1], known, model))
            stage.all_runs[-1].driver = "temporal"
        for runs in stage.all_runs[:workers]:
            await stage.work(runs, server.address, **(options or {}))
        return stage

    yield open_one
    for stage in reversed(opened):
        await stage.close_workers()
        for house in reversed(stage.houses):
            clock._houses.remove(house)
            await house.close()
