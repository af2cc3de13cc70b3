"""The schema of an SQLite ledger: how it comes about, what it enforces, which releases work with it."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tollhouse.errors import StoreSchema
from tollhouse.ledger.events import first_break
from tollhouse.ledger.lifecycle import TRANSITIONS
from tollhouse.ledger.record import SETTLED, State
from tollhouse.ledger.store import Query
from tollhouse.stores import check, open_store, upgrade
from tollhouse.stores.common.migrations import Migration, Schema, schema_text
from tollhouse.stores.sqlite import schema
from tollhouse.stores.sqlite.statements import calls, events, owners

from .sqlite_ledger import arrival, departure, held, look, opened

LATEST = schema.SCHEMA.latest
NAMES = [migration.name for migration in schema.SCHEMA.migrations]
NEXT = LATEST + 1
LABELS = f"{NEXT:04}_labels"
LATER = Migration(NEXT, LABELS, "ALTER TABLE calls ADD COLUMN label TEXT;")


def url_in(folder: Path) -> str:
    """The ledger's URL."""
    return f"sqlite:///{folder}/ledger.db"


def shape(connection: sqlite3.Connection) -> dict[str, Any]:
    """Tables with their columns, indexes with theirs, and the text of triggers and checks."""
    found: dict[str, Any] = {}
    for kind, name, sql in connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall():
        found[f"{kind} {name}"] = re.sub(r"\s+", " ", re.sub(r"--.*", "", sql or ""))
        if kind == "table":
            found[f"columns of {name}"] = connection.execute(f"PRAGMA table_xinfo({name})").fetchall()
    return found


def test_schema_file_equals_all_migrations() -> None:
    """`schema.sql` is for reading, so it must not lie."""
    with (
        contextlib.closing(sqlite3.connect(":memory:")) as told,
        contextlib.closing(sqlite3.connect(":memory:")) as grown,
    ):
        told.executescript(schema_text("tollhouse.stores.sqlite"))
        for migration in schema.SCHEMA.migrations:
            grown.executescript(migration.sql)
        assert shape(told) == shape(grown)


def test_constraint_knows_exactly_the_states_of_the_lifecycle() -> None:
    """The table of the lifecycle and the schema name the same states."""
    constraint = re.search(r"CHECK \(state IN \(([^)]*)\)", schema_text("tollhouse.stores.sqlite"))
    assert constraint is not None
    in_table = {state for row in TRANSITIONS for state in (row.source, *row.targets) if state is not None}
    assert set(re.findall(r"'(\w+)'", constraint[1])) == in_table == set(State)


def test_constraint_knows_exactly_the_settled_states() -> None:
    """A settled call holds no place in the repeat check, in the schema as in the rules."""
    constraint = re.search(r"CHECK \(state NOT IN \(([^)]*)\) OR repeat_slot", schema_text("tollhouse.stores.sqlite"))
    assert constraint is not None
    assert set(re.findall(r"'(\w+)'", constraint[1])) == SETTLED


@pytest.mark.parametrize(
    "change",
    ["state = 'lost'", "open_owners = NULL", "version = 0", "contradicted = 2", "updated_at_us = created_at_us - 1"],
)
async def test_impossible_call_is_refused_by_the_database(tmp_path: Path, change: str) -> None:
    """What no rule may write, no bug and no shell can: the constraints hold the invariants."""
    async with opened(tmp_path) as store:
        await store.write(departure("k1"))
        with pytest.raises(sqlite3.IntegrityError):
            look(tmp_path, f"UPDATE calls SET {change}")


@pytest.mark.parametrize(
    "statement", ["DELETE FROM events", "UPDATE events SET kind = 'x'", "UPDATE events SET seq = 9"]
)
async def test_history_cannot_be_changed_or_deleted(tmp_path: Path, statement: str) -> None:
    """Events are only ever appended."""
    async with opened(tmp_path) as store:
        await store.write(departure("k1"))
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            look(tmp_path, statement)


async def test_payload_of_an_event_can_be_erased(tmp_path: Path) -> None:
    """A person's data may go; the chain covers its digest only."""
    async with opened(tmp_path) as store:
        await store.write(departure("k1"))
        look(tmp_path, "UPDATE events SET data = ''")
        history = await store.events("t1", "call:k1")
        assert [event.data for event in history] == [""]
        assert first_break(history) is None


async def test_empty_database_is_created_once_by_many_openers(tmp_path: Path) -> None:
    """Whoever comes second finds the schema there."""
    stores = await asyncio.gather(*(open_store(url_in(tmp_path)) for _ in range(5)))
    assert look(tmp_path, "SELECT value FROM meta WHERE name = 'schema_version'") == [(str(LATEST),)]
    for store in stores:
        await store.close()


async def test_check_tells_how_the_schema_stands_and_creates_nothing(tmp_path: Path) -> None:
    """A missing file is empty; an up-to-date one lacks nothing."""
    report = await check(url_in(tmp_path))
    assert (report.version, report.pending, report.usable) == (None, tuple(NAMES), True)
    assert list(tmp_path.iterdir()) == []
    assert await upgrade(url_in(tmp_path)) == NAMES
    report = await check(url_in(tmp_path))
    assert (report.version, report.latest, report.pending, report.usable) == (LATEST, LATEST, (), True)


async def test_upgrade_applies_what_is_missing_and_twice_is_harmless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names of what was applied are the answer; the second time there is nothing to do."""
    async with opened(tmp_path) as store:
        await store.write(departure("k1"))
        monkeypatch.setattr(schema, "SCHEMA", Schema((*schema.SCHEMA.migrations, LATER)))
        assert (await check(url_in(tmp_path))).pending == (LABELS,)
        assert await upgrade(url_in(tmp_path)) == [LABELS]
        assert await upgrade(url_in(tmp_path)) == []
        # The release before, still running, goes on: the migration only expands.
        (answer,) = await store.write(departure("k2"))
        assert answer.applied


async def test_ledger_upgraded_by_a_later_release_still_opens_above_its_floor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old and new releases run beside each other until a migration contracts."""
    with monkeypatch.context() as later_release:
        later_release.setattr(schema, "SCHEMA", Schema((*schema.SCHEMA.migrations, LATER)))
        await upgrade(url_in(tmp_path))
    async with opened(tmp_path) as store:
        assert (await store.write(departure("k1")))[0].applied


async def test_ledger_of_an_earlier_release_works_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is upgraded unasked: at or above the floor an older schema is used as it stands."""
    async with opened(tmp_path):
        pass
    monkeypatch.setattr(schema, "SCHEMA", Schema((*schema.SCHEMA.migrations, LATER)))
    async with opened(tmp_path):
        assert look(tmp_path, "SELECT value FROM meta WHERE name = 'schema_version'") == [(str(LATEST),)]


async def test_ledger_below_the_floor_is_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The remedy is the upgrade, which then works."""
    async with opened(tmp_path):
        pass
    monkeypatch.setattr(schema, "SCHEMA", Schema((*schema.SCHEMA.migrations, LATER), oldest_usable=NEXT))
    assert not (await check(url_in(tmp_path))).usable
    with pytest.raises(StoreSchema, match="too old") as refused:
        await open_store(url_in(tmp_path))
    assert "db upgrade" in refused.value.remedy
    await upgrade(url_in(tmp_path))
    async with opened(tmp_path):
        pass


async def test_ledger_contracted_by_a_later_release_is_too_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its floor is above what this release knows; neither opening nor upgrading touches it."""
    with monkeypatch.context() as later_release:
        contracting = replace(LATER, min_release_schema=NEXT)
        later_release.setattr(schema, "SCHEMA", Schema((*schema.SCHEMA.migrations, contracting)))
        await upgrade(url_in(tmp_path))
    for attempt in (open_store, upgrade):
        with pytest.raises(StoreSchema, match="too new"):
            await attempt(url_in(tmp_path))


async def test_failed_migration_leaves_the_schema_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each migration is applied whole or not at all."""
    async with opened(tmp_path):
        pass
    broken = Migration(NEXT, f"{NEXT:04}_broken", "CREATE TABLE half (x TEXT);\nCREATE TABLE calls (x TEXT);")
    monkeypatch.setattr(schema, "SCHEMA", Schema((*schema.SCHEMA.migrations, broken)))
    with pytest.raises(StoreSchema):
        await upgrade(url_in(tmp_path))
    assert look(tmp_path, "SELECT name FROM sqlite_master WHERE name = 'half'") == []


@pytest.mark.parametrize("table", ["calls (x)", "meta (x)", "meta (name, value)"])
async def test_database_of_another_application_is_left_alone(tmp_path: Path, table: str) -> None:
    """A table of a name that the ledger needs, and not the ledger's, is never written."""
    look(tmp_path, f"CREATE TABLE {table}")
    with pytest.raises(StoreSchema):
        await open_store(url_in(tmp_path))
    assert len(look(tmp_path, "SELECT name FROM sqlite_master")) == 1


FIND: dict[str, tuple[dict[str, object], str]] = {
    "any": ({}, "calls_created"),
    "in doubt": ({"state": "in_doubt"}, "calls_rare"),
    "departed": ({"state": "departed"}, "calls_open_owners"),
    "succeeded": ({"state": "succeeded"}, "calls_created"),
    "contradicted": ({"contradicted": True}, "calls_contradicted"),
}
PLANS = {
    **{f"find {name}": (calls.find(terms, after=True), index) for name, (terms, index) in FIND.items()},
    "due": (calls.due(2, 1), "calls_due"),
    "orphans": (calls.ORPHANS, "calls_open_owners"),
    "open owners": (calls.OPEN_OWNERS, "COVERING INDEX calls_open_owners"),
    "count all": (calls.COUNT_ALL, "COVERING INDEX"),
    "count rare": (calls.COUNT_RARE, "COVERING INDEX calls_rare"),
    "twin": (calls.INSERT_UNLESS_TWIN, "calls_twins"),
    "slot": (calls.SLOT, "calls_repeat_slot"),
    "get": (calls.GET, "sqlite_autoindex_calls_1"),
    "written by": (events.WRITTEN_BY, "sqlite_autoindex_events_1"),
    "expired": (owners.EXPIRED, "owners_live"),
}


@pytest.mark.parametrize("name", PLANS)
def test_statement_walks_its_index(name: str) -> None:
    """No reading goes through all calls: a partial index is used only while conditions repeat its own."""
    statement, index = PLANS[name]
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(schema_text("tollhouse.stores.sqlite"))
        values = (None,) * statement.count("?")
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values).fetchall()]
    assert any(index in step for step in plan), plan
    assert not any(step.startswith("SCAN calls") or "TEMP B-TREE" in step for step in plan if name != "find departed")


async def test_counts_add_up_over_rare_and_common_states(tmp_path: Path) -> None:
    """Counting reads indexes only; the common state is what is left."""
    async with opened(tmp_path) as store:
        for key in ("a", "b", "c"):
            first = departure(key)
            await store.write(first)
            if key != "c":
                await store.write(arrival(first))
        await store.write(held("d"))
        assert await store.count("t1") == {State.SUCCEEDED: 2, State.DEPARTED: 1, State.HELD: 1}
        for state in (State.SUCCEEDED, State.DEPARTED, State.HELD):
            found = await store.find("t1", Query(state=state))
            assert {record.state for record in found} == {state}
