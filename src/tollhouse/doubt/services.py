"""The services that run beside callers: sweeping, reconciling, expiring, running what was approved.

``tollhouse worker`` runs them alone; a house runs them in its own process unless told otherwise. They hold nothing
between rounds: everything is in the store, so any number of them may run and any of them may die.

Sweeping has a loop of its own, and no round waits for the look-ups and calls that it began: a slow hook, or a tool that
runs for hours, must not keep a lost owner's calls from being seen.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

from tollhouse.doubt.reconciler import OPEN, Reconciler
from tollhouse.doubt.sweeper import Sweeper
from tollhouse.errors import TollhouseError
from tollhouse.gate.core import Core, log
from tollhouse.ledger.record import CallRecord, State
from tollhouse.ledger.store import Query

DUE_BATCH = 200
LOOKS_AT_ONCE = 16
RUNS_AT_ONCE = 64
BUSY_MOST = 1000
"""Calls in hand at the same time; beyond that only what waits for people is looked at."""


class Services:
    """The background work of one house. ``every_s``: the pause between rounds."""

    def __init__(self, core: Core, reconciler: Reconciler, sweeper: Sweeper, *, every_s: float) -> None:
        self._core, self._reconciler, self._sweeper = core, reconciler, sweeper
        self._every_s = every_s
        self.rounds = 0
        """Rounds begun since the house was opened."""
        self.last_round_local_us: int | None = None
        """When the last of them was, on this process's clock."""
        self._loops: list[asyncio.Task[None]] = []
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._looks, self._runs = asyncio.Semaphore(LOOKS_AT_ONCE), asyncio.Semaphore(RUNS_AT_ONCE)

    def start(self) -> None:
        """Begin in the background, on the running loop."""
        sweep_every_s = min(self._every_s, self._sweeper.longest_pause_s)
        steps = (
            self._again(self._sweeper.sweep, sweep_every_s),
            self._again(self._begin_due, self._every_s),
            self._guarded(self.adopt_old_doubts),
        )
        self._loops = [asyncio.get_running_loop().create_task(step) for step in steps]

    async def stop(self) -> None:
        """Begin nothing more. Look-ups that are out are cancelled, which changes nothing; calls that were begun go on
        as all attempts under way do."""
        for task in self._loops:
            task.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        self._loops = []
        await self._reconciler.stop()

    async def leave(self, within_s: float) -> None:
        """After :meth:`stop`, once attempts have ended: let what waited for them end too."""
        if self._busy:
            await asyncio.wait(list(self._busy.values()), timeout=within_s)

    async def round(self) -> int:
        """One round of everything, waited for; returns how many calls were looked at."""
        swept = await self._sweeper.sweep()
        begun = await self._begin_due()
        await asyncio.gather(*begun)
        return swept + len(begun)

    async def adopt_old_doubts(self) -> None:
        """A hook deployed later settles doubts from before it: look at them now, not when their backoff ends."""
        for tool in self._core.tools.all():
            for state in OPEN if tool.reconcile is not None else ():
                async for page in self._pages(Query(state=state, tool=tool.name, limit=DUE_BATCH)):
                    without = [record for record in page if not record.terms.has_reconcile]
                    await asyncio.gather(*self._begin(without))

    async def _pages(self, query: Query) -> AsyncIterator[list[CallRecord]]:
        while page := await self._core.store.find(self._core.tenant, query):
            yield page
            query = Query(query.state, query.tool, limit=query.limit, before=(page[-1].created_at_us, page[-1].key))

    # -- rounds ------------------------------------------------------------------------------------------

    async def _again(self, step: Callable[[], Awaitable[Any]], every_s: float) -> None:
        while True:
            await self._guarded(step)
            await asyncio.sleep(every_s * (0.75 + random.random() / 2))

    async def _guarded(self, step: Callable[[], Awaitable[Any]]) -> None:
        try:
            await step()
        except TollhouseError as error:
            log.warning("services_wait code=%s", error.code, extra={"tollhouse": {"code": error.code}})
        except Exception:
            log.exception("services_round_failed")

    async def _begin_due(self) -> list[asyncio.Task[None]]:
        """Begin with every call whose time has come and that is not in hand already."""
        self.rounds, self.last_round_local_us = self.rounds + 1, self._core.local_us()
        store, tenant, names = self._core.store, self._core.tenant, self._core.tools.names()
        most = DUE_BATCH + len(self._busy)
        waiting = await store.due(tenant, most, states=(State.HELD,))
        approved = await store.due(tenant, most, states=(State.READY,))
        ours = await store.due(tenant, most, tools=names) if names and len(self._busy) < BUSY_MOST else []
        return self._begin([*waiting, *approved, *ours])

    def _begin(self, records: list[CallRecord]) -> list[asyncio.Task[None]]:
        fresh = {record.key: record for record in records if record.key not in self._busy}
        for key, record in fresh.items():
            task = asyncio.get_running_loop().create_task(self._one(record))
            self._busy[key] = task
            task.add_done_callback(partial(self._out_of_hand, key))
        return [self._busy[key] for key in fresh]

    def _out_of_hand(self, key: str, _done: asyncio.Task[None]) -> None:
        del self._busy[key]

    async def _one(self, record: CallRecord) -> None:
        try:
            async with self._room_for(record):
                if not self._core.closed:
                    await self._reconciler.due(record)
        except TollhouseError as error:
            # What a call's state answers with (in doubt, failed, ...) is on its row; only the store matters here.
            log.debug("due_call_answered code=%s key=%s", error.code, record.key)
        except Exception:
            log.exception("due_call_failed", extra={"key": record.key})

    def _room_for(self, record: CallRecord) -> Any:
        """Look-ups and calls may take long, so there are so many at once; what only writes never waits for them."""
        if record.state in OPEN:
            return self._looks
        return self._runs if record.state is State.READY and record.run_when_approved else nullcontext()
