"""The services that run beside callers: sweeping, reconciling, expiring, running what was approved.

``tollhouse worker`` runs them alone; a house runs them in its own process unless told otherwise. They hold nothing
between rounds: everything is in the store, so any number of them may run and any of them may die.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

from tollhouse.doubt.reconciler import Reconciler
from tollhouse.doubt.sweeper import Sweeper
from tollhouse.errors import TollhouseError
from tollhouse.gate.core import Core, log
from tollhouse.ledger.record import CallRecord, State
from tollhouse.ledger.store import Query

DUE_BATCH = 200
AT_ONCE = 16


class Services:
    """The background work of one house. ``every_s``: the pause between rounds."""

    def __init__(self, core: Core, reconciler: Reconciler, sweeper: Sweeper, *, every_s: float) -> None:
        self._core, self._reconciler, self._sweeper = core, reconciler, sweeper
        self._every_s = every_s
        self._task: asyncio.Task[None] | None = None
        self._busy: set[str] = set()

    def start(self) -> None:
        """Begin in the background, on the running loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop after the step under way; look-ups that are out are cancelled, which changes nothing."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _run(self) -> None:
        with suppress(TollhouseError):
            await self.adopt_old_doubts()
        while True:
            try:
                await self.round()
            except TollhouseError as error:
                log.warning("services_wait code=%s", error.code, extra={"tollhouse": {"code": error.code}})
            except Exception:
                log.exception("services_round_failed")
            await asyncio.sleep(self._every_s * (0.75 + random.random() / 2))

    async def round(self) -> int:
        """One round of everything; returns how many calls were looked at."""
        swept = await self._sweeper.sweep()
        names = self._core.tools.names()
        due = await self._core.store.due(self._core.tenant, DUE_BATCH, tools=names) if names else []
        expiring = await self._core.store.due(self._core.tenant, DUE_BATCH, states=(State.HELD, State.READY))
        calls = {record.key: record for record in (*due, *expiring) if record.key not in self._busy}
        limit = asyncio.Semaphore(AT_ONCE)
        await asyncio.gather(*(self._one(record, limit) for record in calls.values()))
        return swept + len(calls)

    async def adopt_old_doubts(self) -> None:
        """A hook deployed later settles doubts from before it: look at them now, not when their backoff ends."""
        for tool in self._core.tools.all():
            if tool.reconcile is None:
                continue
            doubts = await self._core.store.find(
                self._core.tenant, Query(state=State.IN_DOUBT, tool=tool.name, limit=DUE_BATCH)
            )
            limit = asyncio.Semaphore(AT_ONCE)
            without = [record for record in doubts if not record.terms.has_reconcile]
            await asyncio.gather(*(self._one(record, limit) for record in without))

    async def _one(self, record: CallRecord, limit: asyncio.Semaphore) -> None:
        self._busy.add(record.key)
        try:
            async with limit:
                await self._reconciler.due(record)
        except TollhouseError as error:
            # What a call's state answers with (in doubt, failed, ...) is on its row; only the store matters here.
            log.debug("due_call_answered code=%s key=%s", error.code, record.key)
        except Exception:
            log.exception("due_call_failed", extra={"key": record.key})
        finally:
            self._busy.discard(record.key)
