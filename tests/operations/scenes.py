"""What the tests of operations build on: tools with a book, a ledger with calls of every kind, two stores."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from hashlib import sha256
from typing import Any, cast

from tollhouse import NotSent, Rejected, Tollhouse, external, read, tool
from tollhouse.errors import TollhouseError
from tollhouse.ledger.run_record import AccessKey, Definition, RunRecord, RunStore
from tollhouse.ledger.store import Blob
from tollhouse.runs.states import RunState
from tollhouse.testing.conformance.run_story import begin, claim, finish, pause, put

SENT: list[str] = []
"""What the receiver of :func:`pay` was sent, in order."""


@tool(external())
async def pay(to: str) -> str:
    """Pay somebody; what happens depends on whom."""
    SENT.append(to)
    if to == "lost":
        raise ConnectionError("the reply was lost")
    if to == "refused":
        raise Rejected("no such account")
    if to == "unsent":
        raise NotSent("no route")
    return "x" * 70_000 if to == "large" else f"paid {to}"


@tool(read())
async def balance(of: str) -> dict[str, Any]:
    """A read, with a value that needs marking."""
    return {"of": of, "raw": b"\x00\xff"}


TOOLS = (pay, balance)


async def fill(house: Tollhouse) -> None:
    """Calls that end in every way there is without a person."""
    for to in ("ada", "lost", "refused", "unsent", "large"):
        with suppress(TollhouseError):
            await house.call(pay, {"to": to}, key=f"pay:{to}")
    await house.call(balance, {"of": "ada"}, key="balance:1")
    # One byte more than ASCII, and a name that sorts differently by locale.
    await house.call(pay, {"to": "Zoë \U0001f600"}, key="Pay:zoe")


def runs_in(house: Tollhouse) -> RunStore:
    """The house's store, as runs know it."""
    return cast(RunStore, house.store)


async def fill_runs(house: Tollhouse) -> list[RunRecord]:
    """Runs in every kind of state, one of them woken, and what they refer to."""
    store, tenant, owner = runs_in(house), house._core.tenant, house._core.owner_id
    data = b"said at length" * 9000
    fields: dict[str, Any] = {"tenant": tenant, "thread": "t", "parent_run_id": "run_0", "due_at_us": None}
    records = [await put(store, begin(f"run_{n}", start_key=f"k{n}", tenant=tenant)) for n in range(5)]
    records[1] = await put(store, claim(records[1], owner))
    records[2] = await put(store, pause(await put(store, claim(records[2], owner)), RunState.AWAITING_TIME, 10**17))
    records[3] = await put(store, finish(await put(store, claim(records[3], owner))))
    records.append(await put(store, begin("Run_zoë", **fields, blobs=(Blob(sha256(data).hexdigest(), data),))))
    await store.wake(tenant, "run_2")
    await store.keep_definition(Definition(tenant, "d" * 64, "agent", "concierge", 1, '{"model":"m"}'))
    await store.keep_access_key(AccessKey(tenant, "key_1", "s" * 64, "rita", ("runs:read",), 1, revoked_at_us=2))
    return records


async def keep_calling(house: Tollhouse, number: int) -> list[TollhouseError]:
    """Calls one after another until one is refused for another reason than its own; what was raised."""
    for at in range(100_000):
        try:
            await house.call(pay, {"to": f"{number}-{at}"}, key=f"load:{number}:{at}")
        except TollhouseError as error:
            return [error]
        await asyncio.sleep(0)
    return []
