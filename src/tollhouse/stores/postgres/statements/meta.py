"""Statements on ``meta`` and ``clock``, and what is asked about the server itself."""

from __future__ import annotations

FITNESS = (
    "SELECT current_setting('fsync') AS fsync, current_setting('synchronous_commit') AS synchronous_commit,"
    " current_setting('server_encoding') AS encoding, pg_is_in_recovery() AS in_recovery"
)

# By way of `pg_class`, whose lock brings news of tables made since the transaction began.
EXISTS = "SELECT EXISTS (SELECT FROM pg_class WHERE oid = to_regclass('@meta')) AS found"

VERSIONS = "SELECT name, value FROM @meta WHERE name IN ('schema_version', 'min_release_schema')"

PUT = "INSERT INTO @meta (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = EXCLUDED.value"

# The mark of a ledger that came back from a backup.
RESTORED = "SELECT value FROM @meta WHERE name = 'restored'"

# Whoever creates or upgrades waits for the other; the number names this ledger's migrations and nothing else.
LOCK_MIGRATIONS = "SELECT pg_advisory_xact_lock(7526472301)"

# Tables that a crash would empty.
UNLOGGED = (
    "SELECT relname FROM pg_class WHERE relpersistence <> 'p'"
    " AND oid IN (to_regclass('@calls'), to_regclass('@events'), to_regclass('@owners'), to_regclass('@blobs'),"
    " to_regclass('@runs'), to_regclass('@wakes'), to_regclass('@definitions'), to_regclass('@access_keys'))"
)

SERVER_US = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"

# The store's time: see the table `clock` in schema.sql.
_STORE_US = "CASE WHEN s.us >= c.high_us THEN s.us ELSE greatest(c.high_us, s.us + c.offset_us) END"

NOW = f"SELECT {_STORE_US} AS now_us FROM @clock c, (SELECT {SERVER_US} AS us) s"

# The time of a decision, at or after every earlier decision's, remembered with it.
TICK = (
    f"UPDATE @clock c SET high_us = {_STORE_US},"
    " offset_us = CASE WHEN s.us >= c.high_us THEN 0 ELSE greatest(c.high_us - s.us, c.offset_us) END"
    f" FROM (SELECT {SERVER_US} AS us) s RETURNING c.high_us AS now_us"
)
