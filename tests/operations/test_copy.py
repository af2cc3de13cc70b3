"""A ledger moves to another store: fenced, whole, compared, and resumed after a kill."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.operations.scenes import SENT, TOOLS, fill, fill_runs, keep_calling, pay, runs_in
from tollhouse import Tollhouse, external, tool
from tollhouse.errors import CopyDiffers, CopyRefused, InDoubt, StoreFenced, TollhouseError
from tollhouse.ledger.run_record import Definition
from tollhouse.operations import copying
from tollhouse.operations.backups import back_up
from tollhouse.operations.copying import abandon_copy, copy_ledger
from tollhouse.stores import marks_of
from tollhouse.testing.conformance.run_story import begin

POSTGRES = pytest.mark.postgres


@pytest.fixture(
    params=[
        "sqlite-sqlite",
        pytest.param("sqlite-postgres", marks=POSTGRES),
        pytest.param("postgres-sqlite", marks=POSTGRES),
    ]
)
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """An empty source and an empty target."""
    made = [
        f"sqlite:///{tmp_path / f'{place}.db'}" if kind == "sqlite" else request.getfixturevalue("postgres_url")
        for place, kind in zip(("source", "target"), request.param.split("-"), strict=True)
    ]
    return made[0], made[1]


def opened(url: str, **settings: object) -> contextlib.AbstractAsyncContextManager[Tollhouse]:
    """A house without background work."""
    return Tollhouse.open(url, tools=TOOLS, **{"background": False, "grace_s": 0.0, "store_wait_s": 2.0, **settings})


async def test_everything_travels_and_is_compared(urls: tuple[str, str]) -> None:
    """Calls, histories, bodies and doubts are the same; the target goes on where the source ended."""
    source, target = urls
    async with opened(source) as house:
        await fill(house)
        before = {call.key: await house.get(call.key) for call in await house.list()}
    copied = await copy_ledger(source, target)
    assert copied.rows["calls"] == len(before) == 7
    sent = list(SENT)
    async with opened(target) as house:
        assert {key: await house.get(key) for key in before} == before
        assert (await house.call(pay, {"to": "large"}, key="pay:large")).value == "x" * 70_000
        with pytest.raises(InDoubt):
            await house.call(pay, {"to": "lost"}, key="pay:lost")
        assert sent == SENT
        await house.call(pay, {"to": "bob"}, key="pay:bob")
    assert [*sent, "bob"] == SENT


async def test_runs_travel_too(urls: tuple[str, str]) -> None:
    """With their histories, wakes, definitions and access keys; whoever drove one has ended in the target."""
    source, target = urls
    async with opened(source) as house:
        records = await fill_runs(house)
        histories = {record.id: await house.store.events("default", f"run:{record.id}") for record in records}
        keys = await runs_in(house).access_keys("default")
        copied = await copy_ledger(source, target)
        for refused in (
            runs_in(house).wake("default", "run_0"),
            runs_in(house).forget_wakes("default", "run_2"),
            runs_in(house).keep_definition(Definition("default", "e" * 64, "agent", "other", 1, "{}")),
            runs_in(house).keep_access_key(keys[0]),
            runs_in(house).write_run(begin("late", tenant="default")),
        ):
            with pytest.raises(StoreFenced):
                await refused
    assert (copied.rows["runs"], copied.rows["wakes"]) == (6, 1)
    assert (copied.rows["definitions"], copied.rows["access_keys"]) == (1, 1)
    async with opened(target) as house:
        there = runs_in(house)
        assert [await there.run("default", record.id) for record in records] == records
        for record in records:
            assert await house.store.events("default", f"run:{record.id}") == histories[record.id]
        takeable = await there.runs_to_take("default", "local", 10)
        assert {record.id for record in takeable} == {"run_0", "run_1", "run_2", "run_4"}
        assert [found.name for found in await there.definitions("default", "agent")] == ["concierge"]
        assert await there.access_keys("default") == keys


async def test_nothing_is_written_to_the_source_after_the_fence(urls: tuple[str, str]) -> None:
    """Callers under way are cut off with a code of their own, new houses cannot be opened, no row is added."""
    source, target = urls
    async with opened(source) as house:
        callers = [asyncio.create_task(keep_calling(house, number)) for number in range(4)]
        await house.call(pay, {"to": "ada"}, key="pay:ada")
        copied = await copy_ledger(source, target)
        raised = [error for caller in callers for error in await caller]
        assert {error.code for error in raised} <= {"store_fenced", "call_in_doubt", "call_in_flight"}
        with pytest.raises(StoreFenced) as fenced:
            await house.call(pay, {"to": "bob"}, key="pay:bob")
        assert fenced.value.sent == "no"
        counted = sum((await house.count()).values())
    assert "bob" not in SENT[-4:]
    assert counted == copied.rows["calls"]
    with pytest.raises(StoreFenced):
        async with opened(source):
            pass


async def test_lease_is_not_renewed_behind_the_fence(urls: tuple[str, str]) -> None:
    """A process that goes on at the source loses its right to send with its lease."""
    source, target = urls
    async with opened(source) as house:
        await copy_ledger(source, target)
        leases = house.store.lease_connection()
        with pytest.raises(StoreFenced):
            await asyncio.to_thread(leases.renew, "default", house._core.owner_id, 30.0)
        await asyncio.to_thread(leases.close)


async def test_attempt_under_way_becomes_a_lost_owners_in_the_target(urls: tuple[str, str]) -> None:
    """At the source the last check before bytes leave fails; in the target the call is in doubt."""
    source, target = urls
    began, go_on = asyncio.Event(), asyncio.Event()

    @tool(external())
    async def slow() -> str:
        """Takes as long as it is let."""
        began.set()
        await go_on.wait()
        return "done"

    async with Tollhouse.open(source, tools=[slow], background=False, grace_s=0.0) as house:
        caller = asyncio.create_task(house.call(slow, {}, key="slow"))
        await began.wait()
        before = await house.store.fence("default", "slow")
        await copy_ledger(source, target)
        after = await house.store.fence("default", "slow")
        assert before is not None
        assert after is not None
        assert after.fence > before.fence
        async with Tollhouse.open(target, tools=[slow], background=False) as there:
            await there.services.round()
            with pytest.raises(InDoubt):
                await there.call(slow, {}, key="slow")
            (attempt,) = (await there.get("slow")).attempts
            assert (attempt.lost, attempt.outcome) == ("lease", "unknown")
        caller.cancel()
        go_on.set()
        with contextlib.suppress(asyncio.CancelledError, TollhouseError):
            await caller


KILLED = """
import asyncio, os, signal, sys
from tollhouse.ledger.run_record import Definition
from tollhouse.operations import copying
from tollhouse.operations.backups import back_up
copying.PAGE = 2
arrived = 0
def progress(table, rows):
    global arrived
    arrived += rows
    if arrived >= int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(copying.copy_ledger(sys.argv[1], sys.argv[2], progress))
"""


async def test_copy_that_is_killed_goes_on_where_it_was(urls: tuple[str, str]) -> None:
    """Killed again and again, it arrives whole; meanwhile neither ledger can be written."""
    source, target = urls
    async with opened(source) as house:
        await fill(house)
        await fill_runs(house)
        number = len(await house.list())
    for rows in (1, 9, 25):
        command = [sys.executable, "-c", KILLED, source, target, str(rows)]
        assert (await asyncio.to_thread(subprocess.run, command, check=False)).returncode == -signal.SIGKILL
        for url in (source, target):
            with pytest.raises(StoreFenced):
                async with opened(url):
                    pass
    copied = await copy_ledger(source, target)
    assert (copied.resumed, copied.rows["calls"], copied.rows["runs"]) == (True, number, 6)
    assert await copy_ledger(source, target) == copied
    async with opened(target) as house:
        assert len(await house.list()) == number


async def test_row_that_arrives_changed_is_found(urls: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The target stays closed; the way back is open, and only while the target never was."""
    source, target = urls
    async with opened(source) as house:
        await fill(house)
    with monkeypatch.context() as patch:
        patch.setattr(copying, "_verify", _meddle(target))
        with pytest.raises(CopyDiffers):
            await copy_ledger(source, target)
    with pytest.raises(CopyDiffers):
        await copy_ledger(source, target)
    with pytest.raises(StoreFenced):
        async with opened(target):
            pass
    await abandon_copy(source, target, by="ada")
    async with opened(source) as house:
        await house.call(pay, {"to": "bob"}, key="pay:bob")
    with pytest.raises(CopyRefused):
        await copy_ledger(source, target)


def _meddle(target: str) -> Any:
    """A verification that changes a row of the target before it looks."""
    verify = copying._verify

    async def meddled(*ledgers: Any) -> Any:
        statement = "UPDATE {} SET tool = 'other' WHERE key = 'pay:ada'"
        if target.startswith("sqlite"):
            with contextlib.closing(sqlite3.connect(target.removeprefix("sqlite:///"))) as connection:
                for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE name LIKE 'fence_calls%'"):
                    connection.execute(f"DROP TRIGGER {name}")
                connection.execute(statement.format("calls"))
                connection.commit()
        else:
            behind = await asyncpg.connect(target)
            await behind.execute("ALTER TABLE calls DISABLE TRIGGER fence")
            await behind.execute(statement.format("calls"))
            await behind.execute("ALTER TABLE calls ENABLE TRIGGER fence")
            await behind.close()
        return await verify(*ledgers)

    return meddled


@pytest.mark.parametrize("change", ["head_seq = head_seq - 1", "head_hash = ''"])
async def test_history_of_a_run_that_ends_elsewhere_is_found(tmp_path: Path, change: str) -> None:
    """The row of a run says where its history ends, as the row of a call does."""
    source, target = f"sqlite:///{tmp_path}/source.db", f"sqlite:///{tmp_path}/target.db"
    async with opened(source) as house:
        await fill(house)
        await fill_runs(house)
    assert await back_up(source, tmp_path / "whole.db") == 7
    with contextlib.closing(sqlite3.connect(tmp_path / "source.db")) as connection:
        connection.execute(f"UPDATE runs SET {change} WHERE id = 'run_3'")
        connection.commit()
    with pytest.raises(CopyDiffers, match="run:run_3"):
        await copy_ledger(source, target)
    with pytest.raises(CopyDiffers, match="run:run_3"):
        await back_up(target, tmp_path / "backup.db")


@pytest.mark.parametrize("row", ["runs WHERE id = 'run_3'", "calls WHERE key = 'pay:ada'"])
async def test_history_whose_row_is_gone_is_found(tmp_path: Path, row: str) -> None:
    """Nobody copies what is left of a call or a run for the whole of it."""
    source = f"sqlite:///{tmp_path}/source.db"
    async with opened(source) as house:
        await fill(house)
        await fill_runs(house)
    with contextlib.closing(sqlite3.connect(tmp_path / "source.db")) as connection:
        for (trigger,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {trigger}")
        connection.execute(f"DELETE FROM {row}")
        connection.commit()
    with pytest.raises(CopyDiffers, match="run:run_3" if "runs" in row else "call:pay:ada"):
        await back_up(source, tmp_path / "backup.db")


async def test_backup_of_a_large_ledger_ends_though_others_never_rest(tmp_path: Path) -> None:
    """It is of one moment: what is written meanwhile neither gets into it nor makes it begin anew."""
    source = f"sqlite:///{tmp_path}/source.db"
    async with opened(source) as house:
        await fill(house)
    over = threading.Event()
    with contextlib.closing(sqlite3.connect(tmp_path / "source.db")) as connection:
        bodies = [("default", f"{number:064x}", bytes(8000)) for number in range(2000)]
        connection.executemany("INSERT INTO blobs VALUES (?, ?, ?)", bodies)
        connection.commit()

    def write() -> None:
        with contextlib.closing(sqlite3.connect(tmp_path / "source.db", timeout=30)) as connection:
            while not over.is_set():
                connection.execute("INSERT OR REPLACE INTO meta VALUES ('tick', hex(randomblob(8)))")
                connection.commit()

    writing = asyncio.ensure_future(asyncio.to_thread(write))
    try:
        async with asyncio.timeout(20):
            assert await back_up(source, tmp_path / "backup.db") == 7
    finally:
        over.set()
        await writing


async def test_finished_copy_is_not_abandoned(urls: tuple[str, str]) -> None:
    """The target may have sent since: opening the source again would make two ledgers that both send."""
    source, target = urls
    async with opened(source) as house:
        await fill(house)
    await copy_ledger(source, target)
    with pytest.raises(CopyRefused):
        await abandon_copy(source, target, by="ada")
    with pytest.raises(StoreFenced):
        async with opened(source):
            pass


async def test_copy_into_what_is_not_empty_is_refused(urls: tuple[str, str], tmp_path: Path) -> None:
    """Two ledgers are never mixed, and one source has one target."""
    source, target = urls
    for url in (source, target):
        async with opened(url) as house:
            await fill(house)
    with pytest.raises(CopyRefused, match="not empty"):
        await copy_ledger(source, target)
    assert "fence" not in await marks_of(source)
    await copy_ledger(source, f"sqlite:///{tmp_path / 'third.db'}")
    with pytest.raises(CopyRefused, match="another copy"):
        await copy_ledger(source, f"sqlite:///{tmp_path / 'fourth.db'}")
