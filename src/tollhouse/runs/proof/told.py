"""What the journal of a run tells of is there: calls, and the runs of other agents that they started.

A call that somebody took out of the ledger whole, row and history, breaks no chain of its own. The journal still tells
of it, and of what it was, so that what was taken out or set back shows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tollhouse.ledger.events import Event
from tollhouse.ledger.rows import record_of
from tollhouse.ledger.writes import call_stream
from tollhouse.runs.calls import agent_tool_name
from tollhouse.runs.proof.records import Contents
from tollhouse.runs.proof.state import events_of
from tollhouse.runs.proof.verdict import Findings

_CALL_WAITS = ("reconciliation", "approval", "work")
"""Kinds of waiting for a call."""


def check_told(contents: Contents, found: Findings) -> None:
    """The run of the bundle, where it is one of a run."""
    streams = {each["stream"]: each for each in contents["streams"]}
    for run in contents["runs"]:
        _check_calls(events_of(streams.get(f"run:{run['id']}", {"events": []})), streams, found)
    _check_children(contents, found)


def _check_calls(events: list[Event], streams: dict[str, Any], found: Findings) -> None:
    been: dict[str, set[str] | None] = {}
    for key, state, event in _calls_in(events):
        if key not in been:
            been[key] = _states_of(streams.get(call_stream(key)))
        states = been[key]
        if states is None:
            what = "The journal of its run tells of it, and it is missing."
            found.problem(f"call {key}", what, event.stream, event.seq)
        elif states and state is not None and state not in states:
            what = f"The journal of its run saw it {state}; its own history never was."
            found.problem(f"call {key}", what, event.stream, event.seq)


def _calls_in(events: list[Event]) -> Iterator[tuple[str, str | None, Event]]:
    """Keys of calls that there were, each with the state that was seen. An answer from another run's call is none."""
    for event in events:
        facts = event.facts
        for each in (*facts.get("results", ()), *facts.get("left", ())):
            if each["call_state"] is not None and "reused" not in each:
                yield each["key"], each["call_state"], event
        for each in facts.get("waiting", ()):
            if each["kind"] in _CALL_WAITS:
                yield each["id"], None, event


def _states_of(stream: dict[str, Any] | None) -> set[str] | None:
    """Every state that a history tells of; empty where any of it was purged or erased, None where there is none."""
    if stream is None:
        return None
    events = events_of(stream)
    return {str(event.facts.get("state")) for event in events} if all(event.data for event in events) else set()


def _check_children(contents: Contents, found: Findings) -> None:
    """Every run that a call to another agent started is listed."""
    there = {child["id"] for child in contents["children"]}
    versions = {run["agent_version"] for run in contents["runs"]}
    agents = [json.loads(each["body"]) for each in contents["definitions"] if each["digest"] in versions]
    tools = {agent_tool_name(name) for agent in agents for name in agent.get("agents", ())}
    for record in map(record_of, contents["calls"]):
        for child in [attempt.reference for attempt in record.attempts if record.tool in tools]:
            if child is not None and child not in there:
                found.problem(f"child {child}", f"The call {record.key} started this run, and it is missing.")
