"""Runs in PostgreSQL: lost acknowledgements, wakes that meet their readers, and plans with 100,000 paused runs."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
import pytest_asyncio
from asyncpg.prepared_stmt import PreparedStatement

from tests.stores.postgres_ledger import SOMEBODY_WAITS, TENANT, effect, looking, opened, registered, until
from tollhouse.errors import StoreSchema
from tollhouse.ledger.run_record import RUN_COLUMNS, RunRefusal, RunWritten, run_stream
from tollhouse.runs.states import FINISHED, RunState
from tollhouse.stores.postgres.link import session_settings
from tollhouse.stores.postgres.runs import statement_of
from tollhouse.stores.postgres.statements import runs
from tollhouse.stores.postgres.target import parse
from tollhouse.testing.conformance.run_story import RUN, begin, claim, finish, ids, pause, paused, put, running
from tollhouse.testing.conformance.story import Story
from tollhouse.testing.pgwire import Variant
from tollhouse.testing.proxy import Proxy

pytestmark = pytest.mark.postgres

VARIANTS = pytest.mark.parametrize("variant", ["applied", "not_applied"])
PAUSED = 100_000
FILL = f"""
    INSERT INTO runs SELECT 't1', 'p' || n, 'concierge', 'v1', 'local', 'awaiting_approval', 3, NULL, 'k' || n, 'd',
        'th' || n, NULL, NULL, NULL, 1, 'rita', n, n, NULL, false, 3, 'h', '{{}}' FROM generate_series(1, {PAUSED}) n
"""
OWNERS = """
    INSERT INTO owners SELECT 't1', 'gone' || n, 'h', 1, 's', 'l', 0, 0, 1, false FROM generate_series(1, 5000) n
"""
READ = (
    "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint FROM pg_stat_xact_user_tables"
    " WHERE relname IN ('runs', 'wakes', 'owners', 'events')"
)


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[Proxy]:
    """A network between the store and its server that can be broken."""
    parts = urlsplit(postgres_url)
    assert parts.hostname
    assert parts.port
    with Proxy(parts.hostname, parts.port) as broken:
        yield broken


async def test_the_constraints_know_exactly_the_states_of_the_table(postgres_url: str) -> None:
    """States, finished states and columns are those of runs."""
    async with opened(postgres_url), looking(postgres_url) as connection:
        found = await connection.fetch(
            "SELECT conname, pg_get_constraintdef(oid) AS text FROM pg_constraint WHERE conrelid = 'runs'::regclass"
        )
        checks = {row["conname"]: re.findall(r"'(\w+)'", row["text"]) for row in found}
        assert set(checks["runs_state"]) == set(RunState)
        assert set(checks["runs_sound"]) == FINISHED | {RunState.RUNNING}
        columns = await connection.fetch("SELECT column_name FROM information_schema.columns WHERE table_name = 'runs'")
        assert sorted(row["column_name"] for row in columns) == sorted(RUN_COLUMNS)


async def test_a_ledger_without_the_tables_of_runs_says_what_to_do(postgres_url: str) -> None:
    """One of the release before works on; runs in it need the upgrade."""
    async with opened(postgres_url) as store, looking(postgres_url) as connection:
        await connection.execute("DROP TABLE runs")
        for asked in (store.run(TENANT, RUN), store.write_run(begin()), store.runs_to_take(TENANT, "local", 1)):
            with pytest.raises(StoreSchema) as caught:
                await asked
            assert "db upgrade" in caught.value.remedy


async def test_history_of_a_run_cannot_be_deleted(postgres_url: str) -> None:
    """Not even beside a purged call whose key looks like the rest of its stream's name."""
    async with opened(postgres_url) as store, looking(postgres_url) as connection:
        await put(store, begin())
        for write in effect(run_stream(RUN)[5:]):
            await store.write(write)
        await connection.execute("UPDATE calls SET head_seq = 0")
        with pytest.raises(asyncpg.RestrictViolationError):
            await connection.execute("DELETE FROM events WHERE stream = $1", run_stream(RUN))
        await connection.execute("DELETE FROM events WHERE stream LIKE 'call:%'")


# -- lost acknowledgements -------------------------------------------------------------------------------------------


# case C71
@VARIANTS
async def test_a_start_whose_answer_is_lost_is_made_once(postgres_url: str, proxy: Proxy, variant: Variant) -> None:
    """Whether the server had committed or never saw it: the caller hears *applied*, and there is one run."""
    async with opened(proxy.through(postgres_url)) as store:
        write = begin(start_key="k", thread="t")
        trap = proxy.lose_next_ack("INSERT INTO runs", variant=variant)
        assert (await store.write_run(write)).applied
        assert trap.sprung
        assert await store.run(TENANT, RUN) == write.record
        assert len(await store.events(TENANT, run_stream(RUN))) == 1


# case C71
@VARIANTS
async def test_a_step_whose_answer_is_lost_is_made_once(postgres_url: str, proxy: Proxy, variant: Variant) -> None:
    """The version that is gone was replaced by this very write, and its history shows it once."""
    async with opened(proxy.through(postgres_url)) as store:
        claimed = await running(store)
        trap = proxy.lose_next_ack("UPDATE runs", variant=variant)
        write = finish(claimed)
        assert (await store.write_run(write)).applied
        assert trap.sprung
        assert await store.run(TENANT, RUN) == write.record
        assert [event.seq for event in await store.events(TENANT, run_stream(RUN))] == [1, 2, 3]


# case C71
async def test_after_a_lost_answer_a_rival_may_have_won(postgres_url: str, proxy: Proxy) -> None:
    """The claim never reached the server and somebody else took the run meanwhile: refused, not *applied*."""
    async with opened(proxy.through(postgres_url)) as store, opened(postgres_url, register=False) as rival:
        await registered(rival, "own_b")
        started = await put(store, begin())
        proxy.lose_next_ack("UPDATE runs", variant="not_applied")
        proxy.refuse()
        writing = asyncio.ensure_future(store.write_run(claim(started)))
        theirs = await put(rival, claim(started, "own_b"))
        proxy.pass_through()
        assert await writing == RunWritten(RunRefusal.STALE, theirs)


# case C71
@VARIANTS
async def test_a_wake_whose_answer_is_lost_is_one_wake(postgres_url: str, proxy: Proxy, variant: Variant) -> None:
    """Repeated, it finds itself."""
    async with opened(proxy.through(postgres_url)) as store:
        await paused(store)
        trap = proxy.lose_next_ack("INSERT INTO wakes", variant=variant)
        await store.wake(TENANT, RUN)
        assert trap.sprung
        assert ids(await store.runs_to_take(TENANT, "local", 10)) == [RUN]
        await store.forget_wakes(TENANT, RUN)
        assert await store.runs_to_take(TENANT, "local", 10) == []


# -- races -----------------------------------------------------------------------------------------------------------


async def test_whoever_forgets_wakes_waits_for_a_move_under_way(postgres_url: str) -> None:
    """The run was woken before; a second call moves while a driver forgets: the driver then sees it, or is woken."""
    async with opened(postgres_url) as store, looking(postgres_url) as behind:
        await paused(store)
        await store.wake(TENANT, RUN)
        (held,) = Story.of(key="call", scope=RUN).hold().writes
        await store.write(held)
        async with behind.transaction():
            await behind.execute("UPDATE calls SET state = 'ready' WHERE key = 'call'")
            forgetting = asyncio.ensure_future(store.forget_wakes(TENANT, RUN))
            async with looking(postgres_url) as watching:
                await until(watching, SOMEBODY_WAITS)
            assert not forgetting.done()
        await forgetting
        call = await store.get(TENANT, "call")
        assert call is not None
        assert call.state == "ready"


async def test_no_claim_is_committed_after_the_end_of_its_owner(postgres_url: str) -> None:
    """A claim that meets the end of its owner waits for it, and is refused."""
    async with opened(postgres_url) as store, looking(postgres_url) as behind:
        started = await put(store, begin())
        async with behind.transaction():
            await behind.execute("UPDATE owners SET ended_at_us = 1 WHERE id IN (SELECT id FROM owners FOR UPDATE)")
            claiming = asyncio.ensure_future(store.write_run(claim(started)))
            async with looking(postgres_url) as watching:
                await until(watching, SOMEBODY_WAITS)
            assert not claiming.done()
        assert await claiming == RunWritten(RunRefusal.OWNER, started)


async def test_runs_work_where_every_transaction_meets_another_connection(postgres_url: str) -> None:
    """Nothing is kept on a connection, as behind a pooler in transaction mode."""
    async with opened(f"{postgres_url}?schema=pooled", statement_cache=False) as store:
        starts = [begin(f"run_{n}", start_key=f"k{n // 2}") for n in range(12)]
        answers = await asyncio.gather(*map(store.write_run, starts))
        assert sum(answer.applied for answer in answers) == 6
        for record in await store.runs_to_take(TENANT, "local", 100):
            await put(store, pause(await put(store, claim(record))))
            await store.wake(TENANT, record.id)
        assert len(await store.runs_to_take(TENANT, "local", 100)) == 6
        assert await store.count_runs(TENANT) == {"awaiting_approval": 6}


# -- plans -----------------------------------------------------------------------------------------------------------


@pytest_asyncio.fixture
async def crowd(postgres_url: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """A session like the store's. Nothing tells the server what the tables hold, so plans of empty ones stay."""
    async with opened(postgres_url), looking(postgres_url, session_settings(parse(postgres_url), 60)) as connection:
        for table in ("runs", "wakes", "owners"):
            await connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
        yield connection


def _asked() -> dict[str, tuple[str, Sequence[Any]]]:
    """Statements that run all the time, with values that find something."""
    claimed = claim(begin("p7").record)
    return {
        "take": (runs.TAKE, (TENANT, "local", 10, None)),
        "take of agents": (runs.TAKE, (TENANT, "local", 10, ["concierge"])),
        "get": (runs.GET, (TENANT, "p7")),
        "of start": (runs.OF_START, (TENANT, "k7")),
        "in thread": (runs.IN_THREAD, (TENANT, "th7")),
        "owned": (runs.OWNED, (TENANT, "own_a", 10)),
        "forget wakes": (runs.FORGET_WAKES, (TENANT, "p7")),
        "wake": (runs.WAKE, (TENANT, "p7")),
        "insert": statement_of(begin("new", start_key="new", thread="new", by="own_a")),
        "update": statement_of(claimed),
        "finish": statement_of(finish(claimed.record)),
        "find in a state": (runs.find(("state",), rare=True, after=False), (TENANT, "awaiting_approval", 10)),
        "find by start": (runs.find(("thread",), rare=False, after=False), (TENANT, "th7", 10)),
        "find children": (runs.find(("parent_run_id",), rare=False, after=False), (TENANT, "p7", 10)),
        "find reruns": (runs.find(("source_run_id",), rare=False, after=False), (TENANT, "p7", 10)),
        "find newest": (runs.find((), rare=False, after=True), (TENANT, 10, 50_000, "p")),
    }


async def test_paused_runs_cost_nothing(crowd: asyncpg.Connection[asyncpg.Record]) -> None:
    """With 100,000 of them nothing reads more than a few rows, though it was planned for empty tables."""
    asked = _asked()
    planned = {name: await crowd.prepare(text.replace("@", "")) for name, (text, _) in asked.items()}
    for name, statement in planned.items():
        await _rows_read(crowd, statement, asked[name][1])
    await crowd.execute(FILL)
    await crowd.execute(OWNERS)
    await crowd.execute("INSERT INTO wakes VALUES ('t1', 'p7', 1), ('t1', 'p8', 1)")
    read = {name: await _rows_read(crowd, statement, asked[name][1]) for name, statement in planned.items()}
    assert {name: number for name, number in read.items() if number > 60} == {}
    assert [row["id"] for row in await planned["take"].fetch(*asked["take"][1])] == ["p7", "p8"]


async def test_look_up_by_id_goes_by_the_primary_key(crowd: asyncpg.Connection[asyncpg.Record]) -> None:
    """To a plan for the empty table the index of ages looks as good, and would be walked from end to end later."""
    asked = _asked()
    for name in ("get", "update", "finish", "take"):
        text, values = asked[name]
        lines = [line for (line,) in await crowd.fetch(f"EXPLAIN {text.replace('@', '')}", *values)]
        assert any("using runs_pkey" in line for line in lines), name
        assert not [line for line in lines if "runs_created" in line], name


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


@pytest.mark.parametrize("analysed", [False, True])
async def test_drivers_look_through_indexes_only(crowd: asyncpg.Connection[asyncpg.Record], *, analysed: bool) -> None:
    """Whether or not the server knows what the tables hold."""
    await crowd.execute(FILL)
    await crowd.execute(OWNERS)
    if analysed:
        await crowd.execute("ANALYZE runs; ANALYZE wakes; ANALYZE owners")
    statement = await crowd.prepare(runs.TAKE.replace("@", ""))
    (plan,) = json.loads(json.dumps(await statement.explain("t1", "local", 10, None)))
    nodes = list(_nodes(plan["Plan"]))
    indexes = {node["Index Name"] for node in nodes if "Index Name" in node}
    assert {"runs_due", "runs_owner", "wakes_arrived", "runs_pkey", "owners_pkey"} <= indexes
    scanned = {node.get("Relation Name") for node in nodes if node["Node Type"] == "Seq Scan"}
    assert scanned <= {"clock"}


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from _nodes(below)
