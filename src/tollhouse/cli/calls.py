"""``tollhouse calls``: the group of commands about recorded calls; looking is here, deciding in ``decisions``."""

from __future__ import annotations

from typing import Annotated

import typer

from tollhouse.cli import decisions
from tollhouse.cli.call_text import show_call, show_list
from tollhouse.cli.failures import exit_code_for
from tollhouse.cli.ledger import PAGE, reading, run
from tollhouse.cli.next_steps import place_of
from tollhouse.cli.options import File, Json, Key, Store, Tenant
from tollhouse.cli.proofs import prove_call_command
from tollhouse.cli.screen import Screen
from tollhouse.errors import InvalidSetting
from tollhouse.gate.view import RecordedCall
from tollhouse.house.as_json import call_as_json
from tollhouse.ledger.keys import DEFAULT_TENANT
from tollhouse.ledger.record import State
from tollhouse.ledger.store import Query

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Look at recorded calls, and decide about them.\n\n"
    "Commands that show or change calls exit with 3 when one of them is in doubt, held or contradicted.",
)


@app.command("list")
def list_calls(
    state: Annotated[
        str | None, typer.Option("--state", metavar="STATE", help=f"Only calls that are {', '.join(State)}.")
    ] = None,
    tool: Annotated[str | None, typer.Option("--tool", metavar="NAME", help="Only calls of this tool.")] = None,
    scope: Annotated[str | None, typer.Option("--scope", metavar="NAME", help="Only calls of this scope.")] = None,
    contradicted: Annotated[bool, typer.Option("--contradicted", help="Only calls with a contradiction open.")] = False,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="At most so many.")] = PAGE,
    store: Store = None,
    file: File = None,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: Json = False,
) -> int:
    """List calls, newest first."""
    screen = Screen(as_json=as_json)
    query = Query(_state(state), tool, scope, contradicted or None, min(limit + 1, PAGE))

    async def read() -> tuple[list[RecordedCall], bool, int]:
        async with reading(store, tenant, file) as reader:
            return *await reader.find(query, limit), await reader.now_us()

    calls, more, now_us = run(read())
    if as_json:
        screen.document({"calls": [call_as_json(call) for call in calls], "more": more})
    else:
        show_list(screen, calls, now_us, more=more)
    return exit_code_for(*calls)


@app.command("show")
def show(
    key: Key, store: Store = None, file: File = None, tenant: Tenant = DEFAULT_TENANT, as_json: Json = False
) -> int:
    """Tell the story of one call, and what can be done about it.

    Who asked, which gates said what, what was sent and when, what came back, and who settled it.
    """
    screen = Screen(as_json=as_json)

    async def read() -> tuple[RecordedCall, int]:
        async with reading(store, tenant, file) as reader:
            return await reader.get(key), await reader.now_us()

    call, now_us = run(read())
    if as_json:
        screen.document(call_as_json(call))
    else:
        show_call(screen, call, now_us, place_of(store, tenant, file))
    return exit_code_for(call)


def _state(name: str | None) -> State | None:
    try:
        return None if name is None else State(name)
    except ValueError:
        raise InvalidSetting(f"There is no state {name!r}.", remedy=f"Known states: {', '.join(State)}.") from None


app.command("proof")(prove_call_command)

for command in decisions.COMMANDS:
    app.command(command.__name__)(command)
