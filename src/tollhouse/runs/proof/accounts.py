"""Reconciling call by call: everything that departed has its decision, its settlement, its cost and its audit.

The chains say that nothing was changed; this says that nothing is missing. What is still under way is *open*, not
wrong.
"""

from __future__ import annotations

from collections.abc import Iterable

from tollhouse.ledger.events import Event
from tollhouse.ledger.purging import purged_at_us
from tollhouse.ledger.record import AttemptOutcome, CallRecord, State
from tollhouse.ledger.rows import record_of
from tollhouse.ledger.writes import call_stream
from tollhouse.runs.proof.records import Contents
from tollhouse.runs.proof.state import events_of
from tollhouse.runs.proof.verdict import Findings

_OPEN = {
    State.HELD: "waits for people",
    State.READY: "may still go",
    State.DEPARTED: "is out; its owner will say",
    State.ACCEPTED: "is long work under way at the receiver",
    State.IN_DOUBT: "is in doubt: it may have taken effect",
}


def check_accounts(contents: Contents, found: Findings) -> None:
    """Every call of the bundle."""
    streams = {each["stream"]: each for each in contents["streams"]}
    records = {row["key"]: record_of(row) for row in contents["calls"]}
    for key, record in records.items():
        stream = streams.get(call_stream(key), {"events": []})
        events = [event for event in events_of(stream) if event.data]
        if record.state in _OPEN:
            found.is_open(f"call {key}", f"The call {_OPEN[record.state]}.")
        for what, seq in _missing(record, events, records):
            found.problem(f"call {key}", what, call_stream(key), seq)


def _missing(
    record: CallRecord, events: list[Event], records: dict[str, CallRecord]
) -> Iterable[tuple[str, int | None]]:
    if record.contradicted:
        yield "Its records contradict each other, and nobody has decided.", _seq_of(events, "contradiction_opened")
    whole = purged_at_us(record) is None and len(events) == record.head_seq
    if whole:
        yield from _decisions(record, events)
        yield from _shown(record)
    yield from _settlements(record)
    if "cost_gap" in record.extra:
        yield "What it cost is missing: it could not be computed.", _seq_of(events, "bookkeeping_gap")
    if record.state is State.COMPENSATED:
        undoing = records.get(record.compensated_by or "")
        if undoing is None or undoing.state not in (State.SUCCEEDED, State.COMPENSATED):
            yield "The call that undid it is missing, or did not succeed.", _seq_of(events, "compensated")


def _decisions(record: CallRecord, events: list[Event]) -> Iterable[tuple[str, int | None]]:
    """Every departure was let go by the gates, and by people where they were asked."""
    asked = record.terms.approval is not None
    granted = False
    for event in events:
        facts = event.facts
        if event.kind in ("held", "lapsed") or (event.kind == "retried" and facts["state"] == State.HELD):
            asked, granted = True, False
        elif event.kind == "edited":
            granted = False
        elif event.kind == "approved":
            granted = facts["votes"] >= facts["quorum"]
        elif event.kind == "departed":
            if asked and not granted:
                yield "It departed without the approval that it needed.", event.seq
            # Its own owner sends it again only what the gates let go before, in the same round.
            if "gates" not in facts and facts.get("by") != "owner":
                yield "What the gates said of its departure is missing.", event.seq


def _shown(record: CallRecord) -> Iterable[tuple[str, int | None]]:
    """Whose yes counted: enough, each once, for these very arguments, none of them the requester's."""
    approval = record.approval
    if approval is None or approval.consumed_round is None:
        return
    by = {vote.by for vote in approval.votes}
    if len(by) < approval.quorum or len(by) != len(approval.votes) or record.requested_by in by:
        yield "Its approval lacks votes, or has one by its requester.", None
    if any(vote.digest != record.digest for vote in approval.votes):
        yield "A vote was given for other arguments than those that ran.", None
    if approval.approvers is not None and not by <= set(approval.approvers):
        yield "Somebody approved it who was not among its approvers.", None


def _settlements(record: CallRecord) -> Iterable[tuple[str, int | None]]:
    """Every attempt came to an end of its own, or a recorded settlement stands in for it."""
    judging = [s for s in record.settlements if s.kind in ("evidence", "overturn")]
    for attempt in record.attempts:
        if attempt.judged is not None and not any(attempt.id in s.covers for s in judging):
            yield f"The settlement that judged its attempt {attempt.id} is missing.", None
    settled = record.state in (State.SUCCEEDED, State.FAILED, State.COMPENSATED)
    if not settled:
        return
    effective = [attempt.effective for attempt in record.round_attempts]
    happened = AttemptOutcome.HAPPENED in effective or any(s.finding == "happened" for s in judging)
    if record.state is State.FAILED and not effective and not any(s.finding == "did_not_happen" for s in judging):
        yield "It failed, yet neither an attempt of its last round nor a settlement says so.", None
    elif record.state is not State.FAILED and not happened:
        yield "It succeeded, yet neither an attempt nor a settlement says so.", None


def _seq_of(events: list[Event], kind: str) -> int | None:
    return next((event.seq for event in reversed(events) if event.kind == kind), None)
