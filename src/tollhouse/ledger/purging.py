"""What is left of a call when its bodies are purged. Pure rules, asked by ``tollhouse.operations``.

A purged call keeps its row: who it was, what it was asked for (as digests), how it ended, which attempts it took. So a
key is never free again, in any release, and repeats are still seen; and no departure pays for looking somewhere else.
It is never sent, retried or undone any more, since what would be sent is gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tollhouse.ledger.guards import PURGED
from tollhouse.ledger.record import SETTLED, Attempt, CallRecord, Settlement, State, Stored, replace

_WAS_PURGED = "what was said of it was purged"


def may_purge(record: CallRecord, before_us: int, states: Collection[State]) -> bool:
    """Whether a call may lose its bodies: settled in one of these states since before then, and nothing of it open."""
    over = record.state in SETTLED and record.open_owners is None and not record.contradicted
    return over and record.state in states and record.updated_at_us < before_us


def without_results(record: CallRecord) -> CallRecord:
    """The record without the bodies that came back; its arguments and history stay."""
    return replace(
        record,
        version=record.version + 1,
        attempts=tuple(replace(a, late_result=_purged(a.late_result)) for a in record.attempts),
        settlements=tuple(_settled_without(s) for s in record.settlements),
        result=_result_of(record),
    )


def tombstone(record: CallRecord, now_us: int) -> CallRecord:
    """The record without arguments, results, errors and evidence, at the head of an empty history.

    The old head is kept, so that an exported history can still be proven against it.
    """
    told = {"at_us": now_us, "head_seq": record.head_seq, "head_hash": record.head_hash}
    bare = without_results(record)
    return replace(
        bare,
        arguments="{}",
        attempts=tuple(_bare(a) for a in bare.attempts),
        settlements=tuple(_unsaid(s) for s in bare.settlements),
        approval=None,
        error=None if record.error is None else {"type": record.error.get("type"), "message": _WAS_PURGED},
        due_at_us=None,
        head_seq=0,
        head_hash="",
        extra={PURGED: told},
    )


def purged_at_us(record: CallRecord) -> int | None:
    """When a call lost its arguments and history; None while it has them."""
    told = record.extra.get(PURGED)
    return None if told is None else int(told["at_us"])


def bodies_of(record: CallRecord) -> list[str]:
    """Digests of the bodies that are kept outside its row."""
    kept = [record.result, *(a.late_result for a in record.attempts), *(s.result for s in record.settlements)]
    return sorted({stored.blob for stored in kept if stored is not None and stored.blob is not None})


def has_results(record: CallRecord) -> bool:
    """Whether any body that came back is still kept."""
    return any(_is_kept(stored) for stored in _stored(record))


def _stored(record: CallRecord) -> Iterator[Stored | None]:
    yield record.result
    yield from (a.late_result for a in record.attempts)
    yield from (s.result for s in record.settlements)


def _is_kept(stored: Stored | None) -> bool:
    return stored is not None and (stored.text is not None or stored.blob is not None)


def _result_of(record: CallRecord) -> Stored | None:
    if record.state in (State.SUCCEEDED, State.COMPENSATED) and record.result is None:
        return Stored(problem="purged")
    return _purged(record.result)


def _purged(stored: Stored | None) -> Stored | None:
    return None if stored is None else Stored(size=stored.size, problem="purged")


def _settled_without(settlement: Settlement) -> Settlement:
    return replace(settlement, result=_purged(settlement.result))


def _unsaid(settlement: Settlement) -> Settlement:
    return replace(settlement, evidence=None, reason=None)


def _bare(attempt: Attempt) -> Attempt:
    error = None if attempt.error is None else {"type": attempt.error.get("type"), "message": _WAS_PURGED}
    return replace(attempt, error=error)
