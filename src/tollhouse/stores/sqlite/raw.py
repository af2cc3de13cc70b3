"""The SQLite engine of ``stores.common.raw``: one connection of its own, taking its turn by the lock file."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from tollhouse.errors import StoreLocked
from tollhouse.stores.common.migrations import SchemaReport
from tollhouse.stores.common.raw import BOOLEANS, Row, Statements, Table
from tollhouse.stores.sqlite import owners, schema
from tollhouse.stores.sqlite.clock import NeverBack
from tollhouse.stores.sqlite.connections import connect, patiently, pragma
from tollhouse.stores.sqlite.errors import store_error
from tollhouse.stores.sqlite.filelock import FileLock
from tollhouse.stores.sqlite.statements import meta, raw
from tollhouse.stores.sqlite.target import Target

T = TypeVar("T")

_PATIENCE_S = 30.0
_MEANS_BOOLEAN = {0: False, 1: True, None: None}


class SqliteEngine:
    """See the module's docstring. Used by one task at a time."""

    def __init__(self, target: Target, connection: sqlite3.Connection, lock: FileLock) -> None:
        self.url = target.url
        self.statements = cast(Statements, raw)
        self._target, self._connection, self._lock = target, connection, lock
        self._clock = NeverBack()

    @classmethod
    async def open(cls, target: Target, lock: FileLock) -> SqliteEngine:
        """Open an existing ledger."""
        deadline_s = time.monotonic() + _PATIENCE_S
        try:
            connection = await asyncio.to_thread(lambda: patiently(lambda: connect(target), deadline_s))
            pragma(connection, f"busy_timeout={_PATIENCE_S * 1000:.0f}")
        except sqlite3.Error as error:
            raise store_error(error, target.name) from error
        return cls(target, connection, lock)

    async def rows(self, statement: str, *values: Any) -> list[Row]:
        return await self._in_thread(lambda: self._fetch(statement, values))

    async def changed(self, statement: str, *values: Any) -> bool:
        return await self._in_thread(lambda: self._connection.execute(statement, values).rowcount > 0)

    async def fill(self, table: Table, rows: Sequence[Row]) -> None:
        await self._in_thread(lambda: self._connection.executemany(raw.fill(table), rows))

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        if not await asyncio.to_thread(self._lock.acquire_within, _PATIENCE_S):
            raise StoreLocked(f"Another process held the write lock of {self._target.name} for {_PATIENCE_S:g} s.")
        try:
            await self.rows("BEGIN IMMEDIATE")
            try:
                yield
                await self.rows("COMMIT")
            finally:
                if self._connection.in_transaction:
                    await self.rows("ROLLBACK")
        finally:
            self._lock.release()

    async def now_us(self) -> int:
        last_us = await self._in_thread(lambda: owners.last_decision_us(self._connection))
        return self._clock.now_us(at_least_us=last_us)

    async def clock_at_least(self, at_us: int) -> None:
        at_least_us = max(at_us, await self.now_us())
        await self.rows(meta.PUT, owners.CLOCK, str(at_least_us))

    async def schema(self) -> SchemaReport:
        return await self._in_thread(lambda: schema.SCHEMA.report(*schema.versions(self._connection)))

    async def close(self) -> None:
        await asyncio.to_thread(self._connection.close)
        self._lock.close()

    async def backup(self, file: Path) -> None:
        """A copy of the database as it is at one moment, while others write; ``file`` must not exist."""

        def copy() -> None:
            with contextlib.closing(sqlite3.connect(file)) as there:
                # At one go: in portions, it would begin anew after each one in which somebody wrote.
                self._connection.backup(there)
                pragma(there, "journal_mode=wal")

        await self._in_thread(copy)

    def _fetch(self, statement: str, values: Sequence[Any]) -> list[Row]:
        cursor = self._connection.execute(statement, values)
        rows = cursor.fetchall()
        booleans = [at for at, column in enumerate(cursor.description or ()) if column[0] in BOOLEANS]
        return [_with_booleans(row, booleans) for row in rows] if booleans else rows

    async def _in_thread(self, step: Callable[[], T]) -> T:
        try:
            return await asyncio.to_thread(step)
        except (sqlite3.Error, OSError) as error:
            raise store_error(error, self._target.name) from error


def _with_booleans(row: Row, places: Sequence[int]) -> Row:
    """SQLite keeps booleans as numbers; rows are alike whatever the engine."""
    return tuple(_MEANS_BOOLEAN[value] if at in places else value for at, value in enumerate(row))
