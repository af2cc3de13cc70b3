"""The verbs of ``tollhouse calls``: one function for each decision of the house, thin over it.

``--version`` makes a decision compare-and-set on what was shown; where the house decides rightly at any version
(cancel, reconcile, compensate) there is no such option.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tollhouse.cli.call_text import show_outcome, show_since
from tollhouse.cli.failures import OK, UsageMistake, exit_code_for
from tollhouse.cli.ledger import deciding, run
from tollhouse.cli.options import (
    By,
    File,
    Json,
    Key,
    OptionalReason,
    Reason,
    Store,
    Tenant,
    Tools,
    Version,
    Volatile,
    decider,
    json_object,
    json_value,
)
from tollhouse.cli.screen import Screen
from tollhouse.cli.sources import tools_from
from tollhouse.cli.verb import verb
from tollhouse.contract.answers import Answer, did_not_happen, happened
from tollhouse.errors import UnknownTool
from tollhouse.gate.view import RecordedCall
from tollhouse.house import Tollhouse
from tollhouse.house.as_json import call_as_json, outcome_as_json
from tollhouse.ledger.keys import DEFAULT_TENANT

Evidence = Annotated[str | None, typer.Option("--evidence", metavar="TEXT", help="What shows it; kept on the record.")]

# -- settling a doubt ----------------------------------------------------------------------------------------------


@verb(tools=True)
async def resolve(
    house: Tollhouse,
    by: str,
    key: Key,
    reason: Reason,
    yes: Annotated[bool, typer.Option("--happened", help="It took effect.")] = False,
    no: Annotated[bool, typer.Option("--did-not-happen", help="It had no effect.")] = False,
    value: Annotated[
        str | None, typer.Option("--value", metavar="JSON", help="The result to record; @file reads it from a file.")
    ] = None,
    reference: Annotated[
        str | None, typer.Option("--reference", metavar="ID", help="The receiver's id for it.")
    ] = None,
    evidence: Evidence = None,
    force: Annotated[bool, typer.Option("--force", help="Set aside an attempt that may still be running.")] = False,
    version: Version = None,
) -> RecordedCall:
    """Settle a doubt by name: it happened, or it did not."""
    answer = _answer(yes, no, value, reference, evidence)
    return await house.resolve(key, answer, reason=reason, by=by, force=force, version=version)


def _answer(yes: bool, no: bool, value: str | None, reference: str | None, evidence: str | None) -> Answer:
    if yes == no:
        raise UsageMistake(
            "A resolution says either --happened or --did-not-happen.", remedy="Give the one that you verified."
        )
    if no and (value is not None or reference is not None):
        raise UsageMistake(
            "What did not happen has no result and no reference.", remedy="Leave --value and --reference out."
        )
    if yes and evidence is not None:
        raise UsageMistake("--evidence goes with --did-not-happen.", remedy="Say it in --reason.")
    if no:
        return did_not_happen(evidence)
    return happened(None if value is None else json_value("--value", value), reference)


def reconcile(
    key: Key,
    tools: Tools = None,
    store: Store = None,
    file: File = None,
    tenant: Tenant = DEFAULT_TENANT,
    volatile: Volatile = False,
    as_json: Json = False,
) -> int:
    """Ask the tool now what became of a call.

    Where the receiver recognises the key, a call that stays in doubt is also sent again.
    """
    screen, loaded = Screen(as_json=as_json), tools_from(tools, file)

    async def ask() -> tuple[RecordedCall, RecordedCall]:
        async with deciding(store, tenant, file=file, tools=loaded, volatile=volatile) as house:
            before = await house.get(key)
            if all(tool.name != before.tool for tool in house.tools):
                raise UnknownTool(f"The tool {before.tool} is not loaded, so it cannot be asked.", key=key)
            await house.reconcile(key)
            return before, await house.get(key)

    before, after = run(ask())
    if as_json:
        screen.document(call_as_json(after))
    else:
        show_since(screen, before, after)
    return exit_code_for(after)


def compensate(
    key: Key,
    reason: Reason,
    by: By = None,
    tools: Tools = None,
    store: Store = None,
    file: File = None,
    tenant: Tenant = DEFAULT_TENANT,
    volatile: Volatile = False,
    as_json: Json = False,
) -> int:
    """Undo a call that took effect, by a call of its own.

    That call is gated and recorded like any other, under the key KEY:compensate; asking again replays it.
    """
    screen, name, loaded = Screen(as_json=as_json), decider(by), tools_from(tools, file)

    async def undo() -> tuple[dict[str, Any], RecordedCall]:
        async with deciding(store, tenant, file=file, tools=loaded, volatile=volatile) as house:
            outcome = await house.compensate(key, by=name, reason=reason)
            return outcome_as_json(outcome), await house.get(key)

    outcome, original = run(undo())
    if as_json:
        screen.document(outcome)
    else:
        show_outcome(screen, outcome, original)
    return OK


# -- approvals -----------------------------------------------------------------------------------------------------


@verb()
async def approve(
    house: Tollhouse,
    by: str,
    key: Key,
    reason: OptionalReason = None,
    version: Version = None,
    digest: Annotated[
        str | None, typer.Option("--digest", metavar="SHA256", help="Approve only if these are still the arguments.")
    ] = None,
) -> RecordedCall:
    """Say yes to a held call; at the quorum it may go.

    Nobody approves their own call.
    """
    return await house.approve(key, by=by, reason=reason, version=version, digest=digest)


@verb()
async def deny(house: Tollhouse, by: str, key: Key, reason: Reason, version: Version = None) -> RecordedCall:
    """Say no to a call that is held or ready: it is refused."""
    return await house.deny(key, by=by, reason=reason, version=version)


@verb(tools=True)
async def edit(
    house: Tollhouse,
    by: str,
    key: Key,
    arguments: Annotated[
        str,
        typer.Option("--arguments", metavar="JSON", help="All arguments, as one object; @file reads it from a file."),
    ],
    reason: OptionalReason = None,
    version: Version = None,
) -> RecordedCall:
    """Replace the arguments of a held call.

    Approvals given so far become void. With --tools the arguments are checked at once, otherwise when the call is sent.
    """
    return await house.edit(key, json_object("--arguments", arguments), by=by, reason=reason, version=version)


# -- after the end -------------------------------------------------------------------------------------------------


@verb(tools=True)
async def retry(house: Tollhouse, by: str, key: Key, reason: Reason, version: Version = None) -> RecordedCall:
    """Open a new round of a failed or refused call.

    It sends nothing by itself, and waits for approval again where the contract asks for it.
    """
    return await house.retry(key, by=by, reason=reason, version=version)


@verb()
async def cancel(house: Tollhouse, by: str, key: Key, reason: OptionalReason = None) -> RecordedCall:
    """Refuse a call that has not left, or forbid sending it again."""
    return await house.cancel(key, by=by, reason=reason)


@verb()
async def overturn(
    house: Tollhouse, by: str, key: Key, reason: Reason, evidence: Evidence = None, version: Version = None
) -> RecordedCall:
    """Reverse a settlement, on what is recorded against it.

    To succeeded on a recorded effect; to failed where no result ever came back.
    """
    return await house.overturn(key, by=by, reason=reason, evidence=evidence, version=version)


@verb()
async def uphold(house: Tollhouse, by: str, key: Key, reason: Reason, version: Version = None) -> RecordedCall:
    """Confirm a settlement in view of what contradicts it."""
    return await house.uphold(key, by=by, reason=reason, version=version)


COMMANDS = (resolve, reconcile, compensate, approve, deny, edit, retry, cancel, overturn, uphold)
"""Every verb, in the order in which help lists them."""
