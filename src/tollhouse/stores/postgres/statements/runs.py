"""Statements on ``runs`` and what belongs to them. Conditions repeat those of the partial indexes word for word.

Every write of a run is one statement: it inserts or replaces the run, appends its events, keeps its bodies, and returns
a row when it did. What it did not change was refused, and is told apart by later statements, whose snapshot is younger.
Rows that are found by way of others are looked up one by one, so that a plan made for empty tables serves full ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from tollhouse.ledger.run_record import RUN_COLUMNS, RUN_MUTABLE
from tollhouse.stores.postgres.statements import blobs, events, owners
from tollhouse.stores.postgres.statements.meta import NOW
from tollhouse.stores.postgres.statements.numbered import Numbered

KINDS = dict.fromkeys(RUN_COLUMNS, "text") | {
    "version": "bigint", "attempt_no": "integer", "created_at_us": "bigint", "updated_at_us": "bigint",
    "due_at_us": "bigint", "finished": "boolean", "head_seq": "bigint",
}  # fmt: skip
"""Columns and the types they are bound as."""


def by_id(tenant: str, run_id: str) -> str:
    """What finds the run ``r`` under an id, through the primary key only; see ``calls.by_key``."""
    return f"FROM @runs r WHERE r.tenant = {tenant} AND r.id BETWEEN {run_id} AND {run_id} ORDER BY r.id LIMIT 1"


_NAMES = ", ".join(RUN_COLUMNS)
_SELECT = f"SELECT {_NAMES} FROM @runs"

COUNT = (
    "SELECT 'total' AS state, count(*) AS n FROM @runs WHERE tenant = $1"
    " UNION ALL SELECT state, count(*) FROM @runs WHERE tenant = $1 AND state <> 'succeeded' GROUP BY state"
)

FORGET_WAKES = "DELETE FROM @wakes WHERE tenant = $1 AND run_id = $2 RETURNING 1"

GET = f"SELECT {_NAMES} {by_id('$1', '$2')}"

IN_THREAD = f"{_SELECT} WHERE tenant = $1 AND thread = $2 AND thread IS NOT NULL AND NOT finished"

OF_START = f"{_SELECT} WHERE tenant = $1 AND start_key = $2"

OWNED = f"{_SELECT} WHERE tenant = $1 AND owner = $2 ORDER BY id LIMIT $3"

WAKE = (
    f"INSERT INTO @wakes AS w (tenant, run_id, at_us) SELECT $1, $2, ({NOW})"
    " WHERE EXISTS (SELECT FROM @runs WHERE tenant = $1 AND id = $2 AND NOT finished)"
    " ON CONFLICT (tenant, run_id) DO UPDATE SET at_us = w.at_us WHERE false RETURNING 1"
)

WRITTEN_BY = "SELECT 1 FROM @events WHERE tenant = $1 AND stream = $2 AND write_id = $3 LIMIT 1"

# -- what a driver may take ------------------------------------------------------------------------------------------

_WANTED = "r.driver = $2 AND ($4::text[] IS NULL OR r.agent = ANY ($4::text[]))"
_DUE = (
    "SELECT r.id, r.due_at_us AS since_us FROM @runs r WHERE r.tenant = $1 AND r.due_at_us IS NOT NULL"
    f" AND r.owner IS NULL AND r.due_at_us <= ({NOW}) AND {_WANTED} ORDER BY r.due_at_us, r.id LIMIT $3"
)
_WOKEN = (
    "SELECT w.run_id, w.at_us FROM @wakes w CROSS JOIN LATERAL"
    f" (SELECT r.* {by_id('w.tenant', 'w.run_id')}) r"
    " WHERE w.tenant = $1 AND r.owner IS NULL AND NOT r.finished AND r.state <> 'limit_reached'"
    f" AND {_WANTED} ORDER BY w.at_us, w.run_id LIMIT $3"
)
# Runs that are driven are few, however many are paused. The end of an owner is asked for as in `owners`.
_LEFT = (
    f"SELECT r.id, r.updated_at_us FROM @runs r WHERE r.tenant = $1 AND r.owner IS NOT NULL AND {_WANTED}"
    " AND (SELECT coalesce(o.ended_at_us, 0) = 0 FROM @owners o WHERE o.tenant = r.tenant AND o.id = r.owner)"
    " IS NOT TRUE LIMIT $3"
)

TAKE = (
    f"SELECT {', '.join(f'r.{name}' for name in RUN_COLUMNS)} FROM"
    f" (SELECT id, min(since_us) AS since_us FROM (({_DUE}) UNION ALL ({_WOKEN}) UNION ALL ({_LEFT})) found"
    " GROUP BY id ORDER BY since_us, id LIMIT $3) f"
    f" CROSS JOIN LATERAL (SELECT r.* {by_id('$1', 'f.id')}) r ORDER BY f.since_us, f.id"
)

# -- writing ---------------------------------------------------------------------------------------------------------


@cache
def insert(*, owner: bool, bodies: bool) -> str:
    """Insert a run. Binds: its columns, arrays of events, owner, arrays of blobs."""
    number = Numbered()
    run = number.many(KINDS)
    told = _told(number)
    live, source = _live(number, owner)
    put = f"put AS (INSERT INTO @runs ({_NAMES}) SELECT {run}{source} ON CONFLICT DO NOTHING RETURNING tenant, id)"
    return _whole(live, put, told, _kept(number, bodies))


@cache
def update(*, owner: bool, bodies: bool, finished: bool) -> str:
    """Replace a version. Binds: tenant, id and version, the columns, arrays of events, owner, arrays of blobs.

    ``finished``: nobody need look at the run any more, so its wakes go.
    """
    number = Numbered()
    tenant, run_id, version = number.one("text"), number.one("text"), number.one("bigint")
    changes = ", ".join(f"{name} = {number.one(KINDS[name])}" for name in RUN_MUTABLE)
    told = _told(number)
    live, source = _live(number, owner)
    put = (
        f"put AS (UPDATE @runs r SET {changes}{source}"
        f" WHERE r.ctid = (SELECT r.ctid {by_id(tenant, run_id)}) AND r.version = {version} RETURNING r.tenant, r.id)"
    )
    slept = "slept AS (DELETE FROM @wakes w USING put p WHERE w.tenant = p.tenant AND w.run_id = p.id)"
    return _whole(live, put, told, _kept(number, bodies), slept if finished else "")


def _told(number: Numbered) -> str:
    names = ", ".join(f"e.{name}" for name in events.KINDS)
    return f"told AS ({events.INTO} SELECT p.tenant, {names} FROM put p, {number.table('e', events.KINDS)})"


def _live(number: Numbered, owner: bool) -> tuple[str, str]:
    if not owner:
        return "", ""
    return f"live AS ({owners.LIVE.format(tenant='= $1', owner='= ' + number.one('text'))})", " FROM live"


def _kept(number: Numbered, bodies: bool) -> str:
    if not bodies:
        return ""
    source = number.table("b", blobs.KINDS)
    return f"kept AS ({blobs.INTO} SELECT p.tenant, b.digest, b.data FROM put p, {source} ORDER BY 2 {blobs.IF_NEW})"


def _whole(*steps: str) -> str:
    return f"WITH {', '.join(step for step in steps if step)} SELECT 1 FROM put"


# -- lists -----------------------------------------------------------------------------------------------------------


@cache
def find(columns: tuple[str, ...], *, rare: bool, after: bool) -> str:
    """Newest first: ``columns`` equal to parameters from $2 on, then the limit, and the end of the page before.

    ``rare``: any state but the one in which most runs end.
    """
    terms = ["tenant = $1", *(f"{column} = ${number}" for number, column in enumerate(columns, start=2))]
    terms += ["state <> 'succeeded'"] * rare
    limit = len(columns) + 2
    if after:
        terms.append(f"(created_at_us, id) < (${limit + 1}::bigint, ${limit + 2}::text)")
    return f"{_SELECT} WHERE {' AND '.join(terms)} ORDER BY created_at_us DESC, id DESC LIMIT ${limit}"


# -- definitions and access keys -------------------------------------------------------------------------------------

DEFINITION_KINDS = dict.fromkeys(("tenant", "digest", "kind", "name", "created_at_us", "body"), "text") | {
    "created_at_us": "bigint"
}
ACCESS_KEY_KINDS = {
    "tenant": "text", "id": "text", "secret_digest": "text", "principal": "text", "scopes": "text",
    "created_at_us": "bigint", "expires_at_us": "bigint", "revoked_at_us": "bigint",
}  # fmt: skip


def _marks(kinds: Iterable[str]) -> str:
    return ", ".join(f"${number}::{kind}" for number, kind in enumerate(kinds, start=1))


_DEFINED = f"SELECT {', '.join(DEFINITION_KINDS)} FROM @definitions WHERE tenant = $1"

KEEP_DEFINITION = (
    f"INSERT INTO @definitions ({', '.join(DEFINITION_KINDS)}) VALUES ({_marks(DEFINITION_KINDS.values())})"
    " ON CONFLICT DO NOTHING RETURNING 1"
)

DEFINITION = f"{_DEFINED} AND digest = $2"

DEFINITIONS = f"{_DEFINED} AND kind = $2 ORDER BY created_at_us DESC, digest DESC"

DEFINITIONS_NAMED = f"{_DEFINED} AND kind = $2 AND name = $3 ORDER BY created_at_us DESC, digest DESC"

_KEYS = f"SELECT {', '.join(ACCESS_KEY_KINDS)} FROM @access_keys WHERE tenant = $1"

KEEP_ACCESS_KEY = (
    f"INSERT INTO @access_keys ({', '.join(ACCESS_KEY_KINDS)}) VALUES ({_marks(ACCESS_KEY_KINDS.values())})"
    " ON CONFLICT (tenant, id) DO UPDATE SET "
    + ", ".join(f"{name} = EXCLUDED.{name}" for name in list(ACCESS_KEY_KINDS)[2:])
    + " RETURNING 1"
)

ACCESS_KEY = f"{_KEYS} AND id = $2"

ACCESS_KEYS = f"{_KEYS} ORDER BY created_at_us DESC, id DESC"
