"""The guards of the lifecycle: what must hold before something is sent, sent again, or declared absent.

Each guard is one function that raises :class:`Forbidden` with its name, so that every path to a departure, a resend,
a retry or a negative settlement asks the same question. All times are microseconds on the store's clock.
"""

from __future__ import annotations

from tollhouse.contract.terms import US, Terms
from tollhouse.ledger.lifecycle import Forbidden
from tollhouse.ledger.record import FINAL, Attempt, AttemptOutcome, CallRecord, Lost, Settlement, State

_H = AttemptOutcome.HAPPENED
_NOTHING = frozenset({AttemptOutcome.NOT_SENT, AttemptOutcome.REJECTED})

CANCELLED_ROUND = "cancelled_round"
"""In ``CallRecord.extra``: the last round in which a cancel was taken back by a new departure of an unsent call."""

PURGED = "purged"
"""In ``CallRecord.extra``: when a call lost its arguments and history, and the head that the history had."""


def decided_about(record: CallRecord, attempt_id: str, outcome: AttemptOutcome) -> bool:
    """Whether a person overturned or upheld in full view of this attempt's outcome."""
    return any(s.covers.get(attempt_id) == outcome for s in record.settlements if s.kind in ("overturn", "uphold"))


def standing(record: CallRecord, round: int) -> Settlement | None:
    """The settlement that counts in that round: its last evidence or overturn, or None."""
    ours = (s for s in reversed(record.settlements) if s.kind in ("evidence", "overturn") and s.round == round)
    return next(ours, None)


def contradicted(record: CallRecord) -> bool:
    """Whether outcomes and settlements disagree. A pure function of both; a person's overturn or uphold closes it."""
    if not record.settlements and record.round == 1:
        return False
    rounds = range(1, record.round + 1)
    return (
        _happened_in_earlier_round(record)
        or any(_attempts_against_standing(record, number) for number in rounds)
        or _finding_against_state(record)
    )


def _happened_in_earlier_round(record: CallRecord) -> bool:
    return any(
        a.round < record.round and a.outcome is _H and not decided_about(record, a.id, _H) for a in record.attempts
    )


def _attempts_against_standing(record: CallRecord, round: int) -> bool:
    settlement = standing(record, round)
    if settlement is None:
        return False
    own = [(a, a.outcome) for a in record.attempts if a.round == round and a.outcome is not None]
    if settlement.finding == "happened":
        nothing_at_all = bool(own) and all(outcome in _NOTHING for _, outcome in own)
        return nothing_at_all and any(not decided_about(record, a.id, outcome) for a, outcome in own)
    return any(
        a.judged is AttemptOutcome.REJECTED
        and outcome in (_H, AttemptOutcome.ACCEPTED)
        and not _known_to(settlement, a.id, outcome)
        and not decided_about(record, a.id, outcome)
        for a, outcome in own
    )


def _known_to(settlement: Settlement, attempt_id: str, outcome: AttemptOutcome) -> bool:
    """An accepted job that was then judged not to have happened contradicts nothing: the judge knew of it."""
    return settlement.covers.get(attempt_id) == outcome


def _finding_against_state(record: CallRecord) -> bool:
    decided_at = -1
    for index, settlement in enumerate(record.settlements):
        if settlement.kind in ("overturn", "uphold"):
            decided_at = index
    undecided = record.settlements[decided_at + 1 :]
    return any(s.kind == "finding" and _finding_is_against(record, s) for s in undecided)


def _finding_is_against(record: CallRecord, finding: Settlement) -> bool:
    """An absence says nothing about attempts that began after it was found; a presence stays."""
    took_effect = record.state in (State.SUCCEEDED, State.COMPENSATED)
    if finding.finding == "happened":
        return not took_effect
    return took_effect and all(a.id in finding.covers for a in record.attempts)


def guard_d(record: CallRecord) -> None:
    """Guard D, before every departure, resend and retry: no effect is known, and no contradiction is open.

    Nor is anything sent whose arguments were purged.
    """
    if PURGED in record.extra:
        raise Forbidden("purged", "What it would send was purged; use a new key.")
    if record.contradicted:
        raise Forbidden("D", "The records about this call contradict each other; a person must decide first.")
    for attempt in record.attempts:
        if attempt.effective is _H or (attempt.outcome is _H and not decided_about(record, attempt.id, _H)):
            raise Forbidden("D", "An attempt of this call is recorded as having happened.")


def guard_r(record: CallRecord, today: Terms, now_us: int) -> int | None:
    """Guard R, before every resend: the receiver will recognise it. Returns the window's end, None where it has none.

    Dedup must be allowed by the contract stored at departure and by today's; the stricter counts. ``by_key`` counts
    from the call's first departure, less a margin for the slowest network; ``natural`` ends with ``deadline_s``.
    """
    then = record.terms
    if record.cancel_asked or record.extra.get(CANCELLED_ROUND) == record.round:
        raise Forbidden("R", "The call was cancelled; it is not sent again in this round.")
    if not (then.dedup.allows_resend and today.dedup.allows_resend):
        raise Forbidden("R", "The receiver does not recognise a repeated request (no dedup in the contract).")
    if record.departed_at_us is None:
        raise Forbidden("R", "Nothing was sent yet, so nothing can be sent again.")
    if used_attempts(record) >= min(record.limits.max_attempts, today.max_attempts):
        raise Forbidden("R", "All attempts of this round are used up.")
    end_us = _window_end(record, then, today)
    if end_us is not None and now_us >= end_us:
        raise Forbidden("R", "The time in which the receiver recognises the key has ended.")
    return end_us


def _window_end(record: CallRecord, then: Terms, today: Terms) -> int | None:
    assert record.departed_at_us is not None
    ends = []
    for terms in (then, today):
        if terms.dedup.kind == "by_key" and terms.dedup.hours is not None:
            window_s = terms.dedup.hours * 3600 - max(then.resend_margin_s, today.resend_margin_s)
            ends.append(record.departed_at_us + round(window_s * US))
        elif terms.dedup.kind == "natural" and record.deadline_at_us is not None:
            ends.append(record.deadline_at_us)
    return min(ends, default=None)


def used_attempts(record: CallRecord) -> int:
    """Attempts of this round that count towards ``max_attempts``: all but those proven not sent."""
    return sum(1 for a in record.round_attempts if a.outcome is not AttemptOutcome.NOT_SENT)


def silent_from_us(record: CallRecord, *, undoing: bool = False) -> int | None:
    """The earliest moment at which a look-up may begin for its *did not happen* to count; None: not yet knowable.

    With ``undoing``: the earliest moment for a compensation.
    """
    terms = record.terms
    moment = 0
    for attempt in _may_still_arrive(record, undoing):
        may_send_until_us = _may_send_until_us(attempt, terms.sends_checked)
        if may_send_until_us is None:
            return None
        moment = max(moment, may_send_until_us)
    return moment + round(terms.absent_after_s * US)


def _may_still_arrive(record: CallRecord, undoing: bool) -> list[Attempt]:
    """Attempts whose request may still be under way.

    Of several that were judged together to have happened, only one need have; where nothing but nature makes the
    repeat harmless, a late one would bring back what was undone.
    """
    unsettled = [a for a in record.attempts if a.unsettled]
    judged = [a for a in record.attempts if a.judged is _H and a.outcome not in FINAL]
    if undoing and len(judged) > 1 and record.terms.dedup.kind == "natural":
        return unsettled + judged
    return unsettled


def _may_send_until_us(attempt: Attempt, checked: bool) -> int | None:
    """Until when an attempt may have sent. None: it still may.

    Where every send passes a check, ``send_by`` bounds it; otherwise only its end does, or the proof (from the moment
    of the proof on) that its process is gone.
    """
    if not checked and (attempt.running or attempt.lost is Lost.LEASE):
        return None
    if attempt.ended_at_us is None or (checked and attempt.lost):
        return attempt.send_by_us
    return max(attempt.ended_at_us, attempt.send_by_us)


def guard_s(record: CallRecord, looked_from_us: int, *, undoing: bool = False) -> None:
    """Guard S, before negative evidence or a compensation counts: enough silence before the look-up began."""
    earliest = silent_from_us(record, undoing=undoing)
    if earliest is None:
        raise Forbidden("S", "An attempt of this call may still be running, so absence proves nothing yet.")
    if looked_from_us < earliest:
        wait_s = (earliest - looked_from_us) / US
        raise Forbidden("S", f"The look-up began {wait_s:.1f} s too early: a late request may still arrive.")
