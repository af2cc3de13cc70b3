"""Owners and their leases on PostgreSQL: the server's clock decides, and no departure slips past an owner's end."""

from __future__ import annotations

import asyncio
import time
from urllib.parse import urlsplit

import pytest

from tests.stores.postgres_ledger import (
    OWNER,
    SOMEBODY_WAITS,
    TENANT,
    departure,
    looking,
    opened,
    owner,
    registered,
    until,
)
from tollhouse.contract.terms import US
from tollhouse.errors import HouseClosed, StoreUnavailable
from tollhouse.ledger.record import AttemptOutcome
from tollhouse.ledger.store import Refusal, Written
from tollhouse.operations.restored import mark_restored
from tollhouse.testing.conformance.story import Story
from tollhouse.testing.postgres import PostgresServer
from tollhouse.testing.proxy import Proxy

pytestmark = pytest.mark.postgres

APPLIED = (Written(),)


# -- the end of an owner, and departures under way -------------------------------------------------------------------


async def test_a_departure_under_way_is_waited_for_before_its_owner_ends(postgres_url: str) -> None:
    """The sweeper that ends an owner sees every call that departed in its name."""
    async with opened(postgres_url) as store, looking(postgres_url) as behind, looking(postgres_url) as other:
        await store.write(departure("call"))
        async with behind.transaction():
            await behind.execute("SELECT FROM owners WHERE id = $1 FOR KEY SHARE", OWNER)
            ending = asyncio.ensure_future(store.owner_is_dead(TENANT, OWNER))
            await until(other, SOMEBODY_WAITS)
            assert not ending.done()
        await ending


async def test_a_departure_under_way_is_waited_for_before_a_mark_ends_its_owner(postgres_url: str) -> None:
    """Once a ledger is marked as restored, nothing departs any more of which nobody was asked."""
    async with opened(postgres_url), looking(postgres_url) as behind, looking(postgres_url) as other:
        async with behind.transaction():
            await behind.execute("SELECT FROM owners WHERE id = $1 FOR KEY SHARE", OWNER)
            marking = asyncio.ensure_future(mark_restored(postgres_url, by="ada"))
            waiting = asyncio.ensure_future(until(other, SOMEBODY_WAITS))
            await asyncio.wait((marking, waiting), return_when=asyncio.FIRST_COMPLETED)
            assert not marking.done()
            await waiting
        await marking
        assert await other.fetchval("SELECT count(*) FROM owners WHERE ended_at_us IS NULL") == 0


async def test_a_departure_that_meets_its_owners_end_is_refused(postgres_url: str) -> None:
    """It began while the owner lived and waited for the end to be committed: it looks again, and does not depart."""
    async with opened(postgres_url) as store, looking(postgres_url) as behind, looking(postgres_url) as other:
        async with behind.transaction():
            await behind.execute("SELECT FROM owners WHERE id = $1 FOR UPDATE", OWNER)
            await behind.execute("UPDATE owners SET ended_at_us = 1 WHERE id = $1", OWNER)
            alone = asyncio.ensure_future(store.write(departure("alone")))
            await until(other, SOMEBODY_WAITS)
            assert not alone.done()
        (answer,), *others = await asyncio.gather(alone, *(store.write(departure(f"call-{n}")) for n in range(12)))
        assert answer.refusal is Refusal.OWNER
        assert {other.refusal for (other,) in others} == {Refusal.OWNER}


async def test_a_renewal_does_not_wait_for_departures(postgres_url: str) -> None:
    """Departures lock their owner's row so lightly that its lease can be renewed meanwhile."""
    async with opened(postgres_url) as store, looking(postgres_url) as behind:
        leases = store.lease_connection()
        async with behind.transaction():
            await behind.execute("SELECT FROM owners WHERE id = $1 FOR KEY SHARE", OWNER)
            renewal = await asyncio.to_thread(leases.renew, TENANT, OWNER, 60.0)
            assert renewal.alive
        await asyncio.to_thread(leases.close)


async def test_open_attempts_of_ended_owners_are_found_however_many_there_are(postgres_url: str) -> None:
    """By owner, also where attempts of several owners are open in one call, and only of this tenant."""
    async with opened(postgres_url) as store:
        for name in ("own_b", "own_c"):
            await registered(store, name)
        both = Story.of(key="both").depart(OWNER).end_wait().resend("own_b")
        for write in (departure("a1"), departure("a2"), departure("c1", "own_c"), *both.writes):
            assert await store.write(write) == APPLIED
        ended = Story.of(key="done").depart("own_c").end(AttemptOutcome.HAPPENED)
        for write in ended.writes:
            assert await store.write(write) == APPLIED
        assert await store.end_expired_owners(TENANT) == []
        for name in (OWNER, "own_b"):
            await store.owner_is_dead(TENANT, name)
        assert [gone.id for gone in await store.end_expired_owners(TENANT)] == [OWNER, "own_b"]
        assert await store.end_expired_owners("t2") == []
        of_a = await store.orphans(TENANT, OWNER, 10)
        assert sorted(call.key for call in of_a) == ["a1", "a2", "both"]
        assert [call.key for call in await store.orphans(TENANT, "own_b", 10)] == ["both"]
        assert len(await store.orphans(TENANT, OWNER, 2)) == 2
        assert await store.orphans("t2", OWNER, 10) == []


# -- the clock -------------------------------------------------------------------------------------------------------


async def test_a_lease_ends_on_the_servers_clock(postgres_url: str) -> None:
    """Expired owners are ended once, can never be renewed, and a live one is left alone."""
    async with opened(postgres_url) as store:
        await registered(store, "own_short", lease_s=0.001)
        await store.write(departure("call", "own_short"))
        (gone,) = await store.end_expired_owners(TENANT)
        assert (gone.id, gone.proven_dead) == ("own_short", False)
        assert gone.ended_at_us is not None
        assert gone.ended_at_us > gone.lease_until_us
        leases = store.lease_connection()
        assert not (await asyncio.to_thread(leases.renew, TENANT, "own_short", 60.0)).alive
        assert not (await asyncio.to_thread(leases.register, owner("own_short"), 60.0)).alive
        assert (await asyncio.to_thread(leases.renew, TENANT, OWNER, 60.0)).alive
        assert await store.end_expired_owners(TENANT) == [gone]
        await asyncio.to_thread(leases.close)


async def test_a_clock_set_back_neither_revives_nor_kills(postgres_url: str) -> None:
    """Time goes on from the latest moment on which a lease was judged, at the pace of the server's clock."""
    async with opened(postgres_url) as store, looking(postgres_url) as behind:
        leases = store.lease_connection()
        await asyncio.to_thread(leases.renew, TENANT, OWNER, 60.0)
        # An hour ahead of the server's clock: as if that had been set back by an hour.
        judged_us = await behind.fetchval("UPDATE clock SET high_us = high_us + $1 RETURNING high_us", 3600 * US)
        await behind.execute("UPDATE owners SET lease_until_us = lease_until_us + $1", 3600 * US)
        assert await store.now_us() >= judged_us
        first = await asyncio.to_thread(leases.renew, TENANT, OWNER, 60.0)
        assert first.now_us >= judged_us
        assert first.lease_until_us == first.now_us + 60 * US
        second = await asyncio.to_thread(leases.renew, TENANT, OWNER, 0.001)
        assert second.now_us > first.now_us
        assert await store.now_us() > second.now_us
        await store.write(departure("call"))
        while not await store.end_expired_owners(TENANT):
            pass
        assert not (await asyncio.to_thread(leases.renew, TENANT, OWNER, 60.0)).alive
        # The clock is put right again: time does not run back, and soon follows it.
        await behind.execute("UPDATE clock SET high_us = high_us - $1", 3600 * US)
        assert await store.now_us() >= second.now_us
        await registered(store, "own_b")
        assert await behind.fetchval("SELECT offset_us FROM clock") == 0
        await asyncio.to_thread(leases.close)


async def test_what_is_due_is_due_on_the_stores_clock(postgres_url: str) -> None:
    """Most overdue first, of the tools and states asked for; what lies ahead is not due."""
    async with opened(postgres_url) as store:
        doubt = Story.of(key="doubt").depart().end(AttemptOutcome.UNKNOWN)
        earlier = (
            Story.of(key="earlier", at_us=doubt.record.created_at_us - 2 * US).depart().end(AttemptOutcome.ACCEPTED)
        )
        ahead = Story.of(key="ahead", at_us=await store.now_us() + 3600 * US).depart().end(AttemptOutcome.UNKNOWN)
        for story in (doubt, earlier, ahead):
            for write in story.writes:
                await store.write(write)
        assert [call.key for call in await store.due(TENANT, 10)] == ["earlier", "doubt"]
        assert [call.key for call in await store.due(TENANT, 1)] == ["earlier"]
        assert [call.key for call in await store.due(TENANT, 10, states=[doubt.state])] == ["doubt"]
        assert await store.due(TENANT, 10, tools=["another"]) == []
        assert len(await store.due(TENANT, 10, tools=["another", "issue_credit"])) == 2


# -- the keeper's connection -----------------------------------------------------------------------------------------


async def test_a_renewal_fails_within_a_third_of_its_lease(postgres_url: str) -> None:
    """Behind a silent network another renewal must still have its turn before the lease ends; afterwards it works."""
    parts = urlsplit(postgres_url)
    assert parts.hostname
    assert parts.port
    with Proxy(parts.hostname, parts.port) as proxy:
        async with opened(proxy.through(postgres_url)) as store:
            leases = store.lease_connection()
            await asyncio.to_thread(leases.renew, TENANT, OWNER, 60.0)
            proxy.black_hole()
            began = time.monotonic()
            with pytest.raises(StoreUnavailable):
                await asyncio.to_thread(leases.renew, TENANT, OWNER, 3.0)
            # The bound is one second; the rest is a busy machine's.
            assert time.monotonic() - began < 3.0
            proxy.pass_through()
            assert (await asyncio.to_thread(leases.renew, TENANT, OWNER, 60.0)).alive
            await asyncio.to_thread(leases.close)


async def test_renewals_go_on_after_the_server_restarted(private_postgres: PostgresServer) -> None:
    """The keeper's connection comes back by itself."""
    async with opened(private_postgres.url) as store:
        leases = store.lease_connection()
        await asyncio.to_thread(leases.renew, TENANT, OWNER, 60.0)
        await asyncio.to_thread(private_postgres.restart)
        assert (await asyncio.to_thread(leases.renew, TENANT, OWNER, 60.0)).alive
        await asyncio.to_thread(leases.close)


async def test_the_keeper_needs_nothing_of_the_houses_loop(postgres_url: str) -> None:
    """A renewal from the very thread of a loop that is blocked by it succeeds all the same."""
    async with opened(postgres_url) as store:
        leases = store.lease_connection()
        assert leases.renew(TENANT, OWNER, 60.0).alive
        leases.end(TENANT, OWNER)
        assert not leases.renew(TENANT, OWNER, 60.0).alive
        leases.close()
        leases.close()
        with pytest.raises(HouseClosed):
            leases.renew(TENANT, OWNER, 60.0)
