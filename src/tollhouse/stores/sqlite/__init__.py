"""The SQLite engine: opening, upgrading and checking a ledger in one file. Called by ``tollhouse.stores`` only."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tollhouse.errors import StoreLocked, StoreReadOnly, StoreUnavailable, StoreURLInvalid
from tollhouse.stores.common.migrations import SchemaReport
from tollhouse.stores.sqlite import owners, schema
from tollhouse.stores.sqlite.clock import NeverBack, wall_us
from tollhouse.stores.sqlite.connections import Connections, connect, open_connections, patiently, pragma
from tollhouse.stores.sqlite.errors import store_error
from tollhouse.stores.sqlite.filelock import FileLock
from tollhouse.stores.sqlite.raw import SqliteEngine
from tollhouse.stores.sqlite.store import SqliteStore
from tollhouse.stores.sqlite.target import Target, parse, require_durable

__all__ = ["SqliteStore", "backup", "check", "open_raw", "open_store", "upgrade"]


async def open_store(
    url: str, *, volatile: bool = False, busy_timeout_s: float = 10.0, wall: Callable[[], int] = wall_us
) -> SqliteStore:
    """The store at a ``sqlite://`` URL, created if its file is missing or empty; see ``tollhouse.stores``.

    ``wall``: the time of day in microseconds, which the store's clock follows.
    """
    target = parse(url)
    if not volatile:
        require_durable(target)
    connections, lock, last_us = await asyncio.to_thread(_open, target, busy_timeout_s)
    clock = NeverBack(wall)
    clock.now_us(at_least_us=last_us)
    return SqliteStore(target, connections, lock, clock, busy_timeout_s)


async def upgrade(url: str) -> list[str]:
    """Apply the migrations that the file lacks; see ``tollhouse.stores``."""
    return await asyncio.to_thread(_upgrade, _with_file(url))


async def check(url: str) -> SchemaReport:
    """How the file's schema stands to this release, without creating or changing it; see ``tollhouse.stores``."""
    return await asyncio.to_thread(_check, _with_file(url))


async def open_raw(url: str) -> SqliteEngine:
    """A connection to an existing file, for operations on the whole of it; see ``tollhouse.stores``."""
    target = _with_file(url)
    assert target.path is not None
    if not target.path.exists():
        raise StoreUnavailable(f"There is no ledger at {target.path}.", remedy="Correct the URL.")
    with _our_errors(target):
        lock = _lock_file(target)
    try:
        return await SqliteEngine.open(target, lock)
    except BaseException:
        lock.close()
        raise


async def backup(url: str, file: Path) -> None:
    """Copy the ledger to a new file while others go on writing; see ``tollhouse.stores``."""
    engine = await open_raw(url)
    try:
        await engine.backup(file)
    finally:
        await engine.close()


_UPGRADE_TIMEOUT_S = 10.0


def _with_file(url: str) -> Target:
    target = parse(url)
    if target.path is None:
        raise StoreURLInvalid("A ledger in memory has no schema to check or upgrade; it is new whenever it is opened.")
    return target


def _open(target: Target, busy_timeout_s: float) -> tuple[Connections, FileLock, int]:
    """The store's connections and lock, and the last time that an owner was judged by."""
    deadline_s = time.monotonic() + busy_timeout_s
    with _our_errors(target), contextlib.ExitStack() as undo:
        lock = _lock_file(target)
        undo.callback(lock.close)
        connections = patiently(lambda: open_connections(target), deadline_s)
        undo.callback(connections.close)
        writer = connections.writer.connection
        version, floor = patiently(lambda: schema.versions(writer), deadline_s)
        if version is None:
            with _held(lock, target, busy_timeout_s):
                patiently(lambda: schema.create_if_empty(writer), deadline_s)
            version, floor = schema.versions(writer)
        schema.SCHEMA.require(version, floor)
        last_us = owners.last_decision_us(writer)
        undo.pop_all()
        return connections, lock, last_us


def _upgrade(target: Target) -> list[str]:
    deadline_s = time.monotonic() + _UPGRADE_TIMEOUT_S
    with (
        _our_errors(target),
        contextlib.closing(_lock_file(target)) as lock,
        _held(lock, target, _UPGRADE_TIMEOUT_S),
        contextlib.closing(patiently(lambda: connect(target), deadline_s)) as connection,
    ):
        pragma(connection, f"busy_timeout={_UPGRADE_TIMEOUT_S * 1000:.0f}")
        return schema.upgrade(connection)


def _check(target: Target) -> SchemaReport:
    assert target.path is not None
    with _our_errors(target):
        if not target.path.exists():
            return schema.SCHEMA.report(None, None)
        with contextlib.closing(connect(target, read_only=True)) as connection:
            return schema.SCHEMA.report(*schema.versions(connection))


@contextlib.contextmanager
def _our_errors(target: Target) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as raw:
        raise store_error(raw, target.name) from raw


@contextlib.contextmanager
def _held(lock: FileLock, target: Target, timeout_s: float) -> Iterator[None]:
    if not lock.acquire_within(timeout_s):
        raise StoreLocked(f"Another process held the write lock of the ledger {target.name} for {timeout_s:g} s.")
    try:
        yield
    finally:
        lock.release()


def _lock_file(target: Target) -> FileLock:
    """The lock beside the ledger, made if need be; the first thing written, so it meets what forbids writing."""
    if target.path is None:
        return FileLock(None)
    folder = target.path.parent
    if not folder.is_dir():
        raise StoreUnavailable(f"The folder {folder} does not exist.", remedy="Create it, or correct the URL.")
    if target.path.is_dir():
        raise StoreUnavailable(f"{target.path} is a folder.", remedy="Name a file in the URL.")
    as_effective_user = {"effective_ids": True} if os.access in os.supports_effective_ids else {}
    for place in (folder, target.path):
        if place.exists() and not os.access(place, os.W_OK, **as_effective_user):
            raise StoreReadOnly(f"{place} may not be written by this user, or is on a file system that cannot be.")
    return FileLock(target.lock_path)
