"""``tollhouse runs``: the group of commands about runs; looking is here, deciding in ``run_decisions``."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated, Any

import typer

from tollhouse.cli import run_decisions
from tollhouse.cli.ledger import PAGE, run
from tollhouse.cli.next_steps import place_of
from tollhouse.cli.options import File, Json, Store, Tenant
from tollhouse.cli.proofs import prove_run_command
from tollhouse.cli.run_access import lines_of, reading_runs
from tollhouse.cli.run_options import RunId
from tollhouse.cli.run_text import Line, exit_code_of, show_event, show_run, show_runs
from tollhouse.cli.screen import Screen
from tollhouse.errors import InvalidSetting
from tollhouse.ledger.keys import DEFAULT_TENANT
from tollhouse.ledger.plain import moment
from tollhouse.ledger.run_record import RunQuery
from tollhouse.runs.reader import RunReader
from tollhouse.runs.states import RunState
from tollhouse.runs.view import RunView, run_as_json

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Start runs of agents, watch them, and decide about them.\n\n"
    "Runs go on in `tollhouse serve`. Commands exit with 1 when a run failed, with 3 when one waits for people.",
)

WATCH_EVERY_S = 0.25
SEQ_MOST = 2**63 - 1
"""The greatest number that a store counts to."""


@app.command("list")
def list_runs(
    state: Annotated[
        str | None, typer.Option("--state", metavar="STATE", help=f"Only runs that are {', '.join(RunState)}.")
    ] = None,
    agent: Annotated[str | None, typer.Option("--agent", metavar="NAME", help="Only runs of this agent.")] = None,
    thread: Annotated[str | None, typer.Option("--thread", metavar="NAME", help="Only runs of this thread.")] = None,
    parent: Annotated[str | None, typer.Option("--parent", metavar="ID", help="Only children of this run.")] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=10_000, help="At most so many.")] = PAGE,
    store: Store = None,
    file: File = None,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: Json = False,
) -> int:
    """List runs, newest first."""
    screen = Screen(as_json=as_json)
    query = RunQuery(_state(state), agent, thread, parent, limit=limit + 1)

    async def read() -> list[RunView]:
        async with reading_runs(store, tenant, file) as runs:
            return await runs.list(query)

    found = run(read())
    shown, more = found[:limit], len(found) > limit
    if as_json:
        screen.document({"runs": [run_as_json(each) for each in shown], "more": more})
    else:
        show_runs(screen, shown, more=more)
    return exit_code_of(*shown)


@app.command("show")
def show(
    run_id: RunId, store: Store = None, file: File = None, tenant: Tenant = DEFAULT_TENANT, as_json: Json = False
) -> int:
    """Tell the story of one run, and what can be done about it."""
    screen = Screen(as_json=as_json)

    async def read() -> tuple[RunView, list[Line]]:
        async with reading_runs(store, tenant, file) as runs:
            return await runs.get(run_id), await lines_of(runs, run_id)

    found, lines = run(read())
    if as_json:
        screen.document({**run_as_json(found), "events": [_line(line) for line in lines]})
    else:
        show_run(screen, found, lines, place_of(store, tenant, file))
    return exit_code_of(found)


@app.command("watch")
def watch(
    run_id: RunId,
    after: Annotated[
        int, typer.Option("--after", metavar="SEQ", min=0, max=SEQ_MOST, help="Begin after this event.")
    ] = 0,
    store: Store = None,
    file: File = None,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line for each event.")] = False,
) -> int:
    """Follow a run until it ends.

    What happened so far is told, then each event as it comes. Long work that is under way is shown with its age.
    Ctrl-C stops watching, and nothing else.
    """
    screen = Screen(as_json=as_json)

    async def follow() -> RunView:
        async with reading_runs(store, tenant, file) as runs:
            return await _follow(runs, run_id, after, screen)

    with contextlib.suppress(KeyboardInterrupt):
        return exit_code_of(run(follow()))
    return 0


async def _follow(runs: RunReader, run_id: str, after: int, screen: Screen) -> RunView:
    told_waiting: set[str] = set()
    while True:
        found = await runs.get(run_id)
        for line in await lines_of(runs, run_id, after):
            after = line[0]
            if screen.as_json:
                screen.document(_line(line), indent=None)
            else:
                show_event(screen, line[1], found.record.created_at_us, line[2], line[3])
            screen.flush()
        if found.record.finished and after >= found.record.head_seq:
            return found
        if not screen.as_json:
            await _show_long_work(runs, run_id, screen, told_waiting)
        await asyncio.sleep(WATCH_EVERY_S)


async def _show_long_work(runs: RunReader, run_id: str, screen: Screen, told: set[str]) -> None:
    """Say of each call that is out how long it has been, every ten seconds."""
    now_us = await runs.now_us()
    for call in await runs.calls_under_way(run_id):
        age_s = (now_us - (call.departed_at_us or call.created_at_us)) // 1_000_000
        mark = f"{call.key} {age_s // 10}"
        if age_s >= 10 and mark not in told:
            told.add(mark)
            screen.line(f"           under way  {call.tool} {call.key}: {call.state}, for {age_s} s", "dim")
            screen.flush()


def _line(line: Line) -> dict[str, Any]:
    seq, at_us, kind, facts = line
    return {"seq": seq, "at": moment(at_us), "kind": kind, "facts": facts}


def _state(name: str | None) -> str | None:
    if name is not None and name not in set(RunState):
        raise InvalidSetting(f"There is no state {name!r}.", remedy=f"Known states: {', '.join(RunState)}.")
    return name


run_decisions.add_to(app)
app.command("proof")(prove_run_command)
