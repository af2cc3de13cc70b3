"""Statements on ``runs`` and what belongs to them. Conditions repeat those of the partial indexes word for word."""

from __future__ import annotations

from tollhouse.ledger.run_record import RUN_COLUMNS, RUN_MUTABLE

_NAMES = ", ".join(RUN_COLUMNS)
_SELECT = f"SELECT {_NAMES} FROM runs"
_NEWEST = "ORDER BY created_at_us DESC, id DESC"

COUNT_ALL = "SELECT count(*) FROM runs WHERE tenant = ?"
COUNT_RARE = "SELECT state, count(*) FROM runs WHERE tenant = ? AND state <> 'succeeded' GROUP BY state"

FORGET_WAKES = "DELETE FROM wakes WHERE tenant = ? AND run_id = ?"

GET = f"{_SELECT} WHERE tenant = ? AND id = ?"

# An id, a start key or a thread that is taken changes no row, and is told apart afterwards.
INSERT = f"INSERT INTO runs ({_NAMES}) VALUES ({', '.join('?' * len(RUN_COLUMNS))}) ON CONFLICT DO NOTHING"

IN_THREAD = (
    f"{_SELECT} INDEXED BY runs_busy_thread WHERE tenant = ? AND thread = ? AND thread IS NOT NULL AND finished = 0"
)

OF_START = f"{_SELECT} WHERE tenant = ? AND start_key = ?"

OWNED = f"{_SELECT} WHERE tenant = ? AND owner = ? ORDER BY id LIMIT ?"

UPDATE = (
    f"UPDATE runs SET {', '.join(f'{name} = ?' for name in RUN_MUTABLE)} WHERE tenant = ? AND id = ? AND version = ?"
)

WAKE = (
    "INSERT INTO wakes (tenant, run_id, at_us) SELECT ?, ?, ?"
    " WHERE EXISTS (SELECT 1 FROM runs WHERE tenant = ? AND id = ? AND finished = 0) ON CONFLICT DO NOTHING"
)

_DUE = (
    "SELECT id, due_at_us AS since_us FROM runs INDEXED BY runs_due WHERE tenant = :tenant AND driver = :driver"
    " AND due_at_us <= :now_us AND due_at_us IS NOT NULL AND owner IS NULL{agents} ORDER BY due_at_us, id LIMIT :limit"
)
_WOKEN = (
    "SELECT id, w.at_us AS since_us FROM wakes w CROSS JOIN runs ON runs.tenant = w.tenant AND id = w.run_id"
    " WHERE w.tenant = :tenant AND driver = :driver AND owner IS NULL AND finished = 0 AND state <> 'limit_reached'"
    "{agents} ORDER BY w.at_us, w.run_id LIMIT :limit"
)
# Runs that are driven are few, however many are paused.
_LEFT = (
    "SELECT id, updated_at_us AS since_us FROM runs INDEXED BY runs_owner WHERE tenant = :tenant AND owner IS NOT NULL"
    " AND driver = :driver AND NOT EXISTS"
    " (SELECT 1 FROM owners o WHERE o.tenant = runs.tenant AND o.id = runs.owner AND o.ended_at_us IS NULL){agents}"
    " LIMIT :limit"
)

_DEFINITION = "digest, kind, name, created_at_us, body"
_ACCESS_KEY = "id, secret_digest, principal, scopes, created_at_us, expires_at_us, revoked_at_us"

KEEP_DEFINITION = f"INSERT INTO definitions (tenant, {_DEFINITION}) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"

_DEFINED = f"SELECT tenant, {_DEFINITION} FROM definitions WHERE tenant = ?"

DEFINITION = f"{_DEFINED} AND digest = ?"

DEFINITIONS = f"{_DEFINED} AND kind = ? ORDER BY created_at_us DESC, digest DESC"

DEFINITIONS_NAMED = f"{_DEFINED} AND kind = ? AND name = ? ORDER BY created_at_us DESC, digest DESC"

KEEP_ACCESS_KEY = f"INSERT OR REPLACE INTO access_keys (tenant, {_ACCESS_KEY}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"

ACCESS_KEY = f"SELECT tenant, {_ACCESS_KEY} FROM access_keys WHERE tenant = ? AND id = ?"

ACCESS_KEYS = f"SELECT tenant, {_ACCESS_KEY} FROM access_keys WHERE tenant = ? ORDER BY created_at_us DESC, id DESC"


def take(agents: int | None) -> str:
    """Runs to take, longest waiting first, of this many agents ``:agent0`` and on, or of any (None)."""
    names = "" if agents is None else f" AND agent IN ({', '.join(f':agent{n}' for n in range(agents))})"
    found = " UNION ALL ".join(f"SELECT * FROM ({part.format(agents=names)})" for part in (_DUE, _WOKEN, _LEFT))
    first = f"SELECT id, min(since_us) AS since_us FROM ({found}) GROUP BY id ORDER BY since_us, id LIMIT :limit"
    columns = ", ".join(f"r.{name}" for name in RUN_COLUMNS)
    return (
        f"SELECT {columns} FROM ({first}) f CROSS JOIN runs r ON r.tenant = :tenant AND r.id = f.id"
        " ORDER BY f.since_us, f.id"
    )


def find(filters: dict[str, str], *, after: bool) -> str:
    """Newest first: these columns equal to parameters, ``after`` a (``created_at_us``, id) of the page before."""
    terms = ["tenant = ?", *(f"{column} = ?" for column in filters)]
    if filters.get("state", "succeeded") != "succeeded":
        terms.append("state <> 'succeeded'")
    if after:
        terms.append("(created_at_us, id) < (?, ?)")
    return f"{_SELECT} WHERE {' AND '.join(terms)} {_NEWEST} LIMIT ?"
