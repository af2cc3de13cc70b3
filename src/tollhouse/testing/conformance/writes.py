"""Conformance: one guarded write, many at once, and the same one twice."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tollhouse.ledger.change import advance
from tollhouse.ledger.record import AttemptOutcome, CallRecord, State
from tollhouse.ledger.store import Fence, Refusal, Store, Write, Written
from tollhouse.ledger.writes import write_of
from tollhouse.testing.conformance.base import (
    KEY,
    TENANT,
    Leases,
    OpenStore,
    StoreTests,
    applied,
    history,
    refused,
    rejects_rows,
    tell,
)
from tollhouse.testing.conformance.story import Story

WRITERS = 50


def note(record: CallRecord, who: str) -> Write:
    """A write that adds one event and changes nothing else."""
    return write_of(advance(record, record.updated_at_us, "noted", {"by": who}), f"note/{who}")


def departure(key: str = KEY) -> Story:
    """A new call that departs."""
    return Story.of(key=key).depart()


class WriteTests(StoreTests):
    """Insert, replace, refuse."""

    async def test_a_call_reads_back_as_it_was_written(self, store: Store, owners: None) -> None:
        """Attempts, settlements, approval, errors and results survive every step of a long life."""
        story = Story.of(scope="run-1", group="g1", run_when_approved=True, extra={"source": "test"})
        story.hold(quorum=2, approvers=("ada", "bob")).approve().approve("bob").depart().end_wait(cancel=True)
        story.lose().later(600).settle("did_not_happen", "hook", evidence={"searched": ["2024"]}, reference="r-9")
        story.end(AttemptOutcome.HAPPENED, result='{"id":"cr_1"}').overturn().later(600).compensate()
        await tell(store, story)

    async def test_what_is_not_there_is_none(self, store: Store) -> None:
        """No method invents a row."""
        assert await store.get(TENANT, KEY) is None
        assert await store.fence(TENANT, KEY) is None
        assert await store.blob(TENANT, "0" * 64) is None
        assert await history(store) == []

    async def test_a_taken_key_is_refused_with_what_stands_there(self, store: Store, owners: None) -> None:
        """The second insert changes nothing and learns of the first."""
        first = await tell(store, departure())
        other = Story.of(arguments="{}").hold().writes[0]
        assert await refused(store, replace(other, write_id="other"), Refusal.EXISTS) == first
        assert await store.get(TENANT, KEY) == first
        assert len(await history(store)) == 1

    async def test_a_version_that_moved_on_is_stale(self, store: Store, owners: None) -> None:
        """Compare-and-set on the version: the loser learns what stands there and changes nothing."""
        story = departure()
        await tell(store, story)
        loser = note(story.record, "loser")
        await tell(store, story.end(AttemptOutcome.UNKNOWN), since=1)
        assert await refused(store, loser, Refusal.STALE) == story.record
        assert [event.kind for event in await history(store)] == ["departed", "outcome"]

    async def test_replacing_an_absent_call_is_stale(self, store: Store) -> None:
        """There is nothing to show then."""
        assert await refused(store, note(departure().record, "x"), Refusal.STALE) is None
        assert await history(store) == []

    async def test_only_an_edit_changes_arguments(self, store: Store) -> None:
        """What was requested stays beside what runs."""
        record = await tell(store, Story.of().hold().edit())
        assert record.request_digest != record.digest

    async def test_fence_is_that_of_the_row(self, store: Store, owners: None) -> None:
        """The last check before bytes leave reads fence and cancel, nothing else."""
        story = departure()
        await tell(store, story)
        assert await store.fence(TENANT, KEY) == Fence(1, False)
        await tell(store, story.cancel(), since=1)
        assert await store.fence(TENANT, KEY) == Fence(1, True)
        await tell(store, story.lose(), since=2)
        assert await store.fence(TENANT, KEY) == Fence(2, True)

    async def test_applied_writes_are_seen_by_other_handles_at_once(
        self, store: Store, open_store: OpenStore, owners: None
    ) -> None:
        """Durable on return: another process reads it, and goes on from it."""
        story = departure()
        await tell(store, story)
        other = await open_store()
        assert await other.get(TENANT, KEY) == story.record
        await tell(other, story.end(AttemptOutcome.HAPPENED), since=1)
        await other.close()
        assert await store.get(TENANT, KEY) == story.record

    async def test_an_effect_costs_two_commits_and_a_read_one(self, store: Store, owners: None) -> None:
        """The floor and the budget, counted by the store itself."""
        before = store.counters.commits
        await applied(store, departure().writes[0])
        await applied(store, departure().end(AttemptOutcome.HAPPENED).writes[1])
        assert store.counters.commits - before == 2
        await applied(store, Story.of(key="look").read(AttemptOutcome.HAPPENED).writes[0])
        assert store.counters.commits - before == 3


class OwnerCheckTests(StoreTests):
    """A departure needs a live owner at the moment of its commit."""

    async def test_a_live_owner_departs(self, store: Store, leases: Leases) -> None:
        """Registered and not ended is enough, even when the lease ran out and nobody has ended it."""
        await leases.register("own_a", lease_s=0.0)
        await applied(store, departure().writes[0])

    async def test_an_unknown_owner_departs_nothing(self, store: Store) -> None:
        """Nobody would answer for the call."""
        await refused(store, departure().writes[0], Refusal.OWNER)
        assert await store.get(TENANT, KEY) is None
        assert await history(store) == []

    async def test_an_ended_owner_departs_nothing(self, store: Store, leases: Leases) -> None:
        """Neither a new call nor one that was ready."""
        await leases.register("own_a")
        ready = Story.of(key="ready").hold().approve()
        await tell(store, ready)
        await leases.end("own_a")
        await refused(store, departure().writes[0], Refusal.OWNER)
        await refused(store, ready.depart().writes[-1], Refusal.OWNER)
        assert await store.get(TENANT, "ready") == ready.writes[1].record

    async def test_steps_without_an_owner_are_not_checked(self, store: Store, leases: Leases) -> None:
        """An outcome is written whoever's lease ended meanwhile."""
        await leases.register("own_a")
        story = departure()
        await tell(store, story)
        await leases.end("own_a")
        await tell(store, story.end(AttemptOutcome.HAPPENED), since=1)


class RepeatedWriteTests(StoreTests):
    """A lost acknowledgement is resolved by the same guarded write under the same write id."""

    async def test_a_repeated_insert_is_applied_once(self, store: Store, owners: None) -> None:
        """The second answer is *applied*; nothing is written twice."""
        write = departure().writes[0]
        await applied(store, write)
        await applied(store, write)
        assert await store.get(TENANT, KEY) == write.record
        assert await history(store) == list(write.events)

    async def test_a_repeated_update_is_recognised_after_others_moved_on(self, store: Store, owners: None) -> None:
        """It was applied, whatever the row says by now; what stands there stays."""
        story = departure().end(AttemptOutcome.UNKNOWN).settle("happened")
        await tell(store, story)
        for write in story.writes:
            await applied(store, write)
        assert await store.get(TENANT, KEY) == story.record
        assert len(await history(store)) == 3

    async def test_a_repeat_is_recognised_though_its_owner_ended_since(self, store: Store, leases: Leases) -> None:
        """The owner was alive when it counted."""
        await leases.register("own_a")
        write = departure().writes[0]
        await applied(store, write)
        await leases.end("own_a")
        await applied(store, write)

    async def test_another_decision_with_the_same_words_is_another_write(self, store: Store, owners: None) -> None:
        """Only the write id tells a repeat from a second decision."""
        write = departure().writes[0]
        await applied(store, write)
        await refused(store, replace(write, write_id="another"), Refusal.EXISTS)

    async def test_a_repeat_that_was_decided_anew_is_told_what_stands(self, store: Store, owners: None) -> None:
        """Its times and salts are others than those that were applied: who builds on it must build on what stands."""
        first, again = departure().writes[0], departure().writes[0]
        assert first.record.head_hash != again.record.head_hash
        await applied(store, first)
        (told,) = await store.write(replace(again, write_id=first.write_id))
        assert (told.refusal, told.stands) == (None, first.record)

    async def test_a_repeated_group_of_writes_is_applied_once(self, store: Store, owners: None) -> None:
        """All its items are recognised."""
        writes = [departure(key).writes[0] for key in ("k1", "k2")]
        await applied(store, *writes)
        await applied(store, *writes)
        assert [len(await history(store, key)) for key in ("k1", "k2")] == [1, 1]


class TogetherTests(StoreTests):
    """Several writes of one caller are applied in one transaction, all or none."""

    async def test_several_calls_move_together(self, store: Store, owners: None) -> None:
        """A compensation settles in the commit that marks what it undid."""
        done = departure("pay").end(AttemptOutcome.HAPPENED)
        undo = departure("void")
        await tell(store, done)
        await tell(store, undo)
        done.later(3600).compensate("void")
        undo.end(AttemptOutcome.HAPPENED)
        await applied(store, undo.writes[-1], done.writes[-1])
        assert await store.get(TENANT, "pay") == done.record
        assert await store.get(TENANT, "void") == undo.record

    async def test_one_refusal_keeps_all_back(self, store: Store, owners: None) -> None:
        """Each item carries its own answer; one that would have been applied alone is stale, with what stands."""
        story, new = departure("k1"), departure("k2")
        await tell(store, story)
        stale = replace(note(story.record, "late"), expected=7)
        answers = await store.write(note(story.record, "one"), new.writes[0], stale)
        assert [answer.refusal for answer in answers] == [Refusal.STALE] * 3
        assert [answer.record for answer in answers] == [story.record, None, story.record]
        assert await store.get(TENANT, "k1") == story.record
        assert await store.get(TENANT, "k2") is None
        assert len(await history(store, "k1")) == 1

    async def test_the_refused_item_says_why(self, store: Store, owners: None) -> None:
        """A taken key among good ones answers *exists*."""
        first = await tell(store, departure("k1"))
        taken = replace(departure("k1").writes[0], write_id="other")
        good, bad = await store.write(departure("k2").writes[0], taken)
        assert (good.refusal, bad.refusal, bad.record) == (Refusal.STALE, Refusal.EXISTS, first)
        await applied(store, departure("k2").writes[0])


class ConcurrentWriteTests(StoreTests):
    """Many callers share commits underneath; each hears about its own write."""

    async def test_of_many_inserts_of_one_key_one_wins(self, store: Store, open_store: OpenStore, owners: None) -> None:
        """Fifty callers over two handles; everybody else learns of the winner."""
        other = await open_store()
        write = departure().writes[0]
        tries = [replace(write, write_id=f"try/{n}") for n in range(WRITERS)]
        answers = await asyncio.gather(*((store, other)[n % 2].write(one) for n, one in enumerate(tries)))
        await other.close()
        refusals = [answer.refusal for (answer,) in answers]
        assert refusals.count(None) == 1
        assert refusals.count(Refusal.EXISTS) == WRITERS - 1
        assert all(answer.record == write.record for (answer,) in answers if answer.refusal)

    async def test_of_many_writers_of_one_version_one_wins(
        self, store: Store, open_store: OpenStore, owners: None
    ) -> None:
        """Fifty writers replace version 1; one does."""
        story, other = departure(), await open_store()
        await tell(store, story)
        tries = [note(story.record, f"w{n}") for n in range(WRITERS)]
        answers = await asyncio.gather(*((store, other)[n % 2].write(one) for n, one in enumerate(tries)))
        await other.close()
        assert [answer.refusal for (answer,) in answers].count(None) == 1
        record = await store.get(TENANT, KEY)
        assert record is not None
        assert record.version == 2
        assert len(await history(store)) == 2

    async def test_every_writer_wins_in_the_end(self, store: Store, owners: None) -> None:
        """Fifty writers who decide anew when they lose make fifty versions, one after the other."""
        story = departure()
        await tell(store, story)

        async def until_applied(who: str) -> None:
            record = story.record
            while True:
                (answer,) = await store.write(note(record, who))
                if answer.applied:
                    return
                assert answer.record is not None
                record = answer.record

        await asyncio.gather(*(until_applied(f"w{n}") for n in range(WRITERS)))
        record = await store.get(TENANT, KEY)
        assert record is not None
        assert record.version == 1 + WRITERS
        writers = [str(event.facts.get("by")) for event in await history(store)][1:]
        assert sorted(writers) == sorted(f"w{n}" for n in range(WRITERS))

    async def test_refusals_disturb_nobody(self, store: Store, owners: None) -> None:
        """Good writes that share commits with refused ones are applied, each as if it were alone."""
        taken = await tell(store, departure("taken"))
        good = [departure(f"good-{n}").writes[0] for n in range(30)]
        exists = [replace(departure("taken").writes[0], write_id=f"again/{n}") for n in range(10)]
        stale = [note(departure(f"absent-{n}").record, "x") for n in range(10)]
        ownerless = [replace(departure(f"ownerless-{n}").writes[0], owner="own_x") for n in range(10)]
        mixed = [write for group in zip(good[:10], exists, stale, ownerless, strict=True) for write in group]
        answers = await asyncio.gather(*map(store.write, mixed + good[10:]))
        of_four = [Written(), Written(Refusal.EXISTS, taken), Written(Refusal.STALE, None), Written(Refusal.OWNER)]
        assert [replace(a, record=None) if a.refusal is Refusal.OWNER else a for (a,) in answers[:40]] == of_four * 10
        assert [a for (a,) in answers[40:]] == [Written()] * 20
        assert await store.count(TENANT) == {State.DEPARTED: 31}

    async def test_a_defective_write_fails_alone(self, store: Store, owners: None) -> None:
        """A row that the lifecycle forbids raises for its own caller, and nobody else notices."""
        bad = _without_owner(departure("bad"))
        good = [departure(f"good-{n}").writes[0] for n in range(20)]
        answers = await asyncio.gather(*map(store.write, [*good[:10], bad, *good[10:]]), return_exceptions=True)
        assert [type(answer) for answer in answers].count(tuple) == 20
        assert isinstance(answers[10], ValueError)
        assert await store.count(TENANT) == {State.DEPARTED: 20}

    async def test_a_cancelled_caller_does_not_cancel_its_write(self, store: Store, owners: None) -> None:
        """Once it has begun, a write runs to its end."""
        caller = asyncio.ensure_future(store.write(departure().writes[0]))
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)
        async with asyncio.timeout(10):
            while await store.get(TENANT, KEY) is None:
                await applied(store, departure(f"beside-{store.counters.writes}").writes[0])
        assert len(await history(store)) == 1


class ConstraintTests(StoreTests):
    """The store itself rejects rows that the lifecycle table forbids, whatever code writes them."""

    async def test_departed_without_an_owner_is_rejected(self, store: Store, owners: None) -> None:
        """Departed is the state in which somebody must answer."""
        with rejects_rows():
            await store.write(_without_owner(departure()))
        assert await store.get(TENANT, KEY) is None

    async def test_departed_without_an_owner_is_rejected_in_an_update(self, store: Store, owners: None) -> None:
        """The constraint holds for every later row too."""
        story = Story.of().hold().approve()
        await tell(store, story)
        with rejects_rows():
            await store.write(_without_owner(story.depart()))
        assert await store.get(TENANT, KEY) == story.writes[1].record

    async def test_a_settled_call_in_the_repeat_check_is_rejected(self, store: Store) -> None:
        """It would hold its twins for ever."""
        story = Story.of(repeat_slot="slot").hold()
        await tell(store, story)
        bad = replace(story.deny().writes[-1], record=replace(story.record, repeat_slot="slot"))
        with rejects_rows():
            await store.write(bad)
        assert await store.get(TENANT, KEY) == story.writes[0].record


def _without_owner(story: Story) -> Write:
    """The story's last write with all attempts ended but the state left departed."""
    ended = tuple(replace(a, ended_at_us=a.started_at_us) for a in story.record.attempts)
    return replace(story.writes[-1], record=replace(story.record, attempts=ended))
