"""Steps of sending: a call departs, its attempts end, owners are lost, the reconciler sends again.

Called by the gate (first departure and its outcome), the sweeper and the reconciler. Pure functions: they decide
nothing about *when*, only what follows. Each looks its transition up in the lifecycle table.
"""

from __future__ import annotations

from typing import Any

from tollhouse.contract.terms import US, Effect, Terms
from tollhouse.ledger.change import Change, Draft, advance
from tollhouse.ledger.guards import CANCELLED_ROUND, guard_d, guard_r
from tollhouse.ledger.lifecycle import Event, Forbidden, check, fold
from tollhouse.ledger.record import (
    FINAL,
    Approval,
    Attempt,
    AttemptOutcome,
    CallRecord,
    Json,
    Lost,
    State,
    Stored,
    replace,
)
from tollhouse.ledger.value import value_type

LIVE = frozenset({State.DEPARTED, State.ACCEPTED, State.IN_DOUBT})
"""States in which the outcome of an attempt of the current round moves the call."""

FIRST_POLL_US = 1 * US
"""How long after its acceptance long work is first asked about."""


@value_type
class Start:
    """A sending about to be written down. ``send_by_us``: after this the attempt may not send any more."""

    id: str
    owner: str
    at_us: int
    send_by_us: int


@value_type
class Ending:
    """What an attempt came to, first-hand. ``result`` with ``happened``; ``reference`` with ``accepted``."""

    outcome: AttemptOutcome
    result: Stored | None = None
    error: Json | None = None
    reference: str | None = None
    cost: str | None = None


# -- new calls -----------------------------------------------------------------------------------------------------


def first_departure(new: CallRecord, start: Start, data: dict[str, Any]) -> Change:
    """Commit 1 of a new call: it departs with its first attempt."""
    check(None, Event.DEPART, State.DEPARTED)
    attempt = replace(_FIRST, id=start.id, owner=start.owner, started_at_us=start.at_us, send_by_us=start.send_by_us)
    record = replace(
        new,
        state=State.DEPARTED,
        fence=1,
        attempts=(attempt,),
        departed_at_us=start.at_us,
        deadline_at_us=start.at_us + round(new.limits.deadline_s * US),
    )
    return Change(None, record, (Draft("departed", {"state": "departed", **_sent_as(attempt), **data}),))


_FIRST = Attempt(id="", round=1, number=1, owner="", fence=1, started_at_us=0, send_by_us=0)
"""Where every first attempt begins: copying it costs half of setting each field anew."""


def first_hold(new: CallRecord, approval: Approval, data: dict[str, Any]) -> Change:
    """A new call that waits for people."""
    check(None, Event.HOLD, State.HELD)
    record = replace(new, state=State.HELD, approval=approval, due_at_us=approval.expires_at_us)
    return Change(None, record, (Draft("held", {"state": "held", "reason": approval.reason, **data}),))


def first_refusal(new: CallRecord, error: Json, data: dict[str, Any]) -> Change:
    """A new call that a gate refuses; the refusal is what the key replays."""
    check(None, Event.REFUSE, State.REFUSED)
    record = replace(new, state=State.REFUSED, error=error, repeat_slot=None)
    return Change(None, record, (Draft("refused", {"state": "refused", "error": dict(error), **data}),))


def first_record(new: CallRecord, attempts: tuple[Attempt, ...], ending: Ending, data: dict[str, Any]) -> Change:
    """The only commit of a read: after it ran, with all its attempts. A read is never in doubt."""
    state = State.SUCCEEDED if ending.outcome is AttemptOutcome.HAPPENED else State.FAILED
    check(None, Event.RECORD, state)
    record = replace(
        new,
        state=state,
        fence=len(attempts),
        attempts=attempts,
        departed_at_us=attempts[0].started_at_us,
        result=ending.result,
        error=ending.error,
        repeat_slot=None,
    )
    facts = {"state": state.value, "attempts": len(attempts), "outcome": ending.outcome.value, **data}
    return Change(None, record, (Draft("recorded", facts),))


# -- departures and resends ------------------------------------------------------------------------------------------


def depart(record: CallRecord, start: Start, data: dict[str, Any]) -> Change:
    """A ready call departs. Raises :class:`Forbidden` by guard D, or when its approval is missing, spent or expired.

    A cancel asked after an earlier departure of the round, all of which proved unsent, no longer stops this one: its
    caller asked anew. It goes on forbidding resends (:func:`guard_r`).
    """
    check(record.state, Event.DEPART, State.DEPARTED)
    guard_d(record)
    approval = _approval_for_sending(record, start.at_us)
    return _sent(record, start, "departed", data, approval)


def resend(record: CallRecord, start: Start, today: Terms, data: dict[str, Any]) -> Change:
    """Send a doubt again under guards D and R; the receiver will recognise it. A departed one is its owner's alone."""
    check(record.state, Event.RESEND, State.DEPARTED)
    if record.state is State.DEPARTED and not _holds_fence(record, start.owner):
        raise Forbidden("fence", "The call is another owner's; only that one may send it again.")
    return _resent(record, start, today, data)


def _resent(record: CallRecord, start: Start, today: Terms, data: dict[str, Any]) -> Change:
    guard_d(record)
    window_end_us = guard_r(record, today, start.at_us)
    approval = _approval_for_sending(record, start.at_us)
    return _sent(record, _within(start, window_end_us), "resent", data, approval)


def end_and_resend(
    record: CallRecord, attempt_id: str, ending: Ending, start: Start, today: Terms, data: dict[str, Any]
) -> Change:
    """The owner ends its attempt and begins the next in one commit, so that the call stays departed throughout."""
    check(record.state, Event.RESEND, State.DEPARTED)
    attempt = _live_attempt(record, attempt_id)
    if attempt.fence != record.fence:
        raise Forbidden("fence", "Another owner took this call over; only it may send again.")
    ended = _ended(attempt, ending, start.at_us, late=False)
    noted = advance(record, start.at_us, "outcome", _ended_as(ended), attempts=record.with_attempt(ended).attempts)
    return noted.then(lambda after: _resent(after, start, today, data))


def _sent(record: CallRecord, start: Start, kind: str, data: dict[str, Any], approval: Approval | None) -> Change:
    attempt = Attempt(
        start.id,
        record.round,
        len(record.attempts) + 1,
        start.owner,
        record.fence + 1,
        start.at_us,
        start.send_by_us,
    )
    deadline = record.deadline_at_us
    if deadline is None or (record.state is State.READY and start.at_us >= deadline):
        # Nothing of this round was sent yet, so whoever asks again has the whole time again.
        deadline = start.at_us + round(record.limits.deadline_s * US)
    return advance(
        record,
        start.at_us,
        kind,
        {**_sent_as(attempt), **data},
        state=State.DEPARTED,
        fence=attempt.fence,
        attempts=(*record.attempts, attempt),
        approval=approval,
        departed_at_us=record.departed_at_us or start.at_us,
        deadline_at_us=deadline,
        due_at_us=None,
        error=None,
        **_cancel_taken_back(record),
    )


def _cancel_taken_back(record: CallRecord) -> dict[str, Any]:
    """The last check before bytes leave refuses while a cancel stands, so the mark moves where only guard R sees it."""
    if not record.cancel_asked:
        return {}
    return {"cancel_asked": False, "extra": {**record.extra, CANCELLED_ROUND: record.round}}


def _holds_fence(record: CallRecord, owner: str) -> bool:
    return any(a.owner == owner and a.fence == record.fence for a in record.attempts)


def _within(start: Start, window_end_us: int | None) -> Start:
    if window_end_us is None:
        return start
    return replace(start, send_by_us=min(start.send_by_us, window_end_us))


def _approval_for_sending(record: CallRecord, now_us: int) -> Approval | None:
    """The approval, consumed by this round; checked at every departure. None where none is needed."""
    approval = record.approval
    if approval is None:
        return None
    if approval.granted_at_us is None:
        raise Forbidden("approval", "The call is not approved.")
    if approval.consumed_round not in (None, record.round):
        raise Forbidden("approval", "The approval was used up by an earlier round.")
    if approval.digest != record.digest:
        raise Forbidden("approval", "The approval is for other arguments.")
    if now_us >= approval.expires_at_us:
        raise Forbidden("approval", "The approval has expired.")
    return approval if approval.consumed_round else replace(approval, consumed_round=record.round)


# -- ends -------------------------------------------------------------------------------------------------------------


def end_attempt(record: CallRecord, attempt_id: str, ending: Ending, now_us: int) -> Change:
    """Write an attempt's own outcome, in time or late, and fold if its round is the current one.

    Always written to the attempt; nothing weaker replaces anything stronger, and a settlement stands.
    """
    attempt = _live_attempt(record, attempt_id)
    late = attempt.fence != record.fence or record.state is not State.DEPARTED
    ended = _ended(attempt, ending, now_us, late=late)
    after = record.with_attempt(ended)
    moves = ended.round == record.round and _moved_by_outcomes(record)
    state = fold(after) if moves else record.state
    check(record.state, Event.OUTCOME, state)
    fields: dict[str, Any] = {"state": state, **_due(record, state, now_us)}
    first = moves and not _took_effect(record)
    if first:
        fields |= {"result": ending.result, "error": ending.error}
    elif ending.outcome is AttemptOutcome.HAPPENED:
        after = record.with_attempt(replace(ended, late_result=ending.result))
    kind = "late_outcome" if late else "outcome"
    return advance(record, now_us, kind, _ended_as(ended), attempts=after.attempts, **fields)


def _moved_by_outcomes(record: CallRecord) -> bool:
    """Whether an outcome of this round moves the call. An abandoned read is ready, yet its reply may still come."""
    return record.state in LIVE or (record.state is State.READY and record.effect == Effect.READ)


def _took_effect(record: CallRecord) -> bool:
    """Whether an attempt of this round happened already: its result stands, and no later error speaks over it."""
    return AttemptOutcome.HAPPENED in [a.outcome for a in record.round_attempts]


def end_wait(record: CallRecord, attempt_id: str, why: str, now_us: int, *, cancel: bool = False) -> Change:
    """The caller stops waiting (timeout, cancel); the attempt goes on and keeps its owner and fence."""
    attempt = _live_attempt(record, attempt_id)
    check(record.state, Event.WAIT_ENDED)
    unknown = replace(attempt, outcome=attempt.outcome or AttemptOutcome.UNKNOWN)
    state = fold(record.with_attempt(unknown))
    check(record.state, Event.WAIT_ENDED, state)
    error = {"type": "timeout" if why == "timeout" else "cancelled", "message": f"The wait ended: {why}."}
    return advance(
        record,
        now_us,
        "wait_ended",
        {"attempt": attempt.id, "why": why},
        state=state,
        attempts=record.with_attempt(unknown).attempts,
        cancel_asked=record.cancel_asked or cancel,
        error=record.error if _took_effect(record) else error,
        **_due(record, state, now_us),
    )


def owner_lost(record: CallRecord, owner: str, lease_until_us: int, proof: Lost, now_us: int) -> Change:
    """Set aside a lost owner: its open attempts become unknown and the fence rises, so it cannot send any more."""
    gone = [a for a in record.attempts if a.owner == owner and a.running]
    if not gone:
        raise Forbidden("owner", "That owner has no open attempt here.")
    set_aside = {
        a.id: replace(
            a,
            outcome=a.outcome or AttemptOutcome.UNKNOWN,
            ended_at_us=now_us,
            lost=proof,
            send_by_us=min(a.send_by_us, lease_until_us),
        )
        for a in gone
    }
    attempts = tuple(set_aside.get(a.id, a) for a in record.attempts)
    state = record.state
    if state is State.DEPARTED:
        state = fold(replace(record, attempts=attempts))
    check(record.state, Event.OWNER_LOST, state)
    return advance(
        record,
        now_us,
        "owner_lost",
        {"owner": owner, "attempts": list(set_aside), "proof": proof.value},
        state=state,
        attempts=attempts,
        fence=record.fence + 1,
        **_due(record, state, now_us),
    )


def owner_proven_dead(record: CallRecord, owner: str, now_us: int) -> Change:
    """The process of a lost owner is proven gone: from now on its attempts cannot send, checked or not."""
    attempts = tuple(
        replace(a, lost=Lost.DEAD, ended_at_us=now_us) if a.owner == owner and a.lost is Lost.LEASE else a
        for a in record.attempts
    )
    return advance(record, now_us, "owner_proven_dead", {"owner": owner}, attempts=attempts)


def job_deadline(record: CallRecord, now_us: int) -> Change:
    """Long work ran past its deadline: accepted becomes unknown."""
    attempts = tuple(
        replace(a, outcome=AttemptOutcome.UNKNOWN) if a.outcome is AttemptOutcome.ACCEPTED and not a.judged else a
        for a in record.attempts
    )
    state = fold(replace(record, attempts=attempts))
    check(record.state, Event.DEADLINE, state)
    return advance(record, now_us, "deadline_passed", {}, state=state, attempts=attempts, due_at_us=now_us)


def earlier_job_happened(record: CallRecord, attempt_id: str, result: Stored | None, now_us: int) -> Change:
    """Long work of an earlier round took effect after all: its attempt says so, which contradicts what came after."""
    attempt = record.attempt(attempt_id)
    if attempt is None or attempt.outcome in FINAL or attempt.round == record.round:
        raise Forbidden("attempt", "That is no open work of an earlier round.")
    check(record.state, Event.OUTCOME, record.state)
    happened = replace(attempt, outcome=AttemptOutcome.HAPPENED, late=True, late_result=result)
    attempts = record.with_attempt(happened).attempts
    return advance(record, now_us, "late_outcome", _ended_as(happened), attempts=attempts)


def job_deadline_us(record: CallRecord) -> int | None:
    """When accepted work must have ended; None when nothing is accepted."""
    ends = [
        a.ended_at_us + round(record.terms.job_deadline_s * US)
        for a in record.round_attempts
        if a.outcome is AttemptOutcome.ACCEPTED and a.judged is None and a.ended_at_us is not None
    ]
    return max(ends, default=None)


def _live_attempt(record: CallRecord, attempt_id: str) -> Attempt:
    attempt = record.attempt(attempt_id)
    if attempt is None:
        raise Forbidden("attempt", "This call has no such attempt.")
    if attempt.outcome in FINAL or (attempt.ended_at_us is not None and attempt.lost is None):
        raise Forbidden("ended", "This attempt has already ended.")
    return attempt


def _ended(attempt: Attempt, ending: Ending, now_us: int, *, late: bool) -> Attempt:
    """The attempt with its first-hand end. Its context is closed by then, so it can send no later than now."""
    return replace(
        attempt,
        outcome=ending.outcome,
        ended_at_us=now_us,
        lost=None,
        send_by_us=min(attempt.send_by_us, now_us),
        reference=ending.reference or attempt.reference,
        error=ending.error,
        cost=ending.cost,
        late=late,
    )


def _due(record: CallRecord, state: State, now_us: int) -> dict[str, Any]:
    """When a worker should look at the call next, where the step changes that."""
    if state is record.state:
        return {}
    if state is State.ACCEPTED:
        return {"due_at_us": now_us + FIRST_POLL_US}
    if state is State.IN_DOUBT:
        return {"due_at_us": now_us}
    if state is State.READY and record.run_when_approved and not record.cancel_asked:
        return {"due_at_us": now_us + FIRST_POLL_US}
    if state is State.READY and record.approval is not None:
        return {"due_at_us": record.approval.expires_at_us}
    return {"due_at_us": None}


def _sent_as(attempt: Attempt) -> dict[str, Any]:
    return {
        "attempt": attempt.id,
        "number": attempt.number,
        "round": attempt.round,
        "owner": attempt.owner,
        "fence": attempt.fence,
        "send_by_us": attempt.send_by_us,
    }


def _ended_as(attempt: Attempt) -> dict[str, Any]:
    facts: dict[str, Any] = {"attempt": attempt.id, "number": attempt.number, "outcome": attempt.outcome}
    if attempt.error is not None:
        facts["error"] = dict(attempt.error)
    if attempt.reference is not None:
        facts["reference"] = attempt.reference
    if attempt.cost is not None:
        facts["cost"] = attempt.cost
    return facts
