"""Runs in SQLite: what the schema enforces, which indexes serve them, and how their writes share commits."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stores.sqlite_ledger import OWNER, TENANT, arrival, departure, look, opened
from tollhouse.errors import StoreSchema
from tollhouse.ledger.run_record import RUN_COLUMNS, RunRefusal, run_stream
from tollhouse.runs.states import FINISHED, RunState
from tollhouse.stores.common.migrations import schema_text
from tollhouse.stores.sqlite.statements import runs
from tollhouse.testing.conformance.run_story import RUN, begin, claim, finish, put

PAUSED = 100_000
FILL = f"""
    WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {PAUSED})
    INSERT INTO runs SELECT 't1', 'p' || n, 'concierge', 'v1', 'local', 'awaiting_approval', 3, NULL, 'k' || n, 'd',
        'th' || n, NULL, NULL, NULL, 1, 'rita', n, n, NULL, 0, 3, 'h', '{{}}' FROM numbers
"""


def test_the_constraints_know_exactly_the_states_of_the_table() -> None:
    """States, finished states and columns are those of runs."""
    text = schema_text("tollhouse.stores.sqlite")
    table = text[text.index("CREATE TABLE runs") :]
    states, running, finished = re.findall(r"CHECK \(\(?state (?:IN \(([^)]*)\)|(= 'running'))", table)[:3]
    assert set(re.findall(r"'(\w+)'", states[0])) == set(RunState)
    assert running[1] == f"= '{RunState.RUNNING}'"
    assert set(re.findall(r"'(\w+)'", finished[0])) == FINISHED
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(text)
        columns = [row[1] for row in connection.execute("PRAGMA table_info(runs)").fetchall()]
        assert sorted(columns) == sorted(RUN_COLUMNS)


async def test_a_ledger_without_the_tables_of_runs_says_what_to_do(tmp_path: Path) -> None:
    """One of the release before works on; runs in it need the upgrade."""
    async with opened(tmp_path) as store:
        look(tmp_path, "DROP TABLE runs")
        for asked in (store.run(TENANT, RUN), store.write_run(begin()), store.runs_to_take(TENANT, "local", 1)):
            with pytest.raises(StoreSchema) as caught:
                await asked
            assert "db upgrade" in caught.value.remedy
        assert (await store.write(departure("k1")))[0].applied


async def test_history_of_a_run_cannot_be_deleted(tmp_path: Path) -> None:
    """Not even beside a purged call whose key looks like the rest of its stream's name."""
    async with opened(tmp_path) as store:
        await put(store, begin())
        first = departure(run_stream(RUN)[5:])
        await store.write(first)
        await store.write(arrival(first))
        look(tmp_path, "UPDATE calls SET head_seq = 0")
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            look(tmp_path, f"DELETE FROM events WHERE stream = '{run_stream(RUN)}'")


async def test_writes_of_runs_and_calls_share_a_commit(tmp_path: Path) -> None:
    """Whatever has gathered goes into one transaction; a refused run leaves the calls their quick way."""
    async with opened(tmp_path) as store:
        await put(store, begin("taken"))
        before = store.counters.commits
        with store._connections.writer.lock:  # the writer's turn, so that everything queues up first
            writing = [
                *(asyncio.ensure_future(store.write_run(begin(f"run_{n}"))) for n in range(5)),
                asyncio.ensure_future(store.write_run(begin("taken"))),
                *(asyncio.ensure_future(store.write(departure(f"k{n}"))) for n in range(5)),
            ]
            while len(store._writer._queue) < 10:  # noqa: ASYNC110 - nothing signals the length of a queue
                await asyncio.sleep(0)
        answers = await asyncio.gather(*writing)
        assert [answer for answer in answers if getattr(answer, "refusal", None) is RunRefusal.EXISTS] == [answers[5]]
        assert store.counters.commits <= before + 2
        assert store.counters.bisections == 0


async def test_what_changes_nothing_costs_no_commit(tmp_path: Path) -> None:
    """A refused write, a repeat, and wakes that are not there."""
    async with opened(tmp_path) as store:
        write = begin()
        await put(store, write)
        before = store.counters.commits
        await store.write_run(write)
        await store.write_run(begin())
        await store.forget_wakes(TENANT, RUN)
        await store.wake(TENANT, "run_2")
        assert store.counters.commits == before
        await store.wake(TENANT, RUN)
        await store.wake(TENANT, RUN)
        assert store.counters.commits == before + 1


PLANS = {
    "take": (runs.take(None), {"runs_due", "wakes_arrived", "runs_owner", "sqlite_autoindex_runs_1"}),
    "take of agents": (runs.take(2), {"runs_due", "wakes_arrived", "runs_owner", "sqlite_autoindex_runs_1"}),
    "get": (runs.GET, {"sqlite_autoindex_runs_1"}),
    "of start": (runs.OF_START, {"runs_start_key"}),
    "in thread": (runs.IN_THREAD, {"runs_busy_thread"}),
    "owned": (runs.OWNED, {"runs_owner"}),
    "count rare": (runs.COUNT_RARE, {"COVERING INDEX runs_rare"}),
    "count all": (runs.COUNT_ALL, {"COVERING INDEX"}),
    "update": (runs.UPDATE, {"sqlite_autoindex_runs_1"}),
    "find newest": (runs.find({}, after=True), {"runs_created"}),
    "find in a state": (runs.find({"state": "failed"}, after=True), {"runs_rare"}),
    "find in a thread": (runs.find({"thread": "t"}, after=True), {"runs_thread"}),
    "find children": (runs.find({"parent_run_id": "r"}, after=True), {"runs_parent"}),
    "find reruns": (runs.find({"source_run_id": "r"}, after=True), {"runs_source"}),
    "definitions": (runs.DEFINITIONS_NAMED, {"definitions_name"}),
}


@pytest.fixture(scope="module")
def crowd() -> Iterator[sqlite3.Connection]:
    """100,000 paused runs, two of them woken, and statistics that tell SQLite so."""
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(schema_text("tollhouse.stores.sqlite"))
        connection.execute(FILL)
        connection.execute("INSERT INTO wakes VALUES ('t1', 'p7', 1), ('t1', 'p8', 1)")
        yield connection


@pytest.mark.parametrize("analysed", [False, True])
@pytest.mark.parametrize("name", PLANS)
def test_statement_walks_its_index(crowd: sqlite3.Connection, name: str, *, analysed: bool) -> None:
    """No reading goes through all runs, whether or not SQLite knows how many there are."""
    crowd.execute("ANALYZE" if analysed else "DROP TABLE IF EXISTS sqlite_stat1")
    statement, indexes = PLANS[name]
    named = set(re.findall(r":(\w+)", statement))
    values = dict.fromkeys(named) if named else (None,) * statement.count("?")
    plan = [row[3] for row in crowd.execute(f"EXPLAIN QUERY PLAN {statement}", values).fetchall()]
    for index in indexes:
        assert any(index in step for step in plan), plan
    assert not [step for step in plan if re.match(r"SCAN (runs|r|wakes|w|o|owners)\b", step)], plan


def test_paused_runs_cost_a_driver_nothing(crowd: sqlite3.Connection) -> None:
    """What it is given is found in a few steps of SQLite's machine, of which a walk would take millions."""
    crowd.execute("DROP TABLE IF EXISTS sqlite_stat1")
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    crowd.set_progress_handler(step, 1)
    values = {"tenant": "t1", "driver": "local", "now_us": 10**15, "limit": 10}
    found = crowd.execute(runs.take(None), values).fetchall()
    crowd.set_progress_handler(None, 0)
    assert [row[1] for row in found] == ["p7", "p8"]
    assert steps < PAUSED / 50


async def test_the_end_of_a_run_takes_its_wakes_away(tmp_path: Path) -> None:
    """Nothing is left behind for drivers to step over."""
    async with opened(tmp_path) as store:
        claimed = await put(store, claim(await put(store, begin()), OWNER))
        await store.wake(TENANT, RUN)
        assert look(tmp_path, "SELECT tenant, run_id FROM wakes") == [(TENANT, RUN)]
        await put(store, finish(claimed))
        assert look(tmp_path, "SELECT * FROM wakes") == []
