"""Several processes on one ledger: fair turns, and no harm from one that is killed."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tollhouse.ledger.events import first_break
from tollhouse.stores import open_store

from .sqlite_ledger import HOLD_LOCK_FILE, ROOT, TENANT, another_process, departure, look, opened, owner

BUSY_WORKER = """
import asyncio, sys, time
from pathlib import Path
from tests.stores.sqlite_ledger import arrival, departure, open_store, owner

async def main(folder, name, callers, seconds):
    store = await open_store(f"sqlite:///{folder}/ledger.db")
    store.lease_connection().register(owner(), 600)
    done = 0
    print("ready", flush=True)
    sys.stdin.readline()
    until = time.monotonic() + seconds

    async def caller(number):
        nonlocal done
        for n in range(1_000_000):
            if time.monotonic() > until:
                return
            first = departure(f"{name}.{number}.{n}")
            await store.write(first)
            await store.write(arrival(first))
            done += 1

    await asyncio.gather(*map(caller, range(callers)))
    await store.close()
    print(done)

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
"""


def compete(folder: Path, processes: int, callers: int, seconds: float) -> list[int]:
    """Calls that each of several processes completed on one ledger in the same time."""
    commands = [
        [sys.executable, "-c", BUSY_WORKER, str(folder), f"p{number}", str(callers), str(seconds)]
        for number in range(processes)
    ]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    workers = [subprocess.Popen(command, cwd=ROOT, text=True, **pipes) for command in commands]  # type: ignore[call-overload]
    try:
        for worker in workers:
            assert worker.stdout.readline().strip() == "ready"
        for worker in workers:
            worker.stdin.write("go\n")
            worker.stdin.flush()
        return [int(worker.communicate(timeout=60)[0]) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


@pytest.mark.slow
@pytest.mark.parametrize("callers", [1, 16])
def test_processes_on_one_ledger_get_fair_shares(tmp_path: Path, callers: int) -> None:
    """Nobody starves: the slowest of three gets at least half of what the quickest gets, and nothing fails."""
    shares = compete(tmp_path, 3, callers, 4.0)
    assert min(shares) / max(shares) >= 0.5, shares
    assert look(tmp_path, "SELECT count(*) FROM calls WHERE state = 'succeeded'") == [(sum(shares),)]


async def test_processes_on_one_ledger_disturb_nobody(tmp_path: Path) -> None:
    """Two processes write at the same time: every call is there, whole and with an unbroken history."""
    shares = await asyncio.to_thread(compete, tmp_path, 2, 8, 0.3)
    assert min(shares) > 0
    async with opened(tmp_path) as store:
        for (key,) in look(tmp_path, "SELECT key FROM calls ORDER BY random() LIMIT 50"):
            assert first_break(await store.events(TENANT, f"call:{key}")) is None
    assert look(tmp_path, "SELECT count(*) FROM calls WHERE state = 'succeeded'") == [(sum(shares),)]
    assert look(tmp_path, "PRAGMA integrity_check") == [("ok",)]


async def test_key_that_two_processes_want_departs_once(tmp_path: Path) -> None:
    """Fifty callers in each of two handles: one insert wins."""
    async with opened(tmp_path) as one, opened(tmp_path) as other:
        tries = [store.write(departure("k1")) for store in (one, other) for _ in range(50)]
        answers = await asyncio.gather(*tries)
        assert [answer.applied for (answer,) in answers].count(True) == 1


HOLD_TRANSACTION = """
import fcntl, sqlite3, sys
lock = open(sys.argv[1] + "-lock", "r+")
fcntl.flock(lock, fcntl.LOCK_EX)
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
connection.execute("UPDATE calls SET version = version + 1000")
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.crash
async def test_process_killed_inside_a_transaction_holds_up_nobody(tmp_path: Path) -> None:
    """Its locks die with it, and what it had not committed never was."""
    async with opened(tmp_path) as store:
        await store.write(departure("k1"))
        with another_process(HOLD_TRANSACTION, tmp_path / "ledger.db") as holder:
            waiting = asyncio.create_task(store.write(departure("k2")))
            done, _ = await asyncio.wait([waiting], timeout=0.05)
            assert not done
            holder.send_signal(signal.SIGKILL)
            assert (await waiting)[0].applied
        assert look(tmp_path, "SELECT DISTINCT version FROM calls") == [(1,)]


@pytest.mark.crash
async def test_lock_is_free_when_the_parent_dies_though_a_forked_child_lives(tmp_path: Path) -> None:
    """A child lets go of its copy of the lock file, else a dead parent would go on holding it."""
    code = """
import asyncio, os, signal, sys, time, warnings
warnings.simplefilter("ignore")
from tests.stores.sqlite_ledger import open_store
loop = asyncio.new_event_loop()
store = loop.run_until_complete(open_store(f"sqlite:///{sys.argv[1]}/ledger.db"))
assert store._lock.try_acquire()
if os.fork() == 0:
    print("ready", flush=True)
    sys.stdin.read()
    os._exit(0)
os.kill(os.getpid(), signal.SIGKILL)
"""
    with another_process(code, tmp_path) as parent:
        assert parent.wait(10) == -signal.SIGKILL
        store = await open_store(f"sqlite:///{tmp_path}/ledger.db", busy_timeout_s=1.0)
        await asyncio.to_thread(store.lease_connection().register, owner(), 600)
        assert (await store.write(departure("k1")))[0].applied
        await store.close()


async def test_waiting_behind_the_lock_file_is_in_order(tmp_path: Path) -> None:
    """A store that waits gets its turn as soon as the holder lets go, without polling."""
    async with opened(tmp_path) as store:
        with another_process(HOLD_LOCK_FILE, tmp_path / "ledger.db") as holder:
            waiting = asyncio.create_task(store.write(departure("k1")))
            done, _ = await asyncio.wait([waiting], timeout=0.05)
            assert not done
            assert holder.stdin is not None
            holder.stdin.close()
            assert (await waiting)[0].applied
