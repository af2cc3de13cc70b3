"""The local driver: takes runs that nobody drives and advances them until they wait or end.

Any number of processes may drive over one store. A run belongs to the process that claimed it for as long as that
process keeps its lease, however long a step takes; a process that starts takes nothing from the living. When a process
ends, what it had in hand is handed over, or taken over once its lease has ended.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Collection
from contextlib import suppress
from functools import partial

from tollhouse.errors import ExtraMissing, HouseClosed, StoreUnavailable, TollhouseError, UnknownAgent
from tollhouse.ledger.run_record import RunRecord
from tollhouse.runs.advance import Lost
from tollhouse.runs.drivers.driving import PAUSE_MOST_S, see_through
from tollhouse.runs.live import Moved
from tollhouse.runs.service import Runs
from tollhouse.runs.states import RunState

log = logging.getLogger("tollhouse")

AT_ONCE = 200
"""Runs in hand of one process; others wait for a driver, here or elsewhere."""


class LocalDriver:
    """Drives the runs of one house. ``agents`` None: of every agent; ``every_s``: the pause between rounds."""

    name = "local"

    def __init__(
        self, runs: Runs, *, agents: Collection[str] | None = None, every_s: float = 0.25, at_once: int = AT_ONCE
    ) -> None:
        self._runs, self._agents, self._every_s, self._at_once = runs, agents, every_s, at_once
        self._in_hand: dict[str, asyncio.Task[None]] = {}
        self._driven: set[str] = set()
        """Those in hand that were claimed, and have not ended as far as is known here."""
        self._poked = asyncio.Event()
        self._stopping = False
        self._loop: asyncio.Task[None] | None = None
        self._listener: asyncio.Task[None] | None = None
        self.last_round_s: float | None = None
        """When the store was last looked at, on ``time.monotonic``; for health checks."""

    def start(self) -> None:
        """Begin, on the running loop."""
        self._runs.on_start = self._poked.set
        self._loop = asyncio.create_task(self._rounds())
        self._listener = asyncio.create_task(self._stop_cancelled())

    @property
    def in_hand(self) -> int:
        """How many runs this process drives now."""
        return len(self._in_hand)

    async def stop(self, grace_s: float = 10.0) -> None:
        """Take no more runs; hand each over after its step, or after ``grace_s`` in the middle of it."""
        self._stopping = True
        for task in (self._loop, self._listener):
            if task is not None:
                task.cancel()
        tasks = list(self._in_hand.values())
        if tasks:
            await asyncio.wait(tasks, timeout=grace_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def round(self) -> int:
        """Take what may be taken now, without waiting for it; how many runs that were."""
        mine = await self._mine()
        room = self._at_once - len(self._in_hand)
        if room <= 0:
            return 0
        found = await self._runs.store.runs_to_take(
            self._runs.tenant, self.name, room + len(self._in_hand), agents=self._agents
        )
        self.last_round_s = time.monotonic()
        fresh = [record for record in (*mine, *found) if record.id not in self._in_hand][:room]
        for record in fresh:
            task = asyncio.create_task(self._drive(record))
            self._in_hand[record.id] = task
            task.add_done_callback(partial(self._out_of_hand, record.id))
        return len(fresh)

    async def _mine(self) -> list[RunRecord]:
        """Runs that this process owns, those among them too that it let go of when something failed.

        A run that is driven here and was cancelled in another process is not among them: it stops now.
        """
        driven = set(self._driven)
        owned = await self._runs.store.runs_owned(self._runs.tenant, self._runs.owner_id, self._at_once)
        for run_id in driven - {record.id for record in owned}:
            record = await self._runs.store.run(self._runs.tenant, run_id)
            if record is not None and record.state == RunState.CANCELLED:
                self._stop(run_id)
        return [r for r in owned if r.driver == self.name and (self._agents is None or r.agent in self._agents)]

    def _stop(self, run_id: str) -> None:
        if run_id in self._driven:
            self._in_hand[run_id].cancel()

    async def settle(self) -> None:
        """Drive until nothing can be done now: every run waits or has ended. For tests and one-shot commands."""
        while await self.round() or self._in_hand:
            if self._in_hand:
                await asyncio.wait(list(self._in_hand.values()), return_when=asyncio.FIRST_COMPLETED)

    def _out_of_hand(self, run_id: str, _done: asyncio.Task[None]) -> None:
        self._in_hand.pop(run_id, None)
        self._poked.set()

    async def _rounds(self) -> None:
        while True:
            self._poked.clear()
            try:
                await self.round()
            except TollhouseError as error:
                log.warning("driver_waits code=%s", error.code, extra={"tollhouse": {"code": error.code}})
            except Exception:
                log.exception("driver_round_failed")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._poked.wait(), self._every_s * random.uniform(0.75, 1.25))

    async def _stop_cancelled(self) -> None:
        """A run that was cancelled in this process stops at once, whatever its model or its tools are doing."""
        with self._runs.bus.subscribe("*") as queue:
            while True:
                moved = await queue.get()
                if isinstance(moved, Moved) and moved.state == RunState.CANCELLED:
                    self._stop(moved.run_id)

    # -- one run -----------------------------------------------------------------------------------------

    async def _drive(self, record: RunRecord) -> None:
        try:
            if record.finished:
                await self._runs.tidy(record)
            else:
                await self._claim_and_drive(record)
        except Lost:
            await self._left_behind(record.id)
        except asyncio.CancelledError:
            if not self._stopping:
                await self._left_behind(record.id)
            raise
        except HouseClosed:
            log.debug("run_not_driven_by_closed_house run=%s", record.id)
        except (StoreUnavailable, UnknownAgent, ExtraMissing) as missing:
            log.warning("run_not_driven run=%s code=%s", record.id, missing.code)
            await self._not_again_at_once()
        except Exception:
            log.exception("run_not_driven run=%s", record.id)
            await self._not_again_at_once()

    async def _claim_and_drive(self, record: RunRecord) -> None:
        drive = await self._runs.claim(record)
        self._driven.add(record.id)
        try:
            await see_through(self._runs, drive, stopping=lambda: self._stopping)
        finally:
            self._driven.discard(record.id)

    async def _not_again_at_once(self) -> None:
        """Whoever owns it keeps it in hand for a while: what failed just now would only fail again."""
        if not self._stopping:
            await asyncio.sleep(PAUSE_MOST_S * random.uniform(0.5, 1.0))

    async def _left_behind(self, run_id: str) -> None:
        """Another has the run now; or it was cancelled, and a call that left here in that moment is not sent again."""
        log.debug("run_in_other_hands run=%s", run_id)
        with suppress(TollhouseError):
            record = await self._runs.store.run(self._runs.tenant, run_id)
            if record is not None and record.state == RunState.CANCELLED:
                await self._runs.forbid_calls(record)
