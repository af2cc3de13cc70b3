"""``tollhouse demo``: plays the demo, tells its story, and shows the ledger beside the receiver's book."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from tollhouse.cli.failures import FAILED, OK, UsageMistake
from tollhouse.cli.options import STORE_ENV, TENANT_ENV
from tollhouse.cli.screen import STATE_STYLES, Screen
from tollhouse.cli.words import count
from tollhouse.demo.play import play
from tollhouse.demo.report import Report, Row
from tollhouse.demo.scenes import LATE, PLAIN
from tollhouse.demo.stage import Line

KEY_WIDTH = 17
_INTRODUCTION = (
    "A shop's agent sends refunds, payments and letters through Tollhouse. The billing service is another process, "
    "with a book of its own: what really took effect. Workers die of real SIGKILLs, over real HTTP."
)


def demo(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and no story.")] = False,
    store: Annotated[
        str | None,
        typer.Option("--store", metavar="URL", help="The ledger to use; without it a SQLite file in a fresh folder."),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the folder, to look around in it afterwards.")] = False,
) -> int:
    """Kill workers at the worst moments and show what became of every call.

    Takes some ten seconds. Exits with 0 when no effect was doubled or lost and every doubt was settled, else with 1.
    """
    if os.name != "posix":
        raise UsageMistake("The demo kills by SIGKILL, which this system lacks.", remedy="Run it on Linux or macOS.")
    screen = Screen(as_json=as_json)
    if as_json:
        report = asyncio.run(play(lambda _line: None, store=store, keep=keep))
        screen.document(report.as_json())
    else:
        screen.line(_INTRODUCTION)
        report = asyncio.run(play(lambda line: _tell(screen, line), store=store, keep=keep))
        _show(screen, report)
    return OK if report.passed else FAILED


def _tell(screen: Screen, line: Line) -> None:
    if line.kind == "act":
        screen.heading(line.text)
        return
    killed = line.kind == "kill"
    text = f"SIGKILL {line.text}" if killed else line.text
    if line.key:
        screen.grid([[_time(line), (line.key.ljust(KEY_WIDTH), "cyan"), (text, "bold red" if killed else None)]])
    else:
        screen.grid([[_time(line), (text, None)]])


def _time(line: Line) -> tuple[str, str]:
    return f"{line.at_s:5.1f} s", "dim"


def _show(screen: Screen, report: Report) -> None:
    screen.heading("The ledger, and beside it the book of the billing service")
    headings = ("key", "ledger says", "tries", "settled by", "│", "book holds", "seen")
    screen.table(headings, [_cells(row) for row in report.rows])
    screen.line("tries: times it departed. seen: requests of it that reached the service.", style="dim")
    screen.line()
    _show_verdict(screen, report)
    _show_next_steps(screen, report)


def _cells(row: Row) -> list[tuple[str, str | None]]:
    line = row.line
    excess = len(row.entries) > 1 or (line is None and bool(row.entries))
    held = count(len(row.entries), row.entries[0].collection.removesuffix("s")) if row.entries else "nothing"
    return [
        (row.key, None),
        (line.state.value, STATE_STYLES[line.state.value]) if line else ("nothing", "bold red"),
        (f"{line.sendings}x" if line else "", None),
        (line.settled_by if line else "", None),
        ("│", "dim"),
        (held, "bold red" if excess else "green" if row.entries else "dim"),
        (f"{row.requests}x", None),
    ]


def _show_verdict(screen: Screen, report: Report) -> None:
    verdict = report.verdict
    screen.line(
        f"calls {verdict.calls} / effects {verdict.effects} / duplicates {verdict.duplicates} / lost {verdict.lost} / "
        f"in doubt {verdict.in_doubt}",
        style="bold",
    )
    if report.passed:
        screen.line(
            f"Passed in {report.seconds:.1f} s: {count(report.kills, 'worker')} killed, "
            f"{count(verdict.doubts_seen, 'call')} in doubt for a while. No effect was doubled, none was lost, "
            "and every doubt was settled by evidence or by a named person.",
            style="green",
        )
        return
    screen.line("Failed: this is not what must happen.", style="bold red")
    for reason in report.reasons:
        screen.line(f"- {reason}", style="red")


def _show_next_steps(screen: Screen, report: Report) -> None:
    program, kept = _program(), report.kept
    steps = [(f"{program} demo --keep", "play it again, and look around afterwards")]
    if kept is not None:
        told = LATE.key if any(row.key == LATE.key for row in report.rows) else PLAIN.key
        steps = [
            (f"{program} calls list", "every call"),
            (f"{program} calls show {told}", "the story of one"),
            (f"cat {kept.book}", "billing's book"),
            (f"cat {kept.log}", "the log"),
        ]
    steps.append((f"{program} check --tools tollhouse.demo.tools", "what the tools promise"))
    screen.heading("What to try next")
    if kept is not None:
        tenant = "" if kept.ours else f" {TENANT_ENV}={kept.tenant}"
        screen.command(f"export {STORE_ENV}={kept.store if kept.ours else 'URL'}{tenant}")
    width = max(len(command) for command, _ in steps)
    for command, what in steps:
        screen.command(f"{command.ljust(width)}  # {what}")


def _program() -> str:
    """What to type for this program from here."""
    typed = sys.argv[0]
    return typed if Path(typed).name == "tollhouse" else "tollhouse"
