"""Old settled calls lose their bodies; their keys stay taken, and nothing that is open is touched."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from typing import Any

import pytest

from tests.operations.scenes import SENT, TOOLS, fill, pay, runs_in
from tests.support.houses import OpenHouse
from tollhouse import Tollhouse, dedup, did_not_happen, external, happened, hold_repeats, tool
from tollhouse.errors import CallConflict, CallFailed, CallNotSent, Held, InDoubt, NotAllowed, Refused, ResultPurged
from tollhouse.ledger.events import first_break
from tollhouse.ledger.record import State
from tollhouse.ledger.run_record import run_stream
from tollhouse.ledger.store import Blob
from tollhouse.operations.purge import Purged, purge
from tollhouse.runs.states import RunState
from tollhouse.stores import open_raw
from tollhouse.stores.common.raw import BLOBS, EVENTS, RawLedger
from tollhouse.testing.conformance.run_story import begin, finish, put

LARGE = "x" * 70_000


async def purged(house: Tollhouse, **options: Any) -> Purged:
    """Purge this house's calls, whatever their age."""
    url: str = house.store.url
    return await purge(url, house._core.tenant, **{"older_than_s": -60.0, **options})


async def rows(house: Tollhouse, table: Any) -> list[Any]:
    """The tenant's rows of a table."""
    ledger = await open_raw(house.store.url)
    try:
        return [row for row in await ledger.page(table, table.start, 10_000) if row[0] == house._core.tenant]
    finally:
        await ledger.close()


async def test_purged_key_is_never_free_again(open_house: OpenHouse) -> None:
    """Every settled call answers with how it ended; other arguments are a conflict; nothing is sent."""
    house = await open_house(*TOOLS)
    await fill(house)
    assert (await purged(house)).calls == {"succeeded": 4, "failed": 1}
    sent = list(SENT)
    for key, to in (("pay:ada", "ada"), ("pay:large", "large")):
        with pytest.raises(ResultPurged) as gone:
            await house.call(pay, {"to": to}, key=key)
        assert gone.value.sent == "yes"
        with pytest.raises(CallConflict):
            await house.call(pay, {"to": "somebody else"}, key=key)
    with pytest.raises(CallFailed) as failed:
        await house.call(pay, {"to": "refused"}, key="pay:refused")
    assert failed.value.sent == "yes"
    assert sent == SENT


async def test_refused_call_is_refused_after_its_purge(open_house: OpenHouse) -> None:
    """A person's no outlasts its reason."""
    house = await open_house(pay)
    with pytest.raises(CallNotSent):
        await house.call(pay, {"to": "unsent"}, key="k")
    await house.cancel("k", by="ada")
    assert (await purged(house, states=[State.REFUSED])).calls == {"refused": 1}
    with pytest.raises(Refused):
        await house.call(pay, {"to": "unsent"}, key="k")


async def test_nothing_personal_is_left_of_a_purged_call(open_house: OpenHouse) -> None:
    """Arguments, results, errors and history are gone from the ledger; who, when and how it ended stay."""
    house = await open_house(*TOOLS)
    await fill(house)
    before = await house.get("pay:ada")
    await purged(house)
    call = await house.get("pay:ada")
    assert (call.arguments, call.result, call.history) == ({}, None, ())
    assert (call.state, call.digest, call.raw.request_digest) == (
        before.state,
        before.digest,
        before.raw.request_digest,
    )
    assert [a.id for a in call.attempts] == [a.id for a in before.attempts]
    assert call.raw.extra["purged"]["head_hash"] == before.raw.head_hash
    assert "no such account" not in repr(await house.get("pay:refused"))
    kept = {row[1] for row in await rows(house, EVENTS)}
    assert kept == {"call:pay:lost", "call:pay:unsent"}
    assert await rows(house, BLOBS) == []


async def test_open_calls_are_never_purged(open_house: OpenHouse) -> None:
    """Doubts, holds and what may still go stay whole, however old."""
    house = await open_house(*TOOLS)
    await fill(house)
    before = await house.get("pay:lost")
    await purged(house)
    assert await house.get("pay:lost") == before
    with pytest.raises(InDoubt):
        await house.call(pay, {"to": "lost"}, key="pay:lost")
    assert (await house.call(pay, {"to": "ada"}, key="pay:new")).value == "paid ada"


async def test_contradicted_call_is_never_purged(open_house: OpenHouse) -> None:
    """What a person must decide about stays until they have."""

    @tool(external(), reconcile=lambda record: found)
    async def send() -> str:
        raise ConnectionError("lost")

    found = happened("there")
    house = await open_house(send)
    with pytest.raises(InDoubt):
        # The look-up is not asked before the doubt is a moment old.
        await house.call(send, {}, key="k")
    await house.resolve("k", did_not_happen("not in the list"), reason="looked", by="ada")
    await house.reconcile("k")
    assert (await house.get("k")).contradicted
    assert (await purged(house)).calls == {}


async def test_age_counts_from_the_last_change(open_house: OpenHouse) -> None:
    """Younger calls stay; a dry run only counts."""
    house = await open_house(*TOOLS)
    await fill(house)
    assert (await purged(house, older_than_s=3600.0)).calls == {}
    assert (await purged(house, dry_run=True)).calls == {"succeeded": 4, "failed": 1}
    assert (await house.call(pay, {"to": "ada"}, key="pay:ada")).value == "paid ada"
    assert (await purged(house, states=[State.FAILED])).calls == {"failed": 1}


async def test_results_alone_can_be_purged(open_house: OpenHouse) -> None:
    """Arguments and history stay; the second time there is nothing left to do."""
    house = await open_house(*TOOLS)
    await fill(house)
    assert (await purged(house, results_only=True)) == Purged({"succeeded": 4}, 1)
    with pytest.raises(ResultPurged):
        await house.call(pay, {"to": "large"}, key="pay:large")
    call = await house.get("pay:large")
    assert call.arguments == {"to": "large"}
    assert first_break(await house.store.events(house._core.tenant, "call:pay:large")) is None
    assert (await purged(house, results_only=True)).calls == {}
    assert (await purged(house)).calls == {"succeeded": 4, "failed": 1}


async def test_body_that_another_call_has_stays(open_house: OpenHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal bodies are kept once; the last call that has one takes it along."""

    @tool(external())
    async def fetch(n: int) -> str:
        return LARGE

    house = await open_house(fetch)
    await house.call(fetch, {"n": 1}, key="old")
    cut_us = (await house.get("old")).raw.updated_at_us + 1

    async def just_after_the_old_one(_ledger: RawLedger) -> int:
        return cut_us

    await house.call(fetch, {"n": 2}, key="new")
    with monkeypatch.context() as patch:
        patch.setattr(RawLedger, "now_us", just_after_the_old_one)
        assert await purged(house, older_than_s=0.0) == Purged({"succeeded": 1}, 0)
    assert (await house.call(fetch, {"n": 2}, key="new")).value == LARGE
    assert (await purged(house)).bodies == 1


async def test_body_that_is_brought_again_during_the_search_stays(
    open_house: OpenHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that comes between the purge and the deletion keeps its result."""

    @tool(external())
    async def fetch(n: int) -> str:
        return LARGE

    house = await open_house(fetch)
    await house.call(fetch, {"n": 1}, key="old")
    search = RawLedger.with_bodies

    async def late(ledger: RawLedger, tenant: str, after: str, limit: int) -> Any:
        found = await search(ledger, tenant, after, limit)
        if not after and not found:
            await house.call(fetch, {"n": 2}, key="new")
        return found

    monkeypatch.setattr(RawLedger, "with_bodies", late)
    assert await purged(house) == Purged({"succeeded": 1}, 0)
    assert (await house.call(fetch, {"n": 2}, key="new")).value == LARGE


async def test_body_that_the_history_of_a_run_names_stays(open_house: OpenHouse) -> None:
    """Histories of runs are never purged, so what they name is never deleted."""

    @tool(external())
    async def fetch(text: str) -> str:
        return text * 70_000

    house = await open_house(fetch)
    tenant, stream = house._core.tenant, run_stream("run_1")
    for text in ("x", "y"):
        await house.call(fetch, {"text": text}, key=text)
    large = Blob(sha256(b'"' + LARGE.encode() + b'"').hexdigest(), b'"' + LARGE.encode() + b'"')
    facts = {"messages": [{"text": {"$blob": large.digest, "size": len(large.data)}}]}
    await put(runs_in(house), begin("run_1", tenant=tenant, facts=facts, blobs=(large,)))
    assert await purged(house) == Purged({"succeeded": 2}, 1)
    assert await house.store.blob(tenant, large.digest) == large.data
    assert [row[1] for row in await rows(house, BLOBS)] == [large.digest]
    assert [event.kind for event in await house.store.events(tenant, stream)] == ["run_started"]


async def test_call_of_an_unfinished_run_is_never_purged(open_house: OpenHouse) -> None:
    """The run may read it when it goes on, however long it has waited."""
    house = await open_house(*TOOLS)
    store, tenant = runs_in(house), house._core.tenant
    started = await put(store, begin("run_1", tenant=tenant))
    for key, scope in (("run_1:1.1", "run_1"), ("run_2:1.1", "run_2")):
        await house.call(pay, {"to": "ada"}, key=key, scope=scope)
    assert (await purged(house)).calls == {"succeeded": 1}
    assert (await house.call(pay, {"to": "ada"}, key="run_1:1.1", scope="run_1")).value == "paid ada"
    await put(store, finish(started, RunState.CANCELLED))
    assert (await purged(house)).calls == {"succeeded": 1}


async def test_purged_call_is_never_retried_or_undone(open_house: OpenHouse) -> None:
    """What would be sent is gone, so no decision can send it."""

    async def undo(record: Any) -> None:
        raise AssertionError("undone")

    @tool(external(), compensate=undo)
    async def send() -> str:
        return "sent"

    house = await open_house(send, pay)
    await house.call(send, {}, key="done")
    with pytest.raises(CallFailed):
        await house.call(pay, {"to": "refused"}, key="failed")
    await purged(house)
    with pytest.raises(NotAllowed):
        await house.retry("failed", by="ada", reason="again")
    with pytest.raises(NotAllowed):
        await house.compensate("done", by="ada", reason="undo")


async def test_repeat_of_a_purged_call_is_still_seen(open_house: OpenHouse) -> None:
    """The tombstone keeps digest and scope, so the model's second try is held as before."""

    @tool(external(on_repeat=hold_repeats(within_s=3600)))
    async def send(to: str) -> str:
        return "sent"

    house = await open_house(send)
    await house.call(send, {"to": "ada"}, key="first", scope="run")
    await purged(house)
    with pytest.raises(Held):
        await house.call(send, {"to": "ada"}, key="second", scope="run")


async def test_purge_beside_callers_changes_nothing_for_them(open_house: OpenHouse) -> None:
    """Batches are small, and a call that moved meanwhile is left alone."""

    @tool(external(dedup=dedup.by_key(hours=1)))
    async def send(n: int) -> int:
        return n

    house = await open_house(send)

    async def call(number: int) -> None:
        for at in range(10):
            assert (await house.call(send, {"n": at}, key=f"{number}-{at}")).value == at

    callers = [asyncio.create_task(call(number)) for number in range(4)]
    counted = 0
    while not all(caller.done() for caller in callers):
        counted += sum((await purged(house)).calls.values())
    await asyncio.gather(*callers)
    counted += sum((await purged(house)).calls.values())
    assert counted == 40
