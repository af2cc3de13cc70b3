"""Steps that people and evidence take: votes, edits, refusals, settlements, retries, overturns.

Called by the house's verbs, the reconciler and the sweeper. Pure functions over a record; who may decide what is
checked here, next to the step it governs, so that every surface (SDK, CLI, HTTP) obeys the same rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tollhouse.ledger.approvals import approve, cancel, deny, edit, named, unanswered
from tollhouse.ledger.change import Change, advance
from tollhouse.ledger.guards import guard_d, guard_s
from tollhouse.ledger.lifecycle import Event, Forbidden, check, fold
from tollhouse.ledger.record import (
    Approval,
    AttemptOutcome,
    CallRecord,
    Settlement,
    State,
    Stored,
    replace,
)

__all__ = [
    "DID_NOT_HAPPEN",
    "HAPPENED",
    "Finding",
    "approve",
    "cancel",
    "compensated",
    "deny",
    "edit",
    "force",
    "looked",
    "may_compensate",
    "overturn",
    "retry",
    "settle",
    "tried",
    "uphold",
]
"""What people may decide, the verbs of ``approvals`` among it."""

HAPPENED = "happened"
DID_NOT_HAPPEN = "did_not_happen"


@dataclass(frozen=True, slots=True)
class Finding:
    """A statement about a call. ``via``: ``hook``, ``person`` or ``callback``; ``began_us``: when the look-up began.

    ``job_status`` is a statement about accepted long work (``cancelled``, ``failed``, ``never_queued``); where a
    contract can answer *accepted*, a hook's bare absence is no evidence.
    """

    id: str
    finding: str
    via: str
    began_us: int
    by: str | None = None
    reason: str | None = None
    evidence: Any = None
    reference: str | None = None
    result: Stored | None = None
    job_status: str | None = None

    def __post_init__(self) -> None:
        """What is neither yes nor no settles nothing: no path may take it for one of them."""
        if self.finding not in (HAPPENED, DID_NOT_HAPPEN) or self.via not in ("hook", "person", "callback"):
            raise ValueError(f"{self.finding!r} via {self.via!r} is no finding.")


# -- settlements -----------------------------------------------------------------------------------------


def settle(record: CallRecord, finding: Finding, now_us: int, *, force: bool = False) -> Change:
    """Settle a doubt (or accepted work) by evidence; against a settled call, record a finding instead.

    A hook's negative needs silence (guard S); a person may say *did not happen* once every attempt has ended, else
    with ``force``. Outcomes stay as they are; the settlement stands in for those it judged.
    """
    if record.state not in (State.IN_DOUBT, State.ACCEPTED):
        return _finding_only(record, finding, now_us)
    if finding.via == "person":
        named(finding.by, finding.reason)
    if finding.finding == DID_NOT_HAPPEN:
        _negative_counts(record, finding, force)
    judged = AttemptOutcome.HAPPENED if finding.finding == HAPPENED else AttemptOutcome.REJECTED
    attempts = tuple(
        replace(a, judged=judged) if a.round == record.round and a.unsettled else a for a in record.attempts
    )
    state = fold(replace(record, attempts=attempts))
    check(record.state, Event.EVIDENCE, state)
    happened = finding.finding == HAPPENED
    error = None if happened else {"type": DID_NOT_HAPPEN, "message": finding.reason or "Settled: it did not happen."}
    return advance(
        record,
        now_us,
        "settled",
        _finding_facts(finding, force=force),
        state=state,
        attempts=attempts,
        settlements=(*record.settlements, _settlement(record, finding, "evidence", now_us)),
        fence=record.fence + 1,
        result=finding.result if happened else None,
        error=error,
        due_at_us=None,
    )


def force(record: CallRecord, by: str, reason: str, now_us: int) -> Change:
    """An operator sets the owner aside; written in one transaction with the resolution that follows."""
    named(by, reason)
    attempts = tuple(
        replace(a, outcome=a.outcome or AttemptOutcome.UNKNOWN) if a.running else a for a in record.attempts
    )
    state = fold(replace(record, attempts=attempts))
    check(record.state, Event.FORCE, state)
    return advance(
        record,
        now_us,
        "forced",
        {"by": by, "reason": reason},
        state=state,
        attempts=attempts,
        fence=record.fence + 1,
        due_at_us=now_us,
    )


def looked(record: CallRecord, now_us: int, next_due_us: int | None, answer: str, note: str | None = None) -> Change:
    """A look-up that settled nothing: its answer is history, and the next one is due later."""
    facts = {"answer": answer, "note": note, "next_us": next_due_us}
    due_us = _due_unless_waiting(record, next_due_us)
    return advance(record, now_us, "looked_up", facts, looks=record.looks + 1, due_at_us=due_us)


def _due_unless_waiting(record: CallRecord, due_us: int | None) -> int | None:
    """A call that waits for people keeps the hour at which its wait ends, whatever a look-up says."""
    return record.due_at_us if record.state in (State.HELD, State.READY) else due_us


def tried(record: CallRecord, verb: str, by: str, why: str, now_us: int) -> Change:
    """A decision that lost or was not allowed: history holds every try."""
    return advance(record, now_us, "decision_refused", {"verb": verb, "by": by, "why": why})


def _negative_counts(record: CallRecord, finding: Finding, force: bool) -> None:
    if finding.via != "person" and _starts_long_work(record) and finding.job_status is None:
        raise Forbidden("S", "This tool starts long work: only a statement about the job is evidence.")
    if finding.via == "hook":
        guard_s(record, finding.began_us)
    elif finding.via == "person" and not force and any(a.running for a in record.attempts):
        raise Forbidden("force", "An attempt of this call may still be running; say so with force.")


def _starts_long_work(record: CallRecord) -> bool:
    """By its contract, or because the receiver confirmed some, whatever the contract says: only that gives an attempt
    its reference."""
    return record.terms.accepts or any(attempt.reference is not None for attempt in record.attempts)


def _finding_only(record: CallRecord, finding: Finding, now_us: int) -> Change:
    check(record.state, Event.EVIDENCE if finding.via == "person" else Event.FINDING, record.state)
    if finding.finding == DID_NOT_HAPPEN:
        _negative_counts(record, finding, force=False)
    settlement = _settlement(record, finding, "finding", now_us)
    return advance(
        record,
        now_us,
        "found",
        _finding_facts(finding),
        settlements=(*record.settlements, settlement),
        due_at_us=_due_unless_waiting(record, None),
    )


def _settlement(record: CallRecord, finding: Finding, kind: str, now_us: int) -> Settlement:
    return Settlement(
        id=finding.id,
        kind=kind,
        via=finding.via,
        finding=finding.finding,
        by=finding.by,
        reason=finding.reason,
        round=record.round,
        at_us=now_us,
        covers=_outcomes(record),
        evidence=finding.evidence,
        reference=finding.reference,
        result=finding.result,
    )


def _outcomes(record: CallRecord) -> Mapping[str, str | None]:
    return {a.id: None if a.outcome is None else a.outcome.value for a in record.attempts}


def _finding_facts(finding: Finding, *, force: bool = False) -> dict[str, Any]:
    facts = {
        "finding": finding.finding,
        "via": finding.via,
        "by": finding.by,
        "reason": finding.reason,
        "evidence": finding.evidence,
        "reference": finding.reference,
        "job_status": finding.job_status,
        "force": force or None,
    }
    return {name: value for name, value in facts.items() if value is not None}


# -- after settlement ------------------------------------------------------------------------------------


def retry(record: CallRecord, by: str, reason: str, approval: Approval | None, now_us: int) -> Change:
    """A new round of a failed or refused call. ``approval``: what the new round must wait for, None for nothing."""
    state = State.READY if approval is None else State.HELD
    check(record.state, Event.RETRY, state)
    named(by, reason)
    guard_d(record)
    due = approval.expires_at_us if approval else (now_us if record.run_when_approved else None)
    return advance(
        record,
        now_us,
        "retried",
        {"by": by, "reason": reason, "round": record.round + 1},
        state=state,
        round=record.round + 1,
        fence=record.fence + 1,
        approval=None if approval is None else unanswered(approval),
        cancel_asked=False,
        deadline_at_us=None,
        due_at_us=due,
        looks=0,
        error=None,
        result=None,
    )


def overturn(
    record: CallRecord, by: str, reason: str, settlement_id: str, now_us: int, *, evidence: Any = None
) -> Change:
    """A named person reverses a settlement: to *succeeded* on a recorded effect, to *failed* where none is recorded."""
    target = State.FAILED if record.state is State.SUCCEEDED else State.SUCCEEDED
    check(record.state, Event.OVERTURN, target)
    named(by, reason)
    succeeded = target is State.SUCCEEDED
    result = _recorded_effect(record) if succeeded else None
    if not succeeded:
        _contrary_evidence(record, evidence)
    settlement = Settlement(
        id=settlement_id,
        kind="overturn",
        via="person",
        finding=HAPPENED if succeeded else DID_NOT_HAPPEN,
        by=by,
        reason=reason,
        round=record.round,
        at_us=now_us,
        covers=_outcomes(record),
        evidence=evidence,
    )
    judged = AttemptOutcome.HAPPENED if succeeded else AttemptOutcome.REJECTED
    return advance(
        record,
        now_us,
        "overturned",
        {"by": by, "reason": reason, "evidence": evidence, "from": record.state.value},
        state=target,
        attempts=tuple(
            replace(a, judged=judged) if a.round == record.round and (a.judged or a.unsettled) else a
            for a in record.attempts
        ),
        settlements=(*record.settlements, settlement),
        fence=record.fence + 1,
        result=result,
        error=None if succeeded else {"type": "overturned", "message": f"Overturned by {by}: {reason}"},
        due_at_us=None,
    )


def _recorded_effect(record: CallRecord) -> Stored | None:
    """The result on record that says it happened. Raises when there is none to rest a reversal on."""
    for attempt in reversed(record.attempts):
        if attempt.outcome is AttemptOutcome.HAPPENED:
            return attempt.late_result
    for settlement in reversed(record.settlements):
        if settlement.finding == HAPPENED and settlement.via != "person":
            return settlement.result
    raise Forbidden("evidence", "Nothing on record says that it happened; a look-up or a reply must say so first.")


def _contrary_evidence(record: CallRecord, given: Any) -> None:
    """Raise unless something besides the person's word says that it did not happen, and no attempt says that it did."""
    if any(a.outcome is AttemptOutcome.HAPPENED for a in record.attempts):
        raise Forbidden("happened", "An attempt came back with a result; that cannot be overturned to failed.")
    found = any(s.finding == DID_NOT_HAPPEN and s.via != "person" for s in record.settlements)
    if not (record.contradicted or found or given):
        raise Forbidden("evidence", "Nothing on record says that it did not happen; say what shows it.")


def uphold(record: CallRecord, by: str, reason: str, settlement_id: str, now_us: int) -> Change:
    """A named person confirms what was settled, in view of what contradicts it."""
    check(record.state, Event.UPHOLD, record.state)
    named(by, reason)
    if not record.contradicted:
        raise Forbidden("contradiction", "No contradiction is open on this call.")
    settlement = Settlement(
        settlement_id, "uphold", "person", None, by, reason, record.round, now_us, _outcomes(record)
    )
    return advance(
        record, now_us, "upheld", {"by": by, "reason": reason}, settlements=(*record.settlements, settlement)
    )


def compensated(record: CallRecord, by_key: str, now_us: int) -> Change:
    """The compensation under ``by_key`` took effect; written in the commit that settles it."""
    check(record.state, Event.COMPENSATED, State.COMPENSATED)
    may_compensate(record, now_us)
    return advance(
        record,
        now_us,
        "compensated",
        {"by_key": by_key},
        state=State.COMPENSATED,
        compensated_by=by_key,
        due_at_us=None,
    )


def may_compensate(record: CallRecord, now_us: int) -> None:
    """Raise :class:`Forbidden` unless undoing is safe: it took effect, silence holds, no contradiction is open."""
    check(record.state, Event.COMPENSATED, State.COMPENSATED)
    if record.contradicted:
        raise Forbidden("D", "The records about this call contradict each other; a person must decide first.")
    if record.result is not None and record.result.problem == "purged":
        raise Forbidden("purged", "What came back was purged, and undoing it needs that; undo it at the receiver.")
    guard_s(record, now_us, undoing=True)
