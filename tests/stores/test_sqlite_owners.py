"""Leases of processes on one ledger, and the clock by which they are judged."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tollhouse.ledger.store import LeaseConnection, Refusal, Renewal
from tollhouse.stores.common.errors import BadValue
from tollhouse.stores.sqlite.clock import NeverBack

from .sqlite_ledger import NOW_US, OWNER, TENANT, arrival, departure, look, opened, owner

S = 1_000_000


class Wall:
    """A time of day that a test sets."""

    def __init__(self, now_us: int = NOW_US) -> None:
        self.now_us = now_us

    def __call__(self) -> int:
        return self.now_us


async def test_lease_is_renewed_while_the_event_loop_is_blocked(tmp_path: Path) -> None:
    """A tool that hogs the loop must not cost its process the lease; the writer's thread does not need the loop."""
    async with opened(tmp_path) as store:
        lease, answers = store.lease_connection(), []
        keeper = threading.Thread(target=lambda: answers.append(lease.renew(TENANT, OWNER, 60)))
        keeper.start()
        keeper.join(20)  # on the loop's thread, on purpose
        assert [answer.alive for answer in answers] == [True]


async def test_renewal_goes_ahead_of_waiting_writes(tmp_path: Path) -> None:
    """However many writes have queued up, the lease does not wait behind them."""
    async with opened(tmp_path) as store:
        order: list[str] = []

        async def write(n: int) -> None:
            await store.write(departure(f"k{n}"))
            order.append("write")

        async def renew() -> None:
            await asyncio.to_thread(store.lease_connection().renew, TENANT, OWNER, 60)
            order.append("renewal")

        with store._connections.writer.lock:  # the writer's turn, so that everything queues up first
            tasks = [asyncio.create_task(write(n)) for n in range(600)]
            await asyncio.sleep(0)
            tasks.append(asyncio.create_task(renew()))
            while len(store._writer._queue) < 601:  # noqa: ASYNC110 - nothing signals the length of a queue
                await asyncio.sleep(0.001)
        await asyncio.gather(*tasks)
        assert order.index("renewal") < 550


async def test_owner_commits_are_counted_apart_from_writes(tmp_path: Path) -> None:
    """The budget of an effect does not move with the lease."""
    async with opened(tmp_path) as store:
        lease = store.lease_connection()
        for _ in range(3):
            lease.renew(TENANT, OWNER, 60)
        assert (store.counters.commits, store.counters.extra["owner_commits"]) == (0, 4)


async def test_expired_owner_is_ended_once_and_for_all(tmp_path: Path) -> None:
    """Ended on the store's clock by anyone; afterwards it neither renews nor departs anything."""
    wall = Wall()
    async with opened(tmp_path, wall=wall) as store:
        lease = store.lease_connection()
        await store.write(departure("k1"))
        assert await store.end_expired_owners(TENANT) == []
        wall.now_us += 601 * S
        (ended,) = await store.end_expired_owners(TENANT)
        assert (ended.id, ended.proven_dead) == (OWNER, False)
        assert ended.ended_at_us is not None
        assert ended.ended_at_us > ended.lease_until_us
        assert not lease.renew(TENANT, OWNER, 600).alive
        (answer,) = await store.write(departure("k2"))
        assert answer.refusal is Refusal.OWNER
        assert [record.key for record in await store.orphans(TENANT, OWNER, 10)] == ["k1"]


async def test_owner_that_cannot_be_kept_fails_alone(tmp_path: Path) -> None:
    """A bad decision takes back nothing of the writes that share its commit."""
    async with opened(tmp_path) as store:
        bad = replace(owner("own_bad"), pid=2**70)
        with store._connections.writer.lock:  # the writer's turn, so that both are taken together
            writing = asyncio.create_task(store.write(departure("k1"), departure("k2")))
            registering = asyncio.create_task(asyncio.to_thread(store.lease_connection().register, bad, 60))
            while len(store._writer._queue) < 2:  # noqa: ASYNC110 - nothing signals the length of a queue
                await asyncio.sleep(0.001)
        with pytest.raises(BadValue):
            await registering
        assert [answer.applied for answer in await writing] == [True, True]
        assert await store.owner(TENANT, "own_bad") is None


async def test_sweep_that_finds_nobody_writes_nothing(tmp_path: Path) -> None:
    """Sweeping is periodic; an idle ledger is left in peace."""
    async with opened(tmp_path) as store:
        before = dict(store.counters.extra)
        await store.end_expired_owners(TENANT)
        assert store.counters.extra == before


async def test_ended_owner_is_returned_only_while_its_attempts_are_open(tmp_path: Path) -> None:
    """There is something to sweep as long as a row names it."""
    async with opened(tmp_path) as store:
        first = departure("k1")
        await store.write(first)
        store.lease_connection().end(TENANT, OWNER)
        assert [found.id for found in await store.end_expired_owners(TENANT)] == [OWNER]
        await store.write(arrival(first))
        assert await store.end_expired_owners(TENANT) == []


async def test_orphans_are_found_behind_other_owners_of_the_same_call(tmp_path: Path) -> None:
    """A call can have open attempts of two owners; names that only begin alike are others."""
    async with opened(tmp_path) as store:
        await store.write(departure("k1"))
        await store.write(departure("k2"))
        look(tmp_path, "UPDATE calls SET open_owners = 'own_0 own_12 own_1' WHERE key = 'k1'")
        look(tmp_path, "UPDATE calls SET open_owners = 'own_12 own_0' WHERE key = 'k2'")
        assert [record.key for record in await store.orphans(TENANT, "own_1", 10)] == ["k1"]
        assert {record.key for record in await store.orphans(TENANT, "own_12", 10)} == {"k1", "k2"}
        assert await store.orphans(TENANT, "own", 10) == []


def renewed(lease: LeaseConnection) -> Renewal:
    """A renewal that must succeed."""
    answer = lease.renew(TENANT, OWNER, 60)
    assert answer.alive
    return answer


async def test_clock_goes_on_at_its_pace_when_the_time_of_day_is_set_back(tmp_path: Path) -> None:
    """Neither back nor frozen: leases given before and after stay in order, and still run out."""
    wall = Wall()
    async with opened(tmp_path, wall=wall) as store:
        before = renewed(store.lease_connection())
        wall.now_us -= 3600 * S
        after = renewed(store.lease_connection())
        assert before.now_us < after.now_us < before.now_us + 60 * S
        first = await store.now_us()
        time.sleep(0.002)
        assert await store.now_us() > first


async def test_clock_does_not_run_back_across_a_restart(tmp_path: Path) -> None:
    """The ledger remembers the latest time by which an owner was judged."""
    async with opened(tmp_path, wall=Wall()) as store:
        judged = renewed(store.lease_connection())
    async with opened(tmp_path, wall=Wall(NOW_US - 3600 * S)) as store:
        assert await store.now_us() >= judged.now_us


async def test_clock_is_shared_by_all_processes_of_a_ledger(tmp_path: Path) -> None:
    """Whoever is behind takes over the latest time at its next decision."""
    async with opened(tmp_path, wall=Wall(NOW_US + 100 * S)) as ahead, opened(tmp_path, wall=Wall()) as behind:
        judged = renewed(ahead.lease_connection())
        assert renewed(behind.lease_connection()).now_us >= judged.now_us
        assert await behind.now_us() >= judged.now_us


def test_clock_never_answers_less_than_before() -> None:
    """Whatever the time of day does, answers only grow."""
    wall, steady = Wall(1000), Wall(0)
    clock = NeverBack(wall, steady)
    readings = []
    for wall_us, steady_us in ((1000, 0), (5000, 10), (2000, 30), (0, 40), (5010, 50), (9000, 60)):
        wall.now_us, steady.now_us = wall_us, steady_us
        readings.append(clock.now_us())
    assert readings == [1000, 5000, 5020, 5030, 5040, 9000]
    assert clock.now_us(at_least_us=20_000) == 20_000
