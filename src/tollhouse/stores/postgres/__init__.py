"""The PostgreSQL engine: opening, upgrading and checking a ledger on a server. Called by ``tollhouse.stores`` only."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from tollhouse.errors import StoreNotDurable
from tollhouse.ledger.store import Counters
from tollhouse.stores.common.migrations import SchemaReport
from tollhouse.stores.postgres import migrate
from tollhouse.stores.postgres.faults import FAILURES, Unfit, error_of
from tollhouse.stores.postgres.link import Link
from tollhouse.stores.postgres.raw import PostgresEngine
from tollhouse.stores.postgres.statements import meta
from tollhouse.stores.postgres.store import PostgresStore
from tollhouse.stores.postgres.target import Target, parse

__all__ = ["PostgresStore", "check", "open_raw", "open_store", "upgrade"]

_OPENING_S = 10.0
"""How long one statement may take while a store is opened. Nothing is repeated then: whoever opens it can."""

_MIGRATION_S = 3600.0
"""How long one statement of a migration may take: building an index on a large table is slow."""


async def open_store(
    url: str, *, volatile: bool = False, statement_cache: bool = True, patience_s: float = 10.0
) -> PostgresStore:
    """The store at a ``postgresql://`` URL, its schema created if it has none; see ``tollhouse.stores``.

    ``patience_s``: how long a write is repeated, and a reading tried, before the store counts as unavailable.
    """
    target = parse(url, statement_cache=statement_cache, patience_s=patience_s)
    async with _connected(target, _OPENING_S, volatile=volatile) as link:
        version, floor = await migrate.versions(link)
        if version is None:
            await migrate.create_if_empty(link)
            version, floor = await migrate.versions(link)
        migrate.SCHEMA.require(version, floor)
        if not volatile:
            await _require_logged(link)
    return PostgresStore(target, volatile=volatile)


async def upgrade(url: str) -> list[str]:
    """Apply the migrations that the database lacks; see ``tollhouse.stores``."""
    async with _connected(parse(url), _MIGRATION_S, volatile=True) as link:
        return await migrate.upgrade(link)


async def check(url: str) -> SchemaReport:
    """How the database's schema stands to this release, without changing it; see ``tollhouse.stores``."""
    async with _connected(parse(url), _MIGRATION_S, volatile=True) as link:
        return migrate.SCHEMA.report(*await migrate.versions(link))


def open_raw(url: str) -> PostgresEngine:
    """A connection, made when first used, for operations on the whole ledger; see ``tollhouse.stores``."""
    return PostgresEngine(parse(url))


@contextlib.asynccontextmanager
async def _connected(target: Target, limit_s: float, *, volatile: bool) -> AsyncIterator[Link]:
    """A connection for a moment; what goes wrong on it is raised as ours, at once: nothing was promised yet."""
    link = Link(target, Counters(), limit_s=limit_s, volatile=volatile)
    try:
        yield link
    except Unfit as raw:
        raise raw.error from raw.__cause__
    except FAILURES as raw:
        error = error_of(raw, target.url)
        raise error from error.__cause__
    finally:
        await link.close()


async def _require_logged(link: Link) -> None:
    if unlogged := await link.fetch(meta.UNLOGGED):
        names = ", ".join(row["relname"] for row in unlogged)
        raise StoreNotDurable(
            f"Tables of the ledger are not logged, so a crash of the server would empty them: {names}.",
            remedy="ALTER TABLE … SET LOGGED on each, or pass volatile=True where losing the ledger is acceptable.",
        )
