"""Full tables, quickly: the one settled call of a ledger copied under other keys, with its history.

Every row is as long as a real one and enters every index that a real one enters. Only the hash chains of the copies do
not hold, which no call looks at. Afterwards the engine takes stock, as autovacuum would have along the way.
"""

from __future__ import annotations

import sqlite3

import asyncpg

from tollhouse.ledger.rows import COLUMNS

CHUNK = 50_000

_EVENT_COLUMNS = ("tenant", "stream", "seq", "at_us", "kind", "data", "salt", "payload_digest", "hash", "write_id")


def _copies(columns: tuple[str, ...], changed: dict[str, str], source: str, numbers: str) -> str:
    values = ", ".join(changed.get(column, f"t.{column}") for column in columns)
    return f"({', '.join(columns)}) SELECT {values} FROM {source} t, {numbers}"


def _statements(key: str, numbers: str) -> tuple[str, str]:
    """Copies of the call and of its events. ``key``: the new key as SQL of ``n``, in random order like real ones."""
    calls = {"key": key, "wire_key": f"'default:' || {key}", "created_at_us": "t.created_at_us - n"}
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
        statements = _statements("'filled-' || lpad((n * 7919 % 1000003)::text, 8, '0') || '-' || n", numbers)
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
    statements = _statements("'filled-' || printf('%08d', n * 7919 % 1000003) || '-' || n", numbers)
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("PRAGMA cache_size = -200000")
    for table in ("calls", "events"):
        connection.execute(f"CREATE TEMP TABLE one_{table} AS SELECT * FROM {table}")
    for first in range(1, rows, CHUNK):
        connection.execute("BEGIN")
        for statement in statements:
            connection.execute(statement, (first, min(first + CHUNK, rows) - 1))
        connection.execute("COMMIT")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
