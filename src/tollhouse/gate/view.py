"""What callers, hooks and people see of a recorded call: the record with its values decoded, read-only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from tollhouse.errors import ResultPurged
from tollhouse.gate.results import rebuild
from tollhouse.ledger.codec import from_tree, loads
from tollhouse.ledger.events import Event
from tollhouse.ledger.record import Approval, Attempt, CallRecord, Settlement, State
from tollhouse.ledger.store import Store


@dataclass(frozen=True, slots=True)
class HistoryLine:
    """One event of a call's history. ``at_us``: microseconds on the store's clock."""

    seq: int
    at_us: int
    kind: str
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A recorded call. ``result`` is the decoded value (None while there is none); ``raw`` the ledger's own record."""

    raw: CallRecord
    result: Any = None
    history: tuple[HistoryLine, ...] = ()

    @property
    def key(self) -> str:
        return self.raw.key

    @property
    def idempotency_key(self) -> str:
        """What the receiver was given as idempotency key."""
        return self.raw.wire_key

    @property
    def tool(self) -> str:
        return self.raw.tool

    @property
    def state(self) -> State:
        return self.raw.state

    @property
    def version(self) -> int:
        """Raised by every write; decisions are compared and set on it."""
        return self.raw.version

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments that run, decoded."""
        decoded: dict[str, Any] = from_tree(loads(self.raw.arguments))
        return decoded

    @property
    def digest(self) -> str:
        return self.raw.digest

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        return self.raw.attempts

    @property
    def settlements(self) -> tuple[Settlement, ...]:
        return self.raw.settlements

    @property
    def approval(self) -> Approval | None:
        return self.raw.approval

    @property
    def error(self) -> Mapping[str, Any] | None:
        """Type and message of what went wrong, bounded; None when nothing did."""
        return self.raw.error

    @property
    def contradicted(self) -> bool:
        return self.raw.contradicted

    @property
    def guarantee(self) -> str:
        """What the contract under which it was made really promises."""
        return self.raw.terms.guarantee

    @property
    def reference(self) -> str | None:
        """The receiver's id for it, where one is known."""
        named = [s.reference for s in self.raw.settlements if s.reference]
        named += [a.reference for a in self.raw.attempts if a.reference]
        return named[-1] if named else None

    @property
    def requested_by(self) -> str:
        return self.raw.requested_by


async def view(
    record: CallRecord, store: Store, adapter: TypeAdapter[Any] | None, *, with_history: bool = True
) -> RecordedCall:
    """The record as people see it, its result rebuilt and its history read."""
    try:
        result = await rebuild(record, store, adapter)
    except ResultPurged:
        result = None
    lines: tuple[HistoryLine, ...] = ()
    if with_history:
        events = await store.events(record.tenant, f"call:{record.key}")
        lines = tuple(_line(event) for event in events)
    return RecordedCall(record, result, lines)


def _line(event: Event) -> HistoryLine:
    return HistoryLine(event.seq, event.at_us, event.kind, event.facts)
