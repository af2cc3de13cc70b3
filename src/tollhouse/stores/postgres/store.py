"""The PostgreSQL store: any number of processes on any number of machines over one primary server.

Opened by ``tollhouse.stores.open_store``. Writes go to the ``writer``, readings to a few connections, the last check
before a send to connections of its own, where no long reading is in its way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Any, TypeVar

import asyncpg

from tollhouse.ledger.events import Event
from tollhouse.ledger.process import pid
from tollhouse.ledger.record import CallRecord, State
from tollhouse.ledger.store import Counters, Fence, LeaseConnection, Owner, Query, Write, Written
from tollhouse.stores.common.errors import closed, crossed_fork
from tollhouse.stores.postgres.leases import Leases
from tollhouse.stores.postgres.link import Link, Pool
from tollhouse.stores.postgres.rows import record_in
from tollhouse.stores.postgres.statements import blobs, calls, events, meta, owners
from tollhouse.stores.postgres.target import Target
from tollhouse.stores.postgres.writer import Writer

T = TypeVar("T")

WRITERS = 3
READERS = 3
CHECKERS = 2

FENCE_S = 2.0
"""How long the check before a send waits: unreachable means no, and a sender has better things to do than to wait."""


class PostgresStore:
    """A handle on a ledger whose schema is there; made on the event loop that will use it.

    It belongs to the process that opened it: in a forked child every method raises
    :class:`~tollhouse.errors.HouseClosed`. Connections are made when first needed, and again after they were lost; at
    most ten. After an error it works again as soon as its cause is gone.
    """

    def __init__(self, target: Target, *, volatile: bool) -> None:
        self.url = target.url
        self.counters = Counters()
        self._target = target
        self._volatile = volatile
        self._pid = pid()
        self._closed = False
        self._high_us = 0
        self._writer = Writer(self._links(WRITERS, target.try_s), target, self.counters)
        self._readers = Pool(self._links(READERS, target.patience_s / 2))
        self._checkers = Pool(self._links(CHECKERS, min(FENCE_S / 2, target.try_s)))

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
        rows = await self._checkers.run(_fetching(calls.FENCE, tenant, key), patience_s)
        return Fence(rows[0]["fence"], rows[0]["cancel_asked"]) if rows else None

    async def events(self, tenant: str, stream: str, after: int = 0, limit: int = 10_000) -> list[Event]:
        return [Event(*row) for row in await self._rows(events.AFTER, tenant, stream, after, limit)]

    async def blob(self, tenant: str, digest: str) -> bytes | None:
        rows = await self._rows(blobs.GET, tenant, digest)
        return rows[0]["data"] if rows else None

    async def find(self, tenant: str, query: Query) -> list[CallRecord]:
        wanted = {"state": query.state, "tool": query.tool, "scope": query.scope}
        filters: dict[str, str | bool] = {name: str(value) for name, value in wanted.items() if value is not None}
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

    async def end_expired_owners(self, tenant: str) -> list[Owner]:
        (expired,) = await self._rows(owners.ANY_EXPIRED, tenant)
        if expired["found"]:
            await self._rows(owners.END_EXPIRED, tenant)
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

    @property
    def waiting(self) -> int:
        """Writes that wait for their commit."""
        return self._writer.waiting

    def changed(self, tenant: str, key: str) -> None:
        """Sends nothing: NOTIFY is a durable commit of its own under a lock that all committers share, which would
        cost every call a third fsync. Waiters in other processes look by themselves."""

    async def close(self) -> None:
        """Let every write that was taken come to its end, then close the connections; twice is harmless."""
        self._require_own_process()
        if self._closed:
            return
        self._closed = True
        await self._writer.close()
        await self._readers.close()
        await self._checkers.close()

    def _links(self, count: int, limit_s: float) -> list[Link]:
        return [Link(self._target, self.counters, limit_s=limit_s, volatile=self._volatile) for _ in range(count)]

    async def _records(self, statement: str, *values: Any) -> list[CallRecord]:
        return [record_in(row) for row in await self._rows(statement, *values)]

    async def _rows(self, statement: str, *values: Any) -> list[asyncpg.Record]:
        self._require_open()
        return await self._readers.run(_fetching(statement, *values), self._target.patience_s)

    def _require_open(self) -> None:
        self._require_own_process()
        if self._closed:
            raise closed()

    def _require_own_process(self) -> None:
        if self._pid != pid():
            raise crossed_fork()


def _fetching(statement: str, *values: Any) -> Callable[[Link, float], Awaitable[list[asyncpg.Record]]]:
    return lambda link, left_s: link.fetch(statement, *values, within_s=left_s)
