"""Whether the rows of a bundle are what their histories say: the chain covers state, so a rewritten row shows.

Two ways, one beside the other. The last event of every write carries a digest of the row as it left it
(``ledger.cover``): nothing of a row can be changed without breaking that. And what the events tell in words (attempts,
outcomes, costs, settlements, votes) is followed and compared, which names the difference, and is all there is for
events that an earlier release wrote.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from hashlib import sha256
from typing import Any

from tollhouse.ledger.cover import call_digest, run_digest
from tollhouse.ledger.events import Event
from tollhouse.ledger.keys import wire_key
from tollhouse.ledger.purging import purged_at_us
from tollhouse.ledger.record import AttemptOutcome, CallRecord, replace
from tollhouse.ledger.rows import COLUMNS, record_of
from tollhouse.ledger.run_record import RunRecord
from tollhouse.ledger.writes import call_stream
from tollhouse.runs.proof.records import Contents
from tollhouse.runs.proof.verdict import Findings
from tollhouse.runs.states import FINISHED

CLOSINGS_MOST = 8
"""A ledger that is closed for a copy raises the fence of what is out, without an event; so often at most."""

_UNCOVERED = "What its last event said of the row was erased: nothing shows that the row is what it was."

_SETTLEMENTS = {"settled": "evidence", "found": "finding", "overturned": "overturn", "upheld": "uphold"}
_SENDINGS = ("departed", "resent")
_OUTCOMES = ("outcome", "late_outcome")


def check_state(contents: Contents, found: Findings) -> None:
    """Every row against the events of its own stream."""
    streams = {each["stream"]: each for each in contents["streams"]}
    owned = {call_stream(row["key"]) for row in contents["calls"]} | {f"run:{run['id']}" for run in contents["runs"]}
    for stranger in sorted(set(streams) ^ owned):
        what = "The row of this chain is missing." if stranger in streams else "The chain of this row is missing."
        found.problem(f"head {stranger}", what, stranger)
    _check_about(contents, found)
    for row in contents["calls"]:
        if (stream := streams.get(call_stream(row["key"]))) is not None:
            _check_call(row, stream, contents["about"]["tenant"], found)
    for run in contents["runs"]:
        if (stream := streams.get(f"run:{run['id']}")) is not None:
            _check_run(run, stream, contents["about"]["tenant"], found)


def _check_about(contents: Contents, found: Findings) -> None:
    """A bundle of a run has that run; a bundle of a call has that call and no run."""
    about, runs = contents["about"], [run["id"] for run in contents["runs"]]
    of_run = about["kind"] == "run" and runs == [about["id"]]
    of_call = about["kind"] == "call" and not runs and about["id"] in [row["key"] for row in contents["calls"]]
    if not (of_run or of_call):
        found.problem("about", f"What it is about, {about['kind']} {about['id']}, is missing.")


def events_of(stream: dict[str, Any]) -> list[Event]:
    """The events of a stream of a bundle."""
    return [Event(**raw) for raw in stream["events"]]


def _check_call(row: dict[str, Any], stream: dict[str, Any], tenant: str, found: Findings) -> None:
    name, record, events = f"call {row['key']}", record_of(row), events_of(stream)
    if set(row) != set(COLUMNS):
        found.problem(name, "The row has other columns than a call's.")
    if (record.head_seq, record.head_hash) != (stream["head"]["seq"], stream["head"]["hash"]):
        found.problem(name, "The row does not end where its chain does.")
    if record.tenant != tenant or record.wire_key != wire_key(tenant, record.key):
        found.problem(name, "The row belongs to another tenant, or was sent under another key.")
    if record.open_owners != row["open_owners"]:
        found.problem(name, "The row names other owners than its attempts have.")
    if purged_at_us(record) is not None and not events:
        found.was_erased(name)
        return
    if not events:
        found.problem(name, "No event tells of this call: its audit is missing.", call_stream(record.key), 1)
        return
    if sha256(record.arguments.encode()).hexdigest() != record.digest:
        found.problem(name, "The arguments are not what their digest says.")
    differing = list(_differences(record, events))
    for what in differing:
        found.problem(name, what, call_stream(record.key), events[-1].seq)
    if not _covered_call(record, row["body"], events, found) and not differing:
        found.problem(name, "The row is not what the last event says that it was.", events[-1].stream, events[-1].seq)


def _covered_call(record: CallRecord, body: str, events: list[Event], found: Findings) -> bool:
    """Whether the digest in the last event is the row's; True as well where no digest is there to ask."""
    name, last = f"call {record.key}", events[-1]
    if last.row_digest is None and any(event.data == "" for event in events):
        found.problem(name, _UNCOVERED, last.stream, last.seq)
        return True
    if last.row_digest is None:
        found.note(f"{name}: not covered by a digest; an earlier release wrote its last event.")
        return True
    if call_digest(record, body) == last.row_digest:
        return True
    raised = range(1, CLOSINGS_MOST + 1) if record.open_owners else ()
    if any(call_digest(replace(record, fence=record.fence - by), body) == last.row_digest for by in raised):
        found.note(f"{name}: its fence was raised when the ledger was closed for a copy.")
        return True
    return False


def _check_run(row: dict[str, Any], stream: dict[str, Any], tenant: str, found: Findings) -> None:
    name, run, events = f"run {row['id']}", RunRecord(**row), events_of(stream)
    if set(row) != {field.name for field in fields(RunRecord)}:
        found.problem(name, "The row has other columns than a run's.")
    if (run.head_seq, run.head_hash) != (stream["head"]["seq"], stream["head"]["hash"]):
        found.problem(name, "The row does not end where its chain does.")
    if run.tenant != tenant:
        found.problem(name, "The run belongs to another tenant.")
    if not events:
        found.problem(name, "No event tells of this run: its audit is missing.", stream["stream"], 1)
        return
    last, facts = events[-1], events[-1].facts
    if last.data == "":
        found.problem(name, _UNCOVERED, last.stream, last.seq)
        return
    if facts.get("state") != run.state or run.finished != (run.state in FINISHED):
        what = f"The row says {run.state}; its last event says {facts.get('state')}."
        found.problem(name, what, last.stream, last.seq)
    elif last.row_digest is None:
        found.note(f"{name}: not covered by a digest; an earlier release wrote its last event.")
    elif run_digest(run) != last.row_digest:
        found.problem(name, "The row is not what the last event says that it was.", last.stream, last.seq)


# -- what events say in words ------------------------------------------------------------------------------------


def _differences(record: CallRecord, events: list[Event]) -> Iterable[str]:
    """Where the row says other than its events do. Nothing where payloads were erased: they say nothing any more."""
    if any(event.data == "" for event in events):
        return
    told = [(event, event.facts) for event in events]
    if told[-1][1].get("state") != record.state:
        yield f"The row says {record.state}; its last event says {told[-1][1].get('state')}."
    yield from _sendings(record, told)
    yield from _ends(record, told)
    yield from _settlements(record, told)
    yield from _votes(record, told)


_Told = list[tuple[Event, dict[str, Any]]]
_UNTOLD = "untold"
"""A cost that was computed later by a release that did not say so in its event."""


def _sendings(record: CallRecord, told: _Told) -> Iterable[str]:
    reads = _reads(told)
    sent = {facts["attempt"]: (event, facts) for event, facts in told if event.kind in _SENDINGS}
    if len(record.attempts) < reads:
        yield f"Its events tell of {reads} attempts at reading; the row has {len(record.attempts)}."
    for attempt in record.attempts[reads:]:
        if attempt.id not in sent:
            yield f"No event tells of the departure of its attempt {attempt.id}."
            continue
        event, facts = sent.pop(attempt.id)
        said = (facts["number"], facts["round"], facts["owner"], facts["fence"])
        if said != (attempt.number, attempt.round, attempt.owner, attempt.fence):
            yield f"Event {event.seq} tells otherwise of its attempt {attempt.id}."
    for attempt_id in sent:
        yield f"The row lacks the attempt {attempt_id}, which departed."


def _ends(record: CallRecord, told: _Told) -> Iterable[str]:
    ends = {facts["attempt"]: (event, facts) for event, facts in told if event.kind in _OUTCOMES}
    repaired = {name: facts.get("costs", {}).get(name, _UNTOLD) for name, facts in _repairs(told)}
    for attempt in record.attempts[_reads(told) :]:
        if attempt.id not in ends:
            if attempt.outcome in (AttemptOutcome.HAPPENED, AttemptOutcome.ACCEPTED, AttemptOutcome.REJECTED):
                yield f"The row says {attempt.outcome} of the attempt {attempt.id}; no event does."
            continue
        event, facts = ends[attempt.id]
        provisional = facts["outcome"] == AttemptOutcome.ACCEPTED and attempt.outcome is AttemptOutcome.UNKNOWN
        if facts["outcome"] != attempt.outcome and not provisional:
            yield f"The row says {attempt.outcome} of the attempt {attempt.id}; event {event.seq} says otherwise."
        cost = repaired.get(attempt.id, facts.get("cost"))
        if cost not in (attempt.cost, _UNTOLD):
            yield f"The row has another cost for the attempt {attempt.id} than event {event.seq}."


def _reads(told: _Told) -> int:
    """Attempts of a read that was written down after it ran: they come first, and only their number is told."""
    return sum(facts["attempts"] for event, facts in told if event.kind == "recorded")


def _repairs(told: _Told) -> Iterable[tuple[str, dict[str, Any]]]:
    return ((name, facts) for event, facts in told if event.kind == "gap_repaired" for name in facts["attempts"])


def _settlements(record: CallRecord, told: _Told) -> Iterable[str]:
    said = [(event, facts) for event, facts in told if event.kind in _SETTLEMENTS]
    if len(said) != len(record.settlements):
        yield f"Its events tell of {len(said)} settlements; the row has {len(record.settlements)}."
        return
    for (event, facts), kept in zip(said, record.settlements, strict=True):
        same = _SETTLEMENTS[event.kind] == kept.kind and facts.get("by") == kept.by
        if event.kind in ("settled", "found"):
            same = same and (facts["finding"], facts["via"]) == (kept.finding, kept.via)
        if not same or facts.get("reason") != kept.reason:
            yield f"The row tells otherwise of the settlement in event {event.seq}."


def _votes(record: CallRecord, told: _Told) -> Iterable[str]:
    """Votes count from the last time that people were asked."""
    votes: list[str] = []
    for event, facts in told:
        if event.kind in ("edited", "lapsed", "retried"):
            votes = []
        elif event.kind in ("voted", "approved"):
            votes.append(facts["by"])
    kept = [] if record.approval is None else [vote.by for vote in record.approval.votes]
    if record.approval is not None and kept != votes:
        yield f"The row has votes by {', '.join(kept) or 'nobody'}; its events tell of {', '.join(votes) or 'nobody'}."
