"""``tollhouse db``: the schema of a ledger. The stores execute; this only asks and shows."""

from __future__ import annotations

import typer

from tollhouse.cli.failures import FAILED, OK
from tollhouse.cli.ledger import run, url_of
from tollhouse.cli.options import Json, Store
from tollhouse.cli.screen import Screen
from tollhouse.cli.words import count
from tollhouse.stores import SchemaReport, without_password
from tollhouse.stores import check as check_schema
from tollhouse.stores import upgrade as upgrade_schema

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Check and upgrade the schema of a ledger.",
)


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

    Changes nothing, and says what an upgrade would apply.
    """
    screen, url = Screen(as_json=as_json), url_of(store)
    report = run(check_schema(url))
    if as_json:
        screen.document({"store": without_password(url), **schema_as_json(report)})
    else:
        show_schema(screen, url, report)
    return schema_exit_code(report)


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
