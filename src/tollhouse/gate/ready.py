"""What becomes of a recorded call that somebody wants to depart now: it departs, asks people again, or is refused.

The gate looks here at every departure of a call that is ready; everything was judged anew just before.
"""

from __future__ import annotations

from tollhouse.errors import Refused
from tollhouse.gate.approval import lapsed, question
from tollhouse.gate.gates import Judgement
from tollhouse.gate.planning import Plan
from tollhouse.ledger.approvals import expire, gate_denied, lapse
from tollhouse.ledger.change import Change
from tollhouse.ledger.lifecycle import Forbidden
from tollhouse.ledger.record import CallRecord
from tollhouse.ledger.steps import Start, depart


def ready_step(record: CallRecord, plan: Plan, start: Start, by: str) -> Change:
    """The step of a ready call. Raises :class:`Refused` where it may not depart now and stays as it is."""
    now_us, judgement = start.at_us, plan.judgement
    if has_expired(record, now_us):
        return expire(record, now_us)
    if judgement.denial is not None and not judgement.denial.stored:
        raise denied(judgement, record.key)
    if judgement.denial is not None:
        return gate_denied(record, judgement.denied_by or "gate", judgement.error, now_us)
    if (why := lapsed(record, plan.tool, judgement.holds)) is not None:
        fresh = question(judgement.holds, plan.tool, record.digest, now_us, repeat_of=record.repeat_of, again=why)
        return lapse(record, fresh, why, now_us)
    try:
        return depart(record, start, {"by": by, "gates": judgement.said})
    except Forbidden as forbidden:
        raise Refused(f"{record.key} may not depart: {forbidden.cause}", key=record.key) from None


def has_expired(record: CallRecord, now_us: int) -> bool:
    """Whether the time of its hold, or of its approval, is over."""
    return record.approval is not None and now_us >= record.approval.expires_at_us


def denied(judgement: Judgement, key: str) -> Refused:
    """A denial that no row remembers."""
    return Refused(str(judgement.error["message"]), key=key)
