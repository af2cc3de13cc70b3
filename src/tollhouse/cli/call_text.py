"""Calls as a person reads them: the table of many, the page of one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from tollhouse.cli.next_steps import Place, next_steps, waits_for
from tollhouse.cli.screen import STATE_STYLES, Screen
from tollhouse.cli.story import clock_time, day, tell
from tollhouse.cli.words import bounds, compact, count, span
from tollhouse.contract.terms import US
from tollhouse.gate.view import RecordedCall
from tollhouse.house.as_json import call_as_json, doubt_since_us, total_cost
from tollhouse.ledger.plain import plain_json
from tollhouse.ledger.purging import purged_at_us
from tollhouse.ledger.record import CallRecord, State

VALUE_LENGTH_MOST = 2000
"""Of arguments and results, characters shown; ``--json`` has them whole."""

HEADINGS = ("KEY", "TOOL", "STATE", "ATTEMPTS", "AGE", "IN DOUBT FOR", "ASKED BY")
"""Of the table; a column that would be empty is left out."""

DISPENSABLE = (6, 3, 4, 5, 1)
"""What a narrow terminal can do without, first of all who asked; key and state always stand."""

# -- many ----------------------------------------------------------------------------------------------------------


def show_list(screen: Screen, calls: Sequence[RecordedCall], now_us: int, *, more: bool) -> None:
    """A table of calls, and how many of them are in which state."""
    if not calls:
        screen.line("No calls.")
        return
    rows = [_row(call, now_us) for call in calls]
    shown = [number for number in range(len(HEADINGS)) if any(row[number][0] for row in rows)]
    dispensable = [shown.index(number) for number in DISPENSABLE if number in shown]
    screen.table(
        [HEADINGS[number] for number in shown],
        [[row[number] for number in shown] for row in rows],
        dispensable=dispensable,
    )
    states = Counter(call.state for call in calls)
    said = ", ".join(f"{states[state]} {state}" for state in State if state in states)
    screen.line()
    screen.line(f"{count(len(calls), 'call')}: {said}." + (" There are more: raise --limit." if more else ""))


def _row(call: RecordedCall, now_us: int) -> list[tuple[str, str | None]]:
    since_us = doubt_since_us(call.raw)
    return [
        (call.key, None),
        (call.tool, None),
        _state(call),
        (f"{len(call.attempts)} of {call.raw.limits.max_attempts}", None),
        (span((now_us - call.raw.created_at_us) / US), None),
        ("" if since_us is None else span((now_us - since_us) / US), "yellow"),
        (call.requested_by, None),
    ]


def _state(call: RecordedCall) -> tuple[str, str | None]:
    if call.contradicted:
        return f"{call.state}, contradicted", "bold red"
    return call.state.value, STATE_STYLES[call.state.value]


# -- one -----------------------------------------------------------------------------------------------------------


def show_call(screen: Screen, call: RecordedCall, now_us: int, place: Place) -> None:
    """The whole page of a call: where it stands, its story, what can be done."""
    show_standing(screen, call)
    screen.line()
    screen.pairs(list(_facts(call)))
    screen.heading("What happened (UTC)")
    _show_story(screen, call)
    _show_next(screen, call.raw, now_us, place)


def show_standing(screen: Screen, call: RecordedCall) -> None:
    """One line: key, state, and what the state means."""
    text, style = _state(call)
    meaning = call.state.sentence
    if call.contradicted:
        meaning += "; what was settled and what was found disagree"
    screen.grid([((call.key, "bold"), (text, style), (f"{meaning} (version {call.version})", None))])


def _facts(call: RecordedCall) -> Iterator[tuple[str, str]]:
    record, terms = call.raw, call.raw.terms
    yield "tool", f"{record.tool}, {record.effect}; asked by {record.requested_by}, {_when(record.created_at_us)}"
    if (purged_us := purged_at_us(record)) is not None:
        yield "purged", f"arguments, result and history, {_when(purged_us)}"
    else:
        yield "arguments", compact(plain_json(call.arguments), VALUE_LENGTH_MOST)
    if record.digest != record.request_digest:
        yield "", "these are not the arguments that were asked for: they were edited"
    yield "promise", terms.guarantee
    yield "idempotency key", record.wire_key
    yield "attempts", _attempts(record)
    for name in ("scope", "group", "repeat_of", "compensates", "compensated_by"):
        if (value := getattr(record, name)) is not None:
            yield name.replace("_", " "), value
    if record.approval is not None:
        yield "approval", _approval(record)
    if call.reference is not None:
        yield "reference", call.reference
    if record.result is not None:
        yield "result", _result(call)
    if record.error is not None:
        yield "error", f"{record.error.get('type')}: {record.error.get('message')}"
    if (cost := total_cost(record)) is not None:
        yield "cost", cost


def _when(at_us: int) -> str:
    return f"{day(at_us)} {clock_time(at_us)} UTC"


def _attempts(record: CallRecord) -> str:
    rounds = f" in {count(record.round, 'round')}" if record.round > 1 else ""
    return f"{len(record.attempts)}{rounds}; {bounds(record.limits)}"


def _approval(record: CallRecord) -> str:
    approval = record.approval
    assert approval is not None
    given = ", ".join(vote.by for vote in approval.votes) or "nobody yet"
    who = "" if approval.approvers is None else f" from {', '.join(approval.approvers)}"
    end = "used up" if approval.consumed_round is not None else f"until {_when(approval.expires_at_us)}"
    return f"{approval.quorum} needed{who}; given by {given}; {end}"


def _result(call: RecordedCall) -> str:
    shown = call_as_json(call)
    problem = shown["result_problem"]
    text = "" if problem in ("not_storable", "no_space", "purged") else compact(shown["result"], VALUE_LENGTH_MOST)
    detail = f": {shown['result_detail']}" if shown["result_detail"] else ""
    return f"{text} ({problem}{detail})".strip() if problem else text


def _show_story(screen: Screen, call: RecordedCall) -> None:
    rows: list[tuple[tuple[str, str | None], ...]] = []
    today = ""
    for event in call.history:
        if (date := day(event.at_us)) != today:
            today = date
            rows.append(((date, "dim"), ("", None), ("", None)))
        for number, told in enumerate(tell(event)):
            at = clock_time(event.at_us) if number == 0 else ""
            rows.append(((at, "dim"), (told.word, told.style), (told.text, None)))
    screen.grid(rows, indent=2)


def _show_next(screen: Screen, record: CallRecord, now_us: int, place: Place) -> None:
    steps, waiting = next_steps(record, now_us, place), waits_for(record, now_us)
    if not steps and waiting is None:
        return
    screen.heading("What can be done")
    if waiting is not None:
        screen.line(f"  {waiting}")
    for step in steps:
        screen.line(f"  {step.meaning}:")
        screen.command(step.command)


# -- after a decision ----------------------------------------------------------------------------------------------


def show_since(screen: Screen, before: RecordedCall, after: RecordedCall) -> None:
    """Where a call stands, and what was written of it since ``before`` was read."""
    show_standing(screen, after)
    new = [event for event in after.history if event.seq > before.raw.head_seq]
    screen.grid(
        [
            ((clock_time(event.at_us), "dim"), (told.word, told.style), (told.text, None))
            for event in new
            for told in tell(event)
        ],
        indent=2,
    )


def show_outcome(screen: Screen, outcome: dict[str, Any], original: RecordedCall) -> None:
    """What a compensation came to, and how that leaves the call that it undoes."""
    again = ", recorded before" if outcome["replayed"] else ""
    state = outcome["state"]
    screen.grid([((outcome["key"], "bold"), (state, STATE_STYLES[state]), (f"the compensation{again}", None))])
    show_standing(screen, original)
