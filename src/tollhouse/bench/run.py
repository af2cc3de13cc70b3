"""One run: everything is measured in it, since ratios of figures from different days say nothing."""

from __future__ import annotations

import gc
import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

from tollhouse.bench.commits import commits
from tollhouse.bench.contest import Contestants, contestants
from tollhouse.bench.engines import Engine, engines
from tollhouse.bench.http_load import http_contestants
from tollhouse.bench.measure import rounds
from tollhouse.bench.null_store import python_us_per_call
from tollhouse.bench.plan import Plan
from tollhouse.bench.processes import kill_to_continued_s, serve_ready_s
from tollhouse.bench.recovery import recovery_s
from tollhouse.bench.report import Report
from tollhouse.bench.runs import commits_per_run, run_contestants
from tollhouse.bench.startup import import_s, open_s
from tollhouse.bench.streams import measure_streams
from tollhouse.house.collector import seldom_collected

Tell = Callable[[str], None]
"""Called with a sentence for every stage."""


async def run(plan: Plan, tell: Tell) -> Report:
    """Measure all of ``plan``. Raises :class:`PostgresUnavailable` without a server, or what a ledger raises."""
    began_s, report = time.perf_counter(), Report(plan)
    with tempfile.TemporaryDirectory(prefix="tollhouse-bench-") as folder:
        chosen = engines(plan.store, Path(folder))
        try:
            with _quiet():
                await _measure(plan, chosen, report, tell)
        finally:
            for engine in chosen:
                engine.close()
    report.took_s = time.perf_counter() - began_s
    return report


async def _measure(plan: Plan, chosen: list[Engine], report: Report, tell: Tell) -> None:
    tell("What a call costs the interpreter ...")
    report.python_us_per_call = await python_us_per_call(plan.python_calls)
    await _compete(plan, chosen, report, tell)
    for engine in chosen:
        tell(f"Commits, recovery and start on {engine.name} ...")
        await _alone(plan, engine, report)
        if plan.runs:
            tell(f"Runs, a server and its death on {engine.name} ...")
            await _runs_alone(plan, engine, report)
    if plan.runs:
        tell("Readers of event streams ...")
        report.streams = await measure_streams(*((100, 20, 2.0) if plan.quick else (1_000, 100, 10.0)))
    report.import_s = import_s(plan.starts)


async def _compete(plan: Plan, chosen: list[Engine], report: Report, tell: Tell) -> None:
    async with AsyncExitStack() as stack:
        everybody: Contestants = {}
        for engine in chosen:
            tell(f"Tables and connections on {engine.name} ...")
            everybody |= await contestants(engine, plan, stack)
            if plan.runs:
                everybody |= await run_contestants(engine, plan, stack)
                everybody |= await http_contestants(engine, plan, stack)
        gc.freeze()
        for number in range(1, plan.rounds + 1):
            tell(f"Round {number} of {plan.rounds}, {len(everybody)} contestants ...")
            await rounds(everybody, 1, report.series)


@contextmanager
def _quiet() -> Iterator[None]:
    """The garbage collector as the server and the worker set it, for controls and houses alike, since they run in one
    process. Ten thousand doubts are not worth a log line each, either.
    """
    log = logging.getLogger("tollhouse")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with seldom_collected():
            yield
    finally:
        log.setLevel(level)


async def _runs_alone(plan: Plan, engine: Engine, report: Report) -> None:
    report.commits_per_run[engine.name] = await commits_per_run(engine, 10)
    report.kill_to_continued_s[engine.name] = await kill_to_continued_s(engine.ledger())
    if engine.name == "sqlite":
        with tempfile.TemporaryDirectory(prefix="tollhouse-serve-") as folder:
            report.serve_ready_s = await serve_ready_s(folder)


async def _alone(plan: Plan, engine: Engine, report: Report) -> None:
    report.commits[engine.name] = await commits(engine, plan.counted_calls)
    ledger = engine.ledger()
    report.recovery_s[engine.name] = await recovery_s(ledger, plan.orphans)
    report.open_s[engine.name] = await open_s(ledger, plan.starts)
