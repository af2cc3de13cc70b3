"""Mutants of settling: rules about what outcomes, evidence and people's decisions make of a call."""

from __future__ import annotations

from typing import Any

from tollhouse.doubt import people, reconciler
from tollhouse.gate.ending import ending_of_error
from tollhouse.ledger import decisions
from tollhouse.ledger.change import Change, advance
from tollhouse.ledger.decisions import Finding, approve, retry, settle
from tollhouse.ledger.guards import guard_d, guard_s
from tollhouse.ledger.lifecycle import FOLD, fold
from tollhouse.ledger.record import (
    Approval,
    AttemptOutcome,
    CallRecord,
    Settlement,
    State,
    replace,
)
from tollhouse.ledger.steps import Ending, end_attempt, end_wait
from tollhouse.ledger.store import Store
from tollhouse.ledger.transact import Stale, commit
from tollhouse.testing.mutants.patching import Patches

_LONG_AGO = -1
_FOR_EVER_US = 2**62


def settle_without_compare_and_set(patches: Patches) -> None:
    """A settlement is written over whatever happened since it was read."""

    async def written_over(store: Store, change: Change, write_id: str, **rest: Any) -> CallRecord:
        try:
            return await commit(store, change, write_id, **rest)
        except Stale as stale:
            now = stale.record
            if now is None or not _settles(change):
                raise
            record = replace(change.record, version=now.version + 1, fence=max(now.fence, change.record.fence))
            return await written_over(store, Change(now, record, change.drafts), f"{write_id}~over", **rest)

    patches.on(people, "commit", written_over)
    patches.on(reconciler, "commit", written_over)


def _settles(change: Change) -> bool:
    return any(draft.kind == "settled" for draft in change.drafts)


def hook_compares_state_not_version(patches: Patches) -> None:
    """A look-up settles a call that moved on and came back since."""

    async def compared_by_state(store: Store, change: Change, write_id: str, **rest: Any) -> CallRecord:
        try:
            return await commit(store, change, write_id, **rest)
        except Stale as stale:
            now, before = stale.record, change.before
            if now is None or before is None or now.state is not before.state or not _settles(change):
                raise
            finding = _as_found(change.record.settlements[-1])
            again = settle(now, finding, change.record.updated_at_us)
            return await compared_by_state(store, again, f"{write_id}~again", **rest)

    patches.on(reconciler, "commit", compared_by_state)


def _as_found(settlement: Settlement) -> Finding:
    """The finding behind a settlement; that it was allowed was judged on the version before the look-up."""
    return Finding(
        id=settlement.id,
        finding=settlement.finding or "",
        via=settlement.via,
        began_us=_FOR_EVER_US,
        by=settlement.by,
        reason=settlement.reason,
        evidence=settlement.evidence,
        reference=settlement.reference,
        result=settlement.result,
        job_status="failed",
    )


def late_outcome_discarded(patches: Patches) -> None:
    """What an attempt came to is thrown away once its call was set aside."""

    def in_time_only(record: CallRecord, attempt_id: str, ending: Ending, now_us: int) -> Change:
        attempt = record.attempt(attempt_id)
        if attempt is None or not _late(record, attempt.fence):
            return end_attempt(record, attempt_id, ending, now_us)
        ended = replace(attempt, outcome=attempt.outcome or AttemptOutcome.UNKNOWN, ended_at_us=now_us)
        facts = {"attempt": attempt_id, "discarded": True}
        return advance(record, now_us, "late_outcome", facts, attempts=record.with_attempt(ended).attempts)

    patches.everywhere(end_attempt, in_time_only)


def _late(record: CallRecord, fence: int) -> bool:
    return fence != record.fence or record.state is not State.DEPARTED


def stale_owner_writes(patches: Patches) -> None:
    """An owner that was set aside writes the state as if it still had the call."""

    def as_if_owner(record: CallRecord, attempt_id: str, ending: Ending, now_us: int) -> Change:
        change = end_attempt(record, attempt_id, ending, now_us)
        attempt = record.attempt(attempt_id)
        if attempt is None or not _late(record, attempt.fence):
            return change
        state = FOLD[ending.outcome]
        moved = replace(change.record, state=state, result=ending.result, error=ending.error, repeat_slot=None)
        return Change(change.before, moved, change.drafts)

    patches.everywhere(end_attempt, as_if_owner)


def last_outcome_replaces_fold(patches: Patches) -> None:
    """The last outcome decides the state, however strong an earlier one was."""

    def last(record: CallRecord) -> State:
        attempts = record.round_attempts
        if any(attempt.effective is None for attempt in attempts) or not attempts:
            return fold(record)
        newest = max(attempts, key=lambda a: (_LONG_AGO if a.ended_at_us is None else a.ended_at_us, a.number))
        return FOLD[newest.effective]

    patches.everywhere(fold, last)


def timeout_taken_as_failure(patches: Patches) -> None:
    """An attempt that timed out is recorded as having done nothing."""
    failed = AttemptOutcome.REJECTED

    def ended(record: CallRecord, attempt_id: str, why: str, now_us: int, *, cancel: bool = False) -> Change:
        if why != "timeout":
            return end_wait(record, attempt_id, why, now_us, cancel=cancel)
        error = {"type": "timeout", "message": "It timed out, so it failed."}
        return end_attempt(record, attempt_id, Ending(failed, error=error), now_us)

    def ending(error: BaseException, *rest: Any) -> Ending:
        told = ending_of_error(error, *rest)
        late = isinstance(error, TimeoutError) and told.outcome is AttemptOutcome.UNKNOWN
        return Ending(failed, error=told.error) if late else told

    patches.everywhere(end_wait, ended)
    patches.everywhere(ending_of_error, ending)


def negative_evidence_without_silence(patches: Patches) -> None:
    """A look-up's absence counts while a request may still arrive."""

    def impatient(record: CallRecord, looked_from_us: int, *, undoing: bool = False) -> None:
        if undoing:
            guard_s(record, looked_from_us, undoing=True)

    patches.everywhere(guard_s, impatient)


def compensation_without_silence(patches: Patches) -> None:
    """A call is undone while a request of it may still arrive."""

    def impatient(record: CallRecord, looked_from_us: int, *, undoing: bool = False) -> None:
        if not undoing:
            guard_s(record, looked_from_us)

    patches.everywhere(guard_s, impatient)


def retry_despite_happened(patches: Patches) -> None:
    """A call is retried and departs although an attempt of it happened."""
    patches.everywhere(guard_d, lambda _record: None)


def approval_without_digest(patches: Patches) -> None:
    """A vote counts for whatever arguments the call has by now."""

    def unbound(*given: Any, **named: Any) -> Change:
        return approve(*given, **{**named, "digest": None})

    patches.on(decisions, "approve", unbound)


def approval_survives_its_round(patches: Patches) -> None:
    """A retry goes on the approval of the round before."""

    def kept(record: CallRecord, by: str, reason: str, approval: Approval | None, now_us: int) -> Change:
        old = record.approval
        if approval is None or old is None or old.granted_at_us is None or now_us >= old.expires_at_us:
            return retry(record, by, reason, approval, now_us)
        change = retry(record, by, reason, None, now_us)
        again = replace(change.record, approval=replace(old, consumed_round=None))
        return Change(change.before, again, change.drafts)

    patches.on(decisions, "retry", kept)
