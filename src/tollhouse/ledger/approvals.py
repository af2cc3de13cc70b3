"""Steps of a call that waits for people or may go: votes, edits, refusals, expiry, cancels, and asking again.

Called by the house's verbs, the gate and the sweeper; ``decisions`` gives the verbs of people on.
"""

from __future__ import annotations

from typing import Any

from tollhouse.contract.terms import US
from tollhouse.ledger.change import Change, advance
from tollhouse.ledger.lifecycle import Event, Forbidden, check
from tollhouse.ledger.record import Approval, CallRecord, Json, State, Vote, replace


def approval_for(
    reason: str, quorum: int, expires_s: float, approvers: tuple[str, ...] | None, record_digest: str,
    contract_version: str, now_us: int, *, covers_repeat: bool = False,
) -> Approval:  # fmt: skip
    """A fresh question to people, bound to the digest and the contract version that they are shown."""
    return Approval(
        reason=reason,
        quorum=quorum,
        expires_at_us=now_us + round(expires_s * US),
        digest=record_digest,
        contract_version=contract_version,
        approvers=approvers,
        covers_repeat=covers_repeat,
    )


def approve(
    record: CallRecord, by: str, now_us: int, *, digest: str | None = None, reason: str | None = None
) -> Change:
    """One person's yes. Reaching the quorum makes the call ready; ``digest`` binds the vote to what was shown."""
    approval = _open_approval(record, by, now_us)
    if (digest or record.digest) != approval.digest or record.digest != approval.digest:
        raise Forbidden("digest", "The arguments changed since they were shown; look again and decide anew.")
    if any(vote.by == by for vote in approval.votes):
        raise Forbidden("voted", f"{by} has already approved this call.")
    votes = (*approval.votes, Vote(by, now_us, approval.digest))
    facts = {"by": by, "votes": len(votes), "quorum": approval.quorum, **_said(reason)}
    if len(votes) < approval.quorum:
        check(record.state, Event.VOTE, State.HELD)
        return advance(record, now_us, "voted", facts, approval=replace(approval, votes=votes))
    check(record.state, Event.APPROVE, State.READY)
    granted = replace(approval, votes=votes, granted_at_us=now_us)
    due = now_us if record.run_when_approved else approval.expires_at_us
    return advance(record, now_us, "approved", facts, state=State.READY, approval=granted, due_at_us=due)


def edit(
    record: CallRecord,
    by: str,
    arguments: str,
    digest: str,
    difference: Json,
    now_us: int,
    reason: str | None = None,
) -> Change:
    """Replace the arguments of a held call of which nothing ever departed; votes given so far become void."""
    check(record.state, Event.EDIT, State.HELD)
    approval = _open_approval(record, by, now_us)
    if record.attempts:
        raise Forbidden("departed", "Something of this call has departed, so its arguments stand for ever.")
    fresh = replace(approval, digest=digest, votes=())
    facts = {"by": by, "digest": digest, "difference": dict(difference), **_said(reason)}
    return advance(record, now_us, "edited", facts, approval=fresh, arguments=arguments, digest=digest)


def _said(reason: str | None) -> dict[str, str]:
    """The reason of a decision that needs none, where one was given."""
    return {} if reason is None else {"reason": reason}


def deny(record: CallRecord, by: str, reason: str, now_us: int) -> Change:
    """A person's no."""
    check(record.state, Event.DENY, State.REFUSED)
    named(by, reason)
    approval = record.approval
    if approval is not None and approval.approvers is not None and by not in approval.approvers:
        raise Forbidden("entitled", f"{by} is not among the approvers of this call.")
    return _refused(record, now_us, "denied", f"Denied by {by}: {reason}", by=by, reason=reason)


def gate_denied(record: CallRecord, gate: str, error: Json, now_us: int) -> Change:
    """A gate says no at departure of a call that was ready."""
    check(record.state, Event.DENY, State.REFUSED)
    return advance(
        record,
        now_us,
        "refused",
        {"gate": gate, "error": dict(error)},
        state=State.REFUSED,
        error=error,
        due_at_us=None,
    )


def expire(record: CallRecord, now_us: int) -> Change:
    """A hold or an approval reached its end."""
    check(record.state, Event.EXPIRE, State.REFUSED)
    approval = record.approval
    if approval is None or now_us < approval.expires_at_us:
        raise Forbidden("expiry", "Nothing of this call has expired.")
    what = "The approval" if approval.granted_at_us else "The wait for approval"
    return _refused(record, now_us, "expired", f"{what} expired.")


def cancel(record: CallRecord, by: str, now_us: int, reason: str | None = None) -> Change:
    """Cancel: refused when nothing left, otherwise only a mark that forbids resends until a new round."""
    if record.state in (State.HELD, State.READY):
        check(record.state, Event.CANCEL, State.REFUSED)
        return _refused(record, now_us, "cancelled", f"Cancelled by {by}.", by=by, reason=reason)
    check(record.state, Event.CANCEL_ASKED, record.state)
    return advance(record, now_us, "cancel_asked", {"by": by, "reason": reason}, cancel_asked=True)


def lapse(record: CallRecord, approval: Approval, why: str, now_us: int) -> Change:
    """What was approved is not what would run now: ask again."""
    check(record.state, Event.LAPSE, State.HELD)
    return advance(
        record,
        now_us,
        "lapsed",
        {"why": why},
        state=State.HELD,
        approval=unanswered(approval),
        due_at_us=approval.expires_at_us,
    )


def unanswered(approval: Approval) -> Approval:
    """The question alone: whoever asks anew, no answer to an earlier one counts."""
    return replace(approval, votes=(), granted_at_us=None, consumed_round=None)


def named(by: str | None, reason: str | None) -> None:
    """A decision is somebody's, and says why."""
    if not (by or "").strip():
        raise Forbidden("name", "A decision needs the name of the person who takes it.")
    if not (reason or "").strip():
        raise Forbidden("reason", "A decision needs a reason, which is kept with it.")


def _open_approval(record: CallRecord, by: str, now_us: int) -> Approval:
    if not by.strip():
        raise Forbidden("name", "An approval needs the name of the person who gives it.")
    if record.state is not State.HELD:
        check(record.state, Event.APPROVE)
    approval = record.approval
    if approval is None or record.state is not State.HELD:
        raise Forbidden("table", "This call waits for nobody's approval.")
    if by == record.requested_by:
        raise Forbidden("requester", "Nobody approves or edits their own call.")
    if approval.approvers is not None and by not in approval.approvers:
        raise Forbidden("entitled", f"{by} is not among the approvers of this call.")
    if now_us >= approval.expires_at_us:
        raise Forbidden("expired", "The wait for approval has expired.")
    return approval


def _refused(record: CallRecord, now_us: int, kind: str, message: str, **facts: Any) -> Change:
    error = {"type": kind, "message": message}
    return advance(record, now_us, kind, facts, state=State.REFUSED, error=error, due_at_us=None)
