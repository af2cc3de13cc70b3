"""A ledger that came back from a backup has forgotten departures: effects are looked up first, or held."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tollhouse import Answer, CallContext, NotSent, Tollhouse, did_not_happen, external, happened, read, tool, unknown
from tollhouse.errors import CallNotSent, Contradicted, Held, StoreUnavailable
from tollhouse.house.running import open_runs
from tollhouse.models.book import ModelBook
from tollhouse.operations.backups import back_up
from tollhouse.operations.restored import end_restored, mark_restored
from tollhouse.runs.agents import Agent
from tollhouse.runs.drivers.local import LocalDriver
from tollhouse.runs.view import RunView

BOOK: dict[str, str] = {}
"""What the receiver has, by idempotency key."""
ANSWERS: list[Any] = []
"""What the next look-ups answer instead."""


@pytest.fixture(autouse=True)
def empty_book() -> Iterator[None]:
    """No test sees another's."""
    BOOK.clear()
    ANSWERS.clear()
    yield
    assert not ANSWERS


def find(idempotency_key: str) -> Answer:
    """The look-up of a receiver that knows keys."""
    if ANSWERS:
        answer: Answer = ANSWERS.pop()
        return answer
    if idempotency_key in BOOK:
        return happened(BOOK[idempotency_key])
    return did_not_happen("no such key")


@tool(external(absent_after_s=0.0), reconcile=find)
async def pay(to: str, ctx: Any = None) -> str:
    """Pay once; the receiver notes the key."""
    if to == "unsent":
        raise NotSent("no route")
    BOOK[f"default:{to}"] = f"paid {to}"
    return f"paid {to}"


@tool(external())
async def post(to: str) -> str:
    """Nobody can be asked about it."""
    BOOK[f"post:{to}"] = "posted"
    return "posted"


@tool(read())
async def look() -> int:
    """A read."""
    return len(BOOK)


TOOLS = (pay, post, look)


def opened(url: str, **settings: Any) -> Any:
    """A house without background work."""
    return Tollhouse.open(url, tools=TOOLS, **{"background": False, "grace_s": 0.0, "store_wait_s": 2.0, **settings})


async def test_forgotten_call_is_found_and_replayed(house_store_url: str) -> None:
    """The look-up gets wire key and arguments; what it finds is on record, and nothing is sent."""
    BOOK["default:ada"] = "paid ada, long ago"
    async with opened(house_store_url) as house:
        pass
    await mark_restored(house_store_url, by="ada")
    async with opened(house_store_url) as house:
        outcome = await house.call(pay, {"to": "ada"}, key="ada")
        assert (outcome.value, outcome.replayed) == ("paid ada, long ago", True)
        assert BOOK == {"default:ada": "paid ada, long ago"}
        call = await house.get("ada")
        assert [line.kind for line in call.history] == ["departed", "owner_lost", "settled"]
        assert call.history[0].facts["assumed"] == "restored"
        assert (await house.call(pay, {"to": "ada"}, key="ada")).value == "paid ada, long ago"


async def test_call_that_the_look_up_rules_out_departs(house_store_url: str) -> None:
    """New calls go on in the meantime, where there is somebody to ask."""
    async with opened(house_store_url):
        pass
    await mark_restored(house_store_url, by="ada")
    async with opened(house_store_url) as house:
        outcome = await house.call(pay, {"to": "bob"}, key="bob")
        assert (outcome.value, outcome.replayed) == ("paid bob", False)
        assert (await house.call(look, {})).value == 1


@pytest.mark.parametrize("answer", [unknown("the list is late"), "nonsense"])
async def test_call_that_nobody_can_tell_of_is_held(house_store_url: str, answer: Any) -> None:
    """A person says yes, and it goes; the same key is not asked about twice."""
    async with opened(house_store_url):
        pass
    await mark_restored(house_store_url, by="ada")
    async with opened(house_store_url) as house:
        ANSWERS.append(answer)
        with pytest.raises(Held, match="restored from a backup"):
            await house.call(pay, {"to": "bob"}, key="bob")
        assert BOOK == {}
        await house.approve("bob", by="grace")
        assert (await house.call(pay, {"to": "bob"}, key="bob")).value == "paid bob"


async def test_call_of_a_tool_without_a_look_up_is_held(house_store_url: str) -> None:
    """Until the mode is ended by name; then new calls depart again."""
    async with opened(house_store_url):
        pass
    await mark_restored(house_store_url, by="ada")
    async with opened(house_store_url) as house:
        with pytest.raises(Held):
            await house.call(post, {"to": "bob"}, key="bob")
        await house.deny("bob", by="grace", reason="it was posted before the restore")
    assert await end_restored(house_store_url, by="ada")
    assert not await end_restored(house_store_url, by="ada")
    async with opened(house_store_url) as house:
        assert (await house.call(post, {"to": "eve"}, key="eve")).value == "posted"
    assert set(BOOK) == {"post:eve"}


async def test_ready_call_may_have_departed_since_the_backup(house_store_url: str) -> None:
    """It is asked about like a new one: found, it is contradicted; ruled out, it goes."""
    async with opened(house_store_url) as house:
        for key in ("unsent", "other"):
            with pytest.raises(CallNotSent):
                await house.call(pay, {"to": "unsent"}, key=key)
    await mark_restored(house_store_url, by="ada")
    BOOK["default:other"] = "paid in the forgotten time"
    async with opened(house_store_url) as house:
        with pytest.raises(Contradicted):
            await house.call(pay, {"to": "unsent"}, key="other")
        await house.overturn("other", by="grace", reason="the receiver has it")
        assert (await house.call(pay, {"to": "unsent"}, key="other")).value == "paid in the forgotten time"
        with pytest.raises(CallNotSent):
            await house.call(pay, {"to": "unsent"}, key="unsent")
        assert [line.kind for line in (await house.get("unsent")).history][-3:] == ["looked_up", "departed", "outcome"]


async def test_absence_counts_only_after_silence(house_store_url: str) -> None:
    """A request of the lost time may still be under way, so a look-up that comes too early holds the call."""

    @tool(external(absent_after_s=600.0), reconcile=find)
    async def slow(to: str) -> str:
        return "sent"

    async with opened(house_store_url):
        pass
    await mark_restored(house_store_url, by="ada")
    async with Tollhouse.open(house_store_url, tools=[slow], background=False) as house:
        with pytest.raises(Held, match="too early"):
            await house.call(slow, {"to": "bob"}, key="bob")


async def test_running_house_departs_nothing_before_it_knows(house_store_url: str) -> None:
    """The mark ends its owner: whatever it wants to send waits for a new incarnation, which has read the mark."""
    async with opened(house_store_url, lease_s=0.8) as house:
        assert (await house.call(post, {"to": "ada"}, key="ada")).value == "posted"
        await mark_restored(house_store_url, by="ada")
        assert await _until_held(house) <= {"no"}
        assert set(BOOK) == {"post:ada"}
        await end_restored(house_store_url, by="ada")
        async with asyncio.timeout(30):
            while house._core.restored_at_us is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert (await house.call(post, {"to": "eve"}, key="eve")).value == "posted"


async def _until_held(house: Tollhouse) -> set[str]:
    """Call until the house knows of the restore; what it said of sending until then."""
    sent: set[str] = set()
    async with asyncio.timeout(30):
        while True:
            try:
                await house.call(post, {"to": "bob"}, key="bob")
            except StoreUnavailable as waits:
                sent.add(waits.sent)
            except Held:
                return sent
            await asyncio.sleep(0.02)


async def test_backup_that_is_put_back_repeats_nothing(tmp_path: Path) -> None:
    """Copied while in use, lost, put back: what departed in between is found again, what stood before is there."""
    file, saved = tmp_path / "ledger.db", tmp_path / "saved.db"
    url = f"sqlite:///{file}"
    async with opened(url) as house:
        await house.call(pay, {"to": "before"}, key="before")
        assert await back_up(url, saved) == 1
        await house.call(pay, {"to": "after"}, key="after")
    for suffix in ("", "-wal", "-shm", "-lock"):
        (tmp_path / f"ledger.db{suffix}").unlink(missing_ok=True)
    shutil.copy(saved, file)
    await mark_restored(url, by="ada", reason="the disk died")
    BOOK["default:after"] = "paid after, once"
    async with opened(url) as house:
        assert (await house.call(pay, {"to": "before"}, key="before")).replayed
        outcome = await house.call(pay, {"to": "after"}, key="after")
        assert (outcome.value, outcome.replayed) == ("paid after, once", True)


@tool(external(absent_after_s=0.0), reconcile=find)
async def wire(to: str, ctx: CallContext) -> str:
    """Pay once for each idempotency key; the receiver notes it."""
    BOOK[ctx.idempotency_key] = f"paid {to}"
    return f"paid {to}"


async def paying_run(url: str) -> RunView:
    """The run that the same start leads to, as far as it goes by itself."""
    turns = [{"call": [{"tool": "wire", "arguments": {"to": "ada"}}]}, {"say": "Paid."}]
    clerk = Agent("clerk", "scripted:play", "Pay them.", tools=("wire",))
    async with Tollhouse.open(url, tools=[wire], background=False, grace_s=0.0) as house:
        runs = await open_runs(house, {"clerk": clerk}, ModelBook(scripts={"play": turns}))
        started = await runs.start("clerk", "Pay ada.", by="ada", key="order-7")
        await LocalDriver(runs).settle()
        return await runs.get(started.id)


async def test_run_that_was_forgotten_repeats_nothing(tmp_path: Path) -> None:
    """The same start is another run, whose calls have other keys: no look-up can rule out what the lost one did."""
    file, saved = tmp_path / "ledger.db", tmp_path / "saved.db"
    url = f"sqlite:///{file}"
    async with opened(url):
        await back_up(url, saved)
    assert (await paying_run(url)).state == "succeeded"
    for suffix in ("", "-wal", "-shm", "-lock"):
        (tmp_path / f"ledger.db{suffix}").unlink(missing_ok=True)
    shutil.copy(saved, file)
    await mark_restored(url, by="ada", reason="the disk died")
    run = await paying_run(url)
    assert (run.state, len(BOOK)) == ("awaiting_approval", 1)
    async with opened(url) as house:
        await house.approve(run.waiting[0].id, by="bea", reason="the bank has no such payment")
    assert (await paying_run(url)).state == "succeeded"
    assert len(BOOK) == 2
