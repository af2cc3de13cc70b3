"""Acknowledgements that never arrive: the same guarded write is repeated until it is applied or refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import urlsplit

import pytest

from tests.stores.postgres_ledger import OWNER, SOMEBODY_WAITS, TENANT, departure, effect, looking, opened, until
from tollhouse.errors import StoreUnavailable
from tollhouse.ledger.record import State
from tollhouse.ledger.store import Refusal, Written
from tollhouse.testing.conformance.story import Story
from tollhouse.testing.pgwire import Variant
from tollhouse.testing.proxy import Proxy

pytestmark = pytest.mark.postgres

APPLIED = (Written(),)
VARIANTS = pytest.mark.parametrize("variant", ["applied", "not_applied"])


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[Proxy]:
    """A network between the store and its server that can be broken."""
    parts = urlsplit(postgres_url)
    assert parts.hostname
    assert parts.port
    with Proxy(parts.hostname, parts.port) as broken:
        yield broken


# case C71
@VARIANTS
async def test_an_insert_whose_answer_is_lost_is_made_once(postgres_url: str, proxy: Proxy, variant: Variant) -> None:
    """Whether the server had committed or never saw it: the caller hears *applied*, and there is one call."""
    async with opened(proxy.through(postgres_url)) as store:
        write = departure("call")
        trap = proxy.lose_next_ack("INSERT INTO calls", variant=variant)
        assert await store.write(write) == APPLIED
        assert trap.sprung
        assert store.counters.reconnects == 1
        assert await store.get(TENANT, "call") == write.record
        assert len(await store.events(TENANT, "call:call")) == 1


# case C71
@VARIANTS
async def test_an_update_whose_answer_is_lost_is_made_once(postgres_url: str, proxy: Proxy, variant: Variant) -> None:
    """The version that is gone was replaced by this very write, and its history shows it once."""
    async with opened(proxy.through(postgres_url)) as store:
        departed, happened = effect("call")
        await store.write(departed)
        trap = proxy.lose_next_ack("UPDATE calls", variant=variant)
        assert await store.write(happened) == APPLIED
        assert trap.sprung
        assert await store.get(TENANT, "call") == happened.record
        assert [event.seq for event in await store.events(TENANT, "call:call")] == [1, 2]


# case C71
@VARIANTS
async def test_a_batch_whose_answer_is_lost_is_made_once(postgres_url: str, proxy: Proxy, variant: Variant) -> None:
    """All who shared the commit are answered truly, those refused as well."""
    async with opened(proxy.through(postgres_url)) as store:
        await store.write(departure("taken", requested_by="earlier"))
        trap = proxy.lose_next_ack("unnest", variant=variant)
        taken = departure("taken")
        taken = replace(taken, write_id="late", events=tuple(replace(e, write_id="late") for e in taken.events))
        writes = [taken, *(departure(f"call-{n}") for n in range(15))]
        refused, *applied = await asyncio.gather(*map(store.write, writes))
        assert trap.sprung
        assert refused[0].refusal is Refusal.EXISTS
        assert applied == [APPLIED] * 15
        assert await store.count(TENANT) == {State.DEPARTED: 16}


# case C71
@pytest.mark.parametrize("statement", ["UPDATE calls", "COMMIT"])
@VARIANTS
async def test_a_transaction_whose_answer_is_lost_is_made_once(
    postgres_url: str, proxy: Proxy, variant: Variant, statement: str
) -> None:
    """Writes that belong together are repeated together, wherever the connection died."""
    async with opened(proxy.through(postgres_url)) as store:
        pairs = [effect("left"), effect("right")]
        await store.write(pairs[0][0], pairs[1][0])
        trap = proxy.lose_next_ack(statement, variant=variant)
        assert await store.write(pairs[0][1], pairs[1][1]) == (*APPLIED, *APPLIED)
        assert trap.sprung
        assert await store.count(TENANT) == {State.SUCCEEDED: 2}


# case C71
async def test_after_a_lost_answer_a_rival_may_have_won(postgres_url: str, proxy: Proxy) -> None:
    """The write never reached the server and somebody replaced the version meanwhile: refused, not *applied*."""
    async with opened(proxy.through(postgres_url)) as store, opened(postgres_url, register=False) as rival:
        departed, happened = effect("call")
        await store.write(departed)
        ended = Story.of(key="call").depart().end_wait().writes[1]
        ended = replace(ended, write_id="rival", events=tuple(replace(e, write_id="rival") for e in ended.events))
        proxy.lose_next_ack("UPDATE calls", variant="not_applied")
        proxy.refuse()
        writing = asyncio.ensure_future(store.write(happened))
        assert await rival.write(ended) == APPLIED
        proxy.pass_through()
        (answer,) = await writing
        assert (answer.refusal, answer.record) == (Refusal.STALE, ended.record)


async def test_the_repeat_waits_for_the_statement_that_is_still_under_way(postgres_url: str) -> None:
    """A transaction of the dead connection still holds the key: nothing is concluded before it ends."""
    async with opened(postgres_url, patience_s=10.0) as store, looking(postgres_url) as behind:
        write = departure("call")
        async with behind.transaction():
            await behind.execute(
                "INSERT INTO calls SELECT 't1', 'call', 'w', 't', 'read', NULL, NULL, '', '', '', 0, '', '',"
                " 'departed', 7, 0, 1, $1, NULL, false, false, NULL, 0, 1, '', $2, NULL",
                OWNER,
                '{"limits":[1,1,1],"attempts":[]}',
            )
            await behind.execute(
                "INSERT INTO events SELECT 't1', 'call:call', 1, 0, '', '', '', '', '', $1", write.write_id
            )
            writing = asyncio.ensure_future(store.write(write))
            await until(behind, SOMEBODY_WAITS)
            assert not writing.done()
        assert await writing == APPLIED


async def test_beyond_its_patience_the_store_is_unavailable(postgres_url: str, proxy: Proxy) -> None:
    """A server that stays away ends in an error that blames nobody and promises nothing; later it works again."""
    async with opened(proxy.through(postgres_url), patience_s=1.5) as store:
        proxy.refuse()
        proxy.cut()
        for attempt in (store.write(departure("call")), store.get(TENANT, "call"), store.fence(TENANT, "call")):
            with pytest.raises(StoreUnavailable) as caught:
                await attempt
            assert caught.value.code == "store_unavailable"
        proxy.pass_through()
        assert await store.write(departure("call")) == APPLIED


@pytest.mark.parametrize("mode", ["black_hole", "hold"])
async def test_a_silent_network_is_not_waited_for_for_ever(postgres_url: str, proxy: Proxy, mode: str) -> None:
    """No answer and no reset: writes, readings and the check before a send all end within their bounds."""
    async with opened(proxy.through(postgres_url), patience_s=1.5) as store:
        await store.write(departure("call"))
        await store.get(TENANT, "call")
        await store.fence(TENANT, "call")
        getattr(proxy, mode)()
        asked = [store.write(departure(f"call-{n}")) for n in range(30)]
        asked += [store.get(TENANT, "call"), store.fence(TENANT, "call")]  # type: ignore[list-item]
        # Generous: what matters is that nothing hangs.
        async with asyncio.timeout(20):
            answers = await asyncio.gather(*asked, return_exceptions=True)
        assert {type(answer) for answer in answers} == {StoreUnavailable}
        proxy.pass_through()
        assert await store.write(departure("after")) == APPLIED


async def test_a_connection_that_went_silent_is_replaced(postgres_url: str, proxy: Proxy) -> None:
    """A dead peer that sends no reset costs one try, not the write."""
    async with opened(proxy.through(postgres_url), patience_s=3.0) as store:
        await store.write(departure("first"))
        proxy.black_hole()
        writing = asyncio.ensure_future(store.write(departure("second")))
        await asyncio.sleep(0.2)
        proxy.pass_through()
        assert await writing == APPLIED


async def test_outcomes_survive_connections_that_break_all_the_time(postgres_url: str, proxy: Proxy) -> None:
    """200 effects while every connection is reset after each ten: each once, with both lines of its history."""
    async with opened(proxy.through(postgres_url)) as store:
        done = 0

        async def one(number: int) -> None:
            nonlocal done
            for write in effect(f"call-{number}"):
                assert await store.write(write) == APPLIED
                done += 1
                if done % 10 == 0:
                    proxy.cut()

        for start in range(0, 200, 40):
            await asyncio.gather(*(one(number) for number in range(start, start + 40)))
        assert store.counters.reconnects > 0
        assert await store.count(TENANT) == {State.SUCCEEDED: 200}
    async with looking(postgres_url) as connection:
        histories = await connection.fetch("SELECT count(*) AS lines FROM events GROUP BY stream")
        assert [row["lines"] for row in histories] == [2] * 200
