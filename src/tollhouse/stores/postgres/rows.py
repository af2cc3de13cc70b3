"""Writes as rows, and rows as records.

A write is made ready on its caller's task: what cannot be encoded fails there, and nobody else waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, cast

import asyncpg

from tollhouse.ledger.record import CallRecord
from tollhouse.ledger.rows import immutable_values, mutable_values, record_of
from tollhouse.ledger.store import Write, Written
from tollhouse.stores.postgres.statements import events, writes

Row = tuple[Any, ...]

line_of = attrgetter(*events.KINDS)
"""An event as its columns."""
_plain_line = attrgetter(*events.PLAIN_KINDS)


@dataclass(slots=True, eq=False)
class Item:
    """One write. ``row`` has the values of its call in the order in which the statements bind them.

    ``plain``: its one event repeats what the call says of its head, so ``lines`` has only the rest of it.
    """

    write: Write
    tenant: str
    key: str
    row: Row
    plain: bool
    lines: list[Row]

    @property
    def inserts(self) -> bool:
        return self.write.expected is None

    @property
    def stream(self) -> str:
        """Where its events are."""
        return self.write.events[-1].stream if self.write.events else ""

    @property
    def single(self) -> tuple[str, Row]:
        """The statement for this write alone, and its values."""
        write = self.write
        owner, bodies = write.owner is not None, bool(write.blobs)
        values = [*self.row]
        for line in self.lines:
            values += line
        if owner:
            values.append(write.owner)
        if write.expected is None:
            values += () if write.repeat is None else repeat_row(write)
            text = writes.insert_one(
                lines=len(self.lines),
                plain=self.plain,
                owner=owner,
                repeat=write.repeat is not None,
                bodies=bodies,
            )
        else:
            text = writes.update_one(
                lines=len(self.lines),
                plain=self.plain,
                owner=owner,
                arguments=write.arguments_changed,
                bodies=bodies,
            )
        if bodies:
            values += columns([(blob.digest, blob.data) for blob in write.blobs], 2)
        return text, tuple(values)


@dataclass(slots=True, eq=False)
class Request:
    """What one caller asked for: applied all or none, decided before ``deadline`` (on the loop's clock).

    ``told``: the answers, once it is decided. ``answer``: what a caller waits for who is not at it itself.
    """

    items: tuple[Item, ...]
    deadline: float
    told: tuple[Written, ...] | None = None
    answer: asyncio.Future[tuple[Written, ...]] | None = None

    def settle(self, *answers: Written) -> None:
        """Tell the caller, if it still listens."""
        self.told = answers
        if self.answer is not None and not self.answer.done():
            self.answer.set_result(answers)

    def fail(self, error: BaseException) -> None:
        """Tell the caller what went wrong, if it still listens."""
        if self.answer is not None and not self.answer.done():
            self.answer.set_exception(error)


def item_of(write: Write) -> Item:
    """The rows of a write. Raises TypeError or ValueError where a value has no JSON."""
    record = write.record
    mutable = mutable_values(record, write.made)
    if write.expected is None:
        row = (*immutable_values(record), record.digest, record.arguments, *mutable)
    elif write.arguments_changed:
        row = (record.tenant, record.key, write.expected, record.digest, record.arguments, *mutable)
    else:
        row = (record.tenant, record.key, write.expected, *mutable)
    plain = _is_plain(write)
    return Item(
        write, record.tenant, record.key, row, plain, list(map(_plain_line if plain else line_of, write.events))
    )


def _is_plain(write: Write) -> bool:
    if len(write.events) != 1:
        return False
    record, event = write.record, write.events[0]
    return (
        event.hash == record.head_hash
        and event.seq == record.head_seq
        and event.at_us == record.updated_at_us
        and event.stream == f"call:{record.key}"
    )


def repeat_row(write: Write) -> Row:
    """The repeat check of a write, all None when it has none."""
    check = write.repeat
    if check is None:
        return None, None, None, None, None
    return check.scope, check.tool, check.digest, check.group, check.within_us


def many(items: Sequence[Item]) -> tuple[str, list[Row]]:
    """The statement for these writes together, no two of one key and all of a kind, and its arrays."""
    inserts = items[0].inserts
    ordered = sorted(items, key=_insert_order if inserts else _key)
    picked = list(zip(*(item.row for item in ordered), strict=True))
    owner = any(item.write.owner is not None for item in ordered)
    bodies = any(item.write.blobs for item in ordered)
    repeat = any(item.write.repeat is not None for item in ordered)
    if owner:
        picked.append(tuple(item.write.owner for item in ordered))
    if repeat:
        picked += columns([repeat_row(item.write) for item in ordered], 5)
    plain = all(item.plain for item in ordered)
    if plain:
        picked += columns([item.lines[0] for item in ordered], len(events.PLAIN_KINDS))
    # Half of the columns say the same of every call; binding them once is half of the work here.
    arrays = [column[:1] if _all_equal(column) else column for column in picked]
    if not plain:
        told = [(at, *line_of(event)) for at, item in enumerate(ordered, 1) for event in item.write.events]
        arrays += columns(told, 1 + len(events.KINDS))
    if bodies:
        kept = [(at, blob.digest, blob.data) for at, item in enumerate(ordered, 1) for blob in item.write.blobs]
        arrays += columns(kept, 3)
    if inserts:
        return writes.insert_many(plain=plain, owner=owner, repeat=repeat, bodies=bodies), arrays
    return writes.update_many(plain=plain, owner=owner, bodies=bodies), arrays


def _all_equal(column: Row) -> bool:
    first = column[0]
    return bool(first == column[-1]) and column.count(first) == len(column)


_key = attrgetter("key")


def _insert_order(item: Item) -> tuple[str, str]:
    """By slot first: two batches that meet on slots must meet on them in one order, and most calls have none."""
    return item.write.record.repeat_slot or "", item.key


def record_in(row: asyncpg.Record) -> CallRecord:
    """The record in a row with the columns of ``calls``."""
    return record_of(cast(Mapping[str, Any], row))


def columns(rows: Sequence[Row], width: int) -> list[Row]:
    """Rows turned into ``width`` columns; empty columns where there is no row."""
    return list(zip(*rows, strict=True)) or [()] * width
