"""What all conformance tests share: an opened store, owners with leases, and telling a story to a store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import TypeVar

import pytest
import pytest_asyncio

from tollhouse.ledger.events import Event
from tollhouse.ledger.record import CallRecord
from tollhouse.ledger.store import LeaseConnection, Owner, Refusal, Renewal, Store, Write
from tollhouse.ledger.writes import call_stream
from tollhouse.testing.conformance.story import Story

R = TypeVar("R")
OpenStore = Callable[[], Awaitable[Store]]

TENANT = "t1"
KEY = "order-7:refund"


class Leases:
    """A lease connection, used from one thread of its own as the lease keeper does."""

    def __init__(self, store: Store) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lease")
        self._store = store
        self._connection: LeaseConnection | None = None

    async def register(self, owner_id: str = "own_a", *, tenant: str = TENANT, lease_s: float = 60.0) -> Renewal:
        owner = Owner(tenant, owner_id, host="host/boot", pid=4711, pid_started="12345", label="worker 1")
        return await self._call(lambda connection: connection.register(owner, lease_s))

    async def renew(self, owner_id: str = "own_a", *, tenant: str = TENANT, lease_s: float = 60.0) -> Renewal:
        return await self._call(lambda connection: connection.renew(tenant, owner_id, lease_s))

    async def end(self, owner_id: str = "own_a", *, tenant: str = TENANT) -> None:
        await self._call(lambda connection: connection.end(tenant, owner_id))

    async def close(self) -> None:
        if self._connection is not None:
            await self._call(lambda connection: connection.close())
        self._thread.shutdown()

    async def _call(self, method: Callable[[LeaseConnection], R]) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._in_thread, method)

    def _in_thread(self, method: Callable[[LeaseConnection], R]) -> R:
        if self._connection is None:
            self._connection = self._store.lease_connection()
        return method(self._connection)


@pytest.mark.asyncio
class StoreTests:
    """The fixtures. A store's author overrides :meth:`open_store`."""

    @pytest.fixture
    def open_store(self) -> OpenStore:
        """A function that opens another handle on one store, which is empty when the test begins."""
        raise NotImplementedError("Override the fixture `open_store`; see tollhouse.testing.conformance.")

    @pytest_asyncio.fixture
    async def store(self, open_store: OpenStore) -> AsyncIterator[Store]:
        """The store under test, closed after it."""
        store = await open_store()
        yield store
        await store.close()

    @pytest_asyncio.fixture
    async def leases(self, store: Store) -> AsyncIterator[Leases]:
        """Leases of owners in that store."""
        leases = Leases(store)
        yield leases
        await leases.close()

    @pytest_asyncio.fixture
    async def owners(self, leases: Leases) -> None:
        """The two owners that stories know are alive."""
        await leases.register("own_a")
        await leases.register("own_b")


async def tell(store: Store, story: Story, *, since: int = 0) -> CallRecord:
    """Write a story down, from its write number ``since`` on; every write must be applied, and read back as written."""
    for write in story.writes[since:]:
        await applied(store, write)
        assert await store.get(write.record.tenant, write.record.key) == write.record
    return story.record


async def applied(store: Store, *writes: Write) -> None:
    """Write, and insist on success."""
    for written in await store.write(*writes):
        assert written.applied, written


def rejects_rows() -> AbstractContextManager[object]:
    """Expect that the store rejects a row that no correct code writes: its caller's defect, not the store's trouble."""
    return pytest.raises(ValueError)  # noqa: PT011 - in whatever words


async def refused(store: Store, write: Write, why: Refusal) -> CallRecord | None:
    """Write, insist on that refusal, and return the record that came with it."""
    (written,) = await store.write(write)
    assert written.refusal is why
    return written.record


async def history(store: Store, key: str = KEY, tenant: str = TENANT) -> list[Event]:
    """All events of a call."""
    return await store.events(tenant, call_stream(key))
