"""Many callers' writes in few commits, none disturbed by another's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tollhouse.errors import HouseClosed, StoreFull
from tollhouse.ledger.record import State
from tollhouse.ledger.store import Refusal, RepeatCheck, Write
from tollhouse.stores.common.errors import BadValue
from tollhouse.stores.sqlite import SqliteStore, open_store
from tollhouse.stores.sqlite.connections import pragma
from tollhouse.stores.sqlite.pace import Pace

from .sqlite_ledger import HOLD_LOCK_FILE, another_process, arrival, departure, held, look, opened, owner, queued


async def test_effect_takes_two_commits_and_a_read_one(tmp_path: Path) -> None:
    """The budget: departure and outcome are one durable commit each, a read is one in all."""
    async with opened(tmp_path) as store:
        first = departure("k1")
        await store.write(first)
        await store.write(arrival(first))
        assert (store.counters.commits, store.counters.writes) == (2, 2)
        await store.get("t1", "k1")
        await store.fence("t1", "k1")
        assert store.counters.commits == 2


async def test_hundred_concurrent_writes_share_few_commits(tmp_path: Path) -> None:
    """Whoever waits at the same time is committed together, and is told after that commit."""
    async with opened(tmp_path) as store:
        answers = await asyncio.gather(*(store.write(departure(f"k{n}")) for n in range(100)))
        assert all(answer.applied for (answer,) in answers)
        assert store.counters.writes == 100
        assert store.counters.commits <= 20
        assert look(tmp_path, "SELECT count(*) FROM calls") == [(100,)]


async def test_lone_write_commits_on_its_callers_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One caller needs no other thread while the disk is quick."""
    monkeypatch.setattr(Pace, "quick", True)
    async with opened(tmp_path) as store:
        for n in range(20):
            await store.write(departure(f"k{n}"))
        assert (store.counters.extra["inline"], store.counters.commits) == (20, 20)


async def test_write_commits_on_the_writers_thread_while_the_disk_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop is never blocked by a slow disk for long."""
    monkeypatch.setattr(Pace, "quick", False)
    async with opened(tmp_path) as store:
        first = departure("k1")
        await store.write(first)
        await store.write(arrival(first))
        assert ("inline" in store.counters.extra, store.counters.commits) == (False, 2)


def test_slow_commits_leave_the_event_loops_thread_until_they_are_quick_again() -> None:
    """A slow disk must not block the loop; commits of the writer's thread show when it has recovered."""
    pace = Pace()
    verdicts = [pace.quick]
    for spent_s in (0.005, 0.0002):
        for _ in range(50):
            pace.committed(spent_s)
        verdicts.append(pace.quick)
    assert verdicts == [True, False, True]


def test_one_checkpoint_among_quick_commits_changes_nothing() -> None:
    """A spike is capped: only when about half of the commits are slow is the disk."""
    pace = Pace()
    for _ in range(100):
        pace.committed(0.0002)
    pace.committed(1.0)
    assert pace.quick


def test_lone_caller_looks_for_company_only_now_and_then() -> None:
    """Others are looked for at first and while some were met; later every eighth time."""
    pace = Pace()
    assert [pace.should_look_around() for _ in range(8)] == [True] * 8
    assert [pace.should_look_around() for _ in range(80)].count(True) == 10
    pace.met_others()
    assert pace.should_look_around()


BAD_EVENT = "an event's time too large, found after its call was inserted"
BAD: dict[str, dict[str, Any]] = {
    "a number too large": {"updated_at_us": 2**70},
    "a lone surrogate": {"tool": "\ud800"},
    "a type that no column takes": {"tool": object()},
    "an effect that does not exist": {"effect": "magic"},
    BAD_EVENT: {},
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("company", [0, 20])
async def test_bad_write_fails_alone(tmp_path: Path, name: str, company: int) -> None:
    """A value that cannot be kept fails its own write; all others of the batch are applied."""
    async with opened(tmp_path) as store:
        good = departure("bad")
        bad = replace(good, record=replace(good.record, **BAD[name]))
        if name == BAD_EVENT:
            bad = replace(good, events=(replace(good.events[0], at_us=2**70),))
        writes = [*(departure(f"k{n}") for n in range(company)), bad]
        *others, failed = await asyncio.gather(*map(store.write, writes), return_exceptions=True)
        assert isinstance(failed, BadValue)
        assert all(answer.applied for (answer,) in others)  # type: ignore[misc]
        assert look(tmp_path, "SELECT count(*) FROM calls") == [(company,)]
        assert look(tmp_path, "SELECT count(*) FROM events") == [(company,)]


async def test_value_without_json_fails_before_it_is_queued(tmp_path: Path) -> None:
    """What cannot be encoded is the caller's mistake at once, and costs nobody a redo."""
    async with opened(tmp_path) as store:
        write = departure("k1")
        record = replace(write.record, extra={("a", "tuple"): 1})  # type: ignore[dict-item]
        with pytest.raises(TypeError):
            await store.write(replace(write, record=record))
        assert store.counters.bisections == 0


async def test_refused_writes_leave_no_trace_and_disturb_nobody(tmp_path: Path) -> None:
    """In one batch: an applied, an existing, a stale and an ownerless write, each with its own answer."""
    async with opened(tmp_path) as store:
        standing = departure("taken")
        await store.write(standing)
        await store.write(arrival(standing))
        writes = [departure("new"), departure("taken"), arrival(standing), departure("homeless", by="own_gone")]
        # The last arrival has a write id of its own here, else it would be known as applied.
        writes[2] = replace(writes[2], write_id="att_other.outcome")
        answers = await asyncio.gather(*map(store.write, writes))
        assert [answer.refusal for (answer,) in answers] == [None, Refusal.EXISTS, Refusal.STALE, Refusal.OWNER]
        assert answers[1][0].record == answers[2][0].record == await store.get("t1", "taken")
        assert store.counters.bisections == 1
        assert look(tmp_path, "SELECT key FROM calls ORDER BY key") == [("new",), ("taken",)]
        assert look(tmp_path, "SELECT DISTINCT stream FROM events ORDER BY 1") == [("call:new",), ("call:taken",)]


TWIN = RepeatCheck("run_1", "issue_credit", "d" * 64, None, None)
REFUSED: dict[Refusal, Callable[[Write], Write]] = {
    Refusal.EXISTS: lambda standing: departure("standing"),
    Refusal.STALE: lambda standing: replace(arrival(standing), expected=7, write_id="att_other.outcome"),
    Refusal.REPEAT: lambda standing: replace(departure("twin", scope="run_1"), repeat=TWIN),
    Refusal.OWNER: lambda standing: departure("homeless", by="own_gone"),
}


@pytest.mark.parametrize("refusal", Refusal)
async def test_one_refused_write_among_many_is_refused_alone(tmp_path: Path, refusal: Refusal) -> None:
    """Each kind of refusal is noticed in the quick way too, and takes back nothing but itself."""
    async with opened(tmp_path) as store:
        standing = departure("standing", scope="run_1")
        await store.write(standing)
        writes = [departure(f"k{n}") for n in range(10)]
        writes[5] = REFUSED[refusal](standing)
        answers = await asyncio.gather(*map(store.write, writes))
        expected = [None] * 5 + [refusal] + [None] * 4
        assert [answer.refusal for (answer,) in answers] == expected
        assert look(tmp_path, "SELECT count(*) FROM calls") == look(tmp_path, "SELECT count(*) FROM events") == [(10,)]


async def test_refused_write_is_no_commit(tmp_path: Path) -> None:
    """Nothing changed, so nothing is made durable."""
    async with opened(tmp_path) as store:
        await store.write(departure("k1"))
        (answer,) = await store.write(departure("k1"))
        assert (answer.refusal, store.counters.commits) == (Refusal.EXISTS, 1)


async def test_one_of_a_hundred_callers_of_a_key_departs(tmp_path: Path) -> None:
    """The key's row is the decision; ninety-nine get what stands there."""
    async with opened(tmp_path) as store:
        answers = await asyncio.gather(*(store.write(departure("k1")) for _ in range(100)))
        refusals = [answer.refusal for (answer,) in answers]
        assert (refusals.count(None), refusals.count(Refusal.EXISTS)) == (1, 99)
        standing = await store.get("t1", "k1")
        assert all(answer.record == standing for (answer,) in answers if not answer.applied)


async def test_writes_of_one_caller_are_all_or_none_within_a_batch(tmp_path: Path) -> None:
    """One item refused takes its sibling back, while the batch around them is applied."""
    async with opened(tmp_path) as store:
        await store.write(departure("taken"))
        pair = (departure("sibling"), departure("taken"))
        first, both, last = await asyncio.gather(
            store.write(departure("a")), store.write(*pair), store.write(held("b"))
        )
        assert [answer.refusal for answer in (*first, *both, *last)] == [None, Refusal.STALE, Refusal.EXISTS, None]
        assert both[0].record is None
        assert await store.get("t1", "sibling") is None


async def test_cancelled_caller_does_not_cancel_its_write(tmp_path: Path) -> None:
    """A write that waits is finished though nobody listens any more."""
    async with opened(tmp_path) as store:
        with another_process(HOLD_LOCK_FILE, tmp_path / "ledger.db"):
            waiting = asyncio.create_task(store.write(departure("k1")))
            await queued(store)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        (answer,) = await store.write(held("k2"))
        assert answer.applied
        record = await store.get("t1", "k1")
        assert record is not None
        assert record.state is State.DEPARTED


async def test_caller_cancelled_while_it_looks_around_leaves_its_write_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write has begun when it was asked for, also in the moment in which it waits for company."""
    monkeypatch.setattr(Pace, "quick", True)
    async with opened(tmp_path) as store:
        writing = asyncio.create_task(store.write(departure("k1")))
        await asyncio.sleep(0)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
    assert look(tmp_path, "SELECT key FROM calls") == [("k1",)]


async def test_close_finishes_what_waits_and_refuses_what_comes(tmp_path: Path) -> None:
    """A pending write is applied; later ones, and reads, raise."""
    store = await open_store(f"sqlite:///{tmp_path}/ledger.db")
    store.lease_connection().register(owner(), 600)
    lease = store.lease_connection()
    with another_process(HOLD_LOCK_FILE, tmp_path / "ledger.db"):
        waiting = asyncio.create_task(store.write(departure("k1")))
        await queued(store)
        closing = asyncio.create_task(store.close())
        await asyncio.sleep(0)
    (answer,) = await waiting
    await closing
    assert answer.applied
    for use in (store.write(departure("k2")), store.get("t1", "k1"), store.count("t1"), store.now_us()):
        with pytest.raises(HouseClosed):
            await use
    with pytest.raises(HouseClosed):
        lease.renew("t1", "own_1", 1)
    await store.close()
    assert not (tmp_path / "ledger.db-wal").exists()


async def fill(store: SqliteStore) -> None:
    """Write until no page is left."""
    with pytest.raises(StoreFull):
        for n in range(10_000):
            await store.write(held(f"filler{n}", contract="x" * 2000))


async def test_full_ledger_says_so_and_works_again_when_there_is_room(tmp_path: Path) -> None:
    """StoreFull changes nothing; the same write passes once the limit is raised."""
    store = await open_store(f"sqlite:///{tmp_path}/ledger.db?max_page_count=60")
    store.lease_connection().register(owner(), 600)
    await fill(store)
    write = departure("k1", contract="x" * 20_000)
    with pytest.raises(StoreFull) as refused:
        await store.write(write)
    assert refused.value.sent == "no"
    assert await store.get("t1", "k1") is None
    pragma(store._connections.writer.connection, "max_page_count=1000")
    assert (await store.write(write))[0].applied
    await store.close()


async def test_body_that_does_not_fit_fails_alone(tmp_path: Path) -> None:
    """With little room left, those of a batch that fit are applied, each in a commit of its own."""
    store = await open_store(f"sqlite:///{tmp_path}/ledger.db?max_page_count=60")
    store.lease_connection().register(owner(), 600)
    large = departure("large", contract="x" * 300_000)
    small = [departure(f"small{n}") for n in range(5)]
    *fitted, failed = await asyncio.gather(*map(store.write, [*small, large]), return_exceptions=True)
    assert isinstance(failed, StoreFull)
    assert all(answer.applied for (answer,) in fitted)  # type: ignore[misc]
    assert store.counters.commits == 5
    await store.close()


async def test_memory_ledger_keeps_the_same_promises(tmp_path: Path) -> None:
    """One connection serves all, and readers wait for the transaction instead of looking into it."""
    store = await open_store("sqlite:///:memory:", volatile=True)
    store.lease_connection().register(owner(), 600)
    writes = [departure(f"k{n}") for n in range(50)]
    await asyncio.gather(*map(store.write, writes), *(store.count("t1") for _ in range(5)))
    assert await store.count("t1") == {State.DEPARTED: 50}
    assert (await store.write(writes[0]))[0].applied, "the same write again was applied before"
    assert store.counters.commits <= 10
    await store.close()
