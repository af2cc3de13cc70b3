"""Opening SQLite connections the one way that is durable, and the file or memory they share."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import quote

from tollhouse.errors import StoreNotDurable, StoreUnavailable
from tollhouse.stores.sqlite.errors import is_busy
from tollhouse.stores.sqlite.target import Target

T = TypeVar("T")

_OLDEST_SQLITE = (3, 24, 0)
_SYNCHRONOUS_CODES = {"OFF": 0, "NORMAL": 1, "FULL": 2, "EXTRA": 3}
_RETRY_S = 0.005


@dataclass(slots=True, eq=False)
class Handle:
    """A connection and the lock under which threads take turns on it."""

    connection: sqlite3.Connection
    lock: threading.Lock = field(default_factory=threading.Lock)

    @contextlib.contextmanager
    def held(self) -> Iterator[sqlite3.Connection]:
        """The connection, for this thread alone."""
        with self.lock:
            yield self.connection

    def close(self) -> None:
        """Close the connection once nobody uses it; twice is harmless."""
        with self.lock:
            self.connection.close()


@dataclass(frozen=True, slots=True)
class Connections:
    """``writer`` writes, ``reader`` reads single rows on the event loop's thread, ``scanner`` many rows elsewhere.

    In memory they are one and the same: another connection would see another database.
    """

    writer: Handle
    reader: Handle
    scanner: Handle

    def readers(self) -> list[Handle]:
        """Those that can be closed while the writer still works."""
        return [handle for handle in (self.reader, self.scanner) if handle is not self.writer]

    def close(self) -> None:
        """Close all of them."""
        for handle in (*self.readers(), self.writer):
            handle.close()


def open_connections(target: Target) -> Connections:
    """The connections of one store, on a database whose schema is there."""
    with contextlib.ExitStack() as undo:
        handles = []
        for _ in range(1 if target.path is None else 3):
            handles.append(Handle(connect(target)))
            undo.callback(handles[-1].close)
        undo.pop_all()
    return Connections(handles[0], handles[-1], handles[len(handles) // 2])


def connect(target: Target, *, read_only: bool = False) -> sqlite3.Connection:
    """A connection that waits for no lock and commits only when told. Raises sqlite3.Error; a missing file is made."""
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        needed = ".".join(map(str, _OLDEST_SQLITE))
        raise StoreUnavailable(f"This Python has SQLite {sqlite3.sqlite_version}; the ledger needs {needed}.")
    mode = "ro" if read_only else "rwc"
    name = ":memory:" if target.path is None else f"file:{quote(str(target.path))}?mode={mode}"
    connection = sqlite3.connect(name, timeout=0, isolation_level=None, check_same_thread=False, uri=True)
    try:
        if not read_only:
            _make_durable(connection, target)
    except BaseException:
        connection.close()
        raise
    return connection


def _make_durable(connection: sqlite3.Connection, target: Target) -> None:
    """Set what durability hangs on, and read it back: SQLite ignores a pragma that it cannot honour."""
    wanted = "memory" if target.path is None else "wal"
    mode = pragma(connection, "journal_mode")
    if mode != wanted:
        mode = pragma(connection, f"journal_mode={wanted}")
    if mode != wanted:
        raise StoreNotDurable(
            f"The ledger {target.name} cannot be switched to write-ahead logging (it is in mode {mode!r})."
        )
    pragma(connection, f"synchronous={target.synchronous}")
    # macOS: an fsync alone leaves data in the drive's own cache.
    pragma(connection, "fullfsync=1")
    pragma(connection, "checkpoint_fullfsync=1")
    if pragma(connection, "synchronous") != _SYNCHRONOUS_CODES[target.synchronous]:
        raise StoreNotDurable(f"SQLite does not accept synchronous={target.synchronous}.")
    if target.max_page_count is not None:
        pragma(connection, f"max_page_count={target.max_page_count}")


def pragma(connection: sqlite3.Connection, text: str) -> object:
    """Run a pragma; the first value that it answers, None when it answers nothing."""
    rows = connection.execute(f"PRAGMA {text}").fetchall()
    return rows[0][0] if rows else None


def patiently(step: Callable[[], T], deadline_s: float) -> T:
    """What ``step`` returns, tried anew while another process holds a lock; ``deadline_s`` as ``time.monotonic``."""
    while True:
        try:
            return step()
        except sqlite3.Error as raw:
            if not is_busy(raw) or time.monotonic() > deadline_s:
                raise
        time.sleep(_RETRY_S)
