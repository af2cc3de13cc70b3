"""Running the scenarios: a house over a ledger in memory, the real gate, the faulty receiver in another process."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tollhouse.contract.tool import Tool
from tollhouse.house import Tollhouse
from tollhouse.testing.contract_tests.breaches import Breach
from tollhouse.testing.contract_tests.judge import judge_call, judge_compensation, judge_confirm, judge_hook
from tollhouse.testing.contract_tests.probe import watched
from tollhouse.testing.contract_tests.report import Report, ScenarioResult
from tollhouse.testing.contract_tests.scenarios import SCENARIOS, Scenario
from tollhouse.testing.contract_tests.trial import Trial
from tollhouse.testing.receiver import Receiver

MakeTool = Callable[[str], Tool[Any]]
"""Makes the tool for a receiver at this base URL (``http://127.0.0.1:PORT``)."""

ATTEMPT_TIMEOUT_S = 0.6
"""How long an attempt may take in the slow scenario, which waits for it, unless the contract says less."""
PATIENCE_S = 2.4
"""How long a call, and in all other scenarios an attempt, may take: clients that retry by themselves pause first."""


def assert_tool_contract(make_tool: MakeTool, arguments: Mapping[str, Any], *, keyed: bool | None = None) -> Report:
    """Execute a tool against the faulty receiver; raise AssertionError with a table when it breaks a promise.

    ``make_tool(url)`` returns the tool, its receiver being at ``url`` (it may set an environment variable or a setting
    of yours first). ``arguments``: good arguments for it. ``keyed``: whether the receiver recognises repeated keys
    (None: as the tool's dedup says). The receiver takes ``POST /v1/<collection>``, and answers look-ups at
    ``GET /v1/<collection>?key=…``, ``/by-key/<key>`` and ``/<id>``. Returns the report of a tool that passes. Works
    with and without a running event loop.
    """
    report = _in_thread(make_tool, arguments, keyed)
    if not report.passed:
        raise AssertionError(str(report))
    return report


async def check_tool_contract(
    make_tool: MakeTool, arguments: Mapping[str, Any], *, keyed: bool | None = None
) -> Report:
    """:func:`assert_tool_contract` as a coroutine that returns the report and never raises for a broken promise."""
    with tempfile.TemporaryDirectory() as folder, Receiver.start(Path(folder) / "book.jsonl") as receiver:
        tool = make_tool(receiver.url)
        results = [await _play(scenario, tool, arguments, receiver, keyed) for scenario in SCENARIOS]
        results.append(await _confirm(tool, arguments, receiver))
        return Report(tool.name, tool.terms.guarantee, tuple(results))


def _in_thread(make_tool: MakeTool, arguments: Mapping[str, Any], keyed: bool | None) -> Report:
    """Run on a loop of its own in another thread, so that it makes no difference whether one runs here."""
    box: dict[str, Any] = {}

    def run() -> None:
        try:
            box["report"] = asyncio.run(check_tool_contract(make_tool, arguments, keyed=keyed))
        except BaseException as error:
            box["error"] = error

    thread = threading.Thread(target=run, name="tollhouse-contract-tests")
    thread.start()
    thread.join()
    if "error" in box:
        raise box["error"]
    report: Report = box["report"]
    return report


async def _play(
    scenario: Scenario, tool: Tool[Any], arguments: Mapping[str, Any], receiver: Receiver, keyed: bool | None
) -> ScenarioResult:
    """One scenario from a clean receiver: the call, then its hook, then its compensation."""
    receiver.reset()
    async with _house(tool, ATTEMPT_TIMEOUT_S if scenario.waits else PATIENCE_S) as house:
        trial = Trial(house, tool, receiver, f"contract:{scenario.name}")
        await trial.learn_collection(arguments, keyed)
        if scenario.fault is not None:
            method = "GET" if trial.is_read else "POST"
            receiver.fault(
                scenario.fault, times=scenario.times, collection=trial.collection, method=method, **scenario.options
            )
        with watched(tool) as watch:
            await trial.call(arguments)
            receiver.release()
        breaches = judge_call(scenario, trial, watch)
        result = trial.result(scenario, ())
        breaches += await judge_hook(scenario, trial)
        if scenario.fault is None:
            breaches += await judge_compensation(trial)
    return ScenarioResult(
        result.name, result.sentence, result.state, result.attempts, result.sends, result.effects, tuple(breaches)
    )


async def _confirm(tool: Tool[Any], arguments: Mapping[str, Any], receiver: Receiver) -> ScenarioResult:
    """The last check says no: a tool that departs at confirm must not have sent anything."""
    receiver.reset()
    breaches: list[Breach] = []
    async with _house(tool, ATTEMPT_TIMEOUT_S) as house:
        trial = Trial(house, tool, receiver, "contract:check_refuses")
        if tool.terms.sends_checked:
            breaches = await judge_confirm(trial, arguments)
        scenario = Scenario("check_refuses", "The last check says no.", None, False)
        return trial.result(scenario, tuple(breaches))


def _house(tool: Tool[Any], attempt_timeout_s: float) -> Any:
    timeout_s = min(attempt_timeout_s, tool.terms.attempt_timeout_s)
    return Tollhouse.open(
        "sqlite:///:memory:",
        tools=[tool],
        volatile=True,
        background=False,
        principal="contract-test",
        attempt_timeout_s=timeout_s,
        deadline_s=max(timeout_s, PATIENCE_S),
        grace_s=2.0,
    )
