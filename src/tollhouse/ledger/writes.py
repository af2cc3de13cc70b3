"""From a change to a write: the one place where events are sealed and the head moves."""

from __future__ import annotations

from tollhouse.ledger.change import Change
from tollhouse.ledger.cover import call_digest, covered
from tollhouse.ledger.events import seal
from tollhouse.ledger.record import replace
from tollhouse.ledger.rows import dump_body
from tollhouse.ledger.store import Blob, RepeatCheck, Write


def call_stream(key: str) -> str:
    """The stream of a direct call."""
    return f"call:{key}"


def write_of(
    change: Change,
    write_id: str,
    *,
    owner: str | None = None,
    repeat: RepeatCheck | None = None,
    blobs: tuple[Blob, ...] = (),
    at_us: int | None = None,
) -> Write:
    """The guarded write that makes ``change`` durable; ``write_id`` names the decision, not each try of it.

    ``at_us``: when it happened; None: when the record says that it was last updated.
    """
    before, record = change.before, change.record
    head_seq, head_hash = (0, "") if before is None else (before.head_seq, before.head_hash)
    body = dump_body(record)
    drafts = covered(change.drafts, call_digest(record, body))
    at_us = record.updated_at_us if at_us is None else at_us
    events = seal(call_stream(record.key), head_seq, head_hash, drafts, at_us, write_id)
    sealed = replace(record, head_seq=events[-1].seq, head_hash=events[-1].hash)
    return Write(
        record=sealed,
        expected=None if before is None else before.version,
        events=events,
        write_id=write_id,
        owner=owner,
        repeat=repeat,
        blobs=blobs,
        arguments_changed=before is not None and before.digest != record.digest,
        made=(sealed, body),
    )
