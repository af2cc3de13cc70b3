"""Guarded writes inside an open transaction: many at once when nothing stands against them, else one by one.

Which transaction, who shares it and what happens when it fails is ``commits``' affair.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tollhouse.ledger.events import Event
from tollhouse.ledger.record import CallRecord
from tollhouse.ledger.rows import immutable_values, mutable_values
from tollhouse.ledger.store import Refusal, RepeatCheck, Write, Written
from tollhouse.stores.sqlite import reads
from tollhouse.stores.sqlite.clock import NeverBack
from tollhouse.stores.sqlite.errors import is_bad_value
from tollhouse.stores.sqlite.statements import blobs, calls, events, owners

Row = tuple[Any, ...]

APPLIED = Written()

_TWIN_VALUES = 7
_IN_ORDER = (calls.INSERT, calls.INSERT_UNLESS_TWIN, calls.UPDATE, calls.UPDATE_WITH_ARGUMENTS)


@dataclass(frozen=True, slots=True)
class Item:
    """A write as rows, made ready on the caller's thread: what cannot be encoded fails there, and the writer is spared.

    ``statement`` binds ``row`` and changes one row, or none when the write is refused.
    """

    write: Write
    statement: str
    row: Row
    events: tuple[Row, ...]
    blobs: tuple[Row, ...]


def prepare(write: Write, clock: NeverBack) -> Item:
    """The rows of a write. Raises TypeError or ValueError where a value has no JSON."""
    record = write.record
    tenant = record.tenant
    mutable = mutable_values(record, write.made)
    if write.expected is None:
        row = (*immutable_values(record), record.digest, record.arguments, *mutable)
        statement = calls.INSERT
        if write.repeat is not None:
            row, statement = (*row, *_twin_values(record.tenant, write.repeat, clock)), calls.INSERT_UNLESS_TWIN
    elif write.arguments_changed:
        row = (record.digest, record.arguments, *mutable, tenant, record.key, write.expected)
        statement = calls.UPDATE_WITH_ARGUMENTS
    else:
        row, statement = (*mutable, tenant, record.key, write.expected), calls.UPDATE
    return Item(
        write,
        statement,
        row,
        tuple(event_row(tenant, event) for event in write.events),
        tuple((tenant, blob.digest, blob.data) for blob in write.blobs),
    )


def _twin_values(tenant: str, check: RepeatCheck, clock: NeverBack) -> Row:
    earliest_us = None if check.within_us is None else clock.now_us() - check.within_us
    return tenant, check.scope, check.tool, check.digest, check.group, check.group, earliest_us


def event_row(tenant: str, e: Event) -> Row:
    """What ``events.APPEND`` binds."""
    return tenant, e.stream, e.seq, e.at_us, e.kind, e.data, e.salt, e.payload_digest, e.hash, e.write_id


def apply_together(connection: sqlite3.Connection, items: Sequence[Item]) -> bool:
    """Apply all items by few statements. False: at least one is refused or bad, and the caller must undo the rest."""
    named = {(item.write.record.tenant, item.write.owner) for item in items if item.write.owner is not None}
    if not all(is_live(connection, tenant, owner) for tenant, owner in named):
        return False
    try:
        for statement in _IN_ORDER:
            rows = [item.row for item in items if item.statement is statement]
            if rows and connection.executemany(statement, rows).rowcount != len(rows):
                return False
        _append(connection, items)
    except Exception as raw:
        if is_bad_value(raw):
            return False
        raise
    return True


def apply_alone(connection: sqlite3.Connection, items: Sequence[Item]) -> tuple[Written, ...]:
    """Apply the items of one caller, or none of them; each gets its own answer.

    Raises what the driver raises for a bad value; then the caller must undo the traces.
    """
    if len(items) == 1:
        return (_apply(connection, items[0]),)
    connection.execute("SAVEPOINT items")
    answers = tuple(_apply(connection, item) for item in items)
    if not all(answer.applied for answer in answers):
        connection.execute("ROLLBACK TO items")
        answers = tuple(_not_applied(connection, *pair) for pair in zip(items, answers, strict=True))
    connection.execute("RELEASE items")
    return answers


def _apply(connection: sqlite3.Connection, item: Item) -> Written:
    write = item.write
    owner_lives = write.owner is None or is_live(connection, write.record.tenant, write.owner)
    if owner_lives and connection.execute(item.statement, item.row).rowcount == 1:
        _append(connection, (item,))
        return APPLIED
    return _refused(connection, item, owner_lives)


def _append(connection: sqlite3.Connection, items: Sequence[Item]) -> None:
    if bodies := [row for item in items for row in item.blobs]:
        connection.executemany(blobs.KEEP, bodies)
    connection.executemany(events.APPEND, [row for item in items for row in item.events])


def is_live(connection: sqlite3.Connection, tenant: str, owner_id: str) -> bool:
    """Whether the owner is registered and has not ended."""
    return bool(connection.execute(owners.IS_LIVE, (tenant, owner_id)).fetchall())


def _refused(connection: sqlite3.Connection, item: Item, owner_lives: bool) -> Written:
    """Why the guarded statement changed nothing, or that an earlier try of this very write did."""
    write = item.write
    standing = reads.get(connection, write.record.tenant, write.record.key)
    if (None if standing is None else standing.version) != write.expected:
        if _was_applied(connection, write):
            return Written(stands=standing)
        return Written(Refusal.EXISTS if write.expected is None else Refusal.STALE, standing)
    if not owner_lives:
        return Written(Refusal.OWNER, standing)
    return Written(Refusal.REPEAT, _twin_of(connection, item))


def _was_applied(connection: sqlite3.Connection, write: Write) -> bool:
    streams = {event.stream for event in write.events}
    return any(reads.written_by(connection, write.record.tenant, stream, write.write_id) for stream in streams)


def _twin_of(connection: sqlite3.Connection, item: Item) -> CallRecord | None:
    """The call that stands against an insert whose key is free."""
    record, twin = item.write.record, None
    if item.write.repeat is not None:
        twin = reads.first(connection, calls.TWIN, item.row[-_TWIN_VALUES:])
    return twin or reads.first(connection, calls.SLOT, (record.tenant, record.repeat_slot))


def _not_applied(connection: sqlite3.Connection, item: Item, answer: Written) -> Written:
    """The answer of an item once all were undone: why it was refused, or that it would have been applied alone.

    What stands is read anew, as it may have shown what an item before had changed.
    """
    if answer.refusal is Refusal.REPEAT or (answer.applied and _was_applied(connection, item.write)):
        return answer
    record = item.write.record
    return Written(answer.refusal or Refusal.STALE, reads.get(connection, record.tenant, record.key))
