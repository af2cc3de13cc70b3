"""A simulated process: a whole house's inside over its own link to the store, with its own clock, ids and lease."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random
from typing import Any, cast

from tollhouse.doubt.compensation import Compensator
from tollhouse.doubt.people import People
from tollhouse.doubt.reconciler import Reconciler
from tollhouse.doubt.services import Services
from tollhouse.doubt.sweeper import Sweeper
from tollhouse.errors import StoreUnavailable
from tollhouse.gate.approval import ApprovalCheck
from tollhouse.gate.core import Core, Toolbox
from tollhouse.gate.gate import Gate
from tollhouse.ledger.clock import StoreClock
from tollhouse.ledger.ids import Prefix, SeededIds
from tollhouse.ledger.lease import Lease, LeaseKeeper
from tollhouse.ledger.store import Owner, Renewal
from tollhouse.testing.simulation.loop import SimulatedLoop
from tollhouse.testing.simulation.store import LinkedStore
from tollhouse.testing.simulation.tools import LEASE_S, TOOLS, undo

TENANT = "sim"
RENEW_S = 0.4 * LEASE_S
EVERYTHING = {**TOOLS, undo.name: undo}


class SimulatedKeeper:
    """Keeps a lease as :class:`~tollhouse.ledger.lease.LeaseKeeper` does, on the simulated clock and network.

    Stopped with its process when that is frozen, and gone when it is killed.
    """

    def __init__(self, store: LinkedStore, clock: StoreClock, ids: SeededIds, host: str, randomness: Random) -> None:
        self._store, self._clock, self._ids, self._host, self._random = store, clock, ids, host, randomness
        self.current: Lease | None = None
        self._task: asyncio.Task[None] | None = None

    async def register(self) -> None:
        """Take a lease, however long the store is away."""
        while True:
            before_us = self._clock.local_us()
            owner = Owner(TENANT, self._ids.new(Prefix.OWNER), self._host, 1, self._host, self._host)
            try:
                renewal = await self._store.register(owner, LEASE_S)
            except StoreUnavailable:
                await asyncio.sleep(RENEW_S)
                continue
            self._take(owner.id, before_us, renewal)
            return

    def keep(self) -> None:
        """Renew from now on; a new incarnation where the old one was ended."""
        asyncio.get_running_loop().call_later(RENEW_S * self._random.uniform(0.9, 1.1), self._renew)

    def _renew(self) -> None:
        """Most renewals take no time worth simulating, and there are very many of them."""
        assert self.current is not None
        before_us = self._clock.local_us()
        renewal = self._store.renew_now(TENANT, self.current.owner_id, LEASE_S)
        if renewal is None or not renewal.alive:
            self._task = asyncio.get_running_loop().create_task(self._renew_slowly())
            return
        self._take(self.current.owner_id, before_us, renewal)
        self.keep()

    async def _renew_slowly(self) -> None:
        assert self.current is not None
        before_us = self._clock.local_us()
        try:
            renewal = await self._store.renew(TENANT, self.current.owner_id, LEASE_S)
        except StoreUnavailable:
            self.keep()
            return
        if renewal.alive:
            self._take(self.current.owner_id, before_us, renewal)
        else:
            await self.register()
        self.keep()

    def _take(self, owner_id: str, before_us: int, renewal: Renewal) -> None:
        lease_us = round(LEASE_S * 1_000_000)
        self._clock.calibrate(before_us, renewal.now_us, self._clock.local_us(), steady_after_us=lease_us)
        self.current = Lease(owner_id, before_us + lease_us, renewal.lease_until_us, renewal.restored_at_us)


@dataclass(slots=True)
class Process:
    """See the module's docstring. ``has_tools`` False: an operator's command line, which sends nothing."""

    name: str
    core: Core
    gate: Gate
    people: People
    reconciler: Reconciler
    services: Services
    compensator: Compensator
    keeper: SimulatedKeeper
    store: LinkedStore
    frozen_until_s: float = 0.0
    killed: bool = False

    async def live(self) -> None:
        """Take a lease and keep it."""
        await self.keeper.register()
        self.keeper.keep()

    @property
    def ready(self) -> bool:
        """Whether it has its first lease, so that it can be asked for anything."""
        return self.keeper.current is not None and not self.killed


def make_process(name: str, loop: SimulatedLoop, store: LinkedStore, randomness: Random, skew_us: int) -> Process:
    """A process that has everything but its lease yet. ``skew_us``: how far its clock is off."""
    clock = StoreClock(lambda: round(loop.now_s * 1_000_000) + skew_us)
    ids = SeededIds(Random(randomness.getrandbits(32)))
    keeper = SimulatedKeeper(store, clock, ids, name, randomness)
    core = Core(
        store=store,
        tenant=TENANT,
        principal="caller",
        tools=Toolbox(cast(Any, EVERYTHING)),
        clock=clock,
        ids=ids,
        keeper=cast(LeaseKeeper, keeper),
        gates=(ApprovalCheck(),),
    )
    reconciler = Reconciler(core)
    gate = Gate(core, reconciler.settle_first)
    reconciler.gate = gate
    return Process(
        name=name,
        core=core,
        gate=gate,
        people=People(core),
        reconciler=reconciler,
        services=Services(core, reconciler, Sweeper(core, LEASE_S), every_s=1.0),
        compensator=Compensator(core, gate),
        keeper=keeper,
        store=store,
    )
