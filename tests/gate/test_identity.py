"""Who a call is: its key, given once; never its arguments, the objects they came in, or a provider's id."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.houses import OpenHouse
from tollhouse import CallContext, State, dedup, external, read, tool
from tollhouse.errors import CallConflict, Held
from tollhouse.testing.receiver import Receiver

sent: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_sent_yet() -> None:
    sent.clear()


@tool(external())
async def charge(order: dict[str, Any]) -> str:
    """Charge an order."""
    sent.append(order)
    return f"charged {len(sent)}"


# case C11
async def test_equal_arguments_are_the_same_call_however_their_objects_are_shared(open_house: OpenHouse) -> None:
    """A retry built of separate but equal objects is a replay."""
    shared = {"id": 1, "tags": ["x"]}
    separate = {"a": {"id": 1, "tags": ["x"]}, "b": {"tags": ["x"], "id": 1}}
    house = await open_house(charge)
    first = await house.call(charge, {"order": {"a": shared, "b": shared}}, key="k")
    again = await house.call(charge, {"order": separate}, key="k")
    assert (first.replayed, again.replayed) == (False, True)
    assert first.value == again.value == "charged 1"


# case C32
async def test_a_tool_that_changes_its_input_changes_nothing_on_record(open_house: OpenHouse) -> None:
    """The digest was fixed before it ran; the same call again replays, and the caller's object is untouched."""

    @tool(external())
    async def process(order: dict[str, Any]) -> str:
        order["processed"] = True
        order["lines"].append("extra")
        sent.append(order)
        return "ok"

    house = await open_house(process)
    given = {"id": 7, "lines": ["one"]}
    before = await house.call(process, {"order": given}, key="k")
    assert given == {"id": 7, "lines": ["one"]}
    again = await house.call(process, {"order": given}, key="k")
    assert (before.value, again.value, again.replayed) == ("ok", "ok", True)
    assert len(sent) == 1
    assert (await house.get("k")).arguments == {"order": given}


# case C34
async def test_a_provider_that_repeats_an_id_neither_drops_a_call_nor_runs_one_twice(open_house: OpenHouse) -> None:
    """The same key and arguments are a replay, and say so; other arguments under that key are a conflict; a new key
    is a new call, whatever the arguments."""
    house = await open_house(charge)
    first = await house.call(charge, {"order": {"id": "X"}}, key="run:1.0")
    same = await house.call(charge, {"order": {"id": "X"}}, key="run:1.0")
    assert (same.replayed, same.value) == (True, first.value)
    with pytest.raises(CallConflict):
        await house.call(charge, {"order": {"id": "Y"}}, key="run:1.0")
    other = await house.call(charge, {"order": {"id": "Y"}}, key="run:2.0")
    twin = await house.call(charge, {"order": {"id": "X"}}, key="run:3.0")
    assert (other.replayed, twin.replayed) == (False, False)
    assert [order["id"] for order in sent] == ["X", "Y", "X"]


# case C46
async def test_tenants_never_meet(open_house: OpenHouse, house_tenant: str) -> None:
    """The same key in another tenant is another call: independent rows, and nothing of one is seen by the other."""
    one = await open_house(charge, tenant=f"{house_tenant}-a")
    other = await open_house(charge, tenant=f"{house_tenant}-b")
    mine = await one.call(charge, {"order": {"id": "secret of a"}}, key="k1")
    theirs = await other.call(charge, {"order": {"id": "b"}}, key="k1")
    assert (mine.value, theirs.value) == ("charged 1", "charged 2")
    assert not theirs.replayed
    assert [call.arguments for call in await other.list()] == [{"order": {"id": "b"}}]
    assert (await one.get("k1")).idempotency_key != (await other.get("k1")).idempotency_key
    assert (await one.count())[State.SUCCEEDED] == (await other.count())[State.SUCCEEDED] == 1


# case C47
async def test_the_key_is_minted_once_outside_every_retry(open_house: OpenHouse, receiver: Receiver) -> None:
    """An order accepted whose reply was lost is sent again as the same order: one key, the same bytes."""
    receiver.mode("orders", keyed=True)
    receiver.fault("error_after_effect", status=504, times=2)

    @tool(external(dedup=dedup.by_key(hours=24), max_attempts=4))
    async def order(item: str, ctx: CallContext) -> str:
        response = await ctx.http.post(f"{receiver.url}/v1/orders", json={"item": item, "nonce": ctx.idempotency_key})
        response.raise_for_status()
        return str(response.json()["id"])

    house = await open_house(order)
    outcome = await house.call(order, {"item": "tea"}, key="order-7")
    assert outcome.attempts == 3
    requests = receiver.requests("orders")
    assert len(requests) == 3
    assert {request.key for request in requests} == {(await house.get("order-7")).idempotency_key}
    assert len({request.body_sha256 for request in requests}) == 1
    assert len(receiver.effects("orders")) == 1


async def test_subkeys_name_further_sends_of_one_call(open_house: OpenHouse, receiver: Receiver) -> None:
    """The same name gives the same key in every attempt, and no other call ever has it."""
    receiver.fault("reset_after_effect", collection="mails")

    @tool(external(dedup=dedup.by_key(hours=24)))
    async def pay_and_tell(ctx: CallContext) -> None:
        await ctx.http.post(f"{receiver.url}/v1/credits", json={})
        headers = {"Idempotency-Key": ctx.subkey("mail")}
        await ctx.http.post(f"{receiver.url}/v1/mails", json={}, headers=headers)

    house = await open_house(pay_and_tell)
    await house.call(pay_and_tell, key="k")
    wire = (await house.get("k")).idempotency_key
    assert [request.key for request in receiver.requests("credits")] == [wire] * 2
    assert [request.key for request in receiver.requests("mails")] == [f"{wire}/mail"] * 2


# case C38
async def test_a_repeat_is_looked_for_in_its_own_scope_only(open_house: OpenHouse) -> None:
    """Two delegations that make the same call both run; the second in one delegation is held."""
    gate, both = asyncio.Event(), asyncio.Barrier(3)

    @tool(external())
    async def search(query: str) -> str:
        sent.append(query)
        await both.wait()
        await gate.wait()
        return query

    house = await open_house(search)
    calls = [
        asyncio.create_task(house.call(search, {"query": "q"}, key=f"d{number}:1.0", scope=f"delegation-{number}"))
        for number in (1, 2)
    ]
    await both.wait()
    with pytest.raises(Held):
        await house.call(search, {"query": "q"}, key="d2:2.0", scope="delegation-2")
    gate.set()
    assert [(await call).replayed for call in calls] == [False, False]
    assert sent == ["q", "q"]


async def test_a_key_is_taken_for_ever_by_the_tool_that_took_it(open_house: OpenHouse) -> None:
    """A read's key, too: what it read is what it replays."""
    reads = 0

    @tool(read())
    async def count_up() -> int:
        nonlocal reads
        reads += 1
        return reads

    house = await open_house(count_up, charge)
    assert [(await house.call(count_up, key="r")).value for _ in range(3)] == [1, 1, 1]
    assert (await house.call(count_up)).value == 2
    with pytest.raises(CallConflict):
        await house.call(charge, {"order": {}}, key="r")
