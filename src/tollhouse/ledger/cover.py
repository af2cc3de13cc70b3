"""The chain covers state: the last event of every write carries a digest of the whole row as that write left it.

So a row that somebody rewrites no longer is what its own history says, and a proof can tell. Asked where events are
sealed (``ledger.writes``, the journal of runs) and by whoever verifies a bundle, with no store at hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256

from tollhouse.ledger.change import Draft
from tollhouse.ledger.compact import compact_encoder
from tollhouse.ledger.events import ROW
from tollhouse.ledger.record import CallRecord
from tollhouse.ledger.run_record import RUN_COLUMNS, RunRecord

_encode = compact_encoder(default=str)
_RUN_FIELDS = tuple(name for name in RUN_COLUMNS if name not in ("head_seq", "head_hash"))


def covered(drafts: Sequence[Draft], digest: str) -> tuple[Draft, ...]:
    """The same drafts, the last of them with the digest of the row that the write leaves."""
    *before, last = drafts
    return (*before, Draft(last.kind, {**last.data, ROW: digest}))


def call_digest(record: CallRecord, body: str) -> str:
    """SHA-256 over all of a call's row but the head of its chain. ``body``: its column of that name.

    Arguments count by their digest, contract and result by the SHA-256 of their text.
    """
    result = record.result
    columns = _encode(
        (
            record.tenant, record.key, record.wire_key, record.tool, record.effect, record.scope, record.group,
            record.request_digest, record.requested_by, record.created_at_us, record.digest, record.state,
            record.version, record.fence, record.round, record.due_at_us, bool(record.contradicted),
            bool(record.cancel_asked), record.repeat_slot, record.updated_at_us, _contract_digest(record.contract),
            None if result is None or result.text is None else sha256(result.text.encode()).hexdigest(),
        )
    )  # fmt: skip
    return sha256((columns + body).encode()).hexdigest()


def run_digest(record: RunRecord) -> str:
    """SHA-256 over all of a run's row but the head of its chain."""
    return sha256(_encode([getattr(record, name) for name in _RUN_FIELDS]).encode()).hexdigest()


@lru_cache(maxsize=1024)
def _contract_digest(contract: str) -> str:
    return sha256(contract.encode()).hexdigest()
