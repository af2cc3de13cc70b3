"""What runs need of a PostgreSQL ledger: see :class:`tollhouse.ledger.run_record.RunStore`.

A write of a run is a statement and a commit of its own, on connections that the writes of calls do not use. When its
acknowledgement is lost, the same guarded write is repeated until it is applied or refused: the repeat waits for a
statement that is still under way, and then finds its own ``write_id``, or nothing.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

import asyncpg

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
from tollhouse.stores.postgres.access import OpenLedger
from tollhouse.stores.postgres.link import Link
from tollhouse.stores.postgres.rows import columns, line_of
from tollhouse.stores.postgres.statements import events, owners, runs

APPLIED = RunWritten()


class RunsInPostgres(OpenLedger):
    """The methods of the port."""

    async def write_run(self, write: RunWrite) -> RunWritten:
        text, values = statement_of(write)

        async def step(link: Link, left_s: float) -> RunWritten:
            if await self._changed(link, left_s, text, values):
                return APPLIED
            return await _refused(link, write, left_s)

        return await self._change(step)

    async def run(self, tenant: str, run_id: str) -> RunRecord | None:
        return _first(await self._rows(runs.GET, tenant, run_id))

    async def run_of_start(self, tenant: str, start_key: str) -> RunRecord | None:
        return _first(await self._rows(runs.OF_START, tenant, start_key))

    async def find_runs(self, tenant: str, query: RunQuery) -> list[RunRecord]:
        filters = query.filters
        rare = filters.get("state", "succeeded") != "succeeded"
        statement = runs.find(tuple(filters), rare=rare, after=query.before is not None)
        return await self._runs(statement, tenant, *filters.values(), query.limit, *(query.before or ()))

    async def count_runs(self, tenant: str) -> dict[str, int]:
        counted = {row["state"]: row["n"] for row in await self._rows(runs.COUNT, tenant)}
        counted["succeeded"] = counted.pop("total") - sum(counted.values())
        return {state: n for state, n in counted.items() if n}

    async def runs_to_take(
        self, tenant: str, driver: str, limit: int, *, agents: Collection[str] | None = None
    ) -> list[RunRecord]:
        return await self._runs(runs.TAKE, tenant, driver, limit, None if agents is None else list(agents))

    async def runs_owned(self, tenant: str, owner_id: str, limit: int) -> list[RunRecord]:
        return await self._runs(runs.OWNED, tenant, owner_id, limit)

    async def forget_wakes(self, tenant: str, run_id: str) -> None:
        await self._execute(runs.FORGET_WAKES, tenant, run_id)

    async def wake(self, tenant: str, run_id: str) -> None:
        await self._execute(runs.WAKE, tenant, run_id)

    async def keep_definition(self, definition: Definition) -> None:
        d = definition
        await self._execute(runs.KEEP_DEFINITION, d.tenant, d.digest, d.kind, d.name, d.created_at_us, d.body)

    async def definition(self, tenant: str, digest: str) -> Definition | None:
        rows = await self._rows(runs.DEFINITION, tenant, digest)
        return Definition(*rows[0]) if rows else None

    async def definitions(self, tenant: str, kind: str, name: str | None = None) -> list[Definition]:
        statement, values = (runs.DEFINITIONS, ()) if name is None else (runs.DEFINITIONS_NAMED, (name,))
        return [Definition(*row) for row in await self._rows(statement, tenant, kind, *values)]

    async def keep_access_key(self, key: AccessKey) -> None:
        await self._execute(
            runs.KEEP_ACCESS_KEY, key.tenant, key.id, key.secret_digest, key.principal, json.dumps(key.scopes),
            key.created_at_us, key.expires_at_us, key.revoked_at_us,
        )  # fmt: skip

    async def access_key(self, tenant: str, key_id: str) -> AccessKey | None:
        rows = await self._rows(runs.ACCESS_KEY, tenant, key_id)
        return _access_key(rows[0]) if rows else None

    async def access_keys(self, tenant: str) -> list[AccessKey]:
        return [_access_key(row) for row in await self._rows(runs.ACCESS_KEYS, tenant)]

    async def _runs(self, statement: str, *values: Any) -> list[RunRecord]:
        return [run_of(row) for row in await self._rows(statement, *values)]

    async def _execute(self, statement: str, *values: Any) -> None:
        await self._change(lambda link, left_s: self._changed(link, left_s, statement, values))

    async def _changed(self, link: Link, left_s: float, statement: str, values: Sequence[Any]) -> bool:
        """Run a statement that returns a row when it changed something; whether it did."""
        rows = await link.fetch(statement, *values, within_s=left_s)
        self.counters.batches += 1
        if rows:
            self.counters.commits += 1
            self.counters.writes += 1
        return bool(rows)


def statement_of(write: RunWrite) -> tuple[str, tuple[Any, ...]]:
    """The statement that makes this write, and its values."""
    record, owner, bodies = write.record, write.owner is not None, bool(write.blobs)
    if write.expected is None:
        text = runs.insert(owner=owner, bodies=bodies)
        values = [*run_row(record)]
    else:
        text = runs.update(owner=owner, bodies=bodies, finished=record.finished)
        values = [record.tenant, record.id, write.expected, *run_changes(record)]
    values += columns([line_of(event) for event in write.events], len(events.KINDS))
    if owner:
        values.append(write.owner)
    if bodies:
        values += columns([(blob.digest, blob.data) for blob in write.blobs], 2)
    return text, tuple(values)


async def _refused(link: Link, write: RunWrite, within_s: float) -> RunWritten:
    """Why the guarded statement changed nothing, or that an earlier try of this very write did."""

    async def ask(statement: str, *values: Any) -> list[asyncpg.Record]:
        return await link.fetch(statement, *values, within_s=within_s)

    record, tenant = write.record, write.record.tenant
    written = await ask(runs.WRITTEN_BY, tenant, run_stream(record.id), write.write_id)
    standing = _first(await ask(runs.GET, tenant, record.id))
    if written:
        return RunWritten(stands=standing)
    if (None if standing is None else standing.version) != write.expected:
        return RunWritten(RunRefusal.EXISTS if write.expected is None else RunRefusal.STALE, standing)
    if write.owner is not None and not (await ask(owners.IS_LIVE, tenant, write.owner))[0]["live"]:
        return RunWritten(RunRefusal.OWNER, standing)
    if write.expected is None and (same := _first(await ask(runs.OF_START, tenant, record.start_key))):
        return RunWritten(RunRefusal.EXISTS, same)
    if write.expected is None and (other := _first(await ask(runs.IN_THREAD, tenant, record.thread))):
        return RunWritten(RunRefusal.BUSY, other)
    raise asyncpg.LockNotAvailableError("what stood against the write came and went")


def _first(rows: Sequence[asyncpg.Record]) -> RunRecord | None:
    return run_of(rows[0]) if rows else None


def _access_key(row: asyncpg.Record) -> AccessKey:
    tenant, key_id, secret_digest, principal, scopes, *times = row
    return AccessKey(tenant, key_id, secret_digest, principal, tuple(json.loads(scopes)), *times)
