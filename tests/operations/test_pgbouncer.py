"""Behind PgBouncer in transaction mode: every transaction may meet another connection of the server."""

from __future__ import annotations

import asyncio

import pytest

from tests.operations.scenes import TOOLS, balance, fill, pay, runs_in
from tollhouse import Tollhouse
from tollhouse.errors import StoreUnavailable, StoreURLInvalid
from tollhouse.operations.copying import copy_ledger
from tollhouse.stores import check, open_store, upgrade
from tollhouse.testing.conformance.run_story import begin, claim, pause, put

pytestmark = pytest.mark.postgres
pytest_plugins = ["tests.operations.pooler"]

CALLERS, EACH = 24, 8


async def test_ledger_is_created_upgraded_and_checked_through_the_pooler(pooled_url: str) -> None:
    """Migrations keep to one transaction, and so to one connection."""
    url = f"{pooled_url}?pgbouncer=1"
    assert len(await upgrade(url)) >= 2
    assert await upgrade(url) == []
    assert (await check(url)).usable


async def test_many_callers_share_few_connections(pooled_url: str) -> None:
    """Every call is recorded with its own arguments and result, twice: a statement never meets another's values."""
    url = f"{pooled_url}?pgbouncer=1"
    async with (
        Tollhouse.open(url, tools=TOOLS, tenant="a", lease_s=3) as first,
        Tollhouse.open(url, tools=TOOLS, tenant="b", lease_s=3) as second,
    ):

        async def call(house: Tollhouse, number: int) -> None:
            for at in range(EACH):
                name = f"{house._core.tenant}-{number}-{at}"
                assert (await house.call(pay, {"to": name}, key=name)).value == f"paid {name}"
                assert (await house.call(balance, {"of": name})).value["of"] == name
                assert (await house.get(name)).arguments == {"to": name}

        callers = [call(house, number) for house in (first, second) for number in range(CALLERS // 2)]
        await asyncio.gather(*callers)
        for house in (first, second):
            assert sum((await house.count()).values()) == CALLERS * EACH
            calls = await house.list(tool="pay", limit=None)
            assert all(call.result == f"paid {call.key}" for call in calls)


async def test_doubts_and_copies_work_through_the_pooler(pooled_url: str, tmp_path: object) -> None:
    """What operators do needs nothing of one connection's own either."""
    url = f"{pooled_url}?pgbouncer=1"
    async with Tollhouse.open(url, tools=TOOLS, background=False, grace_s=0.0) as house:
        await fill(house)
        await house.services.round()
        calls = len(await house.list())
    copied = await copy_ledger(url, f"sqlite:///{tmp_path}/copy.db")
    assert copied.rows["calls"] == calls


async def test_pooler_that_nobody_told_of_is_told_by_the_error(pooled_url: str) -> None:
    """Its refusal of settings for a whole connection becomes what to write into the URL."""
    with pytest.raises(StoreUnavailable) as refused:
        await open_store(pooled_url, busy_timeout_s=0.5)
    assert "pgbouncer=1" in refused.value.remedy


@pytest.mark.parametrize("value", ["yes", "", "2"])
async def test_switch_is_one_or_zero(value: str) -> None:
    """A value that means nothing is a mistake, not a default."""
    with pytest.raises(StoreURLInvalid, match="pgbouncer"):
        await open_store(f"postgresql://u@127.0.0.1:1/x?pgbouncer={value}")


async def test_runs_work_through_the_pooler(pooled_url: str) -> None:
    """Many are started, taken, paused and woken at once; none is lost or taken twice."""
    url = f"{pooled_url}?pgbouncer=1"
    async with Tollhouse.open(url, tools=TOOLS, background=False) as house:
        store, tenant, owner = runs_in(house), house._core.tenant, house._core.owner_id
        await asyncio.gather(*(put(store, begin(f"run_{n}", tenant=tenant)) for n in range(CALLERS)))
        taken = await store.runs_to_take(tenant, "local", 100)
        twice = await asyncio.gather(*(store.write_run(claim(record, owner)) for record in taken * 2))
        assert sum(answer.applied for answer in twice) == len(taken) == CALLERS
        for record in await store.runs_owned(tenant, owner, 100):
            await put(store, pause(record))
            await store.wake(tenant, record.id)
        assert len(await store.runs_to_take(tenant, "local", 100)) == CALLERS
