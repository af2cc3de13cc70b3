"""Creating, judging and upgrading the schema of a PostgreSQL ledger."""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg

from tollhouse.errors import StoreSchema
from tollhouse.stores.common.migrations import Migration, load
from tollhouse.stores.postgres.link import Link
from tollhouse.stores.postgres.statements import meta

SCHEMA = load("tollhouse.stores.postgres")

_TAKEN = (asyncpg.DuplicateTableError, asyncpg.DuplicateObjectError, asyncpg.DuplicateFunctionError)
_CONTRADICTED = (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError)
_OWN_PLACE = "Give the ledger a database of its own, or a schema by ?schema=NAME in the URL."


async def versions(link: Link) -> tuple[int | None, int | None]:
    """What the database says of itself: ``schema_version`` and ``min_release_schema``; None and None when empty."""
    (exists,) = await link.fetch(meta.EXISTS)
    if not exists["found"]:
        return None, None
    try:
        found = {row["name"]: int(row["value"]) for row in await link.fetch(meta.VERSIONS)}
        return found["schema_version"], found["min_release_schema"]
    except (asyncpg.UndefinedColumnError, asyncpg.DataError, KeyError, ValueError) as raw:
        raise StoreSchema("The database has a table `meta` that is not a ledger's.", remedy=_OWN_PLACE) from raw


async def create_if_empty(link: Link) -> None:
    """Give an empty database the whole schema, at once or not at all; whoever comes second finds it there."""
    async with link.transaction():
        await link.fetch(meta.LOCK_MIGRATIONS)
        if (await versions(link))[0] is None:
            await _apply(link, SCHEMA.migrations)


async def upgrade(link: Link) -> list[str]:
    """Apply what is missing, each migration in a transaction of its own; their names."""
    applied: list[str] = []
    while True:
        async with link.transaction():
            await link.fetch(meta.LOCK_MIGRATIONS)
            version, floor = await versions(link)
            SCHEMA.require(version, floor, for_upgrade=True)
            pending = SCHEMA.pending(version)
            if not pending:
                return applied
            await _apply(link, pending[:1])
            applied.append(pending[0].name)


async def _apply(link: Link, migrations: Sequence[Migration]) -> None:
    """Run the migrations in the open transaction."""
    if link.target.schema:
        await link.script(f'CREATE SCHEMA IF NOT EXISTS "{link.target.schema}"')
        await link.script(f'SET LOCAL search_path TO "{link.target.schema}"')
    for migration in migrations:
        try:
            await link.script(migration.sql)
        except _TAKEN as raw:
            cause = f"The database holds something of another application under a name the ledger needs: {raw.args[0]}."
            raise StoreSchema(cause, remedy=_OWN_PLACE) from raw
        except _CONTRADICTED as raw:
            cause = f"The migration {migration.name} does not fit what the database holds: {raw.args[0]}."
            raise StoreSchema(cause, remedy="Mend the rows it names, then run `tollhouse db upgrade` again.") from raw
    await link.fetch(meta.PUT, "schema_version", str(migrations[-1].number))
    floor = max((m.min_release_schema for m in migrations if m.min_release_schema is not None), default=None)
    if floor is not None or migrations[0].number == 1:
        await link.fetch(meta.PUT, "min_release_schema", str(floor or 1))
