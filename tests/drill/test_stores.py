"""What the drill does to stores really happens to them."""

from __future__ import annotations

import time
from pathlib import Path

import asyncpg
import pytest

from tollhouse.ledger.store import Owner
from tollhouse.stores import open_store
from tollhouse.testing.drill.stores import Stores

pytestmark = pytest.mark.postgres


async def test_servers_time_of_day_runs_back_and_the_stores_does_not(tmp_path: Path) -> None:
    """The ledger's own function stands before the server's, so that a step back shows how the store bears it."""
    async with Stores("postgres", tmp_path) as stores, stores.ledger(shadow_clock=True) as ledger:
        store = await open_store(ledger.url)
        leases = store.lease_connection()
        before_us = leases.register(Owner("default", "own_1", "h", 1, "1", "w"), 30.0).now_us
        await ledger.step_clock_back()
        connection = await asyncpg.connect(ledger.url)
        server_s = await connection.fetchval("SELECT extract(epoch FROM clock_timestamp())::float8")
        await connection.close()
        after_us = leases.renew("default", "own_1", 30.0).now_us
        leases.close()
        await store.close()
    assert server_s - time.time() == pytest.approx(-20, abs=5)
    assert after_us >= before_us


async def test_killed_server_comes_back_with_what_was_committed(tmp_path: Path) -> None:
    """A kill is an outage, not a loss."""
    async with Stores("postgres", tmp_path) as stores, stores.ledger() as ledger:
        store = await open_store(ledger.url)
        leases = store.lease_connection()
        leases.register(Owner("default", "own_1", "h", 1, "1", "w"), 30.0)
        leases.close()
        await ledger.kill()
        assert await store.owner("default", "own_1") is not None
        await store.close()
        assert ledger.outages == 1
