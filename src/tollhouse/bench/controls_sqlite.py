"""The controls on SQLite: what two durable commits a call cost without a gate (WAL, ``synchronous=FULL``)."""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from pathlib import Path

BODY = "x" * 200

_TABLE = "CREATE TABLE calls (tenant TEXT, key TEXT, state TEXT NOT NULL, body TEXT, PRIMARY KEY (tenant, key))"
_INSERT = "INSERT INTO calls VALUES ('t', ?, 'departed', ?) ON CONFLICT DO NOTHING"
_UPDATE = "UPDATE calls SET state = 'done', body = ? WHERE tenant = 't' AND key = ? AND state = 'departed'"


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


class RawSqlite:
    """The one-row two-commit loop on the caller's thread."""

    def __init__(self, path: Path) -> None:
        self._path, self._number = path, 0

    async def open(self) -> None:
        """Make the file and the table."""
        self._connection = _connect(self._path)
        self._connection.execute(_TABLE)

    async def call(self) -> None:
        """One call: two durable commits."""
        self._number += 1
        key = f"k{self._number}"
        self._connection.execute(_INSERT, (key, BODY))
        self._connection.execute(_UPDATE, (BODY, key))

    async def close(self) -> None:
        """Close the file."""
        self._connection.close()


_Item = tuple[str, str, "asyncio.Future[None]"]


class GroupSqlite:
    """The same work through a writer thread that commits all that waits at once."""

    def __init__(self, path: Path) -> None:
        self._path, self._number = path, 0
        self._queue: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()

    async def open(self) -> None:
        """Make the file, the table and the thread."""
        self._connection = _connect(self._path)
        self._connection.execute(_TABLE)
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    async def call(self) -> None:
        """One call: two durable commits, shared with whoever waits."""
        self._number += 1
        key = f"k{self._number}"
        await self._put("insert", key)
        await self._put("update", key)

    def _put(self, kind: str, key: str) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        self._queue.put((kind, key, future))
        return future

    def _write(self) -> None:
        while (first := self._queue.get()) is not None:
            batch = [first]
            while not self._queue.empty() and (more := self._queue.get_nowait()) is not None:
                batch.append(more)
            execute = self._connection
            execute.execute("BEGIN IMMEDIATE")
            execute.executemany(_INSERT, [(key, BODY) for kind, key, _ in batch if kind == "insert"])
            execute.executemany(_UPDATE, [(BODY, key) for kind, key, _ in batch if kind == "update"])
            execute.execute("COMMIT")
            self._loop.call_soon_threadsafe(_tell, [future for _, _, future in batch])

    async def close(self) -> None:
        """Stop the thread and close the file."""
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)
        self._connection.close()


def _tell(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
