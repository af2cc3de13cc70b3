"""An open ledger file: its connections, its writer, and the one way in which rows are read.

``store`` and ``runs`` put the methods of the ports on it. Single rows are read on the event loop's thread, which takes
microseconds, many rows in a thread of their own.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from tollhouse.ledger.process import pid
from tollhouse.ledger.store import Counters
from tollhouse.stores.common.errors import closed, crossed_fork
from tollhouse.stores.sqlite import owners
from tollhouse.stores.sqlite.clock import NeverBack
from tollhouse.stores.sqlite.commits import Change
from tollhouse.stores.sqlite.connections import Connections, Handle
from tollhouse.stores.sqlite.errors import is_busy, store_error
from tollhouse.stores.sqlite.filelock import FileLock
from tollhouse.stores.sqlite.files import Files
from tollhouse.stores.sqlite.pen import Pen
from tollhouse.stores.sqlite.target import Target
from tollhouse.stores.sqlite.writer import Writer

T = TypeVar("T")

logger = logging.getLogger("tollhouse.stores.sqlite")

_RETRY_S = 0.005


class OpenLedger:
    """Made on the event loop that will use it.

    It belongs to the process that opened it: in a forked child every method raises
    :class:`~tollhouse.errors.HouseClosed` and touches nothing. After an error it works again as soon as its cause is
    gone.
    """

    def __init__(
        self, target: Target, connections: Connections, lock: FileLock, clock: NeverBack, busy_timeout_s: float
    ) -> None:
        self.url = target.url
        self.counters = Counters()
        self._name = target.name
        self._connections = connections
        self._lock = lock
        self._clock = clock
        self._busy_timeout_s = busy_timeout_s
        self._files = Files(target.path)
        self._writer = Writer(Pen(connections.writer, lock, self._files, self._name), self.counters, busy_timeout_s)
        self._pid = pid()
        self._closed = False
        _opened.add(self)

    def _decide(self, step: Callable[[sqlite3.Connection], T]) -> T:
        """Run ``step`` in a transaction, durable on return, ahead of other writes; blocks."""
        self._require_open()
        return self._writer.decide(step)

    async def _change(self, step: Callable[[sqlite3.Connection], T]) -> T:
        """Run ``step`` in a transaction, durable on return, in turn with other writes."""
        self._require_open()
        return await self._writer.write(Change(step))

    async def _now_by_all_us(self) -> int:
        """The store's time, not before any time that any process has decided by."""
        return self._clock.now_us(at_least_us=await self._read(owners.last_decision_us))

    async def _read(self, reading: Callable[..., T], *arguments: Any) -> T:
        """A reading of a few rows, here; every one begins anew, so it sees all that was committed."""
        deadline_s = None
        while True:
            try:
                return self._read_now(self._connections.reader, reading, arguments)
            except sqlite3.Error as raw:
                deadline_s = self._deadline_unless_failed(raw, deadline_s)
            await asyncio.sleep(_RETRY_S)

    async def _read_many(self, reading: Callable[..., T], *arguments: Any) -> T:
        """A reading of many rows, off the event loop's thread."""
        self._require_open()
        deadline_s = None
        while True:
            try:
                return await asyncio.to_thread(self._read_now, self._connections.scanner, reading, arguments)
            except sqlite3.Error as raw:
                deadline_s = self._deadline_unless_failed(raw, deadline_s)
            await asyncio.sleep(_RETRY_S)

    def _read_now(self, handle: Handle, reading: Callable[..., T], arguments: tuple[Any, ...]) -> T:
        self._require_open()
        self._files.require_intact()
        with handle.held() as connection:
            self._require_open()
            return reading(connection, *arguments)

    def _deadline_unless_failed(self, raw: sqlite3.Error, deadline_s: float | None) -> float:
        """Until when to try again while another process holds a lock. Raises what else the reading met."""
        now_s = time.monotonic()
        if not is_busy(raw) or (deadline_s is not None and now_s > deadline_s):
            raise store_error(raw, self._name) from raw
        return deadline_s or now_s + self._busy_timeout_s

    @property
    def waiting(self) -> int:
        """Writes that wait for their commit."""
        return self._writer.waiting

    async def close(self) -> None:
        """Finish the writes that wait, close the connections and fold the log into the file; twice is harmless."""
        self._require_own_process()
        if self._closed:
            return
        self._closed = True
        await asyncio.to_thread(self._close_all)

    def _close_all(self) -> None:
        for handle in self._connections.readers():
            handle.close()
        if not self._writer.close():
            logger.warning("ledger locked: %s is held by another process and closed when that one lets go", self._name)

    def _require_open(self) -> None:
        self._require_own_process()
        if self._closed:
            raise closed()

    def _require_own_process(self) -> None:
        if self._pid != pid():
            raise crossed_fork()

    def _disown(self) -> None:
        """In a forked child: let go of the lock file, and never close what the parent uses."""
        self._lock.close()
        _inherited.append(self._connections)


_opened: weakref.WeakSet[OpenLedger] = weakref.WeakSet()
_inherited: list[Connections] = []
"""Connections of a parent process, kept for ever: closing one here would check-point and unlock the parent's file."""


def _after_fork() -> None:
    for store in list(_opened):
        store._disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
