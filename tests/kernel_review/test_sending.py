"""What a sending may conclude, and what its caller hears, at the moments where two things happen at once."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from tests.support.houses import OpenHouse, interfering, on_one_store, quiet, settled_down
from tollhouse import CallContext, NotSent, State, dedup, external, tool
from tollhouse.errors import CallNotSent, InDoubt, StoreUnavailable
from tollhouse.testing.ports import free_port
from tollhouse.testing.receiver import Receiver

pytestmark = on_one_store


async def test_a_failed_look_up_is_no_proof_about_what_was_confirmed_before(open_house: OpenHouse) -> None:
    """``ctx.http`` sees its own wire only: what the tool confirmed by itself may have left."""
    url = f"http://127.0.0.1:{free_port()}/status"
    mails: list[str] = []

    @tool(external(departs="at_confirm", attempt_timeout_s=5))
    async def mail(ctx: CallContext) -> None:
        await ctx.confirm()
        mails.append("out")
        await ctx.http.get(url)

    house = await open_house(mail)
    for _ in range(2):
        with pytest.raises(InDoubt):
            await house.call(mail, key="k")
    assert mails == ["out"]


async def test_a_refused_second_channel_is_no_proof_about_the_first(open_house: OpenHouse) -> None:
    """A request that found no connection did not leave; the mail before it did."""
    url = f"http://127.0.0.1:{free_port()}/hook"
    mails: list[str] = []

    @tool(external(departs="at_confirm", attempt_timeout_s=5))
    def mail(ctx: CallContext) -> None:
        ctx.confirm_sync()
        mails.append("out")
        ctx.http_sync.post(url, json={})

    house = await open_house(mail)
    for _ in range(2):
        with pytest.raises(InDoubt):
            await house.call(mail, key="k")
    assert mails == ["out"]


async def test_a_refused_look_up_rejects_nothing_that_was_confirmed(open_house: OpenHouse, receiver: Receiver) -> None:
    """A status that the contract names a rejection is none of a mail that left beside it."""

    @tool(external(departs="at_confirm", rejects=(404,), attempt_timeout_s=5))
    async def mail(ctx: CallContext) -> None:
        await ctx.confirm()
        response = await ctx.http.get(f"{receiver.url}/v1/nowhere")
        assert response.status_code == 404
        response.raise_for_status()

    house = await open_house(mail)
    with pytest.raises(InDoubt):
        await house.call(mail, key="k")


async def test_an_attempt_whose_caller_left_during_its_commit_sends_nothing(
    house_tenant: str, open_house: OpenHouse
) -> None:
    """A cancel that meets the commit of a resend stops the resend, and is on record."""
    sent: list[int] = []

    @tool(external(dedup=dedup.by_key(hours=24), max_attempts=3))
    async def pay(ctx: CallContext) -> None:
        sent.append(ctx.attempt)
        store.hold_next()
        raise ConnectionResetError("no answer")

    house = await open_house(pay, interfering=True)
    store = interfering(house)
    call = asyncio.create_task(house.call(pay, key="k"))
    await store.held.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    store.let_go()
    await quiet(house)
    await settled_down(house, "k")
    left = await house.store.get(house_tenant, "k")
    assert left is not None
    assert sent == [1]
    assert left.state is State.IN_DOUBT
    assert left.cancel_asked


async def test_a_cancel_from_elsewhere_stops_what_was_not_sent_from_going_again(open_house: OpenHouse) -> None:
    """Only a caller who asks anew takes a cancel back, never the owner's own repetition."""
    begun: list[int] = []

    @tool(external(dedup=dedup.by_key(hours=24), max_attempts=3))
    async def pay(ctx: CallContext) -> str:
        begun.append(ctx.attempt)
        if ctx.attempt == 1:
            await other.cancel("k", by="ada")
            raise NotSent("refused") from ConnectionRefusedError("nobody listens")
        return "paid"

    house, other = await open_house(pay), await open_house(pay)
    with pytest.raises(CallNotSent):
        await house.call(pay, key="k")
    assert begun == [1]
    assert (await house.call(pay, key="k")).value == "paid"


async def test_a_caller_whose_row_was_deleted_is_told(house_tenant: str, open_house: OpenHouse, tmp_path: Path) -> None:
    """Nobody waits for an answer that can never be written."""

    def delete() -> None:
        with sqlite3.connect(tmp_path / "ledger.db") as ledger:
            ledger.execute("DELETE FROM calls WHERE tenant = ?", (house_tenant,))

    @tool(external())
    async def pay() -> int:
        await asyncio.to_thread(delete)
        return 1

    house = await open_house(pay)
    with pytest.raises(StoreUnavailable) as heard:
        await asyncio.wait_for(house.call(pay, key="k"), 5)
    assert heard.value.sent == "yes"


async def test_a_waiter_who_loses_the_store_is_not_told_that_nothing_was_sent(
    open_house: OpenHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the row said when it could last be read is what it hears."""
    entered, leave = asyncio.Event(), asyncio.Event()

    @tool(external())
    async def pay() -> None:
        entered.set()
        await leave.wait()

    async def away(*_given: object) -> None:
        raise StoreUnavailable("The store is away.")

    house = await open_house(pay, interfering=True)
    first = asyncio.create_task(house.call(pay, key="k"))
    await entered.wait()
    with monkeypatch.context() as patch:
        patch.setattr(interfering(house), "get", away, raising=False)
        with pytest.raises(StoreUnavailable) as heard:
            await house.call(pay, key="k")
    assert (heard.value.key, heard.value.sent) == ("k", "maybe")
    leave.set()
    await first
