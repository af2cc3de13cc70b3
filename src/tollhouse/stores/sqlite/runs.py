"""What runs need of an SQLite ledger: see :class:`tollhouse.ledger.run_record.RunStore`.

Writes share commits with those of calls. A write of a run is applied behind a savepoint of its own, so nothing about
it slows down the calls beside it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Sequence
from typing import Any

from tollhouse.ledger.run_record import (
    AccessKey,
    Definition,
    RunQuery,
    RunRecord,
    RunRefusal,
    RunWrite,
    RunWritten,
    run_changes,
    run_of,
    run_row,
    run_stream,
)
from tollhouse.stores.sqlite import reads
from tollhouse.stores.sqlite.access import OpenLedger
from tollhouse.stores.sqlite.apply import event_row, is_live
from tollhouse.stores.sqlite.statements import blobs, events, runs

APPLIED = RunWritten()


class RunsInSqlite(OpenLedger):
    """The methods of the port."""

    async def write_run(self, write: RunWrite) -> RunWritten:
        return await self._change(lambda connection: apply(connection, write))

    async def run(self, tenant: str, run_id: str) -> RunRecord | None:
        return await self._read(first, runs.GET, (tenant, run_id))

    async def run_of_start(self, tenant: str, start_key: str) -> RunRecord | None:
        return await self._read(first, runs.OF_START, (tenant, start_key))

    async def find_runs(self, tenant: str, query: RunQuery) -> list[RunRecord]:
        filters = query.filters
        statement = runs.find(filters, after=query.before is not None)
        return await self._read_many(found, statement, (tenant, *filters.values(), *(query.before or ()), query.limit))

    async def count_runs(self, tenant: str) -> dict[str, int]:
        return await self._read_many(count, tenant)

    async def runs_to_take(
        self, tenant: str, driver: str, limit: int, *, agents: Collection[str] | None = None
    ) -> list[RunRecord]:
        if agents is not None and not agents:
            return []  # SQLite has no plan for a list of none
        values = {"tenant": tenant, "driver": driver, "now_us": await self._now_by_all_us(), "limit": limit}
        values |= {f"agent{number}": agent for number, agent in enumerate(agents or ())}
        return await self._read_many(found, runs.take(None if agents is None else len(agents)), values)

    async def runs_owned(self, tenant: str, owner_id: str, limit: int) -> list[RunRecord]:
        return await self._read_many(found, runs.OWNED, (tenant, owner_id, limit))

    async def forget_wakes(self, tenant: str, run_id: str) -> None:
        await self._execute(runs.FORGET_WAKES, tenant, run_id)

    async def wake(self, tenant: str, run_id: str) -> None:
        await self._execute(runs.WAKE, tenant, run_id, await self._now_by_all_us(), tenant, run_id)

    async def keep_definition(self, definition: Definition) -> None:
        d = definition
        await self._execute(runs.KEEP_DEFINITION, d.tenant, d.digest, d.kind, d.name, d.created_at_us, d.body)

    async def definition(self, tenant: str, digest: str) -> Definition | None:
        rows = await self._read_many(fetch, runs.DEFINITION, (tenant, digest))
        return Definition(*rows[0]) if rows else None

    async def definitions(self, tenant: str, kind: str, name: str | None = None) -> list[Definition]:
        statement, values = (runs.DEFINITIONS, ()) if name is None else (runs.DEFINITIONS_NAMED, (name,))
        return [Definition(*row) for row in await self._read_many(fetch, statement, (tenant, kind, *values))]

    async def keep_access_key(self, key: AccessKey) -> None:
        await self._execute(
            runs.KEEP_ACCESS_KEY, key.tenant, key.id, key.secret_digest, key.principal, json.dumps(key.scopes),
            key.created_at_us, key.expires_at_us, key.revoked_at_us,
        )  # fmt: skip

    async def access_key(self, tenant: str, key_id: str) -> AccessKey | None:
        rows = await self._read(fetch, runs.ACCESS_KEY, (tenant, key_id))
        return _access_key(rows[0]) if rows else None

    async def access_keys(self, tenant: str) -> list[AccessKey]:
        return [_access_key(row) for row in await self._read_many(fetch, runs.ACCESS_KEYS, (tenant,))]

    async def _execute(self, statement: str, *values: Any) -> None:
        await self._change(lambda connection: connection.execute(statement, values))


# -- in an open transaction ------------------------------------------------------------------------------------------


def apply(connection: sqlite3.Connection, write: RunWrite) -> RunWritten:
    """Apply the write, or change nothing and say why. Raises what the driver raises for a bad value."""
    record = write.record
    owner_lives = write.owner is None or is_live(connection, record.tenant, write.owner)
    if not (owner_lives and _put(connection, write)):
        return _refused(connection, write, owner_lives)
    connection.executemany(blobs.KEEP, [(record.tenant, blob.digest, blob.data) for blob in write.blobs])
    connection.executemany(events.APPEND, [event_row(record.tenant, event) for event in write.events])
    if record.finished:
        connection.execute(runs.FORGET_WAKES, (record.tenant, record.id))
    return APPLIED


def _put(connection: sqlite3.Connection, write: RunWrite) -> bool:
    record = write.record
    if write.expected is None:
        return connection.execute(runs.INSERT, run_row(record)).rowcount == 1
    values = (*run_changes(record), record.tenant, record.id, write.expected)
    return connection.execute(runs.UPDATE, values).rowcount == 1


def _refused(connection: sqlite3.Connection, write: RunWrite, owner_lives: bool) -> RunWritten:
    """Why the guarded statement changed nothing, or that an earlier try of this very write did."""
    record = write.record
    standing = first(connection, runs.GET, (record.tenant, record.id))
    if (None if standing is None else standing.version) != write.expected:
        if reads.written_by(connection, record.tenant, run_stream(record.id), write.write_id):
            return RunWritten(stands=standing)
        return RunWritten(RunRefusal.EXISTS if write.expected is None else RunRefusal.STALE, standing)
    if not owner_lives:
        return RunWritten(RunRefusal.OWNER, standing)
    if same := first(connection, runs.OF_START, (record.tenant, record.start_key)):
        return RunWritten(RunRefusal.EXISTS, same)
    return RunWritten(RunRefusal.BUSY, first(connection, runs.IN_THREAD, (record.tenant, record.thread)))


# -- readings --------------------------------------------------------------------------------------------------------


def fetch(connection: sqlite3.Connection, statement: str, values: Any) -> list[tuple[Any, ...]]:
    """All rows: an unfinished reading pins the log."""
    return connection.execute(statement, values).fetchall()


def found(connection: sqlite3.Connection, statement: str, values: Any) -> list[RunRecord]:
    """The runs in all rows."""
    return [run_of(row) for row in fetch(connection, statement, values)]


def first(connection: sqlite3.Connection, statement: str, values: Any) -> RunRecord | None:
    """The run in the first row, or None."""
    return next(iter(found(connection, statement, values)), None)


def count(connection: sqlite3.Connection, tenant: str) -> dict[str, int]:
    """Runs by state; read in one transaction, so that the parts add up."""
    connection.execute("BEGIN")
    try:
        counts = dict(fetch(connection, runs.COUNT_RARE, (tenant,)))
        ((total,),) = fetch(connection, runs.COUNT_ALL, (tenant,))
    finally:
        connection.execute("ROLLBACK")
    counts["succeeded"] = total - sum(counts.values())
    return {state: number for state, number in counts.items() if number}


def _access_key(row: Sequence[Any]) -> AccessKey:
    tenant, key_id, secret_digest, principal, scopes, *times = row
    return AccessKey(tenant, key_id, secret_digest, principal, tuple(json.loads(scopes)), *times)
