"""The sweeper: finds calls whose owner is gone and says so. It decides nothing else: they become *in doubt*.

Whether an owner is lost is judged by the store on its own clock, in one atomic step that also forbids every later
renewal. After an outage of the store nobody could renew, so the sweeper waits one lease before it judges anybody. The
store's own patience may hide an outage from it: an answer that took half a lease counts as one, and a judgement that
reaches the store half a lease after its round began ends nobody. With the longest pause before it, that is less than is
left of a lease when its next renewal is due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from tollhouse.contract.terms import US
from tollhouse.errors import StoreUnavailable
from tollhouse.gate.core import Core
from tollhouse.ledger.ids import Prefix
from tollhouse.ledger.lease import proven_dead
from tollhouse.ledger.lifecycle import Forbidden
from tollhouse.ledger.record import CallRecord, Lost
from tollhouse.ledger.steps import owner_lost
from tollhouse.ledger.store import Owner
from tollhouse.ledger.transact import Stale, transact

BATCH = 1000

T = TypeVar("T")


class Sweeper:
    """Sets lost owners aside. Any number may run over one store: each step is compare-and-set."""

    def __init__(self, core: Core, lease_s: float) -> None:
        self._core, self._lease_us = core, round(lease_s * US)
        self._judge_from_local_us = 0
        self.longest_pause_s = lease_s / 6
        """Between two rounds, so that no outage which lets a lease end fits in between unseen."""

    async def sweep(self) -> int:
        """One round; returns how many calls were set aside. Raises StoreUnavailable when the store is away."""
        core = self._core
        began_us = core.local_us()
        asked_us = await self._watched(core.store.now_us())
        if core.local_us() < self._judge_from_local_us or not core.clock.steady:
            return 0
        by_us = asked_us + self._lease_us // 2 - (core.local_us() - began_us)
        owners = await self._watched(core.store.end_expired_owners(core.tenant, by_us=by_us))
        swept = 0
        for owner in owners:
            swept += await self._set_aside(owner)
        return swept

    async def _watched(self, answer: Awaitable[T]) -> T:
        """The store's answer; one that failed, or took half a lease, was an outage."""
        core, away = self._core, False
        before_us = core.local_us()
        try:
            return await answer
        except StoreUnavailable:
            away = True
            raise
        finally:
            after_us = core.local_us()
            if away or after_us - before_us >= self._lease_us // 2:
                self._judge_from_local_us = after_us + self._lease_us

    async def _set_aside(self, owner: Owner) -> int:
        core = self._core
        proof = Lost.LEASE
        if owner.proven_dead or proven_dead(owner):
            proof = Lost.DEAD
            await core.store.owner_is_dead(owner.tenant, owner.id)
        swept = 0
        while records := await core.store.orphans(core.tenant, owner.id, BATCH):
            done = await asyncio.gather(*(self._lose(record, owner, proof) for record in records))
            swept += sum(done)
            if not any(done):
                break
        if swept:
            core.tell("owner_lost", owner=owner.id, calls=swept, proof=proof.value)
        return swept

    async def _lose(self, record: CallRecord, owner: Owner, proof: Lost) -> bool:
        core = self._core
        write_id = core.ids.new(Prefix.DECISION)
        try:
            before, after = await transact(
                core.store,
                record,
                lambda current: owner_lost(current, owner.id, owner.lease_until_us, proof, core.clock.now_us()),
                write_id,
            )
        except (Forbidden, Stale):
            return False  # it ended by itself at the same moment
        core.tell_of(before, after)
        return True
