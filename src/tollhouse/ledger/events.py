"""Events: the numbered, hash-chained lines of a stream. Appended in the commit of the state they tell of.

The chain covers a *salted digest* of each payload, never the payload, so that erasing a person's data later leaves
every hash valid: ``hash = SHA-256(prev ‖ canonical [stream, seq, at_us, kind, payload_digest])`` with
``payload_digest = SHA-256(salt ‖ payload)``.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any

from tollhouse.ledger.change import Draft
from tollhouse.ledger.compact import compact_encoder
from tollhouse.ledger.value import value_type

_encode = compact_encoder(default=str)
GENESIS = ""
"""The hash before the first event of a stream."""

ROW = "row"
"""The name under which a payload carries the digest of the row (``ledger.cover``), beside what happened."""


@value_type
class Event:
    """One line: ``data`` is JSON text (empty after erasure), ``salt`` hexadecimal, ``at_us`` the store's clock."""

    stream: str
    seq: int
    at_us: int
    kind: str
    data: str
    salt: str
    payload_digest: str
    hash: str
    write_id: str

    @property
    def facts(self) -> dict[str, Any]:
        """What happened, as a dict; empty when it was erased."""
        loaded: dict[str, Any] = json.loads(self.data) if self.data else {}
        loaded.pop(ROW, None)
        return loaded

    @property
    def row_digest(self) -> str | None:
        """The digest of the row as this write left it; None for all but its last event, and where it was erased."""
        loaded: dict[str, Any] = json.loads(self.data) if self.data else {}
        return loaded.get(ROW)


def event_row(event: Event) -> tuple[Any, ...]:
    """The columns of an event, in the order of its fields."""
    return tuple(getattr(event, name) for name in Event.__dataclass_fields__)


class _Salts:
    """Random salts from a stock, as asking the system for each lets go of the interpreter every time."""

    _BYTES = 8

    def __init__(self) -> None:
        self._stock: deque[str] = deque()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._stock.clear)  # or parent and child would use the same ones

    def one(self) -> str:
        """A salt that was never given out. Safe across threads."""
        while True:
            try:
                return self._stock.popleft()
            except IndexError:
                text = os.urandom(512 * self._BYTES).hex()
                self._stock.extend(text[at : at + 2 * self._BYTES] for at in range(0, len(text), 2 * self._BYTES))


_salts = _Salts()


def seal(
    stream: str,
    head_seq: int,
    head_hash: str,
    drafts: Sequence[Draft],
    at_us: int,
    write_id: str,
    salt: str | None = None,
) -> tuple[Event, ...]:
    """Number and chain ``drafts`` after the head. ``write_id`` names the write, so that its repeat is recognised."""
    events = []
    for draft in drafts:
        head_seq += 1
        data, used_salt = _encode(draft.data), salt or _salts.one()
        payload = sha256((used_salt + data).encode()).hexdigest()
        head_hash = chain_hash(head_hash, stream, head_seq, at_us, draft.kind, payload)
        events.append(Event(stream, head_seq, at_us, draft.kind, data, used_salt, payload, head_hash, write_id))
    return tuple(events)


def chain_hash(previous: str, stream: str, seq: int, at_us: int, kind: str, payload_digest: str) -> str:
    """The hash of one event over the hash before it; canonical, since no stream or kind holds a quote or backslash."""
    return sha256(f'{previous}["{stream}",{seq},{at_us},"{kind}","{payload_digest}"]'.encode()).hexdigest()


def first_break(events: Iterable[Event]) -> int | None:
    """The ``seq`` of the first event that is missing, altered or out of order; None when the chain holds."""
    previous, expected = GENESIS, 1
    for event in events:
        intact = event.seq == expected and event.hash == chain_hash(
            previous, event.stream, event.seq, event.at_us, event.kind, event.payload_digest
        )
        payload_ok = not event.data or sha256((event.salt + event.data).encode()).hexdigest() == event.payload_digest
        if not (intact and payload_ok):
            return expected
        previous, expected = event.hash, expected + 1
    return None
