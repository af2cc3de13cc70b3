"""The one connection of a store that writes, and the right to use it: lock file, BEGIN, COMMIT.

The writer thread and, for a lone write, the event loop's thread take turns on it (``turn``).
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time

from tollhouse.errors import TollhouseError
from tollhouse.stores.sqlite.connections import Handle
from tollhouse.stores.sqlite.errors import is_busy, store_error
from tollhouse.stores.sqlite.filelock import FileLock
from tollhouse.stores.sqlite.files import Files
from tollhouse.stores.sqlite.pace import Pace

_RETRY_S = 0.002


class Pen:
    """Begins and ends write transactions. Every method but :meth:`error` needs the turn."""

    def __init__(self, handle: Handle, lock: FileLock, files: Files, name: str) -> None:
        self.connection = handle.connection
        self.turn: threading.Lock = handle.lock
        self._lock = lock
        self._files = files
        self._name = name
        self.pace = Pace()

    def begin_at_once(self) -> bool:
        """Begin unless anybody else writes; never waits. Raises an error of the store; then nothing is held."""
        return self._lock.try_acquire() and self._begin()

    def begin_in_turn(self) -> bool:
        """Wait for the lock file and begin. False: somebody writes without it; try again. Raises as above."""
        self._lock.acquire()
        begun = self._begin()
        if not begun:
            time.sleep(_RETRY_S)
        return begun

    def _begin(self) -> bool:
        begun = False
        try:
            self._files.require_intact()
            self.rollback()
            self.connection.execute("BEGIN IMMEDIATE")
            begun = True
        except sqlite3.Error as raw:
            if not is_busy(raw):
                raise self.error(raw) from raw
        finally:
            if not begun:
                self._lock.release()
        return begun

    def begin_again(self) -> None:
        """Begin the next transaction under the lock still held. Raises sqlite3.Error."""
        self.connection.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """Make the open transaction durable. Raises sqlite3.Error; it is for the caller to roll back."""
        started = time.perf_counter()
        self.connection.execute("COMMIT")
        self.pace.committed(time.perf_counter() - started)

    def rollback(self) -> None:
        """Undo the open transaction, if an error has not done so already; what cannot be undone now is at the next."""
        if self.connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                self.connection.execute("ROLLBACK")

    def release(self) -> None:
        """Let others write. A transaction that an interrupt left open is undone."""
        self.rollback()
        self._lock.release()

    def error(self, raw: sqlite3.Error | OSError) -> TollhouseError:
        """Our error for SQLite's."""
        return store_error(raw, self._name)

    def close(self) -> None:
        """Close the connection and the lock file."""
        self.connection.close()
        self._lock.close()
