"""What the tests of the SQLite store build on: plain calls as writes, a store in a folder, and meddling processes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from tollhouse.ledger.record import Approval, AttemptOutcome, CallRecord, Limits, State, Stored
from tollhouse.ledger.steps import Ending, Start, end_attempt, first_departure, first_hold
from tollhouse.ledger.store import Owner, Write
from tollhouse.ledger.writes import write_of
from tollhouse.stores.sqlite import SqliteStore, open_store

ROOT = Path(__file__).resolve().parents[2]
TENANT = "t1"
OWNER = "own_1"
NOW_US = 1_700_000_000_000_000
_numbers = itertools.count(1)


@contextlib.asynccontextmanager
async def opened(folder: Path, **options: Any) -> AsyncIterator[SqliteStore]:
    """A store on ``ledger.db`` in the folder, with a registered owner."""
    store = await open_store(f"sqlite:///{folder / 'ledger.db'}", **options)
    try:
        store.lease_connection().register(owner(), 600)
        yield store
    finally:
        await store.close()


def owner(owner_id: str = OWNER) -> Owner:
    """A process that could own attempts."""
    return Owner(TENANT, owner_id, "host", 1, "started", "label")


def new_call(key: str, **fields: Any) -> CallRecord:
    """A call before its first step."""
    basics: dict[str, Any] = {
        "tenant": TENANT,
        "wire_key": f"{TENANT}:{key}",
        "tool": "issue_credit",
        "effect": "external",
        "request_digest": "d" * 64,
        "requested_by": "local",
        "contract": "{}",
        "limits": Limits(1, 30.0, 60.0),
        "digest": "d" * 64,
        "arguments": '{"amount_cents":2500}',
        "state": State.READY,
        "created_at_us": NOW_US,
        "updated_at_us": NOW_US,
    }
    return CallRecord(key=key, **{**basics, **fields})


def departure(key: str, *, by: str | None = OWNER, **fields: Any) -> Write:
    """Commit 1 of an effect."""
    attempt = f"att_{next(_numbers)}"
    start = Start(attempt, by or OWNER, NOW_US, NOW_US + 30_000_000)
    return write_of(first_departure(new_call(key, **fields), start, {}), attempt, owner=by)


def arrival(before: Write, text: str = '"ok"') -> Write:
    """Commit 2 of the effect that departed with ``before``."""
    attempt = before.record.attempts[-1].id
    ending = Ending(AttemptOutcome.HAPPENED, Stored(text=text, size=len(text)))
    return write_of(end_attempt(before.record, attempt, ending, NOW_US + 1), f"{attempt}.outcome")


def held(key: str, **fields: Any) -> Write:
    """A new call that waits for people."""
    approval = Approval("asks", 1, NOW_US + 10**12, "d" * 64, "1")
    return write_of(first_hold(new_call(key, **fields), approval, {}), f"hold_{next(_numbers)}")


def look(folder: Path, statement: str) -> list[tuple[Any, ...]]:
    """What a stranger with SQLite's own tools sees in the file."""
    with contextlib.closing(sqlite3.connect(folder / "ledger.db", isolation_level=None)) as connection:
        return connection.execute(statement).fetchall()


async def queued(store: SqliteStore) -> None:
    """Return once a write waits for the writer's thread."""
    for _ in range(1000):
        if store._writer._queue:
            return
        await asyncio.sleep(0)
    raise AssertionError("nothing was queued")


@contextlib.contextmanager
def another_process(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A process that runs ``code``, from when it prints a line; killed at the end."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == "ready"
            yield process
        finally:
            process.kill()


HOLD_LOCK_FILE = """
import fcntl, sys
lock = open(sys.argv[1] + "-lock", "r+")
fcntl.flock(lock, fcntl.LOCK_EX)
print("ready", flush=True)
sys.stdin.read()
"""

HOLD_DATABASE = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN EXCLUSIVE")
print("ready", flush=True)
sys.stdin.read()
"""
