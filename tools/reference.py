"""The sections of the docs that are generated from the rules: lives of calls and runs, errors, settings, contracts."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any

from tollhouse import errors, settings
from tollhouse.contract import dedup
from tollhouse.contract.checks import Completed, complete
from tollhouse.contract.effects import Declaration, Settings
from tollhouse.contract.guarantee import guarantee
from tollhouse.contract.terms import ApprovalTerms, Dedup, Effect, RepeatTerms
from tollhouse.ledger.encodings import ENCODINGS
from tollhouse.ledger.lifecycle import FOLD, TRANSITIONS, Event
from tollhouse.ledger.record import FINAL, SETTLED, AttemptOutcome, State
from tollhouse.runs.states import FINISHED, RUN_TRANSITIONS, RunState
from tools.markdown import annotation, code, inline, prose, sentence, table

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
                inline(field.metadata["doc"]),
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
    rows = [[code(name), code(annotation(hint))] for name, hint in Settings.__annotations__.items()]
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
}
