"""Guarded writes on PostgreSQL: the commit budget, callers who share commits, and refusals among them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.stores.postgres_ledger import (
    OWNER,
    SOMEBODY_WAITS,
    TENANT,
    committed,
    departure,
    effect,
    looking,
    opened,
    read,
    registered,
    until,
)
from tollhouse.ledger.record import AttemptOutcome, State
from tollhouse.ledger.store import Blob, Refusal, RepeatCheck, Write, Written
from tollhouse.stores.common.errors import BadValue
from tollhouse.testing.conformance.story import Story

pytestmark = pytest.mark.postgres

APPLIED = (Written(),)


# -- the budget ------------------------------------------------------------------------------------------------------


async def test_an_effect_costs_two_commits_and_a_read_one(postgres_url: str, postgres_server_url: str) -> None:
    """500 effects are 1,000 durable commits, 500 reads 500: by the store's count and by the server's."""
    async with opened(postgres_url) as store:
        pass
    before = await committed(postgres_server_url, postgres_url)
    async with opened(postgres_url, register=False) as store:
        for number in range(500):
            for write in effect(f"effect-{number}"):
                assert await store.write(write) == APPLIED
        assert store.counters.commits == 1000
    after_effects = await committed(postgres_server_url, postgres_url)
    async with opened(postgres_url, register=False) as store:
        for number in range(500):
            assert await store.write(read(f"read-{number}")) == APPLIED
        assert store.counters.commits == 500
    after_reads = await committed(postgres_server_url, postgres_url)
    # What the server counts besides: opening looks at the schema, each connection is vetted.
    assert 1000 <= after_effects - before <= 1020
    assert 500 <= after_reads - after_effects <= 520


async def test_callers_who_come_together_share_commits(postgres_url: str) -> None:
    """64 callers at once need far fewer commits than writes, and each is told about its own."""
    async with opened(postgres_url) as store:
        answers = await asyncio.gather(*(store.write(departure(f"call-{n}")) for n in range(64)))
        assert answers == [APPLIED] * 64
        assert store.counters.writes == 64
        assert store.counters.commits <= 16
        assert await store.count(TENANT) == {State.DEPARTED: 64}


async def test_each_write_is_durable_when_its_caller_hears(postgres_url: str) -> None:
    """Whoever was answered finds the call, its history and its body in another connection's eyes."""
    async with opened(postgres_url) as store, looking(postgres_url) as other:

        async def one(number: int) -> None:
            blob = Blob(f"{number:064x}", b"x" * number)
            await store.write(replace(departure(f"call-{number}"), blobs=(blob,)))
            assert await other_sees(f"call-{number}", blob)

        lock = asyncio.Lock()

        async def other_sees(key: str, blob: Blob) -> bool:
            async with lock:
                stands: bool = await other.fetchval(
                    "SELECT EXISTS (SELECT FROM calls WHERE key = $1)"
                    " AND EXISTS (SELECT FROM events WHERE stream = 'call:' || $1 AND seq = 1)"
                    " AND EXISTS (SELECT FROM blobs WHERE digest = $2 AND data = $3)",
                    key,
                    blob.digest,
                    blob.data,
                )
                return stands

        await asyncio.gather(*(one(number) for number in range(40)))


async def test_what_was_written_comes_back_the_same(postgres_url: str) -> None:
    """Alone or in a batch, a record and its events are read back as they were written."""
    stories = [
        Story.of(key=f"call-{n}").depart().end(AttemptOutcome.HAPPENED, result='"ä\\u0000 \U0001f600"')
        for n in range(12)
    ]
    async with opened(postgres_url) as store:
        for step in range(2):
            lone, *others = (story.writes[step] for story in stories)
            assert await store.write(lone) == APPLIED
            assert set(await asyncio.gather(*(store.write(write) for write in others))) == {APPLIED}
        for story in stories:
            assert await store.get(TENANT, story.record.key) == story.record
            told = await store.events(TENANT, f"call:{story.record.key}")
            assert told == [event for write in story.writes for event in write.events]


# -- refusals --------------------------------------------------------------------------------------------------------


async def test_refusals_disturb_nobody_in_the_same_commit(postgres_url: str) -> None:
    """100 callers on 5 keys beside 32 others: 37 calls, 37 histories, no failed batch, everyone told the truth."""
    async with opened(postgres_url) as store:
        crowd = [_as(f"w{n}", departure(f"crowded-{n % 5}", requested_by=f"caller-{n}")) for n in range(100)]
        others = [departure(f"other-{n}") for n in range(32)]
        mixed = [write for pair in zip(crowd[:32], others, strict=True) for write in pair] + crowd[32:]
        answers = await asyncio.gather(*map(store.write, mixed))
        told = {write.write_id: answer for write, (answer,) in zip(mixed, answers, strict=True)}
        assert all(told[write.write_id].applied for write in others)
        for key in {write.record.key for write in crowd}:
            mine = [(write, told[write.write_id]) for write in crowd if write.record.key == key]
            (standing,) = [write.record for write, answer in mine if answer.applied]
            refused = [answer for _, answer in mine if not answer.applied]
            assert refused == [Written(Refusal.EXISTS, standing)] * 19
        assert store.counters.bisections == 0
        assert store.counters.writes == 37
    async with looking(postgres_url) as connection:
        assert await connection.fetchval("SELECT count(*) FROM calls") == 37
        assert await connection.fetchval("SELECT count(*) FROM events") == 37


def _as(write_id: str, write: Write) -> Write:
    """The same write by another caller."""
    events = tuple(replace(event, write_id=write_id) for event in write.events)
    return replace(write, write_id=write_id, events=events)


async def test_of_twenty_twins_at_once_one_departs(postgres_url: str) -> None:
    """Twins that cannot see each other yet meet on their slot; the others are shown the one that stands."""
    check = RepeatCheck(scope="run-1", tool="issue_credit", digest="d" * 64, group=None, within_us=None)
    async with opened(postgres_url) as store, opened(postgres_url, register=False) as second:
        twins = [
            replace(
                departure(f"twin-{n}", scope="run-1", digest="d" * 64, repeat_slot="run-1/issue_credit/d"),
                repeat=check,
            )
            for n in range(20)
        ]
        answers = await asyncio.gather(*((store, second)[n % 2].write(write) for n, write in enumerate(twins)))
        applied = [write for write, (answer,) in zip(twins, answers, strict=True) if answer.applied]
        assert len(applied) == 1
        for (answer,) in answers:
            if not answer.applied:
                assert answer.refusal is Refusal.REPEAT
                assert answer.record == applied[0].record


async def test_an_ended_owner_departs_nothing_beside_a_live_one(postgres_url: str) -> None:
    """In one batch the live owner's calls depart and the ended one's are refused."""
    async with opened(postgres_url) as store:
        await registered(store, "own_gone")
        await store.owner_is_dead(TENANT, "own_gone")
        writes = [departure(f"call-{n}", "own_gone" if n % 2 else OWNER) for n in range(16)]
        answers = await asyncio.gather(*map(store.write, writes))
        for n, (answer,) in enumerate(answers):
            assert answer.refusal is (Refusal.OWNER if n % 2 else None)


async def test_a_value_that_cannot_be_kept_fails_its_own_write_only(postgres_url: str) -> None:
    """PostgreSQL keeps no NUL and no lone surrogate: the batch is done again one by one."""
    async with opened(postgres_url) as store:
        writes = [departure(f"call-{n}") for n in range(16)]
        for n, bad in ((3, "nul \0"), (11, "half \ud800")):
            writes[n] = replace(writes[n], record=replace(writes[n].record, requested_by=bad))
        answers = await asyncio.gather(*map(store.write, writes), return_exceptions=True)
        for n, answer in enumerate(answers):
            if n in (3, 11):
                assert isinstance(answer, BadValue)
                shown = f"{answer} {answer.__cause__} {answer.__context__}"
                assert "nul" not in shown
                assert "half" not in shown
            else:
                assert answer == APPLIED
        assert store.counters.bisections > 0


async def test_of_several_who_replace_one_version_one_succeeds(postgres_url: str) -> None:
    """They may wait in one batch: the others are refused and shown what replaced it."""
    async with opened(postgres_url) as store:
        await store.write(departure("contested"))
        rivals = [
            _as(f"rival-{n}", Story.of(key="contested").depart().later(n).end(AttemptOutcome.HAPPENED).writes[1])
            for n in range(10)
        ]
        beside = [store.write(departure(f"other-{n}")) for n in range(10)]
        answers = await asyncio.gather(*map(store.write, rivals), *beside)
        assert answers[10:] == [APPLIED] * 10
        (winner,) = [write.record for write, (answer,) in zip(rivals, answers, strict=False) if answer.applied]
        refused = [answer for answer in answers[:10] if not answer[0].applied]
        assert refused == [(Written(Refusal.STALE, winner),)] * 9


# -- all or none -----------------------------------------------------------------------------------------------------


async def test_writes_of_one_caller_are_applied_all_or_none(postgres_url: str) -> None:
    """One refused item undoes the others; each answers for itself, and the next try of both succeeds."""
    async with opened(postgres_url) as store:
        original = Story.of(key="refund").depart().end(AttemptOutcome.HAPPENED).later(3600).compensate("void")
        await store.write(original.writes[0])
        await store.write(original.writes[1])
        undo = Story.of(key="void").depart().end(AttemptOutcome.HAPPENED)
        # The undoing call was never written, so its outcome has nothing to replace.
        both = (undo.writes[1], original.writes[2])
        refused, beside = await store.write(*both)
        assert (refused.refusal, refused.record) == (Refusal.STALE, None)
        assert (beside.refusal, beside.record) == (Refusal.STALE, original.writes[1].record)
        await store.write(undo.writes[0])
        commits = store.counters.commits
        assert await store.write(*both) == (Written(), Written())
        assert store.counters.commits == commits + 1
        assert await store.count(TENANT) == {State.COMPENSATED: 1, State.SUCCEEDED: 1}


async def test_pairs_in_opposite_order_do_not_deadlock(postgres_url: str) -> None:
    """Two callers who write the same two calls, each in its own order, both get an answer without a deadlock."""
    async with opened(postgres_url) as store, opened(postgres_url, register=False) as second:
        for number in range(20):
            left = Story.of(key=f"left-{number}").depart().end(AttemptOutcome.HAPPENED)
            right = Story.of(key=f"right-{number}").depart().end(AttemptOutcome.HAPPENED)
            await store.write(left.writes[0], right.writes[0])
            one, other = await asyncio.gather(
                store.write(left.writes[1], right.writes[1]),
                second.write(_as("right", right.writes[1]), _as("left", left.writes[1])),
            )
            assert {answer.applied for answer in one} != {answer.applied for answer in other}
    async with looking(postgres_url) as connection:
        assert (
            await connection.fetchval("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == 0
        )


# -- callers who leave -----------------------------------------------------------------------------------------------


async def test_a_caller_who_leaves_takes_no_write_along(postgres_url: str) -> None:
    """Cancelling a caller never cancels a write that has begun, its own or another's."""
    async with opened(postgres_url) as store:
        waiting = [asyncio.ensure_future(store.write(departure(f"call-{n}"))) for n in range(20)]
        await asyncio.sleep(0)
        for task in waiting[::2]:
            task.cancel()
        told = await asyncio.gather(*waiting, return_exceptions=True)
        assert told[1::2] == [APPLIED] * 10
        await store.close()
    async with opened(postgres_url, register=False) as again:
        assert await again.count(TENANT) == {State.DEPARTED: 20}


async def test_a_caller_who_leaves_a_lone_write_leaves_it_running(postgres_url: str) -> None:
    """It waits for a row when its caller is cancelled: the caller hears at once, the write is made all the same."""
    async with opened(postgres_url) as store, looking(postgres_url) as behind, looking(postgres_url) as other:
        departed, happened = effect("call")
        await store.write(departed)
        async with behind.transaction():
            await behind.execute("SELECT FROM calls WHERE key = 'call' FOR UPDATE")
            caller = asyncio.ensure_future(store.write(happened))
            await until(other, SOMEBODY_WAITS)
            # What comes meanwhile waits in the queue and is written after it.
            beside = asyncio.ensure_future(store.write(departure("beside")))
            await asyncio.sleep(0)
            caller.cancel()
            with pytest.raises(asyncio.CancelledError):
                await caller
        assert await beside == APPLIED
        await store.close()
        assert await other.fetchval("SELECT state::text FROM calls WHERE key = 'call'") == "succeeded"
    async with opened(postgres_url, register=False) as again:
        assert await again.get(TENANT, "call") == happened.record


async def test_a_lone_write_that_fails_for_good_frees_its_connection(postgres_url: str) -> None:
    """The next writes find a writer, whatever became of the one before."""
    async with opened(postgres_url) as store:
        await store.write(departure("call"))
        bad = departure("bad")
        for _ in range(5):
            with pytest.raises(BadValue):
                await store.write(replace(bad, record=replace(bad.record, requested_by="nul \0")))
            assert (await store.write(_as("another", departure("call"))))[0].refusal is Refusal.EXISTS
        assert await store.write(departure("next")) == APPLIED
