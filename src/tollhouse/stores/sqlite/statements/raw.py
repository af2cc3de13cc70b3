"""Statements on whole ledgers: fencing, copying, purging. See ``stores.common.raw``, which names their parameters."""

from __future__ import annotations

from tollhouse.ledger.record import SETTLED
from tollhouse.ledger.rows import COLUMNS, EDITABLE, MUTABLE
from tollhouse.ledger.run_record import RUN_COLUMNS, RUN_MUTABLE
from tollhouse.stores.common.raw import FENCED, GUARDED, Table
from tollhouse.stores.sqlite.statements import calls

_SETTLED = ", ".join(f"'{state}'" for state in sorted(SETTLED))
_OPERATIONS = ("INSERT", "UPDATE", "DELETE")

GET = calls.GET

OLDEST_DOUBT = (
    "SELECT min(created_at_us) FROM calls WHERE tenant = ? AND state = 'in_doubt'"
    " AND state NOT IN ('departed', 'succeeded')"
)

CONTRADICTED = "SELECT count(*) FROM calls WHERE tenant = ? AND contradicted = 1"

LIVE_OWNERS = "SELECT count(*) FROM owners WHERE tenant = ? AND ended_at_us IS NULL AND lease_until_us > ?"

MARKS = "SELECT name, value FROM meta"

PUT_MARK = "INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"

DROP_MARK = "DELETE FROM meta WHERE name = ?"

# BEGIN IMMEDIATE has locked everything.
LOCK: tuple[str, ...] = ()
LOCK_BLOBS = "SELECT 1"

END_OWNERS = "UPDATE owners SET ended_at_us = ? WHERE ended_at_us IS NULL"

RAISE_FENCES = "UPDATE calls SET fence = fence + 1 WHERE open_owners IS NOT NULL"

PURGEABLE = (
    f"SELECT {', '.join(COLUMNS)} FROM calls WHERE tenant = ? AND (created_at_us, key) > (?, ?)"
    f" AND created_at_us < ? AND updated_at_us < ? AND state IN ({_SETTLED}) AND contradicted = 0"
    " AND open_owners IS NULL AND head_seq > 0"
    " AND coalesce((SELECT finished FROM runs WHERE runs.tenant = calls.tenant AND id = scope), 1) = 1"
    " ORDER BY created_at_us, key LIMIT ?"
)

PURGE = (
    f"UPDATE calls SET {', '.join(f'{name} = ?' for name in EDITABLE + MUTABLE)}"
    " WHERE tenant = ? AND key = ? AND version = ?"
)

_THREAD_IS_IDLE = (
    "NOT EXISTS (SELECT 1 FROM runs t WHERE t.tenant = r.tenant AND t.thread = r.thread AND t.thread IS NOT NULL"
    " AND t.finished = 0)"
)

PURGEABLE_RUNS = (
    f"SELECT {', '.join(RUN_COLUMNS)} FROM runs r WHERE tenant = ? AND (created_at_us, id) > (?, ?)"
    " AND created_at_us < ? AND updated_at_us < ? AND finished = 1 AND due_at_us IS NULL"
    " AND NOT EXISTS (SELECT 1 FROM events e WHERE e.tenant = r.tenant AND e.stream = 'run:' || r.id"
    " AND e.seq = r.head_seq AND e.kind = 'run_purged')"
    f" AND {_THREAD_IS_IDLE}"
    " AND coalesce((SELECT p.finished FROM runs p WHERE p.tenant = r.tenant AND p.id = r.parent_run_id), 1) = 1"
    f" AND coalesce((SELECT c.state IN ({_SETTLED}) FROM calls c"
    " WHERE c.tenant = r.tenant AND c.key = r.parent_key), 1) = 1"
    " AND NOT EXISTS (SELECT 1 FROM calls c WHERE c.tenant = r.tenant AND c.scope = r.id AND c.scope IS NOT NULL"
    f" AND (c.state NOT IN ({_SETTLED}) OR c.contradicted = 1 OR c.open_owners IS NOT NULL))"
    " ORDER BY created_at_us, id LIMIT ?"
)

PURGE_RUN = (
    f"UPDATE runs AS r SET {', '.join(f'{name} = ?' for name in RUN_MUTABLE)}"
    f" WHERE tenant = ? AND id = ? AND version = ? AND {_THREAD_IS_IDLE}"
)

BODIES_OF_STREAM = "SELECT data FROM events WHERE tenant = ? AND stream = ? AND instr(data, '\"$blob\":') > 0"

ERASE_EVENTS = "UPDATE events SET data = '' WHERE tenant = ? AND stream = ? AND data <> ''"

DROP_EVENTS = "DELETE FROM events WHERE tenant = ? AND stream = ?"

CONDEMN = "INSERT INTO condemned (tenant, digest) VALUES (?, ?) ON CONFLICT DO NOTHING"

WITH_BODIES = (
    'SELECT key, body FROM calls WHERE tenant = ? AND key > ? AND instr(body, \'"blob":"\') > 0 ORDER BY key LIMIT ?'
)

# `;` comes after `:`, so these are the streams of runs.
RUNS_WITH_BODIES = (
    "SELECT stream, seq, data FROM events WHERE tenant = ? AND (stream, seq) > (?, ?) AND stream < 'run;'"
    " AND instr(data, '\"$blob\":') > 0 ORDER BY stream, seq LIMIT ?"
)

PARDON = "DELETE FROM condemned WHERE tenant = ? AND digest = ?"

DROP_CONDEMNED_BLOB = "DELETE FROM blobs WHERE tenant = ? AND digest = ?"


def page(table: Table) -> str:
    """Rows after a key, in order, so many."""
    keys = ", ".join(table.keys)
    marks = ", ".join("?" * len(table.keys))
    return f"SELECT {', '.join(table.columns)} FROM {table.name} WHERE ({keys}) > ({marks}) ORDER BY {keys} LIMIT ?"


def last(table: Table) -> str:
    """The greatest key."""
    order = ", ".join(f"{name} DESC" for name in table.keys)
    return f"SELECT {', '.join(table.keys)} FROM {table.name} ORDER BY {order} LIMIT 1"


def count(table: Table) -> str:
    """How many rows."""
    return f"SELECT count(*) FROM {table.name}"


def fill(table: Table) -> str:
    """Insert a row unless its key is taken."""
    marks = ", ".join("?" * len(table.columns))
    return f"INSERT INTO {table.name} ({', '.join(table.columns)}) VALUES ({marks}) ON CONFLICT DO NOTHING"


def fence() -> list[str]:
    """Triggers that refuse every write."""
    return [
        f"CREATE TRIGGER {_trigger(table, operation)} BEFORE {operation} ON {table.name}"
        f" BEGIN SELECT RAISE(ABORT, '{FENCED}'); END"
        for table in GUARDED
        for operation in _OPERATIONS
    ]


def lift() -> list[str]:
    """Drop them, if they are there."""
    return [f"DROP TRIGGER IF EXISTS {_trigger(table, operation)}" for table in GUARDED for operation in _OPERATIONS]


def _trigger(table: Table, operation: str) -> str:
    return f"fence_{table.name}_{operation.lower()}"
