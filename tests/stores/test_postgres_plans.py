"""Plans are kept for the life of a connection, so those made for an empty table must serve the full one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import asyncpg
import pytest
from asyncpg.prepared_stmt import PreparedStatement

from tests.stores.postgres_ledger import TENANT, looking, opened
from tollhouse.ledger.store import RepeatCheck, Write
from tollhouse.stores.postgres import rows
from tollhouse.stores.postgres.link import session_settings
from tollhouse.stores.postgres.statements import calls, events, owners
from tollhouse.stores.postgres.target import parse
from tollhouse.testing.conformance.story import Story

pytestmark = pytest.mark.postgres

ROWS = 5_000
FILL = f"""
    INSERT INTO calls SELECT 't1', 'k' || n, 'w', 'issue_credit', 'external', 'run-' || n % 50, NULL, 'd', '{{}}',
        'rita', n, 'd' || n, '{{}}', CASE WHEN n % 500 = 0 THEN 'in_doubt' ELSE 'succeeded' END::call_state, 2, 1, 1,
        CASE WHEN n % 250 = 0 THEN 'own_a' END, CASE WHEN n % 500 = 0 THEN n END, false, false, NULL, n, 2, 'h', '{{}}',
        NULL FROM generate_series(1, {ROWS}) n
"""
READ = (
    "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint FROM pg_stat_xact_user_tables"
    " WHERE relname IN ('calls', 'events', 'owners')"
)
HISTORIES = f"""
    INSERT INTO events SELECT 't1', 'call:k' || n, s, n, 'departed', '{{}}', '', '', '', 'w' || n
        FROM generate_series(1, {ROWS}) n, generate_series(1, 2) s
"""


def _ended(key: str) -> Write:
    """The outcome of a call of the filled table."""
    write = Story.of(key=key).depart().end_wait().writes[1]
    event = replace(write.events[0], seq=3)
    return replace(write, expected=2, events=(event,))


def _running() -> dict[str, tuple[str, Sequence[Any]]]:
    """Statements that run all the time, each with values that find something."""
    updates = [rows.item_of(_ended(f"k{n}")) for n in range(1, 9)]
    inserts = [rows.item_of(Story.of(key=f"new-{n}").depart().writes[0]) for n in range(8)]
    text, arrays = rows.many(updates)
    new_text, new_arrays = rows.many(inserts)
    check = RepeatCheck("run-1", "issue_credit", "d1", None, 10**15)
    checked = [replace(insert, write=replace(insert.write, repeat=check)) for insert in inserts]
    checked_text, checked_arrays = rows.many(checked)
    repeat = ("run-1", "issue_credit", "d1", None, 10**15)
    return {
        "update one": updates[6].single,
        "update many": (text, arrays),
        "insert one": inserts[0].single,
        "insert many": (new_text, new_arrays),
        "insert one, no twin": checked[0].single,
        "insert many, no twins": (checked_text, checked_arrays),
        "get": (calls.GET, (TENANT, "k7")),
        "fence": (calls.FENCE, (TENANT, "k7")),
        "standing": (calls.STANDING, ([0], [TENANT], ["k7"], ["call:k7"], ["w7"])),
        "twin": (calls.TWIN, (TENANT, *repeat)),
        "history": (events.AFTER, (TENANT, "call:k7", 0, 10)),
        "due": (calls.DUE, (TENANT, 10, None, None)),
        "open owners": (calls.OPEN_OWNERS, (TENANT,)),
        "orphans": (calls.ORPHANS, (TENANT, "own_a", 10)),
        "live": (owners.IS_LIVE, (TENANT, "own_a")),
    }


@pytest.mark.parametrize("analysed_empty", [False, True])
async def test_plans_of_the_empty_table_serve_the_full_one(postgres_url: str, *, analysed_empty: bool) -> None:
    """No statement of the hot path or of a sweep reads more than a few rows, though it was planned for none."""
    async with opened(postgres_url), looking(postgres_url, session_settings(parse(postgres_url), 60)) as connection:
        # What a server does within a minute by itself would hide the trap.
        for table in ("calls", "events"):
            await connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
        if analysed_empty:
            await connection.execute("ANALYZE calls; ANALYZE events; ANALYZE owners")
        await connection.execute("SELECT 1")
        values = _running()
        planned = {name: await connection.prepare(text.replace("@", "")) for name, (text, _) in values.items()}
        for name, statement in planned.items():
            assert await _rows_read(connection, statement, values[name][1]) <= 2, name
        await connection.execute(FILL)
        await connection.execute(HISTORIES)
        read = {name: await _rows_read(connection, statement, values[name][1]) for name, statement in planned.items()}
        assert {name: number for name, number in read.items() if number > ROWS / 50} == {}
        assert read["update many"] >= 8


async def test_look_up_by_key_goes_by_the_primary_key(postgres_url: str) -> None:
    """To a plan for the empty table another index looks as good, and would be walked from end to end later."""
    async with opened(postgres_url), looking(postgres_url, session_settings(parse(postgres_url), 60)) as connection:
        values = _running()
        for name in ("update one", "update many", "get", "fence", "standing"):
            text, bound = values[name]
            lines = await connection.fetch(f"EXPLAIN {text.replace('@', '')}", *bound)
            used = {line.split(" using ")[1].split(" ")[0] for (line,) in lines if " using calls" in line}
            assert used == {"calls_pkey"}, name


async def _rows_read(
    connection: asyncpg.Connection[asyncpg.Record], statement: PreparedStatement[asyncpg.Record], values: Sequence[Any]
) -> int:
    """How many rows of our tables the server looked at for this statement, whose effects are undone."""
    transaction = connection.transaction()
    await transaction.start()
    before: int = await connection.fetchval(READ)
    await statement.fetch(*values)
    after: int = await connection.fetchval(READ)
    await transaction.rollback()
    return after - before
