"""Read, decide, swap: how every step after the first is written, by anybody.

``commit`` tries once, on the version that was shown. ``transact`` decides anew on the current record when somebody
else moved it meanwhile, for steps that stay right whatever happened in between (an attempt's own outcome, say).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from tollhouse.ledger.change import Change
from tollhouse.ledger.decisions import compensated
from tollhouse.ledger.lifecycle import Forbidden
from tollhouse.ledger.record import AttemptOutcome, CallRecord, State
from tollhouse.ledger.store import Blob, Refusal, Store, Write
from tollhouse.ledger.writes import write_of

Step = Callable[[CallRecord], Change]


class Stale(Exception):
    """The record moved on since it was read. ``record``: what stands there now, None when the row is gone."""

    def __init__(self, record: CallRecord | None) -> None:
        super().__init__("the call moved on")
        self.record = record


class OwnerGone(Exception):
    """The owner of a departure is not live any more: this process was taken for lost."""


async def commit(
    store: Store, change: Change, write_id: str, *, owner: str | None = None, blobs: tuple[Blob, ...] = ()
) -> CallRecord:
    """Write one change, compare-and-set. Raises :class:`Stale` or :class:`OwnerGone`; durable on return.

    The settlement of a compensation marks its original in the same commit.
    """
    write = write_of(change, write_id, owner=owner, blobs=blobs)
    linked = await _original_of(store, change, write_id)
    written = (await store.write(write) if linked is None else await store.write(write, linked))[0]
    if linked is not None and written.refusal is Refusal.STALE and _unmoved(written.record, change):
        return await commit(store, change, write_id, owner=owner, blobs=blobs)  # only the original had moved
    if written.applied:
        # An earlier try was decided at another moment, so its record may differ; a later version is somebody else's.
        stands = written.stands
        return write.record if stands is None or stands.version != write.record.version else stands
    if written.refusal is Refusal.OWNER:
        raise OwnerGone
    raise Stale(written.record)


def _unmoved(record: CallRecord | None, change: Change) -> bool:
    return record is not None and change.before is not None and record.version == change.before.version


async def _original_of(store: Store, change: Change, write_id: str) -> Write | None:
    """The write that marks a compensated original, when this change settles its compensation as succeeded."""
    record, before = change.record, change.before
    settles = record.state is State.SUCCEEDED and (before is None or before.state is not State.SUCCEEDED)
    if record.compensates is None or not settles:
        return None
    original = await store.get(record.tenant, record.compensates)
    if original is None or not undoes(record, original):
        return None
    try:
        step = compensated(original, record.key, record.updated_at_us)
    except Forbidden:
        return None  # contradicted or moved on since: the compensation stands, the original says what it says
    return write_of(step, f"{write_id}:original")


def undoes(compensation: CallRecord, original: CallRecord) -> bool:
    """Whether all that departed of the original had departed before it was undone: nothing undoes a later round."""
    happened = (a.started_at_us for a in compensation.attempts if a.effective is AttemptOutcome.HAPPENED)
    from_us = min(happened, default=compensation.departed_at_us or compensation.created_at_us)
    return all(attempt.started_at_us <= from_us for attempt in original.attempts)


async def mark_compensated(store: Store, tenant: str, key: str, by_key: str, now_us: int) -> None:
    """Mark an original whose compensation succeeded while it could not be marked. Nothing where that still holds."""
    original, compensation = await store.get(tenant, key), await store.get(tenant, by_key)
    if original is None or compensation is None or original.state is not State.SUCCEEDED:
        return
    if not undoes(compensation, original):
        return
    with suppress(Forbidden, Stale):
        await transact(store, original, lambda r: compensated(r, by_key, now_us), f"{by_key}:mark:{original.version}")


async def transact(
    store: Store,
    record: CallRecord,
    step: Step,
    write_id: str,
    *,
    owner: str | None = None,
    blobs: tuple[Blob, ...] = (),
) -> tuple[CallRecord, CallRecord]:
    """Write ``step`` of the record, deciding anew while it moves. Returns (before, after). Raises what ``step`` raises.

    Each new decision gets a write id of its own, since it is another write.
    """
    number = 0
    while True:
        try:
            tried = write_id if number == 0 else f"{write_id}~{number}"
            return record, await commit(store, step(record), tried, owner=owner, blobs=blobs)
        except Stale as stale:
            if stale.record is None:
                raise
            record, number = stale.record, number + 1
