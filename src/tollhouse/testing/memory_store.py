"""A store in memory: the model that real stores are compared with, and the ledger of simulations.

It implements the whole :class:`~tollhouse.ledger.store.Store` interface in a few plain dictionaries, on a clock that
is passed in, and can be told to fail before or after it applies a write. Rows pass through ``ledger.rows`` as in every
other store, so that what is lost there is lost here too. It is not durable: the house never opens it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from tollhouse.errors import HouseClosed, StoreUnavailable
from tollhouse.ledger.events import Event
from tollhouse.ledger.record import SETTLED, CallRecord, State
from tollhouse.ledger.rows import (
    COLUMNS,
    EDITABLE,
    MUTABLE,
    immutable_values,
    mutable_values,
    record_of,
)
from tollhouse.ledger.store import (
    Counters,
    Fence,
    LeaseConnection,
    Owner,
    Query,
    Refusal,
    Renewal,
    RepeatCheck,
    Write,
    Written,
)

Row = dict[str, Any]


def system_us() -> int:
    """Microseconds of the machine's clock."""
    return time.time_ns() // 1000


@dataclass(slots=True)
class MemoryLedger:
    """What all handles of one memory store share. ``clock_us``: the store's clock, which is never let run back."""

    clock_us: Callable[[], int] = system_us
    calls: dict[tuple[str, str], Row] = field(default_factory=dict)
    streams: dict[tuple[str, str], list[Event]] = field(default_factory=dict)
    owners: dict[tuple[str, str], Owner] = field(default_factory=dict)
    blobs: dict[tuple[str, str], bytes] = field(default_factory=dict)
    high_us: int = 0

    def now_us(self) -> int:
        """The store's time."""
        self.high_us = max(self.high_us, self.clock_us())
        return self.high_us

    def record(self, tenant: str, key: str) -> CallRecord | None:
        """The call as a reader gets it."""
        row = self.calls.get((tenant, key))
        return None if row is None else record_of(row)

    def rows(self, tenant: str) -> Iterator[Row]:
        """All rows of a tenant."""
        return (row for (owner, _), row in self.calls.items() if owner == tenant)


class MemoryStore:
    """A handle on a :class:`MemoryLedger`; a new one unless ``ledger`` is given."""

    def __init__(self, ledger: MemoryLedger | None = None) -> None:
        self.url = "memory:"
        self.counters = Counters()
        self.ledger = ledger or MemoryLedger()
        self.hints: list[tuple[str, str]] = []
        """Calls of which :meth:`changed` was told."""
        self._failures: dict[int, tuple[bool, Exception]] = {}
        self._tried = 0
        self._closed = False

    def fail(self, nth: int = 1, *, applied: bool, error: Exception | None = None) -> None:
        """Make the ``nth`` write from now on raise, before it is applied or after (its acknowledgement is lost)."""
        raised = error or StoreUnavailable("The store failed because it was told to.")
        self._failures[self._tried + nth] = (applied, raised)

    # -- writing -------------------------------------------------------------------------------------------------

    async def write(self, *writes: Write) -> tuple[Written, ...]:
        self._open()
        self._tried += 1
        applied, error = self._failures.pop(self._tried, (True, None))
        if error is not None and not applied:
            raise error
        answers = _Transaction(self.ledger).run(writes)
        self.counters.writes += len(writes)
        self.counters.batches += 1
        self.counters.commits += all(answer.applied for answer in answers)
        if error is not None:
            raise error
        return answers

    # -- reading -------------------------------------------------------------------------------------------------

    async def get(self, tenant: str, key: str) -> CallRecord | None:
        self._open()
        return self.ledger.record(tenant, key)

    async def fence(self, tenant: str, key: str) -> Fence | None:
        self._open()
        row = self.ledger.calls.get((tenant, key))
        return None if row is None else Fence(row["fence"], row["cancel_asked"])

    async def events(self, tenant: str, stream: str, after: int = 0, limit: int = 10_000) -> list[Event]:
        self._open()
        return [event for event in self.ledger.streams.get((tenant, stream), ()) if event.seq > after][:limit]

    async def blob(self, tenant: str, digest: str) -> bytes | None:
        self._open()
        return self.ledger.blobs.get((tenant, digest))

    async def find(self, tenant: str, query: Query) -> list[CallRecord]:
        self._open()
        wanted = {**query.columns, "contradicted": query.contradicted}
        matching = [
            row
            for row in self.ledger.rows(tenant)
            if all(value is None or row[name] == value for name, value in wanted.items())
            and (query.before is None or (row["created_at_us"], row["key"]) < query.before)
        ]
        matching.sort(key=lambda row: (row["created_at_us"], row["key"]), reverse=True)
        return [record_of(row) for row in matching[: query.limit]]

    async def count(self, tenant: str) -> dict[State, int]:
        self._open()
        counts: dict[State, int] = {}
        for row in self.ledger.rows(tenant):
            state = State(row["state"])
            counts[state] = counts.get(state, 0) + 1
        return counts

    async def due(
        self, tenant: str, limit: int, *, tools: Collection[str] | None = None, states: Collection[State] | None = None
    ) -> list[CallRecord]:
        self._open()
        now_us = self.ledger.now_us()
        due = [
            row
            for row in self.ledger.rows(tenant)
            if row["due_at_us"] is not None
            and row["due_at_us"] <= now_us
            and (tools is None or row["tool"] in tools)
            and (states is None or row["state"] in states)
        ]
        due.sort(key=lambda row: (row["due_at_us"], row["key"]))
        return [record_of(row) for row in due[:limit]]

    # -- owners --------------------------------------------------------------------------------------------------

    async def end_expired_owners(self, tenant: str, *, by_us: int | None = None) -> list[Owner]:
        self._open()
        now_us = self.ledger.now_us()
        in_time = by_us is None or now_us <= by_us
        for place, owner in self.ledger.owners.items() if in_time else ():
            if owner.tenant == tenant and owner.ended_at_us is None and owner.lease_until_us <= now_us:
                self.ledger.owners[place] = replace(owner, ended_at_us=now_us)
        busy = {name for row in self.ledger.rows(tenant) for name in (row["open_owners"] or "").split()}
        owners = self.ledger.owners.values()
        return [o for o in owners if o.tenant == tenant and o.ended_at_us is not None and o.id in busy]

    async def orphans(self, tenant: str, owner_id: str, limit: int) -> list[CallRecord]:
        self._open()
        theirs = (row for row in self.ledger.rows(tenant) if owner_id in (row["open_owners"] or "").split())
        return [record_of(row) for row in theirs][:limit]

    async def owner(self, tenant: str, owner_id: str) -> Owner | None:
        self._open()
        return self.ledger.owners.get((tenant, owner_id))

    async def owner_is_dead(self, tenant: str, owner_id: str) -> None:
        self._open()
        if (owner := self.ledger.owners.get((tenant, owner_id))) is not None:
            ended_at_us = self.ledger.now_us() if owner.ended_at_us is None else owner.ended_at_us
            self.ledger.owners[tenant, owner_id] = replace(owner, proven_dead=True, ended_at_us=ended_at_us)

    def lease_connection(self) -> LeaseConnection:
        self._open()
        return MemoryLease(self.ledger)

    # -- the rest ------------------------------------------------------------------------------------------------

    async def now_us(self) -> int:
        self._open()
        return self.ledger.now_us()

    def changed(self, tenant: str, key: str) -> None:
        self.hints.append((tenant, key))

    async def close(self) -> None:
        self._closed = True

    def _open(self) -> None:
        if self._closed:
            raise HouseClosed("The store was closed.")


class MemoryLease:
    """The lease keeper's connection to a memory store."""

    def __init__(self, ledger: MemoryLedger) -> None:
        self._ledger = ledger

    def register(self, owner: Owner, lease_s: float) -> Renewal:
        place = (owner.tenant, owner.id)
        if place in self._ledger.owners:
            return self.renew(owner.tenant, owner.id, lease_s)
        now_us = self._ledger.now_us()
        until_us = now_us + round(lease_s * 1_000_000)
        self._ledger.owners[place] = replace(owner, started_at_us=now_us, lease_until_us=until_us)
        return Renewal(True, now_us, until_us)

    def renew(self, tenant: str, owner_id: str, lease_s: float) -> Renewal:
        now_us = self._ledger.now_us()
        owner = self._ledger.owners.get((tenant, owner_id))
        if owner is None or owner.ended_at_us is not None:
            return Renewal(False, now_us, owner.lease_until_us if owner else 0)
        until_us = now_us + round(lease_s * 1_000_000)
        self._ledger.owners[tenant, owner_id] = replace(owner, lease_until_us=until_us)
        return Renewal(True, now_us, until_us)

    def end(self, tenant: str, owner_id: str) -> None:
        owner = self._ledger.owners.get((tenant, owner_id))
        if owner is not None and owner.ended_at_us is None:
            self._ledger.owners[tenant, owner_id] = replace(owner, ended_at_us=self._ledger.now_us())

    def close(self) -> None:
        """Nothing to release."""


class _Transaction:
    """Applies writes one after the other; the first refusal in the end takes all of them back."""

    def __init__(self, ledger: MemoryLedger) -> None:
        self._ledger = ledger
        self._undo: list[Callable[[], object]] = []

    def run(self, writes: tuple[Write, ...]) -> tuple[Written, ...]:
        try:
            answers = [self._apply(write) for write in writes]
        except BaseException:
            self._roll_back()
            raise
        if all(answer.applied for answer in answers):
            return tuple(answers)
        self._roll_back()
        return tuple(map(self._kept_back, writes, answers))

    def _apply(self, write: Write) -> Written:
        row = self._ledger.calls.get((write.record.tenant, write.record.key))
        refusal = Refusal.STALE
        if write.expected is None:
            refusal = Refusal.EXISTS
            stands = row is not None
        else:
            stands = row is None or row["version"] != write.expected
        if stands:
            standing = None if row is None else record_of(row)
            return Written(stands=standing) if self._was_applied(write) else Written(refusal, standing)
        if not self._owner_lives(write):
            return self._answer(Refusal.OWNER, write)
        if write.expected is None and (twin := self._twin(write)) is not None:
            return Written(Refusal.REPEAT, record_of(twin))
        self._put(write, row)
        return Written()

    def _kept_back(self, write: Write, answer: Written) -> Written:
        """The answer to one of several writes of which none was applied, with what stands there after all."""
        if answer.refusal is Refusal.REPEAT or (answer.applied and self._was_applied(write)):
            return answer
        return self._answer(answer.refusal or Refusal.STALE, write)

    def _answer(self, refusal: Refusal, write: Write) -> Written:
        return Written(refusal, self._ledger.record(write.record.tenant, write.record.key))

    def _was_applied(self, write: Write) -> bool:
        if not write.events:
            return False
        stream = self._ledger.streams.get((write.record.tenant, write.events[0].stream), ())
        return any(event.write_id == write.write_id for event in stream)

    def _owner_lives(self, write: Write) -> bool:
        if write.owner is None:
            return True
        owner = self._ledger.owners.get((write.record.tenant, write.owner))
        return owner is not None and owner.ended_at_us is None

    def _twin(self, write: Write) -> Row | None:
        """The call that this insert repeats: by the repeat check, or in the same slot."""
        slot = write.record.repeat_slot
        for row in self._ledger.rows(write.record.tenant):
            if slot is not None and row["repeat_slot"] == slot:
                return row
            if write.repeat is not None and self._is_twin(row, write.repeat):
                return row
        return None

    def _is_twin(self, row: Row, check: RepeatCheck) -> bool:
        if (row["scope"], row["tool"], row["digest"]) != (check.scope, check.tool, check.digest):
            return False
        if check.group is not None and row["call_group"] == check.group:
            return False
        if State(row["state"]) not in SETTLED:
            return True
        if check.within_us is None or row["state"] == State.REFUSED:
            return False
        return bool(row["updated_at_us"] >= self._ledger.now_us() - check.within_us)

    def _put(self, write: Write, before: Row | None) -> None:
        place = (write.record.tenant, write.record.key)
        row = _row_of(write, before)
        _check_row(row)
        calls, streams, blobs = self._ledger.calls, self._ledger.streams, self._ledger.blobs
        calls[place] = row
        self._undo.append(lambda: calls.pop(place) if before is None else calls.update({place: before}))
        for event in write.events:
            stream = streams.setdefault((write.record.tenant, event.stream), [])
            if event.seq != len(stream) + 1:
                raise ValueError(f"Event {event.seq} does not follow event {len(stream)} of {event.stream}.")
            stream.append(event)
            self._undo.append(stream.pop)
        for blob in write.blobs:
            held = (write.record.tenant, blob.digest)
            if held not in blobs:
                blobs[held] = blob.data
                self._undo.append(lambda held=held: blobs.pop(held))  # type: ignore[misc]

    def _roll_back(self) -> None:
        while self._undo:
            self._undo.pop()()


def _row_of(write: Write, before: Row | None) -> Row:
    record = write.record
    if before is None:
        values = (*immutable_values(record), record.digest, record.arguments, *mutable_values(record))
        return dict(zip(COLUMNS, values, strict=True))
    row = before | dict(zip(MUTABLE, mutable_values(record), strict=True))
    if write.arguments_changed:
        row |= dict(zip(EDITABLE, (record.digest, record.arguments), strict=True))
    return row


def _check_row(row: Row) -> None:
    """What the constraints of a real store forbid. Raises :class:`ValueError`."""
    if row["state"] == State.DEPARTED and row["open_owners"] is None:
        raise ValueError("A departed call has an owner.")
    if row["state"] in SETTLED and row["repeat_slot"] is not None:
        raise ValueError("A settled call holds no place in the repeat check.")
    if row["version"] < 1 or row["fence"] < 0 or row["round"] < 1 or row["updated_at_us"] < row["created_at_us"]:
        raise ValueError("A version, fence, round or time is out of its bounds.")
