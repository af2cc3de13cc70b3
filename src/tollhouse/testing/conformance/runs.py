"""Conformance: writing runs, one guarded version after the other, and finding them again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest

from tollhouse.ledger.events import first_break
from tollhouse.ledger.record import State
from tollhouse.ledger.run_record import RunQuery, RunRefusal, run_stream
from tollhouse.ledger.store import Blob
from tollhouse.runs.states import RunState
from tollhouse.testing.conformance.base import TENANT, Leases, OpenStore, StoreTests, rejects_rows
from tollhouse.testing.conformance.run_story import (
    RUN,
    RunLedger,
    begin,
    claim,
    finish,
    ids,
    pause,
    paused,
    put,
    rejected,
    running,
)
from tollhouse.testing.conformance.story import T0, Story

IMPOSSIBLE: dict[str, dict[str, Any]] = {
    "no such state": {"state": "lost"},
    "running without an owner": {"state": "running"},
    "an owner without running": {"owner": "own_a"},
    "finished and queued": {"finished": True},
    "succeeded and not finished": {"state": "succeeded"},
    "before the first attempt": {"attempt_no": 0},
}


class RunWriteTests(StoreTests):
    """A version of a run is replaced by the next with its events, or nothing happens and the answer says why."""

    async def test_a_run_is_kept_whole(self, store: RunLedger, owners: None) -> None:
        """Every field, and its history, in one commit for each write."""
        fields: dict[str, Any] = {
            "start_key": "order-7", "thread": "thread-1", "parent_run_id": "run_0", "parent_key": "run_0:1.1",
            "source_run_id": "run_9", "attempt_no": 2, "body": '{"limits":{"turns":3}}',
        }  # fmt: skip
        before = store.counters.commits
        started = await put(store, begin(**fields))
        claimed = await put(store, claim(started))
        ended = await put(store, finish(claimed, RunState.FAILED, due_at_us=T0 + 5))
        assert store.counters.commits == before + 3
        assert await store.run_of_start(TENANT, "order-7") == ended
        events = await store.events(TENANT, run_stream(RUN))
        assert [event.kind for event in events] == ["run_started", "run_claimed", "run_failed"]
        assert first_break(events) is None

    async def test_a_run_that_is_not_there(self, store: RunLedger) -> None:
        """None, under its id and under a start key."""
        assert await store.run(TENANT, RUN) is None
        assert await store.run_of_start(TENANT, "order-7") is None

    async def test_an_id_is_taken_once(self, store: RunLedger) -> None:
        """The second start of the id is told what stands there, and leaves no trace."""
        first = await put(store, begin())
        assert await rejected(store, begin(agent="other"), RunRefusal.EXISTS) == first
        assert await store.run(TENANT, RUN) == first
        assert len(await store.events(TENANT, run_stream(RUN))) == 1

    async def test_a_start_key_is_taken_for_ever(self, store: RunLedger, owners: None) -> None:
        """By the run as it stands now, also when that is finished."""
        first = await put(store, begin(start_key="order-7"))
        assert await rejected(store, begin("run_2", start_key="order-7"), RunRefusal.EXISTS) == first
        ended = await put(store, finish(await put(store, claim(first))))
        assert await rejected(store, begin("run_2", start_key="order-7"), RunRefusal.EXISTS) == ended
        assert await store.run(TENANT, "run_2") is None
        assert await store.events(TENANT, run_stream("run_2")) == []

    async def test_a_thread_has_one_unfinished_run(self, store: RunLedger, owners: None) -> None:
        """Busy while that runs or waits, free once it has finished; other threads, and none, are free."""
        first = await paused(store, thread="thread-1")
        assert await rejected(store, begin("run_2", thread="thread-1"), RunRefusal.BUSY) == first
        await put(store, begin("run_3", thread="thread-2"))
        await put(store, begin("run_4"))
        await put(store, begin("run_5"))
        await put(store, finish(first, RunState.CANCELLED))
        await put(store, begin("run_2", thread="thread-1"))

    async def test_a_repeated_start_in_a_thread_is_a_repeat(self, store: RunLedger) -> None:
        """Its start key says more than its thread."""
        first = await put(store, begin(start_key="order-7", thread="thread-1"))
        repeat = begin("run_2", start_key="order-7", thread="thread-1")
        assert await rejected(store, repeat, RunRefusal.EXISTS) == first

    async def test_a_version_is_replaced_once(self, store: RunLedger, owners: None) -> None:
        """Whoever comes second is told what stands there now."""
        started = await put(store, begin())
        claimed = await put(store, claim(started))
        assert await rejected(store, claim(started, "own_b"), RunRefusal.STALE) == claimed
        assert await rejected(store, finish(started), RunRefusal.STALE) == claimed
        assert len(await store.events(TENANT, run_stream(RUN))) == 2

    async def test_nothing_replaces_a_run_that_is_not_there(self, store: RunLedger) -> None:
        """An update needs a row."""
        assert await rejected(store, pause(begin().record), RunRefusal.STALE) is None
        assert await store.events(TENANT, run_stream(RUN)) == []

    async def test_only_a_live_owner_writes(self, store: RunLedger, leases: Leases) -> None:
        """One that was never registered, or has ended, is told so and changes nothing."""
        started = await put(store, begin())
        assert await rejected(store, claim(started), RunRefusal.OWNER) == started
        await leases.register("own_a")
        claimed = await put(store, claim(started))
        await leases.end("own_a")
        ended = replace(finish(claimed), owner="own_a")
        assert await rejected(store, ended, RunRefusal.OWNER) == claimed
        assert await rejected(store, begin("run_2", by="own_a"), RunRefusal.OWNER) is None
        assert await store.run(TENANT, RUN) == claimed
        assert len(await store.events(TENANT, run_stream(RUN))) == 2

    # case C71
    async def test_a_write_that_is_repeated_was_applied(self, store: RunLedger, owners: None) -> None:
        """Its events tell, whatever has happened since and whether its owner still lives."""
        start = begin(start_key="order-7", thread="thread-1")
        take = claim(await put(store, start))
        end = finish(await put(store, take))
        await put(store, end)
        for write in (start, take, end):
            assert (await store.write_run(write)).applied
        assert await store.run(TENANT, RUN) == end.record
        assert len(await store.events(TENANT, run_stream(RUN))) == 3

    async def test_bodies_come_with_the_write(self, store: RunLedger) -> None:
        """Durable with it; of a write that was refused none is kept."""
        kept, lost = (Blob(sha256(data).hexdigest(), data) for data in (b"kept" * 30_000, b"lost"))
        await put(store, begin(blobs=(kept,)))
        await rejected(store, begin(blobs=(lost,)), RunRefusal.EXISTS)
        await put(store, begin("run_2", blobs=(kept,)))
        assert await store.blob(TENANT, kept.digest) == kept.data
        assert await store.blob(TENANT, lost.digest) is None

    @pytest.mark.parametrize("what", IMPOSSIBLE)
    async def test_an_impossible_run_is_refused_by_the_store(self, store: RunLedger, what: str) -> None:
        """What no rule may write, no bug can."""
        with rejects_rows():
            await store.write_run(begin(**IMPOSSIBLE[what]))
        assert await store.run(TENANT, RUN) is None
        assert await store.events(TENANT, run_stream(RUN)) == []

    @pytest.mark.parametrize("state", [state for state in RunState if state is not RunState.RUNNING])
    async def test_every_state_has_a_place(self, store: RunLedger, owners: None, state: RunState) -> None:
        """The store knows the states of the table of runs; only a running run has an owner."""
        ended = state in (RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED)
        held = await running(store)
        await put(store, finish(held, state) if ended else pause(held, state))
        assert await store.count_runs(TENANT) == {state: 1}


class ConcurrentRunTests(StoreTests):
    """Many who write at once are told apart, and disturb nobody else."""

    async def test_one_of_many_starts_of_a_key_wins(self, store: RunLedger, open_store: OpenStore) -> None:
        """The others are told the winner, in whatever process."""
        other: Any = await open_store()
        writes = [begin(f"run_{n}", start_key="order-7") for n in range(12)]
        handles = [store, other] * 6
        answers = await asyncio.gather(*(h.write_run(w) for h, w in zip(handles, writes, strict=True)))
        winner = await store.run_of_start(TENANT, "order-7")
        assert sum(answer.applied for answer in answers) == 1
        told = [answer for answer in answers if not answer.applied]
        assert {(answer.refusal, answer.record) for answer in told} == {(RunRefusal.EXISTS, winner)}
        await other.close()

    async def test_one_of_many_runs_enters_a_thread(self, store: RunLedger) -> None:
        """The others are told who is there."""
        answers = await asyncio.gather(*(store.write_run(begin(f"run_{n}", thread="t")) for n in range(12)))
        (there,) = await store.find_runs(TENANT, RunQuery(thread="t"))
        refused = [(answer.refusal, answer.record) for answer in answers if not answer.applied]
        assert refused == [(RunRefusal.BUSY, there)] * 11

    async def test_one_of_many_drivers_gets_a_run(self, store: RunLedger, open_store: OpenStore, owners: None) -> None:
        """By the version, in whatever process."""
        other: Any = await open_store()
        started = await put(store, begin())
        claims = [claim(started, owner) for owner in ("own_a", "own_b") * 5]
        answers = await asyncio.gather(*(h.write_run(w) for h, w in zip([store, other] * 5, claims, strict=True)))
        assert sum(answer.applied for answer in answers) == 1
        assert len(await store.events(TENANT, run_stream(RUN))) == 2
        await other.close()

    async def test_runs_and_calls_share_the_store(self, store: RunLedger, owners: None) -> None:
        """Refused and impossible writes of either kind fail alone."""
        await put(store, begin("taken"))
        runs = [begin(f"run_{n}") for n in range(10)]
        calls = [Story.of(key=f"call-{n}").depart().writes[0] for n in range(10)]
        answers = await asyncio.gather(
            store.write_run(begin("taken")),
            store.write_run(begin("bad", state="lost")),
            *map(store.write_run, runs),
            *map(store.write, calls),
            return_exceptions=True,
        )
        taken, bad, *rest = answers
        assert getattr(taken, "refusal", None) is RunRefusal.EXISTS
        assert isinstance(bad, ValueError)
        assert not [answer for answer in rest if isinstance(answer, BaseException)]
        assert await store.count_runs(TENANT) == {"queued": 11}
        assert await store.count(TENANT) == {State.DEPARTED: 10}

    async def test_a_caller_who_leaves_takes_no_write_along(self, store: RunLedger, open_store: OpenStore) -> None:
        """A write that has begun comes to its end before the store is closed."""
        writing = [asyncio.ensure_future(store.write_run(begin(f"run_{n}"))) for n in range(5)]
        await asyncio.sleep(0)
        for task in writing:
            task.cancel()
        await asyncio.gather(*writing, return_exceptions=True)
        await store.close()
        again: Any = await open_store()
        assert await again.count_runs(TENANT) == {"queued": 5}
        await again.close()


class RunFindTests(StoreTests):
    """Runs are listed newest first, filtered by anything, page by page."""

    async def test_newest_first(self, store: RunLedger) -> None:
        """By the time of their making, then by id."""
        for n, run_id in ((1, "b"), (2, "c"), (0, "a"), (1, "a2")):
            await put(store, begin(run_id, created_at_us=T0 + n))
        assert ids(await store.find_runs(TENANT, RunQuery())) == ["c", "b", "a2", "a"]
        assert ids(await store.find_runs(TENANT, RunQuery(limit=2))) == ["c", "b"]

    async def test_each_filter_and_all_together(self, store: RunLedger, owners: None) -> None:
        """None filters nothing; finished runs are found in their thread too."""
        await put(store, finish(await running(store, "a", thread="t", agent="scribe")))
        await put(store, begin("b", thread="t", parent_run_id="a"))
        await put(store, begin("c", source_run_id="a", agent="scribe"))
        everything = {"state": "queued", "agent": "concierge", "thread": "t", "parent_run_id": "a"}
        asked: list[tuple[dict[str, Any], list[str]]] = [
            ({}, ["c", "b", "a"]),
            ({"state": "queued"}, ["c", "b"]),
            ({"state": "succeeded"}, ["a"]),
            ({"state": "failed"}, []),
            ({"agent": "scribe"}, ["c", "a"]),
            ({"thread": "t"}, ["b", "a"]),
            ({"parent_run_id": "a"}, ["b"]),
            ({"source_run_id": "a"}, ["c"]),
            (everything, ["b"]),
            (everything | {"agent": "scribe"}, []),
        ]
        for filters, found in asked:
            assert ids(await store.find_runs(TENANT, RunQuery(**filters))) == found, filters

    async def test_pages_meet_every_run_once(self, store: RunLedger) -> None:
        """Also where many were made in the same moment, with a filter and without."""
        names = [f"r{n:02}" for n in range(17)]
        for n, run_id in enumerate(names):
            await put(store, begin(run_id, created_at_us=T0 + n // 6))
        for state in (None, "queued"):
            seen: list[str] = []
            query = RunQuery(state=state, limit=5)
            while page := await store.find_runs(TENANT, query):
                seen += ids(page)
                query = replace(query, before=(page[-1].created_at_us, page[-1].id))
            assert seen == names[::-1]

    async def test_counts_add_up(self, store: RunLedger, owners: None) -> None:
        """Every state that has a run."""
        await put(store, begin("a"))
        await running(store, "b")
        await paused(store, "c")
        for run_id in ("d", "e"):
            await put(store, finish(await running(store, run_id)))
        counted = await store.count_runs(TENANT)
        assert counted == {"queued": 1, "running": 1, "awaiting_approval": 1, "succeeded": 2}
