"""Full tables, quickly: the one settled call of a ledger copied under other keys, with its history.

Every row is as long as a real one and enters every index that a real one enters. Only the hash chains of the copies do
not hold, which no call looks at. Afterwards the engine takes stock, as autovacuum would have along the way.
"""

from __future__ import annotations

import os
import sqlite3

import asyncpg

from tollhouse.ledger.rows import COLUMNS

CHUNK = 50_000
EARLIER_US = 20_000_000
"""The first copy is that much older than the call it is made of."""

_EVENT_COLUMNS = ("tenant", "stream", "seq", "at_us", "kind", "data", "salt", "payload_digest", "hash", "write_id")


def _copies(columns: tuple[str, ...], changed: dict[str, str], source: str, numbers: str) -> str:
    values = ", ".join(changed.get(column, f"t.{column}") for column in columns)
    return f"({', '.join(columns)}) SELECT {values} FROM {numbers} CROSS JOIN {source} t"


def _statements(key: str, numbers: str) -> tuple[str, str]:
    """Copies of the call and of its events. ``key``: the new key as SQL of ``n``.

    Keys and times ascend, as those of orders and runs do, and fill an index in the time that a bench has for it.
    """
    calls = {"key": key, "wire_key": f"'default:' || {key}", "created_at_us": f"t.created_at_us - {EARLIER_US} + n"}
    events = {"stream": f"'call:' || {key}"}
    return (
        f"INSERT INTO calls {_copies(COLUMNS, calls, 'one_calls', numbers)}",
        f"INSERT INTO events {_copies(_EVENT_COLUMNS, events, 'one_events', numbers)}",
    )


async def fill_postgres(url: str, rows: int) -> None:
    """See the module's docstring. The copies are not synced one by one; the checkpoint after them is."""
    numbers = "generate_series($1::bigint, $2::bigint) n"
    connection = await asyncpg.connect(url, server_settings={"synchronous_commit": "off"})
    try:
        statements = _statements("'filled-' || lpad(n::text, 8, '0')", numbers)
        async with connection.transaction():
            for table in ("calls", "events"):
                await connection.execute(f"CREATE TEMP TABLE one_{table} ON COMMIT DROP AS SELECT * FROM {table}")
            for first in range(1, rows, CHUNK):
                for statement in statements:
                    await connection.execute(statement, first, min(first + CHUNK, rows) - 1)
        await connection.execute("VACUUM ANALYZE calls, events")
    finally:
        await connection.close()


def fill_sqlite(path: str, rows: int) -> None:
    """See the module's docstring. The file is synced at the end."""
    connection = sqlite3.connect(path, isolation_level=None)
    numbers = "(WITH RECURSIVE s(n) AS (SELECT ? UNION ALL SELECT n + 1 FROM s WHERE n < ?) SELECT n FROM s)"
    statements = _statements("'filled-' || printf('%08d', n)", numbers)
    # Written once instead of to the log first: who loses power in between has lost no more than a bench.
    connection.execute("PRAGMA journal_mode = OFF")
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("PRAGMA cache_size = -64000")
    for table in ("calls", "events"):
        connection.execute(f"CREATE TEMP TABLE one_{table} AS SELECT * FROM {table}")
    for first in range(1, rows, CHUNK):
        connection.execute("BEGIN")
        for statement in statements:
            connection.execute(statement, (first, min(first + CHUNK, rows) - 1))
        connection.execute("COMMIT")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
