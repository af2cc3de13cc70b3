"""An open ledger on a server: the connections that its methods share, and how they are used.

``store`` and ``runs`` put the methods of the ports on it. Writes of calls go to the ``writer``, other writes and
readings to a few connections each, the last check before a send to connections of its own, where no long reading is in
its way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import asyncpg

from tollhouse.ledger.process import pid
from tollhouse.ledger.store import Counters
from tollhouse.stores.common.errors import closed, crossed_fork
from tollhouse.stores.postgres.link import Link, Pool
from tollhouse.stores.postgres.target import Target
from tollhouse.stores.postgres.writer import Writer

T = TypeVar("T")

WRITERS = 3
READERS = 3
CHECKERS = 2
RUNNERS = 2

FENCE_S = 2.0
"""How long the check before a send waits: unreachable means no, and a sender has better things to do than to wait."""


class OpenLedger:
    """Made on the event loop that will use it.

    It belongs to the process that opened it: in a forked child every method raises
    :class:`~tollhouse.errors.HouseClosed`. Connections are made when first needed, and again after they were lost; at
    most eleven. After an error it works again as soon as its cause is gone.
    """

    def __init__(self, target: Target, *, volatile: bool) -> None:
        self.url = target.url
        self.counters = Counters()
        self._target = target
        self._volatile = volatile
        self._pid = pid()
        self._closed = False
        self._high_us = 0
        self._writer = Writer(self._links(WRITERS, target.try_s), target, self.counters)
        self._readers = Pool(self._links(READERS, target.patience_s / 2))
        self._checkers = Pool(self._links(CHECKERS, min(FENCE_S / 2, target.try_s)))
        self._runners = Pool(self._links(RUNNERS, target.try_s))
        self._changes: set[asyncio.Task[Any]] = set()

    @property
    def waiting(self) -> int:
        """Writes that wait for their commit."""
        return self._writer.waiting

    async def close(self) -> None:
        """Let every write that was taken come to its end, then close the connections; twice is harmless."""
        self._require_own_process()
        if self._closed:
            return
        self._closed = True
        await self._writer.close()
        if self._changes:
            await asyncio.wait(self._changes)
        await self._runners.close()
        await self._readers.close()
        await self._checkers.close()

    def _links(self, count: int, limit_s: float) -> list[Link]:
        return [Link(self._target, self.counters, limit_s=limit_s, volatile=self._volatile) for _ in range(count)]

    async def _change(self, step: Callable[[Link, float], Awaitable[T]]) -> T:
        """Run a write that is safe to repeat, again until its time is over; a caller who leaves does not end it."""
        self._require_open()
        task = asyncio.create_task(self._runners.run(step, self._target.patience_s))
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        return await asyncio.shield(task)

    async def _rows(self, statement: str, *values: Any) -> list[asyncpg.Record]:
        self._require_open()
        return await self._readers.run(fetching(statement, *values), self._target.patience_s)

    def _require_open(self) -> None:
        self._require_own_process()
        if self._closed:
            raise closed()

    def _require_own_process(self) -> None:
        if self._pid != pid():
            raise crossed_fork()


def fetching(statement: str, *values: Any) -> Callable[[Link, float], Awaitable[list[asyncpg.Record]]]:
    """A step that runs one statement."""
    return lambda link, left_s: link.fetch(statement, *values, within_s=left_s)
