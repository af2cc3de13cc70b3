"""Where a store is chosen by its URL: the only door to the engines, for the house, the CLI and the tests.

An engine is a package with three coroutines, ``open_store``, ``upgrade`` and ``check``; it is imported when its URL is
first used, so that SQLite users need no driver of another engine. What both engines share is in ``stores.common``.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tollhouse.errors import ExtraMissing, StoreURLInvalid
from tollhouse.stores.common.migrations import SchemaReport
from tollhouse.stores.common.raw import FENCE, RESTORED, RawLedger, Signs
from tollhouse.stores.common.urls import engine_of, without_password

if TYPE_CHECKING:
    from tollhouse.ledger.store import Store

__all__ = [
    "FENCE",
    "RESTORED",
    "RawLedger",
    "SchemaReport",
    "Signs",
    "backup",
    "check",
    "marks_of",
    "open_raw",
    "open_store",
    "upgrade",
    "without_password",
]


async def open_store(
    url: str,
    *,
    volatile: bool = False,
    busy_timeout_s: float = 10.0,
    postgres_statement_cache: bool = True,
    wall: Callable[[], int] | None = None,
) -> Store:
    """Open the store at ``url``, creating its schema if the database is empty.

    ``sqlite:///relative.db``, ``sqlite:////absolute.db``, ``sqlite:///:memory:`` or ``postgresql://user@host/database``.
    ``volatile``: also accept a store that could forget what it confirmed, such as one in memory. ``busy_timeout_s``:
    how long a write waits for another process's lock (SQLite), or is repeated while the server is away (PostgreSQL),
    before it raises. ``postgres_statement_cache``: False behind a pooler that hands each transaction to another
    connection. ``wall``: what SQLite takes for the time of day, in microseconds, for tests; PostgreSQL has a clock of
    its own.

    Raises :class:`~tollhouse.errors.StoreURLInvalid`, :class:`~tollhouse.errors.StoreNotDurable`,
    :class:`~tollhouse.errors.StoreSchema` (too old or too new for this release) or
    :class:`~tollhouse.errors.StoreUnavailable` and its subclasses.
    """
    if engine_of(url) == "sqlite":
        from tollhouse.stores import sqlite

        watch = {} if wall is None else {"wall": wall}
        return await sqlite.open_store(url, volatile=volatile, busy_timeout_s=busy_timeout_s, **watch)
    _need_postgres_driver()
    from tollhouse.stores import postgres

    return await postgres.open_store(
        url, volatile=volatile, statement_cache=postgres_statement_cache, patience_s=busy_timeout_s
    )


async def upgrade(url: str) -> list[str]:
    """Apply the migrations that the store at ``url`` lacks, each in a transaction; their names, in order.

    Empty when it was up to date. Safe beside running processes of the release before, and when run twice at once.
    Raises as :func:`open_store` does.
    """
    if engine_of(url) == "sqlite":
        from tollhouse.stores import sqlite

        return await sqlite.upgrade(url)
    _need_postgres_driver()
    from tollhouse.stores import postgres

    return await postgres.upgrade(url)


async def check(url: str) -> SchemaReport:
    """How the schema of the store at ``url`` stands to this release; changes nothing. Raises as :func:`open_store`."""
    if engine_of(url) == "sqlite":
        from tollhouse.stores import sqlite

        return await sqlite.check(url)
    _need_postgres_driver()
    from tollhouse.stores import postgres

    return await postgres.check(url)


async def open_raw(url: str, *, any_version: bool = False) -> RawLedger:
    """The ledger at ``url`` as rows, for operations on the whole of it; fenced or not. To be closed by the caller.

    Raises as :func:`open_store` does, and, unless ``any_version``, :class:`~tollhouse.errors.StoreSchema` where a
    migration is missing.
    """
    ledger = await _raw(url)
    try:
        if not any_version:
            await ledger.require_latest()
    except BaseException:
        await ledger.close()
        raise
    return ledger


async def marks_of(url: str) -> dict[str, str]:
    """What the ledger at ``url`` says of itself, by name, whatever its schema. Raises as :func:`open_store` does."""
    ledger = await _raw(url)
    try:
        return await ledger.marks()
    finally:
        await ledger.close()


async def _raw(url: str) -> RawLedger:
    if engine_of(url) == "sqlite":
        from tollhouse.stores import sqlite

        return RawLedger(await sqlite.open_raw(url))
    _need_postgres_driver()
    from tollhouse.stores import postgres

    return RawLedger(postgres.open_raw(url))


async def backup(url: str, file: Path) -> None:
    """Copy the SQLite ledger at ``url`` to a new file, as it is at one moment, while others go on writing.

    Raises :class:`~tollhouse.errors.StoreURLInvalid` for another engine, which has backups of its own, and as
    :func:`open_store` does.
    """
    if engine_of(url) != "sqlite":
        raise StoreURLInvalid(
            "Only a SQLite ledger is copied to a file.", remedy="Back PostgreSQL up with pg_dump or by its archive."
        )
    from tollhouse.stores import sqlite

    await sqlite.backup(url, file)


def _need_postgres_driver() -> None:
    if importlib.util.find_spec("asyncpg") is None:
        raise ExtraMissing(
            "This installation has no PostgreSQL driver.", remedy="Run pip install 'tollhouse[postgres]'."
        )
