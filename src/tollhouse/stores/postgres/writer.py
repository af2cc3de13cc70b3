"""Group commit: many callers' writes share a statement, and with it a commit and its fsync.

A write that finds nobody at work goes out at once, alone. Otherwise it waits with the others, and whoever finishes
takes a share of those who wait; a further connection joins in once enough of them do. Called by the store; each write
belongs to the writer from then on, so that a caller who leaves takes nothing along.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any

import asyncpg

from tollhouse.ledger.store import Counters, Write, Written
from tollhouse.stores.common.errors import closed
from tollhouse.stores.postgres.apply import apply_many, apply_together
from tollhouse.stores.postgres.faults import FAILURES, error_of, fault_of, more_telling
from tollhouse.stores.postgres.link import Backoff, Link
from tollhouse.stores.postgres.rows import Request, item_of
from tollhouse.stores.postgres.target import Target
from tollhouse.stores.postgres.unhurried import Unhurried

SHARE_MIN = 32
"""A batch takes at least so many, if so many wait: what a statement costs on both sides, whatever the number of its
rows, is more than several commits under way at once would save."""

SHARE_MAX = 256
"""A batch takes no more, however many wait, so that nobody waits for thousands of others."""

_LAST_MOMENT_S = 0.1
_RESTLESS = asyncpg.LockNotAvailableError("what stood against the write came and went")


class Writer:
    """Takes writes and answers each when it is durable or refused, or when the store's patience is over."""

    def __init__(self, links: Sequence[Link], target: Target, counters: Counters) -> None:
        self._idle = list(links)
        self._links = tuple(links)
        self._target = target
        self._counters = counters
        self._inserts: deque[Request] = deque()
        self._updates: deque[Request] = deque()
        self._odd: deque[Request] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._all_idle: asyncio.Future[None] | None = None

    async def write(self, writes: Sequence[Write]) -> tuple[Written, ...]:
        """Apply writes all or none. Raises TypeError or ValueError where a value has no JSON."""
        loop = asyncio.get_running_loop()
        request = Request(tuple([item_of(write) for write in writes]), loop.time() + self._target.patience_s)
        nobody_works = len(self._idle) == len(self._links)
        if nobody_works and len(request.items) == 1 and self._idle[-1].is_open:
            await Unhurried(self._alone(self._idle.pop(), request), self._start)
            if request.told is not None:
                return request.told
        else:
            self._queue_of(request).append(request)
            if nobody_works or (self._idle and self.waiting >= SHARE_MIN):
                self._start(self._work(self._idle.pop()))
        if request.answer is None:
            request.answer = loop.create_future()
        return await request.answer

    async def close(self) -> None:
        """Let every write that was taken come to its end, then close the connections."""
        while len(self._idle) < len(self._links):
            self._all_idle = asyncio.get_running_loop().create_future()
            await self._all_idle
        for link in self._links:
            await link.close()

    @property
    def waiting(self) -> int:
        """Writes that wait for their commit."""
        return len(self._inserts) + len(self._updates) + len(self._odd)

    def _queue_of(self, request: Request) -> deque[Request]:
        """Writes of several items or with new arguments are rare and go one at a time."""
        first = request.items[0].write
        if len(request.items) > 1 or first.arguments_changed:
            return self._odd
        return self._inserts if first.expected is None else self._updates

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _rest(self, link: Link) -> None:
        self._idle.append(link)
        if self._all_idle is not None and len(self._idle) == len(self._links) and not self._all_idle.done():
            self._all_idle.set_result(None)

    async def _alone(self, link: Link, request: Request) -> None:
        """Try a lone write on its caller's own task; whatever does not end at once becomes work as any other."""
        undecided = [request]
        try:
            undecided = await apply_many(link, undecided, self._target.try_s, self._counters)
        except FAILURES as raw:
            # What it means will be seen when it is repeated.
            if not fault_of(raw).keeps:
                link.drop()
        except BaseException:
            link.drop()
            self._rest(link)
            raise
        if undecided:
            request.answer = asyncio.get_running_loop().create_future()
        if undecided or self.waiting:
            self._start(self._work(link, undecided))
        else:
            self._rest(link)

    async def _work(self, link: Link, batch: list[Request] | None = None) -> None:
        """Write until nobody waits."""
        try:
            while batch := batch or self._take():
                try:
                    await self._see_through(link, batch)
                except BaseException as raw:
                    # A defect, or the loop is shut down: the callers hear it, and the next batch goes on.
                    link.drop()
                    for request in batch:
                        request.fail(raw if isinstance(raw, Exception) else closed())
                    if not isinstance(raw, Exception):
                        raise
                batch = None
        finally:
            self._rest(link)

    def _take(self) -> list[Request]:
        if self._odd:
            return [self._odd.popleft()]
        queue = self._inserts if len(self._inserts) >= len(self._updates) else self._updates
        share = min(max(SHARE_MIN, self.waiting // len(self._links)), SHARE_MAX, len(queue))
        return [queue.popleft() for _ in range(share)]

    async def _see_through(self, link: Link, requests: list[Request]) -> None:
        """Repeat the same guarded writes until each was applied or refused, or its time is over.

        A connection that dies between COMMIT and its answer leaves a doubt which only the repeat ends: it waits for
        the row or the key that a statement still under way has taken, and then finds its own ``write_id``, or nothing.
        """
        backoff: Backoff | None = None
        why: Exception | None = None
        while True:
            try:
                requests = await self._try(link, requests)
            except FAILURES as raw:
                if fault_of(raw).bad_value and len(requests) > 1:
                    return await self._one_by_one(link, requests)
                why = more_telling(why, raw)
                requests = self._still_patient(link, requests, raw, why)
            if not requests:
                return None
            backoff = backoff or Backoff(max(request.deadline for request in requests))
            if not await backoff.pause():
                return self._fail(requests, why or _RESTLESS)

    async def _try(self, link: Link, requests: list[Request]) -> list[Request]:
        first_deadline = min([request.deadline for request in requests])
        left_s = max(first_deadline - asyncio.get_running_loop().time(), _LAST_MOMENT_S)
        within_s = min(left_s, self._target.try_s)
        if len(requests[0].items) > 1:
            return await apply_together(link, requests[0], within_s, self._counters)
        return await apply_many(link, requests, within_s, self._counters)

    def _still_patient(self, link: Link, requests: list[Request], raw: Exception, why: Exception) -> list[Request]:
        """Who tries again after this failure; the others are told why not."""
        fault = fault_of(raw)
        if not fault.keeps:
            link.drop()
        now = asyncio.get_running_loop().time()
        patient = [request for request in requests if fault.repeat and request.deadline > now]
        self._fail([request for request in requests if request not in patient], why)
        return patient

    def _fail(self, requests: Sequence[Request], why: Exception) -> None:
        for request in requests:
            request.fail(error_of(why, self._target.url))

    async def _one_by_one(self, link: Link, requests: Sequence[Request]) -> None:
        """One of them holds a value that the store cannot keep: it alone shall fail."""
        self._counters.bisections += 1
        for request in requests:
            await self._see_through(link, [request])
