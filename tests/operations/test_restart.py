"""A PostgreSQL primary restarts, and crashes, under load: nothing is sent twice, nothing that was said is lost."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tollhouse import Tollhouse, dedup, external, tool
from tollhouse.errors import InDoubt, StoreUnavailable
from tollhouse.testing.postgres import PostgresServer

pytestmark = pytest.mark.postgres

CALLERS = 8
RECEIVED: Counter[str] = Counter()


@tool(external())
async def send(name: str) -> str:
    """Counted by its receiver; sent once or never."""
    RECEIVED[name] += 1
    await asyncio.sleep(0.005)
    return f"sent {name}"


@tool(external(dedup=dedup.by_key(hours=1)))
async def send_again(name: str) -> str:
    """Counted by its receiver, which would recognise a repeat."""
    RECEIVED[name] += 1
    await asyncio.sleep(0.005)
    return f"sent {name}"


async def keep_sending(house: Tollhouse, number: int, over: asyncio.Event) -> Counter[str]:
    """Call on and on, again with the same key after every outage, as a caller should; how calls ended."""
    ended: Counter[str] = Counter()
    at = 0
    while not over.is_set():
        name = f"{number}-{at}"
        try:
            await house.call(send if number % 2 else send_again, {"name": name}, key=name)
            ended["succeeded"] += 1
        except InDoubt:
            ended["in_doubt"] += 1
        except StoreUnavailable:
            ended["away"] += 1
            await asyncio.sleep(0.05)
            continue  # the same key, which is safe
        at += 1
    return ended


@pytest.mark.parametrize("how", ["restart", "crash"])
async def test_primary_comes_back_under_load(private_postgres: PostgresServer, how: str) -> None:
    """Callers wait or are told that nothing left; every call that succeeded is on record, and was received once."""
    RECEIVED.clear()
    over = asyncio.Event()
    async with Tollhouse.open(
        private_postgres.url, tools=[send, send_again], lease_s=20, store_wait_s=3.0, every_s=0.2
    ) as house:
        callers = [asyncio.create_task(keep_sending(house, number, over)) for number in range(CALLERS)]
        await _sent_more(20)
        if how == "crash":
            await asyncio.to_thread(private_postgres.kill)
            await asyncio.to_thread(private_postgres.start)
        else:
            await asyncio.to_thread(private_postgres.restart, "fast")
        await _sent_more(40)
        over.set()
        ended = sum(await asyncio.gather(*callers), Counter())
        recorded = await house.list(limit=None)
        assert ended["succeeded"] >= 60
        states = Counter(str(call.state) for call in recorded)
        assert set(states) <= {"succeeded", "in_doubt"}
        assert states["succeeded"] >= ended["succeeded"]
        assert {call.key for call in recorded} >= set(RECEIVED)
        assert max(RECEIVED.values()) == 1
        assert house.store.counters.reconnects > 0


async def _sent_more(number: int) -> None:
    """Return when so many more calls were received."""
    until = len(RECEIVED) + number
    async with asyncio.timeout(60):
        while len(RECEIVED) < until:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
