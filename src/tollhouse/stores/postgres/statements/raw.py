"""Statements on whole ledgers: fencing, copying, purging. See ``stores.common.raw``, which names their parameters."""

from __future__ import annotations

from tollhouse.ledger.record import SETTLED
from tollhouse.ledger.rows import COLUMNS, EDITABLE, MUTABLE
from tollhouse.ledger.run_record import RUN_COLUMNS, RUN_MUTABLE
from tollhouse.stores.common.raw import CALLS, FENCED, GUARDED, Table
from tollhouse.stores.postgres.statements import blobs, calls, events, runs
from tollhouse.stores.postgres.statements.meta import PUT, SERVER_US
from tollhouse.stores.postgres.statements.numbered import Numbered

FENCED_STATE = "TH001"
"""The SQLSTATE with which a fence refuses."""

KINDS = {
    "access_keys": runs.ACCESS_KEY_KINDS,
    "blobs": {"tenant": "text", **blobs.KINDS},
    "calls": {**calls.KINDS, "state": "text"},
    "condemned": {"tenant": "text", "digest": "text"},
    "definitions": runs.DEFINITION_KINDS,
    "events": {"tenant": "text", **events.KINDS},
    "owners": {
        "tenant": "text", "id": "text", "host": "text", "pid": "bigint", "pid_started": "text", "label": "text",
        "lease_until_us": "bigint", "started_at_us": "bigint", "ended_at_us": "bigint", "proven_dead": "boolean",
    },
    "runs": runs.KINDS,
    "wakes": {"tenant": "text", "run_id": "text", "at_us": "bigint"},
}  # fmt: skip
"""Columns of each table and the types they are bound as."""

_SETTLED = ", ".join(f"'{state}'" for state in sorted(SETTLED))
_GUARDED = ", ".join(f"@{table.name}" for table in GUARDED)
_CALLS = ", ".join("c.state::text AS state" if name == "state" else f"c.{name}" for name in COLUMNS)

GET = calls.GET

OLDEST_DOUBT = (
    "SELECT min(created_at_us) FROM @calls WHERE tenant = $1 AND state = 'in_doubt'"
    " AND state NOT IN ('departed', 'succeeded')"
)

CONTRADICTED = "SELECT count(*) FROM @calls WHERE tenant = $1 AND contradicted"

LIVE_OWNERS = "SELECT count(*) FROM @owners WHERE tenant = $1 AND ended_at_us IS NULL AND lease_until_us > $2"

MARKS = "SELECT name, value FROM @meta"

PUT_MARK = PUT

DROP_MARK = "DELETE FROM @meta WHERE name = $1"

# Waits for every write under way, and every later one for it.
LOCK = (f"LOCK TABLE {_GUARDED} IN SHARE ROW EXCLUSIVE MODE",)
LOCK_BLOBS = "LOCK TABLE @blobs IN SHARE ROW EXCLUSIVE MODE"

# Locked as by every end of an owner: departures under way come first, and are waited for.
END_OWNERS = (
    "WITH gone AS MATERIALIZED"
    " (SELECT tenant, id FROM @owners WHERE ended_at_us IS NULL ORDER BY tenant, id FOR UPDATE OF owners)"
    " UPDATE @owners o SET ended_at_us = $1 FROM gone"
    " WHERE o.tenant = gone.tenant AND o.id = gone.id AND o.ended_at_us IS NULL"
)

RAISE_FENCES = "UPDATE @calls SET fence = fence + 1 WHERE open_owners IS NOT NULL"

PURGEABLE = (
    f"SELECT {_CALLS} FROM @calls c WHERE c.tenant = $1 AND (c.created_at_us, c.key) > ($2::bigint, $3::text)"
    f" AND c.created_at_us < $4 AND c.updated_at_us < $5 AND c.state IN ({_SETTLED}) AND NOT c.contradicted"
    " AND c.open_owners IS NULL AND c.head_seq > 0"
    " AND (SELECT r.finished FROM @runs r WHERE r.tenant = c.tenant AND r.id = c.scope) IS NOT FALSE"
    " ORDER BY c.created_at_us, c.key LIMIT $6"
)


_THREAD_IS_IDLE = (
    "NOT EXISTS (SELECT FROM @runs t WHERE t.tenant = r.tenant AND t.thread = r.thread AND t.thread IS NOT NULL"
    " AND NOT t.finished)"
)

PURGEABLE_RUNS = (
    f"SELECT {', '.join(f'r.{name}' for name in RUN_COLUMNS)} FROM @runs r"
    " WHERE r.tenant = $1 AND (r.created_at_us, r.id) > ($2::bigint, $3::text)"
    " AND r.created_at_us < $4 AND r.updated_at_us < $5 AND r.finished AND r.due_at_us IS NULL"
    " AND NOT EXISTS (SELECT FROM @events e WHERE e.tenant = r.tenant AND e.stream = 'run:' || r.id"
    " AND e.seq = r.head_seq AND e.kind = 'run_purged')"
    f" AND {_THREAD_IS_IDLE}"
    " AND (SELECT p.finished FROM @runs p WHERE p.tenant = r.tenant AND p.id = r.parent_run_id) IS NOT FALSE"
    f" AND (SELECT c.state IN ({_SETTLED}) FROM @calls c WHERE c.tenant = r.tenant AND c.key = r.parent_key)"
    " IS NOT FALSE"
    " AND NOT EXISTS (SELECT FROM @calls c WHERE c.tenant = r.tenant AND c.scope = r.id AND c.scope IS NOT NULL"
    f" AND (c.state NOT IN ({_SETTLED}) OR c.contradicted OR c.open_owners IS NOT NULL))"
    " ORDER BY r.created_at_us, r.id LIMIT $6"
)


def _purge_run() -> str:
    number = Numbered()
    changes = ", ".join(f"{name} = {number.one(runs.KINDS[name])}" for name in RUN_MUTABLE)
    tenant, run_id, version = number.one("text"), number.one("text"), number.one("bigint")
    row = f"r.tenant = {tenant} AND r.id = {run_id} AND r.version = {version}"
    return f"UPDATE @runs r SET {changes} WHERE {row} AND {_THREAD_IS_IDLE} RETURNING 1"


PURGE_RUN = _purge_run()

BODIES_OF_STREAM = "SELECT data FROM @events WHERE tenant = $1 AND stream = $2 AND data LIKE '%\"$blob\":%'"

ERASE_EVENTS = "UPDATE @events SET data = '' WHERE tenant = $1 AND stream = $2 AND data <> ''"


def _purge() -> str:
    number = Numbered()
    changes = ", ".join(f"{name} = {number.one(calls.KINDS[name])}" for name in EDITABLE + MUTABLE)
    tenant, key, version = number.one("text"), number.one("text"), number.one("bigint")
    row = f"SELECT c.ctid {calls.by_key(tenant, key)}"
    return f"UPDATE @calls c SET {changes} WHERE c.ctid = ({row}) AND c.version = {version} RETURNING 1"


PURGE = _purge()

DROP_EVENTS = "DELETE FROM @events WHERE tenant = $1 AND stream = $2"

CONDEMN = "INSERT INTO @condemned (tenant, digest) VALUES ($1, $2) ON CONFLICT DO NOTHING"

WITH_BODIES = (
    'SELECT key, body FROM @calls WHERE tenant = $1 AND key > $2 AND body LIKE \'%"blob":"%\' ORDER BY key LIMIT $3'
)

# `;` comes after `:`, so these are the streams of runs.
RUNS_WITH_BODIES = (
    "SELECT stream, seq, data FROM @events WHERE tenant = $1 AND (stream, seq) > ($2, $3::bigint) AND stream < 'run;'"
    " AND data LIKE '%\"$blob\":%' ORDER BY stream, seq LIMIT $4"
)

PARDON = "DELETE FROM @condemned WHERE tenant = $1 AND digest = $2 RETURNING 1"

DROP_CONDEMNED_BLOB = "DELETE FROM @blobs WHERE tenant = $1 AND digest = $2"

RAISE_CLOCK = (
    "UPDATE @clock SET high_us = greatest(high_us, $1::bigint),"
    f" offset_us = greatest(offset_us, $1::bigint - {SERVER_US})"
)


def page(table: Table) -> str:
    """Rows after a key, in order, so many."""
    kinds = KINDS[table.name]
    columns = ", ".join(f"{name}::text" if _is_enum(table, name) else name for name in table.columns)
    keys = ", ".join(table.keys)
    after = ", ".join(f"${n}::{kinds[name]}" for n, name in enumerate(table.keys, 1))
    limit = f"${len(table.keys) + 1}"
    return f"SELECT {columns} FROM @{table.name} WHERE ({keys}) > ({after}) ORDER BY {keys} LIMIT {limit}"


def _is_enum(table: Table, column: str) -> bool:
    return table is CALLS and column == "state"


def last(table: Table) -> str:
    """The greatest key."""
    order = ", ".join(f"{name} DESC" for name in table.keys)
    return f"SELECT {', '.join(table.keys)} FROM @{table.name} ORDER BY {order} LIMIT 1"


def count(table: Table) -> str:
    """How many rows."""
    return f"SELECT count(*) FROM @{table.name}"


def fill(table: Table) -> str:
    """Insert rows given as one array for each column, unless their key is taken."""
    source = Numbered().table("x", {name: KINDS[table.name][name] for name in table.columns})
    values = ", ".join(f"x.{name}::@call_state" if _is_enum(table, name) else f"x.{name}" for name in table.columns)
    return (
        f"INSERT INTO @{table.name} ({', '.join(table.columns)}) SELECT {values} FROM {source} ON CONFLICT DO NOTHING"
    )


def fence() -> list[str]:
    """Triggers that refuse every write; once for a statement, so that it costs nothing even to try."""
    body = f"BEGIN RAISE EXCEPTION '{FENCED}' USING ERRCODE = '{FENCED_STATE}'; END"
    return [
        f"CREATE OR REPLACE FUNCTION @ledger_is_fenced() RETURNS trigger LANGUAGE plpgsql AS $$ {body} $$",
        *(
            f"CREATE TRIGGER fence BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON @{table.name}"
            " FOR EACH STATEMENT EXECUTE FUNCTION @ledger_is_fenced()"
            for table in GUARDED
        ),
    ]


def lift() -> list[str]:
    """Drop them, if they are there."""
    return [f"DROP TRIGGER IF EXISTS fence ON @{table.name}" for table in GUARDED]
