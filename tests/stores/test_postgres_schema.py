"""The schema of a PostgreSQL ledger: made once, upgraded one migration at a time, held to the lifecycle."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import asyncpg
import pytest

from tests.stores.postgres_ledger import TENANT, departure, effect, looking, opened
from tollhouse.errors import StoreSchema
from tollhouse.ledger.record import SETTLED, State
from tollhouse.ledger.rows import COLUMNS
from tollhouse.ledger.store import Written
from tollhouse.stores import check, open_store, upgrade
from tollhouse.stores.common.migrations import Migration, Schema, schema_text
from tollhouse.stores.postgres import migrate

pytestmark = pytest.mark.postgres

APPLIED = (Written(),)
NEXT = migrate.SCHEMA.latest + 1
NOTES, BROKEN = f"{NEXT:04}_notes", f"{NEXT + 1:04}_broken"
EVERYTHING = """
    SELECT 'column' AS kind, table_name || '.' || column_name AS name,
        concat_ws(' ', data_type, udt_name, collation_name, is_nullable, column_default) AS meaning
    FROM information_schema.columns WHERE table_schema = $1
    UNION ALL SELECT 'index', indexname, replace(indexdef, $1 || '.', '') FROM pg_indexes WHERE schemaname = $1
    UNION ALL SELECT 'constraint', conname, replace(pg_get_constraintdef(c.oid), $1 || '.', '') FROM pg_constraint c
        JOIN pg_namespace n ON n.oid = connamespace WHERE nspname = $1
    UNION ALL SELECT 'trigger', tgname, replace(pg_get_triggerdef(t.oid), $1 || '.', '') FROM pg_trigger t
        JOIN pg_class k ON k.oid = tgrelid JOIN pg_namespace n ON n.oid = relnamespace
        WHERE nspname = $1 AND NOT tgisinternal
    UNION ALL SELECT 'function', proname, prosrc FROM pg_proc JOIN pg_namespace n ON n.oid = pronamespace
        WHERE nspname = $1
    UNION ALL SELECT 'label', typname || '.' || enumlabel, enumsortorder::text FROM pg_enum
        JOIN pg_type y ON y.oid = enumtypid JOIN pg_namespace n ON n.oid = typnamespace WHERE nspname = $1
    ORDER BY 1, 2
"""


async def test_the_schema_file_equals_all_migrations(postgres_url: str) -> None:
    """`schema.sql` is for reading: it must say what the migrations make."""
    async with opened(f"{postgres_url}?schema=migrated"), looking(postgres_url) as connection:
        await connection.execute("CREATE SCHEMA written")
        await connection.execute("SET search_path TO written")
        await connection.execute(schema_text("tollhouse.stores.postgres"))
        migrated, written = [await connection.fetch(EVERYTHING, name) for name in ("migrated", "written")]
        assert [tuple(row) for row in migrated] == [tuple(row) for row in written]
        assert len(migrated) > 50


async def test_the_type_of_a_state_has_exactly_the_states_of_the_lifecycle(postgres_url: str) -> None:
    """The store's constraint follows the table of the lifecycle; the columns follow the one mapping of records."""
    async with opened(postgres_url), looking(postgres_url) as connection:
        labels = await connection.fetchval("SELECT enum_range(NULL::call_state)::text[]")
        assert sorted(labels) == sorted(State)
        # The constraint on the repeat slot says "settled" by this order.
        assert set(labels[-len(SETTLED) :]) == SETTLED
        columns = await connection.fetch(
            "SELECT column_name FROM information_schema.columns WHERE table_name = 'calls'"
        )
        assert sorted(row["column_name"] for row in columns) == sorted(COLUMNS)
        with pytest.raises(asyncpg.InvalidTextRepresentationError):
            await connection.execute("UPDATE calls SET state = 'lost'")


async def test_history_is_only_ever_added_to(postgres_url: str) -> None:
    """The server itself refuses to change or delete an event; erasing a payload is the one exception."""
    async with opened(postgres_url) as store, looking(postgres_url) as connection:
        for write in effect("call"):
            await store.write(write)
        for change in ("SET kind = 'x'", "SET data = '{}'", "SET data = '', at_us = 0", "SET hash = ''"):
            with pytest.raises(asyncpg.RestrictViolationError):
                await connection.execute(f"UPDATE events {change} WHERE seq = 1")
        with pytest.raises(asyncpg.RestrictViolationError):
            await connection.execute("DELETE FROM events")
        await connection.execute("UPDATE events SET data = '' WHERE seq = 1")
        erased, kept = await store.events(TENANT, "call:call")
        assert erased.data == ""
        assert kept.data


async def test_processes_that_open_an_empty_database_at_once_make_one_schema(postgres_url: str) -> None:
    """The first makes it, the others find it there."""
    stores = await asyncio.gather(*(open_store(postgres_url) for _ in range(5)))
    for store in stores:
        assert await store.count(TENANT) == {}
        await store.close()
    report = await check(postgres_url)
    assert (report.version, report.usable, report.pending) == (report.latest, True, ())


async def test_an_empty_database_is_created_and_upgraded_by_the_same_migrations(postgres_url: str) -> None:
    """`check` changes nothing; `upgrade` names what it applied, and nothing the second time."""
    report = await check(postgres_url)
    assert (report.version, report.usable) == (None, True)
    assert await upgrade(postgres_url) == list(report.pending)
    assert await upgrade(postgres_url) == []
    async with opened(postgres_url) as store:
        assert await store.write(departure("call")) == APPLIED


async def test_migrations_are_applied_one_by_one_and_none_halfway(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A migration that fails leaves the ones before it applied and the database usable; the next try goes on."""
    async with opened(postgres_url):
        pass
    released = migrate.SCHEMA
    second = Migration(NEXT, NOTES, "ALTER TABLE calls ADD COLUMN note text")
    broken = Migration(NEXT + 1, BROKEN, "ALTER TABLE owners ADD COLUMN note text; SELECT 1 / 0")
    monkeypatch.setattr(migrate, "SCHEMA", Schema((*released.migrations, second, broken)))
    with pytest.raises(StoreSchema, match=BROKEN):
        await upgrade(postgres_url)
    assert (await check(postgres_url)).pending == (BROKEN,)
    # The release before goes on beside the new schema.
    monkeypatch.setattr(migrate, "SCHEMA", released)
    async with opened(postgres_url) as store:
        assert await store.write(departure("call")) == APPLIED
    mended = replace(broken, sql="ALTER TABLE owners ADD COLUMN note text", min_release_schema=NEXT + 1)
    monkeypatch.setattr(migrate, "SCHEMA", Schema((*released.migrations, second, mended)))
    both = await asyncio.gather(upgrade(postgres_url), upgrade(postgres_url))
    assert sorted(both) == [[], [BROKEN]]
    monkeypatch.setattr(migrate, "SCHEMA", released)
    with pytest.raises(StoreSchema, match="too new"):
        await open_store(postgres_url)


async def test_a_schema_that_is_too_old_is_refused_until_upgraded(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Past the floor that a release declares, opening says what to run."""
    async with opened(postgres_url):
        pass
    newer = Migration(NEXT, NOTES, "ALTER TABLE calls ADD COLUMN note text")
    monkeypatch.setattr(migrate, "SCHEMA", Schema((*migrate.SCHEMA.migrations, newer), oldest_usable=NEXT))
    with pytest.raises(StoreSchema, match="too old") as caught:
        await open_store(postgres_url)
    assert "db upgrade" in caught.value.remedy
    assert await upgrade(postgres_url) == [NOTES]
    async with opened(postgres_url):
        pass


async def test_two_ledgers_share_a_database_in_schemas_of_their_own(postgres_url: str) -> None:
    """`?schema=` names it; it is made if need be, and nothing is looked for elsewhere."""
    async with opened(f"{postgres_url}?schema=one") as one, opened(f"{postgres_url}?schema=Two") as two:
        for write in effect("call"):
            assert await one.write(write) == APPLIED
        assert await asyncio.gather(*(one.write(departure(f"call-{n}")) for n in range(12))) == [APPLIED] * 12
        assert await two.count(TENANT) == {}
        assert await one.count(TENANT) == {State.SUCCEEDED: 1, State.DEPARTED: 12}
        assert await one.end_expired_owners(TENANT) == []


@pytest.mark.parametrize("taken", ["CREATE TABLE meta (id int)", "CREATE TABLE events (id int)"])
async def test_another_applications_tables_are_left_alone(postgres_url: str, taken: str) -> None:
    """A name that is taken is the user's mistake to mend: refused, with the way out."""
    async with looking(postgres_url) as connection:
        await connection.execute(taken)
        with pytest.raises(StoreSchema) as caught:
            await open_store(postgres_url)
        assert "?schema=" in caught.value.remedy
        assert await connection.fetchval("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == 1


async def test_a_database_that_cannot_keep_every_character_is_refused(postgres_url: str) -> None:
    """Arguments and results are any text; LATIN1 is not."""
    async with looking(postgres_url) as connection:
        await connection.execute(
            "CREATE DATABASE tollhouse_latin ENCODING 'LATIN1' LOCALE 'C' LOCALE_PROVIDER libc TEMPLATE template0"
        )
    try:
        with pytest.raises(StoreSchema, match="LATIN1"):
            await open_store(postgres_url.rsplit("/", 1)[0] + "/tollhouse_latin")
    finally:
        async with looking(postgres_url) as connection:
            await connection.execute("DROP DATABASE tollhouse_latin")


async def test_without_kept_statements_the_store_works_behind_a_pooler(postgres_url: str) -> None:
    """In that mode nothing is set or kept on a connection; writes, batches and readings give the same answers."""
    async with opened(f"{postgres_url}?schema=pooled", statement_cache=False) as store:
        for write in effect("call"):
            assert await store.write(write) == APPLIED
        assert await asyncio.gather(*(store.write(departure(f"call-{n}")) for n in range(12))) == [APPLIED] * 12
        assert await store.count(TENANT) == {State.SUCCEEDED: 1, State.DEPARTED: 12}
        async with looking(postgres_url) as connection:
            names = await connection.fetch(
                "SELECT DISTINCT application_name FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            assert [row["application_name"] for row in names] == [""]


async def test_a_migration_beside_a_running_store_disturbs_nobody(postgres_url: str) -> None:
    """Statements that were planned before a column came, or a type changed, go on without an error."""
    async with opened(postgres_url) as store, looking(postgres_url) as connection:
        for number, change in enumerate(("ADD COLUMN note text", "ALTER COLUMN round TYPE bigint", "DROP COLUMN note")):
            for write in effect(f"call-{number}"):
                assert await store.write(write) == APPLIED
            assert await store.get(TENANT, f"call-{number}") is not None
            await connection.execute(f"ALTER TABLE calls {change}")
        assert await asyncio.gather(*(store.write(departure(f"late-{n}")) for n in range(12))) == [APPLIED] * 12
        assert await store.count(TENANT) == {State.SUCCEEDED: 3, State.DEPARTED: 12}
        assert (await store.get(TENANT, "call-0")) is not None
