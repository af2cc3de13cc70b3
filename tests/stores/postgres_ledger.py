"""What the tests of the PostgreSQL store build on: an opened store, plain calls, and a way to look behind it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import asyncpg

from tollhouse.ledger.record import AttemptOutcome
from tollhouse.ledger.store import Owner, Write
from tollhouse.stores.postgres import PostgresStore, open_store
from tollhouse.testing.conformance.story import Story

TENANT = "t1"
OWNER = "own_a"
"""Who owns the attempts of a :class:`Story` unless it says otherwise."""


@contextlib.asynccontextmanager
async def opened(url: str, *, register: bool = True, **options: Any) -> AsyncIterator[PostgresStore]:
    """A store on that database, with a registered owner."""
    store = await open_store(url, **options)
    try:
        if register:
            await registered(store)
        yield store
    finally:
        await store.close()


async def registered(store: PostgresStore, owner_id: str = OWNER, lease_s: float = 600.0) -> None:
    """Give the store one more live owner."""
    leases = store.lease_connection()
    await asyncio.to_thread(leases.register, owner(owner_id), lease_s)
    await asyncio.to_thread(leases.close)


def owner(owner_id: str = OWNER) -> Owner:
    """A process that could own attempts."""
    return Owner(TENANT, owner_id, "host", 1, "started", "label")


def departure(key: str, owner_id: str = OWNER, **fields: Any) -> Write:
    """Commit 1 of a new call."""
    return Story.of(key=key, **fields).depart(owner_id).writes[0]


def effect(key: str) -> tuple[Write, Write]:
    """Both commits of a call that takes effect."""
    departed, happened = Story.of(key=key).depart().end(AttemptOutcome.HAPPENED).writes
    return departed, happened


def read(key: str) -> Write:
    """The only commit of a read."""
    return Story.of(key=key).read(AttemptOutcome.HAPPENED).writes[0]


@contextlib.asynccontextmanager
async def looking(
    url: str, settings: dict[str, str] | None = None
) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """A connection behind the store's back."""
    connection = await asyncpg.connect(url, server_settings=settings)
    try:
        yield connection
    finally:
        await connection.close()


async def until(connection: asyncpg.Connection[asyncpg.Record], condition: str, *values: Any) -> None:
    """Wait until the server says that a condition holds, of which it sends no event."""
    async with asyncio.timeout(30):
        while not await connection.fetchval(condition, *values):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


SOMEBODY_WAITS = "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted"


async def committed(server_url: str, database_url: str) -> int:
    """Transactions committed in a database so far; true only once those who made them have disconnected."""
    async with looking(server_url) as connection:
        name = urlsplit(database_url).path[1:]
        await until(connection, "SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = $1", name)
        counted: int = await connection.fetchval("SELECT xact_commit FROM pg_stat_database WHERE datname = $1", name)
        return counted
