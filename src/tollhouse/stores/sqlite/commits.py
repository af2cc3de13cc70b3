"""One transaction for many callers: their entries are applied together, and each gets its own answer.

A refused or bad entry never disturbs the others: when the quick way finds one, all are undone and redone one by one
behind savepoints. When the disk is full each entry is tried in a transaction of its own, so that only those fail that
do not fit.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from tollhouse.errors import StoreFull
from tollhouse.ledger.store import Counters, Written
from tollhouse.stores.common.errors import BadValue
from tollhouse.stores.sqlite.apply import APPLIED, Item, apply_alone, apply_together
from tollhouse.stores.sqlite.errors import is_bad_value
from tollhouse.stores.sqlite.pen import Pen

T = TypeVar("T")


class Job(Generic[T]):
    """What one caller on the event loop waits for. ``writes`` counts what it changed for good.

    ``future``: None while its caller sees to it on its own thread.
    """

    answer: T

    def __init__(self) -> None:
        self.since_s = time.monotonic()
        self.writes = 0
        self.future: asyncio.Future[T] | None = None
        self.error: Exception | None = None

    @property
    def to_commit(self) -> bool:
        """Whether it left something in the transaction that is to last; if not, its traces must be undone."""
        return self.writes > 0

    def apply(self, connection: sqlite3.Connection) -> None:
        """Apply alone, in the open transaction; may be called again after that was undone."""
        raise NotImplementedError

    def fail(self, error: Exception) -> None:
        """Note that nothing is known to be applied, and why."""
        self.error, self.writes = error, 0

    def result(self) -> T:
        """The answer, or the error raised."""
        if self.error is not None:
            raise self.error
        return self.answer

    def deliver(self) -> None:
        """Answer the waiting caller, on the event loop's thread; a caller who left gets nothing."""
        if self.future is None or self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.answer)


class Calls(Job[tuple[Written, ...]]):
    """Writes of calls: all of them or none."""

    def __init__(self, items: Sequence[Item]) -> None:
        super().__init__()
        self.items = items

    def apply(self, connection: sqlite3.Connection) -> None:
        self.writes, self.error = 0, None
        self.answer = apply_alone(connection, self.items)
        if all(answer.applied for answer in self.answer):
            self.writes = len(self.items)

    def applied(self) -> None:
        """Note that all items were applied."""
        self.answer = (APPLIED,) * len(self.items)
        self.writes = len(self.items)


class Change(Job[T]):
    """A write of anything else: a function of the connection, whose answer is the caller's.

    One that changes no row, as it was refused or had nothing to do, costs no commit.
    """

    def __init__(self, step: Callable[[sqlite3.Connection], T]) -> None:
        super().__init__()
        self._step = step

    def apply(self, connection: sqlite3.Connection) -> None:
        self.writes, self.error = 0, None
        before = connection.total_changes
        self.answer = self._step(connection)
        self.writes = int(connection.total_changes > before)


class Task(Generic[T]):
    """A decision about owners: a function of the connection, in the same transactions as writes."""

    writes = 0

    def __init__(self, step: Callable[[sqlite3.Connection], T]) -> None:
        self.future: concurrent.futures.Future[T] = concurrent.futures.Future()
        self.to_commit = False
        self._step = step
        self._error: Exception | None = None
        self._value: Any = None

    def apply(self, connection: sqlite3.Connection) -> None:
        """Take the decision, in the open transaction."""
        self._error = None
        self._value = self._step(connection)
        self.to_commit = True

    def fail(self, error: Exception) -> None:
        """Note that the decision was not taken, and why."""
        self._error, self.to_commit = error, False

    def deliver(self) -> None:
        """Answer the thread that waits."""
        if self._error is not None:
            self.future.set_exception(self._error)
        else:
            self.future.set_result(self._value)


Entry = Job[Any] | Task[Any]


def commit(pen: Pen, entries: Sequence[Entry], counters: Counters) -> None:
    """Apply the entries in the open transaction and end it. Each is left with its answer or its error."""
    try:
        if len(entries) == 1:
            _apply_one(pen.connection, entries[0])
        else:
            _apply_all(pen.connection, entries, counters)
        _end(pen, entries, counters)
    except Exception as raw:
        pen.rollback()
        if len(entries) > 1 and isinstance(_error(pen, raw), StoreFull):
            _commit_each(pen, entries, counters)
        else:
            for entry in entries:
                entry.fail(_error(pen, raw))


def _apply_all(connection: sqlite3.Connection, entries: Sequence[Entry], counters: Counters) -> None:
    jobs = [entry for entry in entries if isinstance(entry, Calls)]
    for entry in entries:
        if not isinstance(entry, Calls):
            _apply_behind_savepoint(connection, entry)
    connection.execute("SAVEPOINT together")
    if apply_together(connection, [item for job in jobs for item in job.items]):
        for job in jobs:
            job.applied()
    else:
        counters.bisections += 1
        connection.execute("ROLLBACK TO together")
        for job in jobs:
            _apply_behind_savepoint(connection, job)
    connection.execute("RELEASE together")


def _apply_behind_savepoint(connection: sqlite3.Connection, entry: Entry) -> None:
    connection.execute("SAVEPOINT entry")
    _apply_one(connection, entry)
    if not entry.to_commit:
        connection.execute("ROLLBACK TO entry")
    connection.execute("RELEASE entry")


def _apply_one(connection: sqlite3.Connection, entry: Entry) -> None:
    try:
        entry.apply(connection)
    except Exception as raw:
        if not is_bad_value(raw):
            raise
        entry.fail(_bad_value(raw))


def _end(pen: Pen, entries: Sequence[Entry], counters: Counters) -> None:
    """Commit if anything was changed. What was not is undone, so that a refused write leaves no trace."""
    if not any(entry.to_commit for entry in entries):
        pen.rollback()
        return
    pen.commit()
    writes = sum(entry.writes for entry in entries)
    counters.batches += 1
    counters.writes += writes
    if writes:
        counters.commits += 1
    else:
        counters.extra["owner_commits"] = counters.extra.get("owner_commits", 0) + 1


def _commit_each(pen: Pen, entries: Sequence[Entry], counters: Counters) -> None:
    counters.bisections += 1
    for entry in entries:
        try:
            pen.begin_again()
        except sqlite3.Error as raw:
            entry.fail(pen.error(raw))
        else:
            commit(pen, [entry], counters)


def _error(pen: Pen, raw: Exception) -> Exception:
    """What the callers are told; a defect of ours reaches them as it is, never only the thread that met it."""
    return pen.error(raw) if isinstance(raw, sqlite3.Error) else raw


def _bad_value(raw: Exception) -> BadValue:
    error = BadValue(f"The store cannot keep a value of this write: {raw}")
    error.__cause__ = raw
    return error
