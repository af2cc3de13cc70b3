"""Reconciling a run: what its model asked for became a call or has an answer on record, and nothing else did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from tollhouse.ledger.events import Event
from tollhouse.ledger.run_record import RunRecord
from tollhouse.runs.body import Body, Spent, body_of, spent_of
from tollhouse.runs.proof.records import Contents
from tollhouse.runs.proof.state import events_of
from tollhouse.runs.proof.verdict import Findings
from tollhouse.runs.states import RunState

_STOPPED = (RunState.FAILED, RunState.CANCELLED)


def check_run_accounts(contents: Contents, found: Findings) -> None:
    """The run of the bundle, where it is one of a run."""
    streams = {each["stream"]: each for each in contents["streams"]}
    for run in contents["runs"]:
        events = events_of(streams.get(f"run:{run['id']}", {"events": []}))
        if not run["finished"]:
            found.is_open(f"run {run['id']}", f"The run is {str(run['state']).replace('_', ' ')}; it has not ended.")
        _check_asks(run, events, {row["key"] for row in contents["calls"]}, found)
        _check_costs(run, events, found)
        if events and all(event.data for event in events):
            _check_spending(run, events, found)
            _check_children(contents["children"], events, found)
    for child in contents["children"]:
        found.note(f"The run {child['id']} of {child['agent']} is proven by a bundle of its own.")
        if not child["finished"]:
            found.is_open(f"child {child['id']}", "The run of another agent has not ended.")


def _check_asks(run: dict[str, Any], events: list[Event], keys: set[str], found: Findings) -> None:
    asked = {
        ask["key"]: event for event in _of_kind(events, "model_answered") for ask in event.facts["message"]["asks"]
    }
    answered = {each["key"] for event in _of_kind(events, "calls_settled") for each in event.facts["results"]}
    for key, event in asked.items():
        if key in keys | answered:
            continue
        if run["state"] == RunState.SUCCEEDED:
            what = "The model asked for it, and nothing says what became of it."
            found.problem(f"call {key}", what, event.stream, event.seq)
        elif run["state"] in _STOPPED:
            found.note(f"call {key}: the run was stopped before it became a call.")
    if all(event.data for event in events):
        for key in sorted(keys - set(asked)):
            if key.startswith(f"{run['id']}:"):
                found.problem(f"call {key}", "No answer of the model asked for it.", f"run:{run['id']}")


def _of_kind(events: list[Event], *kinds: str) -> list[Event]:
    """Events of these kinds whose payload was not erased."""
    return [event for event in events if event.kind in kinds and event.data]


def _check_costs(run: dict[str, Any], events: list[Event], found: Findings) -> None:
    told = _of_kind(events, "model_answered", "model_failed")
    requests = [attempt for event in told for attempt in event.facts["attempts"]]
    unknown = sum(attempt["cost"] is None for attempt in requests)
    if unknown:
        found.note(f"run {run['id']}: the cost of {unknown} of its {len(requests)} requests to models is not known.")
    for event in told:
        if event.kind == "model_answered" and not event.facts["attempts"]:
            what = "The requests that led to this answer are missing."
            found.problem(f"run {run['id']}", what, event.stream, event.seq)


def _check_spending(run: dict[str, Any], events: list[Event], found: Findings) -> None:
    """What the row says was spent is what the answers of models and the ends of children add up to."""
    body, told = body_of(RunRecord(**run)), _told(events)
    if (body.spent, body.by_children) != (told.spent, told.by_children):
        what = f"The row says that ${body.spent.cost:f} were spent; its events add up to ${told.spent.cost:f}."
        if (body.spent.cost, body.by_children.cost) == (told.spent.cost, told.by_children.cost):
            what = "The row says otherwise of the turns, calls and tokens that were spent than its events."
        found.problem(f"run {run['id']}", what, events[-1].stream, events[-1].seq)


def _told(events: Iterable[Event]) -> Body:
    own, by_children = Spent(), Spent()
    for event in events:
        facts = event.facts
        own = own.plus(_of_attempts(facts.get("attempts", ())))
        if event.kind == "model_answered":
            own = own.plus(Spent(turns=1, calls=len(facts["message"]["asks"])))
        for result in facts["results"] if event.kind == "calls_settled" else ():
            by_children = by_children.plus(spent_of(result.get("spent", {})))
        if "by_children" in facts:
            by_children = spent_of(facts["by_children"])
    return Body(spent=own).with_children(by_children)


def _of_attempts(attempts: Iterable[Mapping[str, Any]]) -> Spent:
    spent = Spent()
    for each in attempts:
        asked, said, cost = each["input_tokens"], each["output_tokens"], each["cost"]
        spent = spent.plus(
            Spent(
                input_tokens=asked or 0,
                output_tokens=said or 0,
                cost=Decimal(cost or 0),
                unpriced=cost is None,
                unmeasured=asked is None,
            )
        )
    return spent


def _check_children(children: Iterable[Mapping[str, Any]], events: list[Event], found: Findings) -> None:
    """What a child spent is on record where its call was settled."""
    answered = {each["key"]: each for event in _of_kind(events, "calls_settled") for each in event.facts["results"]}
    for child in children:
        if "spent" not in answered.get(child["parent_key"], {"spent": None}):
            found.note(f"child {child['id']}: an earlier release settled its call, and did not count what it spent.")
