"""``tollhouse check``: what tools promise, and whether their contracts hold together, without calling any of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tollhouse.cli.db import schema_as_json, schema_exit_code, show_schema
from tollhouse.cli.failures import FAILED, OK, UsageMistake, error_as_json, show_error
from tollhouse.cli.ledger import run
from tollhouse.cli.loading import tools_of
from tollhouse.cli.options import TOOLS_ENV, Json, Store, Tools, named_tools
from tollhouse.cli.screen import Screen
from tollhouse.cli.words import bounds, count, length
from tollhouse.contract.terms import Effect, Terms
from tollhouse.contract.tool import Tool
from tollhouse.errors import InvalidSetting, TollhouseError
from tollhouse.house.as_json import tool_as_json
from tollhouse.stores import check as check_schema
from tollhouse.stores import without_password


class Checked(NamedTuple):
    """What the modules hold: their tools, and what is wrong, by source."""

    tools: list[Tool[Any]]
    problems: list[tuple[str, TollhouseError]]


def check(tools: Tools = None, store: Store = None, as_json: Json = False) -> int:
    """Load tools and say what each one promises.

    Exits with 1 when a module cannot be imported or a contract contradicts itself. With a ledger its schema is checked
    too.
    """
    screen, sources = Screen(as_json=as_json), named_tools(tools)
    if not sources:
        raise UsageMistake("No tools are named.", remedy=f"Give --tools MODULE, or set {TOOLS_ENV}.")
    checked = _load(sources)
    report = run(check_schema(store)) if store else None
    if as_json:
        document: dict[str, Any] = {
            "tools": [tool_as_json(tool) for tool in checked.tools],
            "problems": [{"source": source, **error_as_json(error)} for source, error in checked.problems],
        }
        if store and report is not None:
            document["store"] = {"store": without_password(store), **schema_as_json(report)}
        screen.document(document)
    else:
        _show(screen, checked)
        if store and report is not None:
            screen.line()
            show_schema(screen, store, report)
    failed = bool(checked.problems) or (report is not None and schema_exit_code(report) != OK)
    return FAILED if failed else OK


def _load(sources: Sequence[str]) -> Checked:
    """Every source, so that one run shows everything there is to mend."""
    found: dict[int, Tool[Any]] = {}
    problems: list[tuple[str, TollhouseError]] = []
    for source in sources:
        try:
            found |= {id(tool): tool for tool in tools_of(source)}
        except TollhouseError as error:
            problems.append((source, error))
    tools = sorted(found.values(), key=lambda tool: tool.name)
    names = [tool.name for tool in tools]
    problems += [("--tools", _same_name(name)) for name in sorted(set(names)) if names.count(name) > 1]
    return Checked(tools, problems)


def _same_name(name: str) -> InvalidSetting:
    return InvalidSetting(f"Two tools are named {name}.", remedy="Give one of them name='...'.")


def _show(screen: Screen, checked: Checked) -> None:
    for tool in checked.tools:
        screen.grid([((tool.name, "bold"), (tool.effect.value, "cyan"), (_summary(tool), None))])
        screen.pairs(list(_facts(tool)))
        screen.line()
    cautions = sum(len(tool.cautions) for tool in checked.tools)
    said = (
        f"{count(len(checked.tools), 'tool')}, {count(cautions, 'caution')}, {count(len(checked.problems), 'problem')}"
    )
    screen.line(f"{said}.")
    for _source, error in checked.problems:
        show_error(error, as_json=False)


def _summary(tool: Tool[Any]) -> str:
    return (tool.description or "no description: a model will not know what it is for").split("\n")[0]


def _facts(tool: Tool[Any]) -> Iterator[tuple[str, str]]:
    terms = tool.terms
    yield "promise", terms.guarantee
    yield "arguments", ", ".join(tool.schema.parameters) or "none"
    yield "attempts", bounds(terms)
    if terms.effect is not Effect.READ:
        yield "dedup", _dedup(terms)
        yield "approval", _approval(terms)
        yield "hooks", _hooks(terms)
        yield "repeats", _repeats(terms)
    if terms.accepts:
        yield "long work", f"may be accepted under a reference, then ends within {length(terms.job_deadline_s)}"
    for caution in tool.cautions:
        yield "caution", caution


def _dedup(terms: Terms) -> str:
    kinds = {
        "none": "none: the receiver takes a repeat for a new request",
        "by_key": f"by key, for {terms.dedup.hours or 0:g} h less a margin of {length(terms.resend_margin_s)}",
        "natural": "natural: repeating is harmless",
    }
    return kinds[terms.dedup.kind]


def _approval(terms: Terms) -> str:
    asked = terms.approval
    if asked is None:
        return "not needed"
    who = "" if asked.approvers is None else f" of {', '.join(asked.approvers)}"
    return f"{'one person' if asked.quorum == 1 else f'{asked.quorum} people'}{who}, within {length(asked.expires_s)}"


def _hooks(terms: Terms) -> str:
    looks = f"look-up, absence counts after {length(terms.absent_after_s)}" if terms.has_reconcile else "no look-up"
    undo = f"undone by {terms.compensate}" if terms.compensate else "no compensation"
    return f"{looks}; {undo}"


def _repeats(terms: Terms) -> str:
    if terms.on_repeat.mode == "allow":
        return "allowed"
    settled = "" if terms.on_repeat.within_s is None else f", or settled within {length(terms.on_repeat.within_s)}"
    return f"held while the first of the same scope is unsettled{settled}"
