"""The bench answers every key, its ratios are made as it says, and the budget of commits holds."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tollhouse import Tollhouse
from tollhouse.bench.commits import commits
from tollhouse.bench.engines import Engine, Sqlite
from tollhouse.bench.fill import fill_postgres, fill_sqlite
from tollhouse.bench.http_load import http_contestants
from tollhouse.bench.job import SETTINGS, TOOLS, effects
from tollhouse.bench.measure import Series
from tollhouse.bench.null_store import python_us_per_call
from tollhouse.bench.plan import Plan
from tollhouse.bench.recovery import recovery_s
from tollhouse.bench.report import BARS, Bar, Report
from tollhouse.bench.runs import commits_per_run
from tollhouse.cli.app import app
from tollhouse.ledger.record import State

ENGINES = ("postgres", "sqlite")


@pytest.fixture(scope="module")
def quick() -> dict[str, Any]:
    """What ``tollhouse bench --quick --json`` prints."""
    command = [sys.executable, "-m", "tollhouse", "bench", "--quick", "--json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=240)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_quick_run_answers_every_key(quick: dict[str, Any]) -> None:
    """One object, and a ratio for every bar; what a quick run has no time for is null."""
    assert set(quick["ratios"]) == {bar.name for bar in BARS}
    assert set(quick) >= {"bars", "commits", "python_us_per_call", "recovery_s", "import_s", "figures", "machine"}
    measured = {name: figure for name, figure in quick["ratios"].items() if figure is not None}
    assert set(measured) == {bar.name for bar in BARS if "_1e" not in bar.name and bar.name.split("_over_")[1] in BASES}
    assert all(figure > 0 for figure in measured.values())
    for engine in ENGINES:
        assert quick["recovery_s"][engine] > 0
        assert quick["figures"][f"{engine}.p50_c1"]["p25"] <= quick["figures"][f"{engine}.p50_c1"]["p75"]


BASES = ("raw", "group")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("engine", ENGINES)
def test_effect_costs_two_commits_and_a_read_one(quick: dict[str, Any], engine: str) -> None:
    """The budget, as the store counts and as the server counts."""
    counted = quick["commits"][engine]
    assert (counted["effect"], counted["read"]) == (2, 1)
    assert counted["server"] in (None, {"effect": 2, "read": 1})


async def test_commits_are_counted_without_those_of_opening(tmp_path: Path) -> None:
    """However few calls are counted."""
    counted = await commits(Sqlite(tmp_path), 3)
    assert (counted.effect, counted.read, counted.server) == (2, 1, None)


@pytest.mark.parametrize("engine", ENGINES)
async def test_run_with_one_write_takes_eight_commits_at_most(engine: str, tmp_path: Path, postgres_url: str) -> None:
    """Start, claim, two answers, one call and what it came to: as the store counts."""
    chosen = Sqlite(tmp_path) if engine == "sqlite" else SimpleNamespace(name=engine, ledger=lambda: postgres_url)
    assert await commits_per_run(cast(Engine, chosen), 3) <= 8


async def test_calls_over_http_reach_the_gate(tmp_path: Path) -> None:
    """The callers that are measured make real calls, each under a key of its own."""
    engine = Sqlite(tmp_path)
    async with AsyncExitStack() as stack:
        (measured,) = (await http_contestants(engine, Plan(quick=True), stack)).values()
        assert await measured() > 0
    (ledger,) = tmp_path.glob("*.db")
    async with Tollhouse.open(f"sqlite:///{ledger}", tools=TOOLS, **SETTINGS) as house:
        assert (await house.count())[State.SUCCEEDED] > 32


def test_time_of_a_run_is_set_against_that_of_its_commits() -> None:
    """Each of them half of what the control with two takes."""
    report = Report(Plan(runs=True))
    report.series = {"postgres.run.p50": Series([14.0]), "postgres.raw.p50_c1": Series([2.0])}
    report.commits_per_run = {"postgres": 7}
    assert report.ratios["postgres.run_p50_over_commits"] == 2.0


def test_every_figure_about_runs_has_a_bar() -> None:
    """None is shown without a verdict."""
    report = Report(Plan(runs=True), commits_per_run={"sqlite": 7}, kill_to_continued_s={"sqlite": 20}, serve_ready_s=1)
    report.streams = {"lost": 0, "p99_lag_s": 0.1}
    met = {bar.name: met for bar, met in report.verdicts() if bar.name in report.runs}
    assert met == {
        "sqlite.commits_per_run": True,
        "sqlite.kill_to_continued_s": False,
        "serve_ready_s": True,
        "streams_lost": True,
        "streams_p99_lag_s": True,
    }


def test_ratio_is_the_median_of_the_rounds() -> None:
    """Each round has its own weather, which both of its figures met."""
    report = Report(Plan())
    report.series = {"sqlite.p50_c1": Series([2.0, 30.0, 3.0]), "sqlite.raw.p50_c1": Series([1.0, 10.0, 2.0])}
    assert report.ratios["sqlite.p50_c1_over_raw"] == 2.0


def test_group_is_the_better_control() -> None:
    """A control that is shaped worse would flatter."""
    report = Report(Plan())
    report.series = {
        "postgres.rate_c32": Series([5.0]),
        "postgres.group1.rate_c32": Series([10.0]),
        "postgres.group4.rate_c32": Series([8.0]),
    }
    assert report.ratios["postgres.rate_c32_over_group"] == 0.5


@pytest.mark.parametrize(("bar", "figure", "met"), [(Bar("a", True, 2), 2, True), (Bar("a", False, 2), 1.9, False)])
def test_bar_is_met_on_its_own_side(bar: Bar, figure: float, met: bool) -> None:
    """At most, or at least."""
    assert bar.met(figure) is met


@pytest.mark.parametrize("engine", ENGINES)
async def test_filled_ledger_holds_the_rows_and_takes_calls(engine: str, tmp_path: Path, postgres_url: str) -> None:
    """Copies stand under keys of their own, and the next call is one more."""
    url = postgres_url if engine == "postgres" else f"sqlite:///{tmp_path}/filled.db"
    async with Tollhouse.open(url, tools=TOOLS, **SETTINGS) as house:
        await effects(house)()
    if engine == "postgres":
        await fill_postgres(url, 500)
    else:
        fill_sqlite(url.removeprefix("sqlite:///"), 500)
    async with Tollhouse.open(url, tools=TOOLS, **SETTINGS) as house:
        await effects(house)()
        assert (await house.count())[State.SUCCEEDED] == 501
        newest, *_ = await house.list(limit=1)
        assert [line.kind for line in (await house.get(newest.key)).history] == ["departed", "outcome"]


@pytest.mark.parametrize("engine", ENGINES)
async def test_every_orphan_is_recovered(engine: str, tmp_path: Path, postgres_url: str) -> None:
    """None is left departed."""
    url = postgres_url if engine == "postgres" else f"sqlite:///{tmp_path}/orphans.db"
    assert await recovery_s(url, 50) > 0
    async with Tollhouse.open(url, tools=TOOLS, **SETTINGS) as house:
        assert (await house.count())[State.IN_DOUBT] == 50


async def test_the_gate_runs_over_a_store_that_keeps_nothing() -> None:
    """The interpreter's share is a positive figure."""
    assert await python_us_per_call(20, tries=1) > 0


def test_a_store_of_no_name_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    """Said at once, before anything is measured."""
    with pytest.raises(SystemExit) as ended:
        app(["bench", "--store", "paper", "--json"])
    assert ended.value.code == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "usage"
