"""The sections of the docs that are generated from the code; `tools/docs.py` puts them into the pages."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

import tollhouse
from tollhouse import errors, settings
from tollhouse.api.problems import STATUS
from tollhouse.contract import dedup
from tollhouse.contract.checks import Completed, complete
from tollhouse.contract.effects import Declaration, Settings
from tollhouse.contract.guarantee import guarantee
from tollhouse.contract.terms import ApprovalTerms, Dedup, Effect, RepeatTerms
from tollhouse.ledger.encodings import ENCODINGS
from tollhouse.ledger.lifecycle import FOLD, TRANSITIONS, Event
from tollhouse.ledger.record import FINAL, SETTLED, AttemptOutcome, State
from tollhouse.runs.states import FINISHED, RUN_TRANSITIONS, RunState
from tools import cli_reference, http_reference

# -- Markdown ------------------------------------------------------------------------------------------------


def table(heads: list[str], rows: list[list[str]]) -> str:
    """A table; bars inside cells are escaped."""
    lines = [heads, ["---"] * len(heads), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def code(text: str) -> str:
    """The text as code, whatever backticks are in it."""
    fence = "``" if "`" in text else "`"
    return f"{fence}{text}{fence}"


_ROLE = re.compile(r":\w+:`~?([\w.]+)`")
_LITERAL = re.compile(r"``(.+?)``")


def prose(docstring: str | None) -> str:
    """A docstring as Markdown: paragraphs on one line each, errors linked to their reference."""
    paragraphs = inspect.cleandoc(docstring or "").split("\n\n")
    return "\n\n".join(_inline(" ".join(part.split())) for part in paragraphs)


def _inline(text: str) -> str:
    return _ROLE.sub(lambda found: _linked(found[1].rsplit(".", 1)[-1]), _LITERAL.sub(r"`\1`", text))


def _linked(name: str) -> str:
    error = getattr(errors, name, None)
    if isinstance(error, type) and issubclass(error, errors.TollhouseError) and error.code != "error":
        return f"[`{name}`](errors.md#{error.code})"
    return f"`{name}`"


def sentence(text: str) -> str:
    """With a capital and a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


# -- the life of a call --------------------------------------------------------------------------------------


def states() -> str:
    """Every state with its sentence, who may hold it and what leads on."""
    rows = []
    for state in State:
        on = [t for t in TRANSITIONS if t.source is state and t.targets != {state}]
        leads = ", ".join(dict.fromkeys(_words(t.event) for t in on)) or "nothing"
        settled = "yes" if state in SETTLED else "no"
        rows.append([code(state), sentence(state.sentence), settled, leads])
    return table(["State", "Meaning", "Settled", "What leads on from it"], rows)


def outcomes() -> str:
    """The order of outcomes, weakest first, with the state that each folds to."""
    rows = [
        [
            str(outcome.rank),
            code(outcome),
            sentence(outcome.sentence),
            "final" if outcome in FINAL else "provisional",
            code(FOLD[outcome]),
        ]
        for outcome in AttemptOutcome
    ]
    return table(["Rank", "Outcome", "Meaning", "", "State, when it is the strongest"], rows)


def transitions() -> str:
    """The whole table of steps."""
    merged: dict[tuple[str, str, str, str], list[str]] = {}
    for t in TRANSITIONS:
        source = code(t.source) if t.source else "no row"
        stays = t.targets == {t.source}
        target = "the same" if stays else ", ".join(code(state) for state in State if state in t.targets)
        merged.setdefault((t.event, target, t.by, t.guard), []).append(source)
    rows = [
        [", ".join(sources), code(event), target, by, guard] for (event, target, by, guard), sources in merged.items()
    ]
    return table(["From", "Event", "To", "By", "Guard"], rows)


def diagram() -> str:
    """The steps that move a call, as a Mermaid state diagram; all that lead where outcomes point are one arrow."""
    edges: dict[tuple[str, str], dict[str, None]] = {}
    for t in TRANSITIONS:
        for target in State:
            stays = target is t.source and t.event not in (Event.RESEND, Event.VOTE, Event.EDIT)
            if target in t.targets and not stays:
                label = "fold" if "fold" in t.guard else _words(t.event)
                edges.setdefault((t.source or "[*]", target), {})[label] = None
    lines = [f"    {source} --> {target}: {', '.join(events)}" for (source, target), events in edges.items()]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])


def _words(event: Event) -> str:
    return event.value.replace("_", " ")


# -- the life of a run ---------------------------------------------------------------------------------------


def run_states() -> str:
    """Every state of a run with its sentence and what leads on."""
    rows = []
    for state in RunState:
        on = [t for t in RUN_TRANSITIONS if t.source is state and t.targets != {state}]
        leads = ", ".join(dict.fromkeys(_run_words(t.event) for t in on)) or "nothing"
        rows.append([code(state), sentence(state.sentence), "yes" if state in FINISHED else "no", leads])
    return table(["State", "Meaning", "Finished", "What leads on from it"], rows)


def run_transitions() -> str:
    """The whole table of steps of a run."""
    merged: dict[tuple[str, str, str], list[str]] = {}
    for t in RUN_TRANSITIONS:
        source = code(t.source) if t.source else "no row"
        target = "the same" if t.targets == {t.source} else ", ".join(code(s) for s in RunState if s in t.targets)
        merged.setdefault((t.event, target, t.by), []).append(source)
    rows = [[", ".join(sources), code(event), target, by] for (event, target, by), sources in merged.items()]
    return table(["From", "Event", "To", "By"], rows)


def run_diagram() -> str:
    """The steps that move a run, as a Mermaid state diagram; states in which it waits are one."""
    edges: dict[tuple[str, str], dict[str, None]] = {}
    for t in RUN_TRANSITIONS:
        for target in (state for state in RunState if state in t.targets):
            edge = (_run_place(t.source), _run_place(target))
            if edge[0] != edge[1]:
                edges.setdefault(edge, {})[_run_words(t.event)] = None
    lines = [f"    {source} --> {target}: {', '.join(events)}" for (source, target), events in edges.items()]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])


def _run_place(state: RunState | None) -> str:
    return "[*]" if state is None else "awaiting" if state.startswith("awaiting_") else state.value


def _run_words(event: str) -> str:
    return event.removeprefix("run_").replace("_", " ")


# -- errors --------------------------------------------------------------------------------------------------


def error_classes() -> Iterator[type[errors.TollhouseError]]:
    """Every error there is, in the order of the module."""
    for found in vars(errors).values():
        if isinstance(found, type) and issubclass(found, errors.TollhouseError) and found is not errors.TollhouseError:
            yield found


def error_index() -> str:
    """One line for each error."""
    rows = [
        [f"[`{error.code}`](#{error.code})", code(error.__name__), code(error.default_sent)]
        for error in error_classes()
    ]
    return table(["Code", "Class in `tollhouse.errors`", "Sent, unless it says otherwise"], rows)


def error_entries() -> str:
    """Meaning, remedy and what a model is told, for each error."""
    return "\n\n".join(_error_entry(error) for error in error_classes())


def _error_entry(error: type[errors.TollhouseError]) -> str:
    kind = error.__bases__[0]
    parents = ""
    if issubclass(kind, errors.TollhouseError) and kind is not errors.TollhouseError:
        parents = f", a kind of [`{kind.code}`](#{kind.code})"
    told = "for_model" in vars(error)
    lines = [
        f"### {error.code}",
        f"`{error.__name__}`{parents}. {prose(error.__doc__)}",
        f"- **What to do:** {error.default_remedy}",
        f"- **Sent:** `{error.default_sent}` by default; the error's own `.sent` counts.",
    ]
    if told:
        lines.append(f"- **Told to a model:** {_for_model(error)}")
    return "\n".join([*lines[:1], "", lines[1], "", *lines[2:]])


def _for_model(error: type[errors.TollhouseError]) -> str:
    return error("(the cause)").for_model


# -- settings ------------------------------------------------------------------------------------------------


def house_settings() -> str:
    """What `Tollhouse.open` accepts."""
    rows = []
    for field in dataclasses.fields(settings.HouseSettings):
        env = field.metadata["env"]
        rows.append(
            [
                code(field.name),
                _default(field.default),
                code(env) if env else "",
                _inline(field.metadata["doc"]),
            ]
        )
    return table(["Setting", "Default", "Environment", "What it does"], rows)


def _default(value: Any) -> str:
    return "none" if value is None or value == () else code(repr(value))


# -- contracts -----------------------------------------------------------------------------------------------

_DECLARED: dict[str, tuple[Effect, Dedup | None]] = {
    "read()": (Effect.READ, None),
    "write()": (Effect.WRITE, None),
    "external()": (Effect.EXTERNAL, None),
    "external(dedup=dedup.by_key(hours=24))": (Effect.EXTERNAL, dedup.by_key(hours=24)),
    "external(dedup=dedup.natural)": (Effect.EXTERNAL, dedup.natural),
    "destructive()": (Effect.DESTRUCTIVE, None),
}
_OF_EFFECTS_ONLY = frozenset({"absent_after_s", "accepts", "job_deadline_s", "resend_margin_s", "departs", "on_repeat"})


def contract_types() -> str:
    """Each field of a contract and what it takes."""
    rows = [[code(name), code(_annotation(hint))] for name, hint in Settings.__annotations__.items()]
    return table(["Field", "Takes"], rows)


def contract_defaults() -> str:
    """What a contract says where its author says nothing."""
    declared = {name: _completed(effect, of) for name, (effect, of) in _DECLARED.items()}
    rows = [
        [code(field), *(_field(declared[name], field, _DECLARED[name][0]) for name in _DECLARED)]
        for field in Settings.__annotations__
    ]
    return table(["Field", *(code(name) for name in _DECLARED)], rows)


def _completed(effect: Effect, of: Dedup | None, **given: Any) -> Completed:
    said = Settings(**({} if of is None else {"dedup": of}), **given)  # type: ignore[typeddict-item]
    return complete(Declaration(effect, said), has_reconcile=False, has_compensate=False, has_context=True)


def _field(completed: Completed, field: str, effect: Effect) -> str:
    if field == "cost" or (effect is Effect.READ and field in _OF_EFFECTS_ONLY):
        return ""
    value = getattr(completed, field)
    if isinstance(value, Dedup):
        return value.kind if value.hours is None else f"{value.kind}, {value.hours:g} h"
    if isinstance(value, ApprovalTerms):
        return f"one person, within {value.expires_s / 3600:g} h"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, RepeatTerms):
        return value.mode
    if value is None or isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) if value != () else "nothing"


def guarantees() -> str:
    """The sentence that `tollhouse check` prints, in its three parts, each with what decides it."""
    rows = []
    for name, (effect, of) in _DECLARED.items():
        says = guarantee(effect, _completed(effect, of), has_reconcile=False)
        rows.append([code(name), says if effect is Effect.READ else says.rsplit("; ", 2)[0]])
    sent = table(["Declared", "How often it is sent"], rows)
    parts = []
    for hook, departs in ((True, "at_start"), (False, "at_start"), (False, "at_confirm")):
        given = _completed(Effect.EXTERNAL, None, departs=departs)
        parts.append(guarantee(Effect.EXTERNAL, given, has_reconcile=hook).rsplit("; ", 2)[1:])
    rest = table(
        ["Declared", "What it adds"],
        [
            ["with `reconcile=`", parts[0][0]],
            ["without `reconcile=`", parts[1][0]],
            ['`departs="at_start"`', parts[1][1]],
            ['`departs="at_confirm"`', parts[2][1]],
        ],
    )
    return f"{sent}\n\n{rest}"


# -- arguments and results -----------------------------------------------------------------------------------


def encodings() -> str:
    """How each type is written down."""
    rows = [
        [
            code(one.type) if re.fullmatch(r"[\w.]+", one.type) else one.type,
            code(one.example),
            "refused" if one.argument is None else code(one.argument),
            "cannot be kept" if one.result is None else code(one.result),
            f"{one.note} Comes back as `{one.comes_back_as}`.".strip() if one.comes_back_as else one.note,
        ]
        for one in ENCODINGS
    ]
    return table(["Type", "Example", "As an argument", "As a result", ""], rows)


# -- the Python API ------------------------------------------------------------------------------------------

GROUPS: dict[str, list[str]] = {
    "The house": ["Tollhouse", "Outcome", "RecordedCall", "State", "AttemptOutcome"],
    "Declaring a tool": [
        "tool", "Tool", "read", "write", "external", "destructive", "dedup", "approval", "hold_repeats",
    ],
    "Inside a tool": ["CallContext", "guard", "never_sent", "NotSent", "Rejected", "Accepted"],
    "Answers of a look-up": ["happened", "did_not_happen", "unknown", "Answer"],
    "Gates of your own": ["Check", "Asked", "Pass", "Deny", "Hold"],
}  # fmt: skip


def api() -> str:
    """Every public name, by group; a new name that no group has yet comes last."""
    listed = {name for names in GROUPS.values() for name in names}
    more = [name for name in tollhouse.__all__ if name not in listed]
    groups = {**GROUPS, **({"More": more} if more else {})}
    return "\n\n".join(
        f"## {group}\n\n" + "\n\n".join(_entry(name, getattr(tollhouse, name)) for name in names)
        for group, names in groups.items()
    )


def _entry(name: str, value: Any) -> str:
    if isinstance(value, ModuleType):
        members = [(n, v) for n, v in vars(value).items() if not n.startswith("_") and _is_own(v, value)]
        return "\n\n".join([f"### {name}", prose(value.__doc__), *(_member(f"{name}.{n}", v) for n, v in members)])
    if isinstance(value, FunctionType):
        return f"### {name}\n\n{_signature(name, value)}\n\n{prose(value.__doc__)}"
    return "\n\n".join([f"### {name}", *_class(name, value)])


def _is_own(value: Any, module: ModuleType) -> bool:
    """Functions of the module, and the values of its own kind; not what it imported to make them."""
    return isinstance(value, Dedup) or (isinstance(value, FunctionType) and value.__module__ == module.__name__)


def _member(name: str, value: Any) -> str:
    if isinstance(value, FunctionType):
        return f"{_signature(name, value)}\n\n{prose(value.__doc__)}"
    return f"`{name}`: a value, see [the contract reference](contract.md#dedup)."


def _class(name: str, cls: type[Any]) -> Iterator[str]:
    doc = cls.__doc__ or ""
    if dataclasses.is_dataclass(cls):
        yield _call(name, [_field_of(f) for f in dataclasses.fields(cls)], "")
    elif issubclass(cls, Exception) and "__init__" in vars(cls):
        yield _signature(name, vars(cls)["__init__"], returns=False)
    yield prose(doc)
    if issubclass(cls, enum.Enum):
        yield "One of " + ", ".join(code(member.value) for member in cls) + "."
        return
    if inspect.isabstract(cls):
        yield "Attributes: " + ", ".join(f"`{n}` (`{_annotation(h)}`)" for n, h in cls.__annotations__.items()) + "."
    for member, value in vars(cls).items():
        if not member.startswith("_") and (told := _told(member, value)):
            yield told


def _field_of(field: dataclasses.Field[Any]) -> str:
    made = field.default_factory is not dataclasses.MISSING
    return _parameter(field.name, str(field.type), ... if made else field.default, dataclasses.MISSING)


def _told(name: str, value: Any) -> str | None:
    if isinstance(value, staticmethod):
        value = value.__func__
    if isinstance(value, property):
        hint = _annotation(value.fget.__annotations__.get("return", "Any")) if value.fget else "Any"
        return f"**`{name}`** (`{hint}`)" + (f": {prose(value.__doc__)}" if value.__doc__ else "")
    if isinstance(value, FunctionType):
        return f"{_signature(name, value)}\n\n{prose(value.__doc__)}".rstrip()
    return None


def _signature(name: str, fn: FunctionType, *, returns: bool = True) -> str:
    parts, starred = [], False
    for p in inspect.signature(fn).parameters.values():
        if p.name == "self":
            continue
        starred = starred or p.kind is p.VAR_POSITIONAL
        if p.kind is p.KEYWORD_ONLY and not starred:
            parts.append("*")
            starred = True
        stars = "**" if p.kind is p.VAR_KEYWORD else "*" if p.kind is p.VAR_POSITIONAL else ""
        hint = "" if p.annotation is p.empty else _annotation(p.annotation)
        parts.append(stars + _parameter(p.name, hint, p.default, p.empty))
    start = "await " if inspect.iscoroutinefunction(fn) else ""
    gives = f" -> {_annotation(fn.__annotations__.get('return', 'Any'))}" if returns else ""
    return _call(start + name, parts, gives)


def _call(name: str, parts: list[str], gives: str) -> str:
    """Marked `py`, since a block marked `python` is a program that the tests run."""
    whole = f"{name}({', '.join(parts)}){gives}"
    if len(whole) > 100:
        whole = f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){gives}"
    return f"```py\n{whole}\n```"


def _parameter(name: str, hint: str, default: Any, none: Any) -> str:
    told = f"{name}: {hint}" if hint else name
    if default is none:
        return told
    if default is ...:
        return f"{told} = ..."
    return f"{told} = {default!r}" if hint else f"{told}={default!r}"


def _annotation(hint: Any) -> str:
    text = hint if isinstance(hint, str) else getattr(hint, "__forward_arg__", None) or inspect.formatannotation(hint)
    return text.replace("builtins.", "")


# -- the command line ----------------------------------------------------------------------------------------


def command_index() -> str:
    """One line for each command."""
    rows = [
        [f"[`{shown.line}`](#{shown.line.replace(' ', '-')})", prose(shown.command.help).split("\n")[0]]
        for shown in cli_reference.commands()
    ]
    return table(["Command", "What it does"], rows)


def command_entries() -> str:
    """Usage, text and options of each command."""
    return "\n\n".join(_command(shown) for shown in cli_reference.commands())


def _command(shown: cli_reference.Shown) -> str:
    rows = [
        [code(cli_reference.takes(option)), cli_reference.default(option), _inline(option.help or "")]
        for option in cli_reference.options(shown.command)
    ]
    usage = f"```text\n{cli_reference.usage(shown)}\n```"
    told = table(["Option", "Where it is not given", "Meaning"], rows) if rows else ""
    return "\n\n".join([f"### {shown.line}", usage, prose(shown.command.help), told]).rstrip()


_IN_FILE = {"--store": "`store`", "--tools": "`tools`"}
"""Options of which the agents' file has a field."""


def serve_settings() -> str:
    """What `tollhouse serve` can be told, and where."""
    shown = next(shown for shown in cli_reference.commands() if shown.line == "tollhouse serve")
    rows = [
        [
            code(cli_reference.takes(option)),
            code(option.envvar) if option.envvar else "",
            _IN_FILE.get(option.opts[0], ""),
            code(str(option.default)) if option.default is not None and not option.is_flag else "",
            _inline(option.help or ""),
        ]
        for option in cli_reference.options(shown.command)
    ]
    return table(["Flag", "Environment", "`tollhouse.yaml`", "Default", "What it does"], rows)


# -- the HTTP API --------------------------------------------------------------------------------------------


_ANYWHERE = {"401", "408", "413", "415", "421"}
"""Statuses that the page tells of once, for all paths."""


def http_index() -> str:
    """One line for each path."""
    found = http_reference.document()
    rows = [
        [f"[`{one.method} {one.path}`](#{one.says['operationId']})", one.says["summary"], _scope(one.says)]
        for one in http_reference.paths(found)
    ]
    return table(["Path", "What it does", "Scope"], rows)


def _scope(says: dict[str, Any]) -> str:
    return code(says["x-scope"]) if "x-scope" in says else "none"


def http_entries() -> str:
    """Parameters, body and answers of each path, by its group."""
    found = http_reference.document()
    told = []
    for tag in found["tags"]:
        own = [one for one in http_reference.paths(found) if one.says["tags"][0] == tag["name"]]
        told += [f"## {sentence(tag['name'])[:-1]}", sentence(tag["description"]), *(_path(one, found) for one in own)]
    return "\n\n".join(told)


def _path(one: http_reference.Path, found: dict[str, Any]) -> str:
    says = one.says
    parts = [f"### {says['operationId']}", f"```text\n{one.method} {one.path}\n```", says.get("description", "")]
    if parameters := says.get("parameters"):
        parts.append(table(["Parameter", "In", "Type", "Meaning"], [_http_parameter(each) for each in parameters]))
    if body := says.get("requestBody"):
        parts.append(_http_body(body["content"]["application/json"]["schema"], found))
    told = {status: each for status, each in sorted(says["responses"].items()) if status not in _ANYWHERE}
    answers = [_http_answer(status, each) for status, each in told.items()]
    parts.append(table(["Status", "Body", "Meaning"], answers))
    return "\n\n".join(part for part in parts if part)


def _http_parameter(each: dict[str, Any]) -> list[str]:
    name = code(each["name"]) + ("" if each.get("required") else " (optional)")
    return [name, each["in"], http_reference.kind(each["schema"]), each.get("description", "")]


def _http_body(schema: dict[str, Any], found: dict[str, Any]) -> str:
    names = [http_reference.kind(schema)] if "$ref" in schema else http_reference.kind(schema).split(" or ")
    linked = " or ".join(f"[`{name}`](#{name.lower()})" for name in names if name != "null")
    shown = http_reference.example(schema, found)
    return f"Body: {linked}." + (f"\n\n```json\n{shown}\n```" if shown else "")


def _http_answer(status: str, each: dict[str, Any]) -> list[str]:
    content = each.get("content", {})
    kinds = [_http_kind(media, says) for media, says in content.items()]
    return [status, ", ".join(kinds), each["description"]]


def _http_kind(media: str, says: dict[str, Any]) -> str:
    name = http_reference.kind(says.get("schema", {}))
    if media == "application/json" and "$ref" in says.get("schema", {}):
        return f"[`{name}`](#{name.lower()})"
    return code(media.partition(";")[0])


def http_documents() -> str:
    """The members of each document."""
    found = http_reference.document()
    return "\n\n".join(_http_document(name, schema) for name, schema in sorted(found["components"]["schemas"].items()))


def _http_document(name: str, schema: dict[str, Any]) -> str:
    required = set(schema.get("required", ()))
    rows = [
        [
            code(member) + ("" if member in required else " (optional)"),
            http_reference.kind(of),
            of.get("description", ""),
        ]
        for member, of in schema.get("properties", {}).items()
    ]
    told = table(["Member", "Type", "Meaning"], rows) if rows else ""
    return "\n\n".join(part for part in (f"### {name}", schema.get("description", ""), told) if part)


def http_statuses() -> str:
    """The status of each code."""
    rows = [[f"[`{error.code}`](errors.md#{error.code})", str(STATUS[error.code])] for error in error_classes()]
    return table(["Code", "Status"], rows)


SECTIONS: dict[str, Callable[[], str]] = {
    "states": states,
    "outcomes": outcomes,
    "transitions": transitions,
    "diagram": diagram,
    "run-states": run_states,
    "run-transitions": run_transitions,
    "run-diagram": run_diagram,
    "error-index": error_index,
    "errors": error_entries,
    "settings": house_settings,
    "contract-types": contract_types,
    "contract-defaults": contract_defaults,
    "guarantees": guarantees,
    "encodings": encodings,
    "api": api,
    "command-index": command_index,
    "commands": command_entries,
    "serve-settings": serve_settings,
    "http-index": http_index,
    "http-entries": http_entries,
    "http-documents": http_documents,
    "http-statuses": http_statuses,
}
