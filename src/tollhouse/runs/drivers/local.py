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

from tollhouse.errors import ExtraMissing, HouseClosed, StoreUnavailable, TollhouseError, UnknownAgent
from tollhouse.ledger.run_record import RunRecord
from tollhouse.runs.advance import Lost
from tollhouse.runs.drivers.driving import PAUSE_MOST_S, STALE_S
from tollhouse.runs.drivers.hands import AT_ONCE, Hands
from tollhouse.runs.service import Runs
from tollhouse.runs.states import RunState

log = logging.getLogger("tollhouse")


class LocalDriver:
    """Drives the runs of one house. ``agents`` None: of every agent; ``every_s``: the pause between rounds."""

    name = "local"

    def __init__(
        self, runs: Runs, *, agents: Collection[str] | None = None, every_s: float = 0.25, at_once: int = AT_ONCE
    ) -> None:
        self._runs, self._agents, self._every_s = runs, agents, every_s
        self._hands = Hands(runs, at_once=at_once)
        self._poked = asyncio.Event()
        self._hands.on_freed = self._poked.set
        self._loop: asyncio.Task[None] | None = None
        self._last_round_s: float | None = None

    def start(self) -> None:
        """Begin, on the running loop."""
        self._runs.on_start = self._offered
        self._loop = asyncio.create_task(self._rounds())
        self._hands.start()

    @property
    def in_hand(self) -> int:
        """How many runs this process drives now."""
        return len(self._hands)

    async def is_well(self) -> bool:
        """Whether this process looks at its store."""
        return self._last_round_s is not None and time.monotonic() - self._last_round_s < STALE_S

    async def stop(self, grace_s: float = 10.0) -> None:
        """Take no more runs; hand each over after its step, or after ``grace_s`` in the middle of it."""
        if self._loop is not None:
            self._loop.cancel()
        await self._hands.stop(grace_s)

    def _offered(self, record: RunRecord) -> None:
        """Take a run that has just become free to go on in this process; whatever else moved, the next round finds."""
        mine = record.driver == self.name and (self._agents is None or record.agent in self._agents)
        free = record.state == RunState.QUEUED and record.id not in self._hands
        if mine and free and len(self._hands) < self._hands.at_once and not self._hands.stopping:
            _ = self._hands.take(record, self._drive)
        else:
            self._poked.set()

    async def round(self) -> int:
        """Take what may be taken now, without waiting for it; how many runs that were."""
        mine = await self._mine()
        self._last_round_s = time.monotonic()
        room = self._hands.at_once - len(self._hands)
        if room <= 0:
            return 0
        found = await self._runs.store.runs_to_take(
            self._runs.tenant, self.name, self._hands.at_once, agents=self._agents
        )
        fresh = {record.id: record for record in (*mine, *found) if record.id not in self._hands}
        for record in list(fresh.values())[:room]:
            _ = self._hands.take(record, self._drive)
        return min(len(fresh), room)

    async def _mine(self) -> list[RunRecord]:
        """Runs that this process owns, those among them too that it let go of when something failed."""
        owned = await self._hands.stop_cancelled_elsewhere()
        return [r for r in owned if r.driver == self.name and (self._agents is None or r.agent in self._agents)]

    async def settle(self) -> None:
        """Drive until nothing can be done now: every run waits or has ended. For tests and one-shot commands."""
        while await self.round() or len(self._hands):
            if tasks := self._hands.tasks:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)

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
                async with asyncio.timeout(self._every_s * random.uniform(0.75, 1.25)):
                    await self._poked.wait()  # not by `wait_for`, which loses a cancel that comes with the poke

    async def _drive(self, record: RunRecord) -> None:
        try:
            await self._hands.see_to(record)
        except Lost:
            return
        except HouseClosed:
            log.debug("run_not_driven_by_closed_house run=%s", record.id)
        except (StoreUnavailable, UnknownAgent, ExtraMissing) as missing:
            log.warning("run_not_driven run=%s code=%s", record.id, missing.code)
            await self._not_again_at_once()
        except Exception:
            log.exception("run_not_driven run=%s", record.id)
            await self._not_again_at_once()

    async def _not_again_at_once(self) -> None:
        """Whoever owns it keeps it in hand for a while: what failed just now would only fail again."""
        if not self._hands.stopping:
            await asyncio.sleep(PAUSE_MOST_S * random.uniform(0.5, 1.0))
