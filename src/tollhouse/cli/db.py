"""``tollhouse db``: a ledger as a whole. The stores and ``operations`` execute; this only asks and shows."""

from __future__ import annotations

import json

import typer

from tollhouse.cli.db_keeping import purge, restored
from tollhouse.cli.db_moves import backup, copy, fence_as_text
from tollhouse.cli.failures import FAILED, OK
from tollhouse.cli.ledger import run
from tollhouse.cli.options import Json, Store
from tollhouse.cli.screen import Screen
from tollhouse.cli.sources import url_of
from tollhouse.cli.words import count
from tollhouse.stores import FENCE, RESTORED, SchemaReport, marks_of, without_password
from tollhouse.stores import check as check_schema
from tollhouse.stores import upgrade as upgrade_schema

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Check, upgrade and look after a ledger as a whole.",
)
app.command("copy")(copy)
app.command("backup")(backup)
app.command("purge")(purge)
app.command("restored")(restored)


@app.command("upgrade")
def upgrade(store: Store = None, as_json: Json = False) -> int:
    """Bring the schema of a ledger up to date, or create it.

    Safe beside running processes of the release before, and when run twice at once.
    """
    screen, url = Screen(as_json=as_json), url_of(store)

    async def work() -> tuple[list[str], SchemaReport]:
        return await upgrade_schema(url), await check_schema(url)

    applied, report = run(work())
    if as_json:
        screen.document({"store": without_password(url), "applied": applied, **schema_as_json(report)})
    elif not applied:
        screen.line(f"Up to date: {without_password(url)} is at version {report.version}.")
    else:
        screen.line(f"Upgraded {without_password(url)} to version {report.version}:")
        for name in applied:
            screen.line(f"  {name}")
    return OK


@app.command("check")
def check(store: Store = None, as_json: Json = False) -> int:
    """Say whether this release works on a ledger.

    Changes nothing. Says what an upgrade would apply, and whether the ledger is fenced: then it exits with 1.
    """
    screen, url = Screen(as_json=as_json), url_of(store)

    async def work() -> tuple[SchemaReport, dict[str, str]]:
        report = await check_schema(url)
        return report, {} if report.version is None else await marks_of(url)

    report, marks = run(work())
    fence = marks.get(FENCE)
    if as_json:
        document = {"store": without_password(url), **schema_as_json(report)}
        told = {name: json.loads(marks[name]) if name in marks else None for name in (FENCE, RESTORED)}
        screen.document({**document, **told})
    else:
        show_schema(screen, url, report)
        if fence is not None:
            screen.line(fence_as_text(fence), style="red")
        if (mark := marks.get(RESTORED)) is not None:
            by = json.loads(mark)["by"]
            screen.line(f"It is marked as restored by {by}: effects are looked up first, or held.", style="yellow")
    return FAILED if fence is not None else schema_exit_code(report)


def schema_exit_code(report: SchemaReport) -> int:
    """1 where there is nothing to work on yet, or this release cannot work on it."""
    return OK if report.usable and report.version is not None else FAILED


def schema_as_json(report: SchemaReport) -> dict[str, object]:
    """The report as JSON. ``version`` null: there is no ledger there yet."""
    return {
        "exists": report.version is not None,
        "version": report.version,
        "latest": report.latest,
        "pending": list(report.pending),
        "usable": report.usable,
        "problem": report.problem,
    }


def show_schema(screen: Screen, url: str, report: SchemaReport) -> None:
    """The report in a sentence or two."""
    shown = without_password(url)
    if report.version is None:
        screen.line(f"There is no ledger at {shown} yet. `tollhouse db upgrade` creates it, or the first house does.")
        return
    if report.problem is not None:
        screen.line(f"{shown}: {report.problem}", style="red")
    else:
        screen.line(f"{shown} works with this release: schema version {report.version}, the latest is {report.latest}.")
    if report.pending:
        screen.line(f"{count(len(report.pending), 'migration')} to apply with `tollhouse db upgrade`:")
        for name in report.pending:
            screen.line(f"  {name}")
