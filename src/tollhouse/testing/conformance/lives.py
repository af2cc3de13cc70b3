"""Conformance: every (state, event) pair, legal and illegal, carried out in the store by real steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tollhouse.ledger.lifecycle import TABLE
from tollhouse.ledger.record import State
from tollhouse.ledger.store import Refusal, Store
from tollhouse.testing.conformance.base import TENANT, StoreTests, applied, history, refused, tell
from tollhouse.testing.conformance.scenes import BEGINNINGS, PLAIN, TRIALS, attempted
from tollhouse.testing.conformance.story import Story


class LifeTests(StoreTests):
    """A step takes place exactly when the table has it, and the stored row is the record that it returned."""

    @pytest.mark.parametrize("state", State)
    async def test_the_table_decides_every_event(self, store: Store, owners: None, state: State) -> None:
        """A call that stands here, and everything that could happen to it."""
        for event in TRIALS:
            story, took_place = attempted(event, state, Story.of(key=event.value))
            assert took_place == ((state, event) in TABLE), f"{event} in {state}"
            assert await tell(store, story) == story.record
            if took_place:
                assert story.state in TABLE[state, event].targets
            assert len(await history(store, event.value)) == story.record.head_seq

    async def test_a_call_begins_in_four_ways(self, store: Store, owners: None) -> None:
        """Departed, held, refused, or as a read that ran."""
        for event, begin in BEGINNINGS.items():
            story = begin(Story.of(key=event.value))
            await tell(store, story)
            assert story.state in TABLE[None, event].targets

    @pytest.mark.parametrize("state", State)
    async def test_a_recorded_call_never_begins_again(self, store: Store, owners: None, state: State) -> None:
        """Whatever its state, its key is taken."""
        record = await tell(store, PLAIN[state](Story.of()))
        for event, begin in BEGINNINGS.items():
            write = replace(begin(Story.of()).writes[0], write_id=event.value)
            assert await refused(store, write, Refusal.EXISTS) == record

    async def test_nothing_happens_to_a_call_that_never_began(self, store: Store, owners: None) -> None:
        """Every other event needs a row to replace."""
        for event in TRIALS:
            for state in (state for state in State if (state, event) in TABLE):
                story, _ = attempted(event, state, Story.of(key=f"{state}-{event}"))
                assert await refused(store, story.writes[-1], Refusal.STALE) is None
        assert sum((await store.count(TENANT)).values()) == 0

    async def test_a_lost_acknowledgement_anywhere_changes_nothing(self, store: Store, owners: None) -> None:
        """Every write of a long life, told twice, makes the same life."""
        for state, scene in PLAIN.items():
            story = scene(Story.of(key=state.value))
            for write in story.writes:
                await applied(store, write)
                await applied(store, write)
            assert await store.get(TENANT, state.value) == story.record
