"""The OpenAPI document and the routes of runs agree: Schemathesis, with every check, finds nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.api.runs.conftest import ServeRuns
from tests.api.runs.scenes import Says
from tests.api.test_schemathesis import issue_credit, schemathesis
from tollhouse.house.access import Scope
from tollhouse.runs.agents import Agent
from tollhouse.runs.states import RunState


# Its runs are long, and two of them would share the cores.
@pytest.mark.timeout(240)
async def test_schemathesis_finds_nothing_about_runs(serve_runs: ServeRuns, tmp_path: Path) -> None:
    """Examples, boundaries, made-up requests and sequences over every path, while a driver drives what they start."""
    agent = Agent(name="refunds", model="says", tools=("issue_credit",))
    served = await serve_runs(Says("Done."), issue_credit, agents=(agent,), keys=True)
    run_id = await served.started(await served.of("agent"), agent="refunds")
    await served.until(run_id, RunState.SUCCEEDED)
    _, token = await served.keys.create("ada", [Scope.ADMIN])
    code, told = await schemathesis(served.url, token, tmp_path, "--include-tag", "runs", "--max-examples", "10")
    assert code == 0, told
    assert "Tested: " in told
