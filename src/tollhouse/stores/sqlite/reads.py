"""Readings of the ledger, each a function of a connection. Every one fetches all: an unfinished one pins the log."""

from __future__ import annotations

import sqlite3
from typing import Any

from tollhouse.ledger.events import Event
from tollhouse.ledger.record import CallRecord, State
from tollhouse.ledger.rows import COLUMNS, record_of
from tollhouse.ledger.store import Fence, Query
from tollhouse.stores.sqlite.statements import blobs, calls, events

Row = tuple[Any, ...]
Names = tuple[str, ...]


def get(connection: sqlite3.Connection, tenant: str, key: str) -> CallRecord | None:
    """The call under that key."""
    return first(connection, calls.GET, (tenant, key))


def fence(connection: sqlite3.Connection, tenant: str, key: str) -> Fence | None:
    """What a sender must see again just before it sends."""
    rows = connection.execute(calls.FENCE, (tenant, key)).fetchall()
    return Fence(rows[0][0], bool(rows[0][1])) if rows else None


def history(connection: sqlite3.Connection, tenant: str, stream: str, after: int, limit: int) -> list[Event]:
    """The stream's events after that ``seq``, in order."""
    return [Event(*row) for row in connection.execute(events.AFTER, (tenant, stream, after, limit)).fetchall()]


def written_by(connection: sqlite3.Connection, tenant: str, stream: str, write_id: str) -> bool:
    """Whether the stream has events of that write: then it was applied by an earlier try."""
    return bool(connection.execute(events.WRITTEN_BY, (tenant, stream, write_id)).fetchall())


def blob(connection: sqlite3.Connection, tenant: str, digest: str) -> bytes | None:
    """The body of that digest."""
    rows = connection.execute(blobs.GET, (tenant, digest)).fetchall()
    return bytes(rows[0][0]) if rows else None


def find(connection: sqlite3.Connection, tenant: str, query: Query) -> list[CallRecord]:
    """A page of calls, newest first."""
    filters: dict[str, object] = {**query.columns}
    if query.contradicted is not None:
        filters["contradicted"] = query.contradicted
    statement = calls.find(filters, after=query.before is not None)
    values = (tenant, *map(_plain, filters.values()), *(query.before or ()), query.limit)
    return _records(connection, statement, values)


def count(connection: sqlite3.Connection, tenant: str) -> dict[State, int]:
    """Calls by state; read in one transaction, so that the parts add up."""
    connection.execute("BEGIN")
    try:
        rare = {State(state): n for state, n in connection.execute(calls.COUNT_RARE, (tenant,)).fetchall()}
        (departed,) = connection.execute(calls.COUNT_DEPARTED, (tenant,)).fetchall()[0]
        (total,) = connection.execute(calls.COUNT_ALL, (tenant,)).fetchall()[0]
    finally:
        connection.execute("ROLLBACK")
    counts = {**rare, State.DEPARTED: departed, State.SUCCEEDED: total - departed - sum(rare.values())}
    return {state: n for state, n in counts.items() if n}


def due(
    connection: sqlite3.Connection, tenant: str, now_us: int, limit: int, tools: Names | None, states: Names | None
) -> list[CallRecord]:
    """Calls whose time has come, most overdue first; of these tools and states, or of any (None)."""
    statement = calls.due(None if tools is None else len(tools), None if states is None else len(states))
    return _records(connection, statement, (tenant, now_us, *(tools or ()), *(states or ()), limit))


def orphans(connection: sqlite3.Connection, tenant: str, owner_id: str, limit: int) -> list[CallRecord]:
    """Calls with an attempt of that owner that has not ended."""
    return _records(connection, calls.ORPHANS, (tenant, owner_id, tenant, owner_id, limit))


def first(connection: sqlite3.Connection, statement: str, values: Row) -> CallRecord | None:
    """The record of the first row, or None."""
    return next(iter(_records(connection, statement, values)), None)


def _records(connection: sqlite3.Connection, statement: str, values: Row) -> list[CallRecord]:
    rows = connection.execute(statement, values).fetchall()
    return [record_of(dict(zip(COLUMNS, row, strict=True))) for row in rows]


def _plain(value: object) -> object:
    return value.value if isinstance(value, State) else value
