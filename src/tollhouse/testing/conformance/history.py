"""Conformance: events are numbered without a gap, chained, and only ever added to."""

from __future__ import annotations

from dataclasses import replace

from tollhouse.ledger.events import Event, first_break
from tollhouse.ledger.record import AttemptOutcome
from tollhouse.ledger.store import Refusal, Store
from tollhouse.ledger.writes import call_stream
from tollhouse.testing.conformance.base import KEY, TENANT, StoreTests, applied, history, refused, rejects_rows, tell
from tollhouse.testing.conformance.story import Story
from tollhouse.testing.conformance.writes import note


class HistoryTests(StoreTests):
    """The history of a call is what its writes said, in their order."""

    async def test_history_is_what_was_written(self, store: Store, owners: None) -> None:
        """Every event of every write, field by field."""
        story = Story.of().hold(quorum=2).approve().approve("bob").depart().end_wait().lose().look().settle("happened")
        await tell(store, story)
        events = await history(store)
        assert events == [event for write in story.writes for event in write.events]
        assert [event.seq for event in events] == list(range(1, len(events) + 1))

    async def test_the_chain_holds_and_ends_at_the_head(self, store: Store, owners: None) -> None:
        """The call's own row knows number and hash of its last event, so a lost tail shows."""
        await tell(store, Story.of().depart().end(AttemptOutcome.UNKNOWN).settle("happened"))
        events = await history(store)
        record = await store.get(TENANT, KEY)
        assert record is not None
        assert first_break(events) is None
        assert (record.head_seq, record.head_hash) == (events[-1].seq, events[-1].hash)

    async def test_a_step_with_several_events_keeps_their_order(self, store: Store, owners: None) -> None:
        """A contradiction is told after what opened it, in the same commit."""
        story = Story.of().depart().end_wait().settle("did_not_happen", force=True).end(AttemptOutcome.HAPPENED)
        await tell(store, story)
        late, opened = (await history(store))[-2:]
        assert (late.kind, opened.kind) == ("late_outcome", "contradiction_opened")
        assert late.write_id == opened.write_id

    async def test_history_is_read_in_pages(self, store: Store, owners: None) -> None:
        """After a number, so many; a reader that stopped goes on without loss."""
        story = Story.of().depart()
        for _ in range(24):
            story.look()
        await tell(store, story)
        stream, read = call_stream(KEY), list[Event]()
        while page := await store.events(TENANT, stream, after=len(read), limit=7):
            assert len(page) <= 7
            read += page
        assert read == await history(store)
        assert len(read) == 25

    async def test_a_refused_write_leaves_no_trace(self, store: Store, owners: None) -> None:
        """State and history are one commit."""
        story = Story.of().depart()
        await tell(store, story)
        await refused(store, replace(note(story.record, "x"), expected=5), Refusal.STALE)
        await refused(store, replace(story.writes[0], write_id="again"), Refusal.EXISTS)
        assert await history(store) == list(story.writes[0].events)

    async def test_what_is_written_is_never_rewritten(self, store: Store, owners: None) -> None:
        """A write whose events would take a number that is taken fails whole."""
        story = Story.of().depart()
        await tell(store, story)
        forged = note(story.record, "forger")
        forged = replace(forged, events=(replace(forged.events[0], seq=1),))
        with rejects_rows():
            await store.write(forged)
        assert await history(store) == list(story.writes[0].events)
        assert await store.get(TENANT, KEY) == story.record

    async def test_streams_are_apart(self, store: Store, owners: None) -> None:
        """Each call is numbered from 1; a key that begins like another is another."""
        for key in ("k", "k1", "k:1"):
            await applied(store, *Story.of(key=key).depart().writes)
        assert [[event.seq for event in await history(store, key)] for key in ("k", "k1", "k:1")] == [[1], [1], [1]]
