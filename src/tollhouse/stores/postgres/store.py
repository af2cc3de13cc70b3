"""The PostgreSQL store: any number of processes on any number of machines over one primary server.

Opened by ``tollhouse.stores.open_store``. What runs need is in ``runs``.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tollhouse.ledger.events import Event
from tollhouse.ledger.record import CallRecord, State
from tollhouse.ledger.store import Fence, LeaseConnection, Owner, Query, Write, Written
from tollhouse.stores.postgres.access import FENCE_S, fetching
from tollhouse.stores.postgres.leases import Leases
from tollhouse.stores.postgres.rows import record_in
from tollhouse.stores.postgres.runs import RunsInPostgres
from tollhouse.stores.postgres.statements import blobs, calls, events, meta, owners


class PostgresStore(RunsInPostgres):
    """A handle on a ledger whose schema is there. Which process and event loop may use it: see ``access``."""

    async def write(self, *writes: Write) -> tuple[Written, ...]:
        """Apply writes all or none; durable on return. See :class:`tollhouse.ledger.store.Store`."""
        self._require_open()
        return await self._writer.write(writes)

    async def get(self, tenant: str, key: str) -> CallRecord | None:
        return next(iter(await self._records(calls.GET, tenant, key)), None)

    async def fence(self, tenant: str, key: str) -> Fence | None:
        """Answers, or raises, within :data:`FENCE_S` whatever the store's patience."""
        self._require_open()
        patience_s = min(FENCE_S, self._target.patience_s)
        rows = await self._checkers.run(fetching(calls.FENCE, tenant, key), patience_s)
        return Fence(rows[0]["fence"], rows[0]["cancel_asked"]) if rows else None

    async def events(self, tenant: str, stream: str, after: int = 0, limit: int = 10_000) -> list[Event]:
        return [Event(*row) for row in await self._rows(events.AFTER, tenant, stream, after, limit)]

    async def blob(self, tenant: str, digest: str) -> bytes | None:
        rows = await self._rows(blobs.GET, tenant, digest)
        return rows[0]["data"] if rows else None

    async def find(self, tenant: str, query: Query) -> list[CallRecord]:
        filters: dict[str, str | bool] = {**query.columns}
        if query.contradicted is False:
            filters["contradicted"] = False
        statement = calls.find(
            tuple(filters),
            contradicted=query.contradicted is True,
            rare=query.state not in (None, State.DEPARTED, State.SUCCEEDED),
            departed=query.state is State.DEPARTED,
            after=query.before is not None,
        )
        return await self._records(statement, tenant, *filters.values(), query.limit, *(query.before or ()))

    async def count(self, tenant: str) -> dict[State, int]:
        counted = {row["state"]: row["n"] for row in await self._rows(calls.COUNT, tenant)}
        counted["succeeded"] = counted.pop("total") - sum(counted.values())
        return {State(state): n for state, n in counted.items() if n}

    async def due(
        self, tenant: str, limit: int, *, tools: Collection[str] | None = None, states: Collection[State] | None = None
    ) -> list[CallRecord]:
        of_tools = None if tools is None else list(tools)
        in_states = None if states is None else [state.value for state in states]
        return await self._records(calls.DUE, tenant, limit, of_tools, in_states)

    async def orphans(self, tenant: str, owner_id: str, limit: int) -> list[CallRecord]:
        return await self._records(calls.ORPHANS, tenant, owner_id, limit)

    async def end_expired_owners(self, tenant: str, *, by_us: int | None = None) -> list[Owner]:
        (expired,) = await self._rows(owners.ANY_EXPIRED, tenant)
        if expired["found"]:
            await self._rows(owners.END_EXPIRED, tenant, by_us)
        # In a statement of its own: the one before has waited for departures that were under way.
        named = [row["id"] for row in await self._rows(calls.OPEN_OWNERS, tenant)]
        return [Owner(*row) for row in await self._rows(owners.GET_ENDED, tenant, named)] if named else []

    async def owner(self, tenant: str, owner_id: str) -> Owner | None:
        rows = await self._rows(owners.GET, tenant, owner_id)
        return Owner(*rows[0]) if rows else None

    async def owner_is_dead(self, tenant: str, owner_id: str) -> None:
        await self._rows(owners.END_DEAD, tenant, owner_id)

    async def now_us(self) -> int:
        (row,) = await self._rows(meta.NOW)
        self._high_us = max(self._high_us, row["now_us"])
        return self._high_us

    def lease_connection(self) -> LeaseConnection:
        """A connection of its own, made when first used in the keeper's thread."""
        self._require_open()
        return Leases(self._target, volatile=self._volatile)

    def changed(self, tenant: str, key: str) -> None:
        """Sends nothing: NOTIFY is a durable commit of its own under a lock that all committers share, which would
        cost every call a third fsync. Waiters in other processes look by themselves."""

    async def _records(self, statement: str, *values: Any) -> list[CallRecord]:
        return [record_in(row) for row in await self._rows(statement, *values)]
