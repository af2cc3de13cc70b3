"""Fixtures of the tests of runs over HTTP: servers over real houses whose runs a real driver drives."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.api.runs.scenes import RunServed
from tests.support.houses import POSTGRES, OpenHouse
from tollhouse.api.app import create_app
from tollhouse.api.auth import KeyAccess
from tollhouse.api.server import serving
from tollhouse.house.running import open_runs
from tollhouse.runs.agents import Agent
from tollhouse.runs.drivers.local import LocalDriver

on_both_stores = pytest.mark.parametrize("shared_store_url", ["sqlite", POSTGRES], indirect=True)

ServeRuns = Callable[..., Awaitable[RunServed]]
"""``await serve_runs(model, *tools)``: one agent, ``helper``, with all tools, questions and timers; ``agents=`` others,
``keys=True`` asks for keys, ``drive=False`` has nobody drive; further names are options of the application."""


@pytest.fixture(autouse=True)
def signing_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keys that sign proofs stay within the test."""
    monkeypatch.setenv("TOLLHOUSE_HOME", str(tmp_path / "home"))


@pytest.fixture
async def serve_runs(open_house: OpenHouse) -> AsyncIterator[ServeRuns]:
    """Serves runs until the test ends."""
    async with AsyncExitStack() as stack:

        async def one(
            model: Any,
            *tools: Any,
            agents: tuple[Agent, ...] = (),
            keys: bool = False,
            drive: bool = True,
            **options: Any,
        ) -> RunServed:
            house = await open_house(*tools)
            names = tuple(tool.name for tool in tools)
            chosen = agents or (Agent(name="helper", model="says", tools=names, questions=True, timers=True),)
            runs = await open_runs(house, {agent.name: agent for agent in chosen}, model)
            driver = LocalDriver(runs, every_s=0.05)
            if drive:
                driver.start()
                stack.push_async_callback(driver.stop, 1.0)
            app = create_app(house, runs=runs, access=KeyAccess(house) if keys else None, **options)
            url = await stack.enter_async_context(serving(app, port=0, grace_s=1.0))
            served = RunServed(house, app, url, stack)
            served.runs, served.driver = runs, driver
            return served

        yield one
