"""The runs that a process has in hand: each in one task, and stopped at once when it is cancelled. For both drivers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial

from tollhouse.errors import TollhouseError
from tollhouse.ledger.run_record import RunRecord
from tollhouse.runs.advance import Lost, Step
from tollhouse.runs.drivers.driving import see_through
from tollhouse.runs.live import Moved
from tollhouse.runs.service import Runs
from tollhouse.runs.states import RunState

log = logging.getLogger("tollhouse")

AT_ONCE = 200
"""Runs in hand of one process; others wait for a driver, here or elsewhere."""

Work = Callable[[RunRecord], Coroutine[None, None, Step | None]]


class Hands:
    """See the module's docstring. ``most_steps``: of a run before it is handed over; None: until it waits or ends."""

    def __init__(self, runs: Runs, *, at_once: int = AT_ONCE, most_steps: int | None = None) -> None:
        self._runs, self._most_steps = runs, most_steps
        self.at_once = at_once
        self._tasks: dict[str, asyncio.Task[Step | None]] = {}
        self._claimed: set[str] = set()
        """Those in hand that were claimed, and have not ended as far as is known here."""
        self._listener: asyncio.Task[None] | None = None
        self.stopping = False
        self.on_freed: Callable[[], None] = lambda: None
        """Called when a run is out of hand."""

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._tasks

    @property
    def tasks(self) -> list[asyncio.Task[Step | None]]:
        """What is under way."""
        return list(self._tasks.values())

    def start(self) -> None:
        """Begin to listen for what is cancelled in this process, on the running loop."""
        self._listener = asyncio.create_task(self._stop_cancelled())

    async def stop(self, grace_s: float) -> None:
        """Hand each run over after its step, or after ``grace_s`` in the middle of it."""
        self.stopping = True
        if self._listener is not None:
            self._listener.cancel()
        tasks = self.tasks
        if tasks:
            await asyncio.wait(tasks, timeout=grace_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def take(self, record: RunRecord, work: Work | None = None) -> asyncio.Task[Step | None]:
        """The task that has this run in hand, begun if there is none. ``work`` None: :meth:`see_to`."""
        task = self._tasks.get(record.id)
        if task is None:
            task = self._tasks[record.id] = asyncio.create_task((work or self.see_to)(record))
            task.add_done_callback(partial(self._freed, record.id))
        return task

    async def see_to(self, record: RunRecord) -> Step:
        """Claim the run and drive it, or finish what it left. Raises :class:`Lost` when another has it."""
        if record.finished:
            return Step("done", await self._runs.tidy(record))
        try:
            return await self._driven(record)
        except Lost:
            await self._left_behind(record.id)
            raise
        except asyncio.CancelledError:
            if not self.stopping:
                await self._left_behind(record.id)
            raise

    async def stop_cancelled_elsewhere(self) -> list[RunRecord]:
        """Stop what was cancelled in another process; the runs that this process owns, in hand or not."""
        claimed = set(self._claimed)
        owned = await self._runs.store.runs_owned(self._runs.tenant, self._runs.owner_id, self.at_once)
        for run_id in claimed - {record.id for record in owned}:
            record = await self._runs.store.run(self._runs.tenant, run_id)
            if record is not None and record.state == RunState.CANCELLED:
                self._stop(run_id)
        return owned

    async def _driven(self, record: RunRecord) -> Step:
        drive = await self._runs.claim(record)
        self._claimed.add(record.id)
        try:
            return await see_through(self._runs, drive, stopping=lambda: self.stopping, most_steps=self._most_steps)
        finally:
            self._claimed.discard(record.id)

    def _stop(self, run_id: str) -> None:
        if run_id in self._claimed:
            self._tasks[run_id].cancel()

    def _freed(self, run_id: str, done: asyncio.Task[Step | None]) -> None:
        self._tasks.pop(run_id, None)
        if not done.cancelled():
            done.exception()  # whoever waits for it hears of it; nobody may wait any more
        self.on_freed()

    async def _stop_cancelled(self) -> None:
        """A run that was cancelled in this process stops at once, whatever its model or its tools are doing."""
        with self._runs.bus.subscribe("*") as queue:
            while True:
                moved = await queue.get()
                if isinstance(moved, Moved) and moved.state == RunState.CANCELLED:
                    self._stop(moved.run_id)

    async def _left_behind(self, run_id: str) -> None:
        """Another has the run now; or it was cancelled, and a call that left here in that moment is not sent again."""
        log.debug("run_in_other_hands run=%s", run_id)
        with suppress(TollhouseError):
            record = await self._runs.store.run(self._runs.tenant, run_id)
            if record is not None and record.state == RunState.CANCELLED:
                await self._runs.forbid_calls(record)
