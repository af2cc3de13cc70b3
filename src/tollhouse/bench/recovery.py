"""How long it takes until nothing of a lost owner is left departed: ten thousand calls, one dead process."""

from __future__ import annotations

import asyncio
import time

from tollhouse import Tollhouse
from tollhouse.bench.job import TOOLS, pay
from tollhouse.contract.terms import US
from tollhouse.ledger.digest import encode_arguments
from tollhouse.ledger.keys import wire_key
from tollhouse.ledger.record import CallRecord, Limits, State
from tollhouse.ledger.steps import Start, first_departure
from tollhouse.ledger.store import Owner, Store, Write
from tollhouse.ledger.writes import write_of
from tollhouse.stores import open_store

TENANT = "default"
LEASE_S = 1.0
"""Of the house that finds them."""

_GIVE_UP_S = 120.0


async def recovery_s(url: str, orphans: int) -> float:
    """Seconds from opening a house until every orphan is in doubt, its first look at the store included."""
    store = await open_store(url)
    try:
        await _orphan(store, orphans)
    finally:
        await store.close()
    began_s = time.perf_counter()
    async with Tollhouse.open(url, tools=TOOLS, lease_s=LEASE_S, tenant=TENANT) as house:
        while (await house.count())[State.DEPARTED]:
            if time.perf_counter() - began_s > _GIVE_UP_S:
                raise TimeoutError(f"{orphans} orphans were not recovered within {_GIVE_UP_S:.0f} s")
            await asyncio.sleep(0.02)
        return time.perf_counter() - began_s


async def _orphan(store: Store, number: int) -> None:
    """Departures of an owner on another machine, whose lease then ends."""
    owner = Owner(TENANT, "own_lost", "another-machine", 1, "0", "bench")
    leases = store.lease_connection()
    try:
        now_us = (await asyncio.to_thread(leases.register, owner, 3600.0)).now_us
        for first in range(0, number, 1000):
            last = min(first + 1000, number)
            await asyncio.gather(*(store.write(_departure(at, owner.id, now_us)) for at in range(first, last)))
        await asyncio.to_thread(leases.renew, TENANT, owner.id, 0.05)
    finally:
        await asyncio.to_thread(leases.close)
    await asyncio.sleep(0.1)


def _departure(number: int, owner_id: str, now_us: int) -> Write:
    key = f"orphan-{number}"
    arguments = encode_arguments({"account_id": "a1", "amount_cents": number})
    new = CallRecord(
        tenant=TENANT,
        key=key,
        wire_key=wire_key(TENANT, key),
        tool=pay.name,
        effect=str(pay.effect),
        request_digest=arguments.digest,
        requested_by="local",
        contract=pay.contract_text,
        limits=Limits(1, 30.0, 60.0),
        digest=arguments.digest,
        arguments=arguments.text,
        state=State.READY,
        created_at_us=now_us,
        updated_at_us=now_us,
    )
    start = Start(f"att_orphan_{number}", owner_id, now_us, now_us + 30 * US)
    return write_of(first_departure(new, start, {"tool": pay.name, "by": "local"}), start.id, owner=owner_id)
