"""The store of a simulated history as one process sees it: over a network that is slow, drops replies and goes away.

The ledger behind it is the memory store, so every write passes its guards. A request that has left a process is applied
whatever becomes of the process; when the process was killed meanwhile, fate decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tollhouse.errors import StoreUnavailable
from tollhouse.ledger.events import Event
from tollhouse.ledger.record import CallRecord, State
from tollhouse.ledger.rows import record_of
from tollhouse.ledger.store import Counters, Fence, LeaseConnection, Owner, Query, Renewal, Write, Written
from tollhouse.testing.memory_store import MemoryLedger, MemoryStore
from tollhouse.testing.simulation.loop import SimulatedLoop

if TYPE_CHECKING:
    from tollhouse.ledger.store import Store

T = TypeVar("T")


class Watcher(Protocol):
    """Who sees what the store truly does, at the moment it does it."""

    def wrote(self, process: str, writes: tuple[Write, ...]) -> None: ...

    def acknowledged(self, process: str, writes: tuple[Write, ...], local_us: int) -> None: ...

    def fence_read(self, process: str, key: str) -> None: ...


@dataclass(slots=True)
class Weather:
    """How the store's network behaves: chances per request. ``late``: unavailable to its caller, applied all the same
    when the caller has given up."""

    unsent: float = 0.0
    ack_lost: float = 0.0
    late: float = 0.0
    slow: float = 0.05
    slow_s: float = 3.0


class Link:
    """What one process has of the store. ``away_until_s``: the store cannot be reached before."""

    def __init__(self, loop: SimulatedLoop, randomness: Random, weather: Weather, watcher: Watcher) -> None:
        self._loop, self._random, self._weather, self.watcher = loop, randomness, weather, watcher
        self.away_until_s = 0.0
        self.dead = False
        self.asked = 0
        self.at_request: Callable[[int], None] = lambda _nth: None
        """Called with the number of each request as it leaves: where a history lays out its crashes."""

    async def ask(self, act: Callable[[], T], *, acked: Callable[[], None] | None = None) -> T:
        """Have the store do ``act``; raises StoreUnavailable as fate wants it, before or after it was done."""
        self.asked += 1
        self.at_request(self.asked)
        loop, drawn, weather = self._loop, self._random.random(), self._weather
        answer: asyncio.Future[T] = loop.create_future()
        if loop.now_s < self.away_until_s or drawn < weather.unsent:
            loop.call_later(0.5, _fail, answer)
            return await answer
        drawn -= weather.unsent
        lose = drawn < weather.ack_lost + weather.late
        late_s = self._random.uniform(1.0, 8.0) if weather.ack_lost <= drawn < weather.ack_lost + weather.late else 0.0
        if lose:
            loop.call_later(0.6, _fail, answer)
        loop.outside(self._delay_s() + late_s, self._serve, answer, act, lose)
        value = await answer
        if acked is not None:
            acked()
        return value

    def is_clear(self) -> bool:
        """Whether a request would meet no trouble now, by lot."""
        return self._loop.now_s >= self.away_until_s and self._random.random() < 0.9

    def _delay_s(self) -> float:
        drawn = self._random.random()
        return drawn * self._weather.slow_s if drawn < self._weather.slow else drawn * 0.004

    def _serve(self, answer: asyncio.Future[T], act: Callable[[], T], lose: bool) -> None:
        if self.dead and self._random.random() < 0.5:
            return
        value = act()
        if not lose:
            self._loop.outside(self._delay_s(), _succeed, answer, value)


def _fail(answer: asyncio.Future[Any]) -> None:
    if not answer.done():
        answer.set_exception(StoreUnavailable("The simulated store does not answer."))


def _succeed(answer: asyncio.Future[T], value: T) -> None:
    if not answer.done():
        answer.set_result(value)


def _now(coroutine: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    raise AssertionError("the memory store waits for nothing")


class LinkedStore:
    """A :class:`~tollhouse.ledger.store.Store` for one process, over its link. Every method may raise
    StoreUnavailable."""

    def __init__(self, process: str, ledger: MemoryLedger, link: Link, local_us: Callable[[], int]) -> None:
        self.url = "memory:"
        self.counters = Counters()
        self.link = link
        self._process, self._ledger, self._inner = process, ledger, MemoryStore(ledger)
        self._local_us = local_us

    async def write(self, *writes: Write) -> tuple[Written, ...]:
        watcher = self.link.watcher

        def apply() -> tuple[Written, ...]:
            versions = [self._version(write) for write in writes]
            answers = _now(self._inner.write(*writes))
            if versions != [self._version(write) for write in writes]:
                watcher.wrote(self._process, writes)
            return answers

        return await self.link.ask(apply, acked=lambda: watcher.acknowledged(self._process, writes, self._local_us()))

    def _version(self, write: Write) -> int | None:
        row = self._ledger.calls.get((write.record.tenant, write.record.key))
        return None if row is None else row["version"]

    async def get(self, tenant: str, key: str) -> CallRecord | None:
        return await self.link.ask(lambda: self._ledger.record(tenant, key))

    async def fence(self, tenant: str, key: str) -> Fence | None:
        def read() -> Fence | None:
            self.link.watcher.fence_read(self._process, key)
            return _now(self._inner.fence(tenant, key))

        return await self.link.ask(read)

    async def events(self, tenant: str, stream: str, after: int = 0, limit: int = 10_000) -> list[Event]:
        return await self.link.ask(lambda: _now(self._inner.events(tenant, stream, after, limit)))

    async def blob(self, tenant: str, digest: str) -> bytes | None:
        return await self.link.ask(lambda: _now(self._inner.blob(tenant, digest)))

    async def find(self, tenant: str, query: Query) -> list[CallRecord]:
        return await self.link.ask(lambda: _now(self._inner.find(tenant, query)))

    async def count(self, tenant: str) -> dict[State, int]:
        return await self.link.ask(lambda: _now(self._inner.count(tenant)))

    async def due(
        self, tenant: str, limit: int, *, tools: Collection[str] | None = None, states: Collection[State] | None = None
    ) -> list[CallRecord]:
        def read() -> list[CallRecord]:
            now_us = self._ledger.now_us()
            rows = [
                row
                for row in self._ledger.rows(tenant)
                if row["due_at_us"] is not None
                and row["due_at_us"] <= now_us
                and (tools is None or row["tool"] in tools)
                and (states is None or row["state"] in states)
            ]
            rows.sort(key=lambda row: (row["due_at_us"], row["key"]))
            return [record_of(row) for row in rows[:limit]]

        return await self.link.ask(read)

    async def end_expired_owners(self, tenant: str, *, by_us: int | None = None) -> list[Owner]:
        return await self.link.ask(lambda: _now(self._inner.end_expired_owners(tenant, by_us=by_us)))

    async def orphans(self, tenant: str, owner_id: str, limit: int) -> list[CallRecord]:
        return await self.link.ask(lambda: _now(self._inner.orphans(tenant, owner_id, limit)))

    async def owner(self, tenant: str, owner_id: str) -> Owner | None:
        return await self.link.ask(lambda: _now(self._inner.owner(tenant, owner_id)))

    async def owner_is_dead(self, tenant: str, owner_id: str) -> None:
        return await self.link.ask(lambda: _now(self._inner.owner_is_dead(tenant, owner_id)))

    async def now_us(self) -> int:
        return await self.link.ask(self._ledger.now_us)

    def lease_connection(self) -> LeaseConnection:
        return self._inner.lease_connection()

    async def register(self, owner: Owner, lease_s: float) -> Renewal:
        """Register an owner, as the lease keeper's connection does."""
        return await self.link.ask(lambda: self.lease_connection().register(owner, lease_s))

    async def renew(self, tenant: str, owner_id: str, lease_s: float) -> Renewal:
        """Renew a lease, as the lease keeper's connection does."""
        return await self.link.ask(lambda: self.lease_connection().renew(tenant, owner_id, lease_s))

    def renew_now(self, tenant: str, owner_id: str, lease_s: float) -> Renewal | None:
        """The same in no time, which is most renewals; None where the network has something to say about it."""
        return self.lease_connection().renew(tenant, owner_id, lease_s) if self.link.is_clear() else None

    def changed(self, tenant: str, key: str) -> None:
        """Nobody here relies on hints."""

    async def close(self) -> None:
        """Nothing to release."""


def _is_a_store(store: LinkedStore) -> Store:
    return store
