"""The writer of a store: one thread, one queue, one commit for all who wait.

A lone write commits on the caller's thread instead, which saves two hops between threads: allowed while nothing waits,
nobody else writes and commits are quick. Everything else queues up; whatever has gathered when the writer gets its
turn goes into one transaction.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import copy
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tollhouse.errors import HouseClosed, StoreLocked
from tollhouse.ledger.store import Counters
from tollhouse.stores.common.errors import closed
from tollhouse.stores.sqlite.commits import Entry, Job, Task, commit
from tollhouse.stores.sqlite.pen import Pen

T = TypeVar("T")

_BATCH_MAX = 256
"""Entries in one transaction: bounds how long other processes and lease renewals wait."""


class Writer:
    """Takes writes from the event loop and decisions about owners from any thread. Made on the loop's thread."""

    def __init__(self, pen: Pen, counters: Counters, busy_timeout_s: float) -> None:
        self._pen = pen
        self._pace = pen.pace
        self._counters = counters
        self._busy_timeout_s = busy_timeout_s
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Entry] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._waits_for_lock = False
        self._arriving = 0
        self._watch: asyncio.TimerHandle | None = None
        self._thread = threading.Thread(target=self._work, name="tollhouse-sqlite-writer", daemon=True)
        self._thread.start()

    # -- on the event loop's thread ----------------------------------------------------------------------------------

    async def write(self, job: Job[T]) -> T:
        """Apply what one caller asks for, durable on return."""
        if self._may_commit_here():
            if self._arriving or self._pace.should_look_around():
                await self._look_around(job)
            if not self._arriving and self._may_commit_here() and self._commit_here(job):
                return job.result()
        self._pace.met_others()
        job.future = self._loop.create_future()
        self._enqueue(job)
        if self._watch is None:
            self._watch = self._loop.call_later(self._busy_timeout_s, self._give_up_waiting)
        return await job.future

    async def _look_around(self, job: Job[Any]) -> None:
        """Let others who are ready to write in this round of the loop come first, so that they share a commit.

        A caller who is cancelled here leaves its write behind: it has begun.
        """
        self._arriving += 1
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            with contextlib.suppress(HouseClosed):
                self._enqueue(job)
            raise
        finally:
            self._arriving -= 1

    def _may_commit_here(self) -> bool:
        return self._pace.quick and not (self._queue or self._closing)

    def _commit_here(self, job: Job[Any]) -> bool:
        """Commit on this thread if nobody else writes; False leaves the job untouched."""
        if not self._pen.turn.acquire(blocking=False):
            return False
        try:
            if not self._pen.begin_at_once():
                return False
            try:
                commit(self._pen, [job], self._counters)
            finally:
                self._pen.release()
        finally:
            self._pen.turn.release()
        self._counters.extra["inline"] = self._counters.extra.get("inline", 0) + 1
        return True

    def _give_up_waiting(self) -> None:
        """Fail the writes that have waited too long while another process holds the lock; they were never begun."""
        now_s = time.monotonic()
        overdue: list[Job[Any]] = []
        with self._changed:
            waiting = [entry for entry in self._queue if isinstance(entry, Job)]
            if self._waits_for_lock:
                overdue = [job for job in waiting if now_s - job.since_s >= self._busy_timeout_s]
                for job in overdue:
                    self._queue.remove(job)
            left = [job for job in waiting if job not in overdue]
        for job in overdue:
            job.fail(self._locked())
            job.deliver()
        self._watch = None
        if left:
            delay_s = max(left[0].since_s + self._busy_timeout_s - now_s, self._busy_timeout_s / 10, 0.01)
            self._watch = self._loop.call_later(delay_s, self._give_up_waiting)

    # -- on any thread ------------------------------------------------------------------------------------------------

    def decide(self, step: Callable[[sqlite3.Connection], T]) -> T:
        """Run ``step`` in a write transaction, durable on return; blocks. Goes ahead of waiting writes."""
        task = Task(step)
        self._enqueue(task, first=True)
        try:
            return task.future.result(self._busy_timeout_s)
        except concurrent.futures.TimeoutError:
            with self._changed:
                if task in self._queue:
                    self._queue.remove(task)
                    raise self._locked() from None
            return task.future.result()

    @property
    def waiting(self) -> int:
        """Entries that wait for their commit."""
        return len(self._queue)

    def _enqueue(self, entry: Entry, *, first: bool = False) -> None:
        with self._changed:
            if self._closing:
                raise closed()
            if first:
                self._queue.appendleft(entry)
            else:
                self._queue.append(entry)
            self._changed.notify()

    def _locked(self) -> StoreLocked:
        return StoreLocked(f"Another process held the ledger's write lock for {self._busy_timeout_s:g} s.")

    def close(self) -> bool:
        """Refuse further work, finish what waits and end the thread; blocks.

        False: another process holds the lock, and the thread ends when it gets it.
        """
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(2 * self._busy_timeout_s)
        return not self._thread.is_alive()

    # -- on the writer's thread ---------------------------------------------------------------------------------------

    def _work(self) -> None:
        while self._wait_for_work():
            with self._pen.turn:
                batch = self._commit_batch()
            self._deliver(batch)
        with self._pen.turn:
            self._pen.close()

    def _wait_for_work(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing)
            return bool(self._queue)

    def _commit_batch(self) -> list[Entry]:
        """Take the lock, then what has gathered meanwhile."""
        self._waits_for_lock = True
        try:
            if not self._pen.begin_in_turn():
                return []
        except Exception as error:
            return self._fail_all(error)
        self._waits_for_lock = False
        try:
            batch = self._take()
            if batch:
                commit(self._pen, batch, self._counters)
            return batch
        finally:
            self._pen.release()

    def _take(self) -> list[Entry]:
        with self._changed:
            return [self._queue.popleft() for _ in range(min(len(self._queue), _BATCH_MAX))]

    def _fail_all(self, error: Exception) -> list[Entry]:
        """Nobody could begin. Each gets an error of its own, since a traceback grows with every raise."""
        failed = self._take()
        for entry in failed:
            entry.fail(copy.copy(error))
        return failed

    def _deliver(self, batch: Sequence[Entry]) -> None:
        jobs = []
        for entry in batch:
            if isinstance(entry, Job):
                jobs.append(entry)
            else:
                entry.deliver()
        if jobs:
            # The loop may have been closed by a caller that did not wait.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(_answer, jobs)


def _answer(jobs: Sequence[Job[Any]]) -> None:
    for job in jobs:
        job.deliver()
