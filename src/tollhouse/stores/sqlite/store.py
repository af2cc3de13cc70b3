"""The SQLite store: one file, any number of processes on one machine, no server.

Opened by ``tollhouse.stores.open_store``. Writes and decisions about owners go to the ``writer``; what runs need is in
``runs``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from tollhouse.ledger.events import Event
from tollhouse.ledger.record import CallRecord, State
from tollhouse.ledger.store import Fence, LeaseConnection, Owner, Query, Write, Written
from tollhouse.stores.sqlite import owners, reads
from tollhouse.stores.sqlite.apply import prepare
from tollhouse.stores.sqlite.commits import Calls
from tollhouse.stores.sqlite.leases import Leases
from tollhouse.stores.sqlite.runs import RunsInSqlite


class SqliteStore(RunsInSqlite):
    """A handle on a ledger whose schema is there. Which process and event loop may use it: see ``access``."""

    # -- writing -----------------------------------------------------------------------------------------------------

    async def write(self, *writes: Write) -> tuple[Written, ...]:
        self._require_open()
        if not writes:
            return ()
        return await self._writer.write(Calls([prepare(write, self._clock) for write in writes]))

    async def end_expired_owners(self, tenant: str, *, by_us: int | None = None) -> list[Owner]:
        """A sweep that finds nobody expired writes nothing."""
        if await self._read(owners.any_expired, tenant, await self._now_by_all_us()):
            await asyncio.to_thread(self._decide, lambda c: owners.end_expired(c, self._clock, tenant, by_us))
        return await self._read_many(owners.ended_with_open_attempts, tenant)

    async def owner_is_dead(self, tenant: str, owner_id: str) -> None:
        self._require_open()
        await asyncio.to_thread(self._decide, lambda c: owners.end_dead(c, self._clock, tenant, owner_id))

    def lease_connection(self) -> LeaseConnection:
        self._require_open()
        return Leases(self._decide, self._clock)

    # -- reading -----------------------------------------------------------------------------------------------------

    async def get(self, tenant: str, key: str) -> CallRecord | None:
        return await self._read(reads.get, tenant, key)

    async def fence(self, tenant: str, key: str) -> Fence | None:
        return await self._read(reads.fence, tenant, key)

    async def events(self, tenant: str, stream: str, after: int = 0, limit: int = 10_000) -> list[Event]:
        return await self._read_many(reads.history, tenant, stream, after, limit)

    async def blob(self, tenant: str, digest: str) -> bytes | None:
        return await self._read_many(reads.blob, tenant, digest)

    async def find(self, tenant: str, query: Query) -> list[CallRecord]:
        return await self._read_many(reads.find, tenant, query)

    async def count(self, tenant: str) -> dict[State, int]:
        return await self._read_many(reads.count, tenant)

    async def due(
        self, tenant: str, limit: int, *, tools: Collection[str] | None = None, states: Collection[State] | None = None
    ) -> list[CallRecord]:
        of_tools = None if tools is None else tuple(tools)
        of_states = None if states is None else tuple(state.value for state in states)
        return await self._read_many(reads.due, tenant, self._clock.now_us(), limit, of_tools, of_states)

    async def orphans(self, tenant: str, owner_id: str, limit: int) -> list[CallRecord]:
        return await self._read_many(reads.orphans, tenant, owner_id, limit)

    async def owner(self, tenant: str, owner_id: str) -> Owner | None:
        return await self._read(owners.get, tenant, owner_id)

    async def now_us(self) -> int:
        return await self._now_by_all_us()

    # -- the rest ----------------------------------------------------------------------------------------------------

    def changed(self, tenant: str, key: str) -> None:
        """Nothing: SQLite has no way to tell other processes, which poll."""
