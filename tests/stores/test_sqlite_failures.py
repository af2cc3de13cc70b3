"""A ledger that is locked, gone, damaged or read-only: a clear error, nothing half done, and recovery by itself."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tollhouse.errors import StoreLocked, StoreReadOnly, StoreUnavailable, TollhouseError
from tollhouse.stores import open_store
from tollhouse.stores.sqlite import SqliteStore
from tollhouse.stores.sqlite.filelock import FileLock

from .sqlite_ledger import (
    HOLD_DATABASE,
    HOLD_LOCK_FILE,
    ROOT,
    another_process,
    departure,
    held,
    look,
    opened,
)

PATIENCE_S = 0.3


def url_in(folder: Path) -> str:
    """The ledger's URL."""
    return f"sqlite:///{folder}/ledger.db"


@pytest.mark.parametrize("holding", [HOLD_LOCK_FILE, HOLD_DATABASE], ids=["lock file", "database"])
async def test_ledger_held_by_another_process_is_locked_and_then_works(tmp_path: Path, holding: str) -> None:
    """Waiting is bounded, nothing of the refused writes is applied later, and reads go on meanwhile."""
    async with opened(tmp_path, busy_timeout_s=PATIENCE_S) as store:
        await store.write(departure("before"))
        with another_process(holding, tmp_path / "ledger.db"):
            writes = [store.write(departure(f"during{n}")) for n in range(3)]
            refused = await asyncio.gather(*writes, return_exceptions=True)
            assert [type(error) for error in refused] == [StoreLocked] * 3
            assert await store.get("t1", "before") is not None
            with pytest.raises(StoreLocked):
                await asyncio.to_thread(store.lease_connection().renew, "t1", "own_1", 60)
            assert lock_is_free(tmp_path) == (holding is HOLD_DATABASE)
        assert (await store.write(departure("after")))[0].applied
        assert look(tmp_path, "SELECT key FROM calls ORDER BY key") == [("after",), ("before",)]


async def test_write_waits_for_its_turn_while_the_ledger_is_held_briefly(tmp_path: Path) -> None:
    """Within the time allowed a lock is no error."""
    async with opened(tmp_path) as store:
        with another_process(HOLD_DATABASE, tmp_path / "ledger.db"):
            waiting = asyncio.create_task(store.write(departure("k1")))
            done, _ = await asyncio.wait([waiting], timeout=0.05)
            assert not done
        assert (await waiting)[0].applied


async def test_new_ledger_held_by_another_process_is_locked(tmp_path: Path) -> None:
    """Opening waits no longer than a write does."""
    look(tmp_path, "CREATE TABLE other (x)")
    (tmp_path / "ledger.db-lock").touch()
    with another_process(HOLD_LOCK_FILE, tmp_path / "ledger.db"), pytest.raises(StoreLocked):
        await open_store(url_in(tmp_path), busy_timeout_s=PATIENCE_S)
    with another_process(HOLD_DATABASE, tmp_path / "ledger.db"), pytest.raises(StoreLocked):
        await open_store(url_in(tmp_path), busy_timeout_s=PATIENCE_S)
    async with opened(tmp_path):
        pass


async def test_deleted_ledger_is_noticed_before_anything_is_written_to_it(tmp_path: Path) -> None:
    """SQLite would go on writing to a file that nobody can open again."""
    async with opened(tmp_path) as store:
        await store.write(departure("k1"))
        (tmp_path / "ledger.db").unlink()
        await all_refuse(store)
        assert lock_is_free(tmp_path)
        assert not (tmp_path / "ledger.db").exists()


def lock_is_free(folder: Path) -> bool:
    """Whether nobody holds the lock file: a store that could not write does not keep others from it."""
    with contextlib.closing(FileLock(folder / "ledger.db-lock")) as lock:
        return lock.acquire_within(0.5)


async def all_refuse(store: SqliteStore) -> None:
    """Single, concurrent and lease writes, and reads, all raise that the store is gone."""
    uses = [
        store.write(held("x1")),
        *(store.write(held(f"x{n}")) for n in (2, 3)),
        store.get("t1", "k1"),
        store.fence("t1", "k1"),
        store.count("t1"),
        store.end_expired_owners("t1"),
        asyncio.to_thread(store.lease_connection().renew, "t1", "own_1", 60),
    ]
    for refused in await asyncio.gather(*uses, return_exceptions=True):
        assert type(refused) is StoreUnavailable
        assert refused.sent == "no"


async def test_ledger_that_was_moved_away_works_again_when_it_is_back(tmp_path: Path) -> None:
    """The cause gone, the store recovers by itself."""
    async with opened(tmp_path) as store:
        await store.write(departure("k1"))
        (tmp_path / "ledger.db").rename(tmp_path / "away.db")
        await all_refuse(store)
        (tmp_path / "away.db").rename(tmp_path / "ledger.db")
        assert (await store.write(departure("k2")))[0].applied
        assert look(tmp_path, "SELECT count(*) FROM calls") == [(2,)]


async def test_replaced_ledger_is_refused_until_it_is_opened_anew(tmp_path: Path) -> None:
    """A ledger put in place of the open one may have forgotten departures: a person must look at it."""
    async with opened(tmp_path) as store:
        await store.write(departure("k1"))
        shutil.copy(tmp_path / "ledger.db", tmp_path / "copy.db")
        (tmp_path / "copy.db").rename(tmp_path / "ledger.db")
        await all_refuse(store)


async def test_deleted_log_is_noticed(tmp_path: Path) -> None:
    """Confirmed writes live in the log until it is folded into the file."""
    async with opened(tmp_path) as store:
        await store.write(departure("k1"))
        (tmp_path / "ledger.db-wal").unlink()
        await all_refuse(store)


async def test_missing_folder_is_named(tmp_path: Path) -> None:
    """A folder is not made silently: a typing mistake would start a second ledger."""
    with pytest.raises(StoreUnavailable, match="nowhere"):
        await open_store(url_in(tmp_path / "nowhere"))


async def test_folder_in_place_of_the_file_is_named(tmp_path: Path) -> None:
    """The URL must name a file."""
    (tmp_path / "ledger.db").mkdir()
    with pytest.raises(StoreUnavailable, match="is a folder"):
        await open_store(url_in(tmp_path))


async def test_file_of_another_kind_is_no_ledger_and_stays_as_it_is(tmp_path: Path) -> None:
    """A file that is not a database is never written."""
    content = b"Dear diary, " * 200
    (tmp_path / "ledger.db").write_bytes(content)
    with pytest.raises(StoreUnavailable, match="not an SQLite database"):
        await open_store(url_in(tmp_path))
    assert (tmp_path / "ledger.db").read_bytes() == content


async def test_damaged_ledger_is_refused_with_a_remedy(tmp_path: Path) -> None:
    """Damage is named as such, on opening or on reading."""
    async with opened(tmp_path) as store:
        await asyncio.gather(*(store.write(departure(f"k{n}", contract="x" * 3000)) for n in range(50)))
    file = tmp_path / "ledger.db"
    intact = file.read_bytes()
    file.write_bytes(intact[:4096] + b"\xff" * (len(intact) - 4096))
    with pytest.raises(StoreUnavailable, match="damaged") as refused:
        async with opened(tmp_path) as store:
            await store.get("t1", "k1")
    assert "backup" in refused.value.remedy


@contextlib.contextmanager
def plain_user() -> Iterator[Path]:
    """A folder of a user whom permissions bind; the superuser, whom they do not, becomes one meanwhile."""
    folder = Path(tempfile.mkdtemp())
    if os.geteuid() != 0:
        yield folder
        return
    os.chown(folder, 65534, 65534)
    os.seteuid(65534)
    try:
        yield folder
    finally:
        os.seteuid(0)
        shutil.rmtree(folder)


async def test_read_only_file_is_refused_at_opening() -> None:
    """A ledger that cannot record a departure is not opened."""
    with plain_user() as folder:
        async with opened(folder):
            pass
        (folder / "ledger.db").chmod(0o444)
        with pytest.raises(StoreReadOnly):
            await open_store(url_in(folder))
        (folder / "ledger.db").chmod(0o644)
        async with opened(folder) as store:
            assert (await store.write(departure("k1")))[0].applied


async def test_read_only_folder_is_refused_at_opening() -> None:
    """The log and the lock live beside the file."""
    with plain_user() as folder:
        async with opened(folder):
            pass
        folder.chmod(0o555)
        with pytest.raises(StoreReadOnly):
            await open_store(url_in(folder))
        folder.chmod(0o755)


async def test_ledger_that_turns_read_only_refuses_writes_and_recovers(tmp_path: Path) -> None:
    """A file system may be remounted read-only under us; reads go on."""
    async with opened(tmp_path) as store:
        await store.write(departure("k1"))
        store._connections.writer.connection.execute("PRAGMA query_only=1")
        refused = await asyncio.gather(*(store.write(departure(f"x{n}")) for n in range(3)), return_exceptions=True)
        assert [type(error) for error in refused] == [StoreReadOnly] * 3
        assert await store.get("t1", "k1") is not None
        store._connections.writer.connection.execute("PRAGMA query_only=0")
        assert (await store.write(departure("k2")))[0].applied


async def test_commit_that_fails_is_undone_and_the_next_one_works(tmp_path: Path) -> None:
    """A disk that refuses to grow the log fails the commit itself; nothing of it is ever seen."""
    async with opened(tmp_path) as store:
        await store.write(departure("k1"))
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "ledger.db-wal").stat().st_size, limit[1]))
        try:
            writes = [store.write(departure(f"x{n}")) for n in range(3)]
            refused = await asyncio.gather(*writes, return_exceptions=True)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        assert all(isinstance(error, StoreUnavailable) for error in refused)
        assert (await store.write(departure("k2")))[0].applied
        assert look(tmp_path, "SELECT key FROM calls ORDER BY key") == [("k1",), ("k2",)]


IN_A_FORK = """
import asyncio, os, sys, warnings
warnings.simplefilter("ignore")  # newer Pythons warn of exactly what is tried here
from tests.stores.sqlite_ledger import departure, open_store, owner
from tollhouse.errors import HouseClosed

loop = asyncio.new_event_loop()
store = loop.run_until_complete(open_store(f"sqlite:///{sys.argv[1]}/ledger.db"))
lease = store.lease_connection()
lease.register(owner(), 600)
loop.run_until_complete(store.write(departure("parent1")))

async def renew():
    lease.renew("t1", "own_1", 60)

async def all_refused():
    for use in (
        store.write(departure("child")), store.get("t1", "parent1"), store.count("t1"), store.fence("t1", "parent1"),
        store.now_us(), store.end_expired_owners("t1"), store.owner_is_dead("t1", "own_1"), renew(), store.close(),
    ):
        try:
            await use
        except HouseClosed:
            continue
        return False
    return store._lock._fd is None

child = os.fork()
if child == 0:
    sys.exit(0 if asyncio.run(all_refused()) else 1)

async def write_on():
    await asyncio.gather(*(store.write(departure(f"parent{n}")) for n in range(2, 50)))
    await store.close()

_, status = os.waitpid(child, 0)
loop.run_until_complete(write_on())
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_forked_child_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    """Every use in a child raises, the child may exit as it likes, and the parent's ledger is whole."""
    done = subprocess.run([sys.executable, "-c", IN_A_FORK, tmp_path], cwd=ROOT, timeout=60, check=False)
    assert done.returncode == 0
    assert look(tmp_path, "SELECT count(*) FROM calls") == [(49,)]
    assert look(tmp_path, "PRAGMA integrity_check") == [("ok",)]


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: (folder / "ledger.db").mkdir(),
        lambda folder: (folder / "ledger.db").write_bytes(b"x" * 5000),
        lambda folder: look(folder, "CREATE TABLE meta (x)"),
    ],
)
async def test_refused_opening_leaves_nothing_open(tmp_path: Path, make: object) -> None:
    """Connections and lock are given back when opening fails."""
    assert callable(make)
    make(tmp_path)
    before = set(Path("/proc/self/fd").iterdir()) if Path("/proc/self/fd").exists() else set()
    with pytest.raises(TollhouseError):
        await open_store(url_in(tmp_path))
    after = set(Path("/proc/self/fd").iterdir()) if Path("/proc/self/fd").exists() else set()
    assert len(after) <= len(before)
