"""The controls on PostgreSQL: what two durable commits a call cost without a gate.

``raw``: insert one row, then update it, each its own commit, on the caller's connection. ``group``: the same, many
callers' rows in one statement, shaped so that a plan made on an empty table stays good (``key = ANY`` and the join).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import asyncpg

BODY = "x" * 200

_TABLE = (
    'CREATE TABLE {name} (tenant text COLLATE "C", key text COLLATE "C", state text NOT NULL, body text,'
    " PRIMARY KEY (tenant, key))"
)
_INSERT = "INSERT INTO {name} VALUES ('t', $1, 'departed', $2) ON CONFLICT DO NOTHING"
_UPDATE = "UPDATE {name} SET state = 'done', body = $2 WHERE tenant = 't' AND key = $1 AND state = 'departed'"
_INSERT_MANY = (
    "INSERT INTO {name} SELECT 't', k, 'departed', b FROM unnest($1::text[], $2::text[]) u(k, b) ON CONFLICT DO NOTHING"
)
_UPDATE_MANY = (
    "UPDATE {name} c SET state = 'done', body = u.b FROM unnest($1::text[], $2::text[]) u(k, b)"
    " WHERE c.tenant = 't' AND c.key = ANY ($1::text[]) AND c.key = u.k AND c.state = 'departed'"
)


class RawPostgres:
    """The one-row two-commit loop; a connection for each of ``callers``."""

    def __init__(self, url: str, callers: int) -> None:
        self._url, self._callers = url, callers
        self._idle: deque[asyncpg.Connection[Any]] = deque()
        self._number = 0

    async def open(self) -> None:
        """Connect and make the table."""
        for _ in range(self._callers):
            self._idle.append(await asyncpg.connect(self._url))
        await self._idle[0].execute("DROP TABLE IF EXISTS bench_raw")
        await self._idle[0].execute(_TABLE.format(name="bench_raw"))

    async def call(self) -> None:
        """One call: two durable commits."""
        self._number += 1
        key = f"k{self._number}"
        connection = self._idle.popleft()
        await connection.execute(_INSERT.format(name="bench_raw"), key, BODY)
        await connection.execute(_UPDATE.format(name="bench_raw"), key, BODY)
        self._idle.append(connection)

    async def close(self) -> None:
        """Disconnect."""
        for connection in self._idle:
            await connection.close()


class GroupPostgres:
    """The same work group-committed by ``writers`` connections: each takes what waits, and drains."""

    def __init__(self, url: str, writers: int) -> None:
        self._url, self._writers = url, writers
        self._name = f"bench_group{writers}"
        self._idle: list[asyncpg.Connection[Any]] = []
        self._queues: dict[str, deque[tuple[str, asyncio.Future[None]]]] = {"insert": deque(), "update": deque()}
        self._tasks: set[asyncio.Task[None]] = set()
        self._number = 0

    async def open(self) -> None:
        """Connect and make the table."""
        self._idle = [await asyncpg.connect(self._url) for _ in range(self._writers)]
        await self._idle[0].execute(f"DROP TABLE IF EXISTS {self._name}")
        await self._idle[0].execute(_TABLE.format(name=self._name))

    async def call(self) -> None:
        """One call: two durable commits, shared with whoever waits."""
        self._number += 1
        key = f"k{self._number}"
        await self._put("insert", key)
        await self._put("update", key)

    def _put(self, kind: str, key: str) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._queues[kind].append((key, future))
        if self._idle:
            task = loop.create_task(self._drain(self._idle.pop()))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return future

    async def _drain(self, connection: asyncpg.Connection[Any]) -> None:
        while True:
            kind = max(self._queues, key=lambda name: len(self._queues[name]))
            queue = self._queues[kind]
            share = max(8, len(queue) // self._writers)
            batch = [queue.popleft() for _ in range(min(share, len(queue)))]
            if not batch:
                break
            keys = sorted(key for key, _ in batch)
            text = (_INSERT_MANY if kind == "insert" else _UPDATE_MANY).format(name=self._name)
            await connection.execute(text, keys, [BODY] * len(keys))
            for _, future in batch:
                if not future.done():
                    future.set_result(None)
        self._idle.append(connection)

    async def close(self) -> None:
        """Disconnect."""
        for connection in self._idle:
            await connection.close()
