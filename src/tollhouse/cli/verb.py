"""What all decisions on the command line share: who decides, where the ledger is, how the call is shown afterwards.

A verb is written as one coroutine of the house, the decider's name and its own options; :func:`verb` makes the command
of it, so that no two verbs can differ in what they have in common.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from tollhouse.cli.call_text import show_standing
from tollhouse.cli.failures import exit_code_for
from tollhouse.cli.ledger import deciding, run
from tollhouse.cli.options import By, File, Json, Store, Tenant, Tools, Volatile, decider
from tollhouse.cli.screen import Screen
from tollhouse.cli.sources import tools_from
from tollhouse.gate.view import RecordedCall
from tollhouse.house.as_json import call_as_json
from tollhouse.ledger.keys import DEFAULT_TENANT

Decision = Callable[..., Awaitable[RecordedCall]]
"""``decision(house, by, **options)``: decides, and returns the call as it stands afterwards."""

_BY = {"by": (By, None)}
_TOOLS = {"tools": (Tools, None)}
_PLACE = {
    "store": (Store, None),
    "file": (File, None),
    "tenant": (Tenant, DEFAULT_TENANT),
    "volatile": (Volatile, False),
    "as_json": (Json, False),
}


def verb(*, tools: bool = False) -> Callable[[Decision], Callable[..., int]]:
    """The command that takes one decision. ``tools``: whether it is a better decision with the tools at hand."""
    shared = {**_BY, **(_TOOLS if tools else {}), **_PLACE}

    def make(decision: Decision) -> Callable[..., int]:
        def command(**given: Any) -> int:
            common = {name: given.pop(name) for name in shared}
            return _decide(decision, given, with_tools=tools, **common)

        command.__name__, command.__doc__ = decision.__name__, decision.__doc__
        command.__annotations__ = {}
        vars(command)["__signature__"] = _signature(decision, shared)
        return command

    return make


def _signature(decision: Decision, shared: dict[str, tuple[Any, Any]]) -> inspect.Signature:
    """The decision's own options, then those that it shares; the house and the name are not the user's to give."""
    own = list(inspect.signature(decision, eval_str=True).parameters.values())[2:]
    kind = inspect.Parameter.KEYWORD_ONLY
    added = [
        inspect.Parameter(name, kind, default=default, annotation=annotation)
        for name, (annotation, default) in shared.items()
    ]
    return inspect.Signature([*(parameter.replace(kind=kind) for parameter in own), *added], return_annotation=int)


def _decide(
    decision: Decision,
    options: dict[str, Any],
    *,
    by: str | None,
    store: str | None,
    file: str | None,
    tenant: str,
    volatile: bool,
    as_json: bool,
    with_tools: bool,
    tools: list[str] | None = None,
) -> int:
    screen, name = Screen(as_json=as_json), decider(by)
    loaded = tools_from(tools, file) if with_tools else []

    async def decide() -> RecordedCall:
        async with deciding(store, tenant, file=file, tools=loaded, volatile=volatile) as house:
            return await decision(house, name, **options)

    call = run(decide())
    if as_json:
        screen.document(call_as_json(call))
    else:
        show_standing(screen, call)
    return exit_code_for(call)
