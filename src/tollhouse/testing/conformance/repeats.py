"""Conformance: a call that repeats another of its scope is refused inside commit 1, with its twin."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from tollhouse.ledger.record import SETTLED, CallRecord, State
from tollhouse.ledger.store import Refusal, RepeatCheck, Store, Write
from tollhouse.testing.conformance.base import TENANT, StoreTests, applied, refused, tell
from tollhouse.testing.conformance.scenes import PLAIN
from tollhouse.testing.conformance.story import Story, terms

SCOPE = "run-1"
LONG_AGO_US = 100 * 365 * 86_400 * 1_000_000
"""Longer than any story is old."""

ARGUMENTS = '{"amount_cents":2500}'


def check_for(record: CallRecord, within_us: int | None = None) -> RepeatCheck:
    """The repeat check with which that call would be inserted."""
    assert record.scope is not None
    return RepeatCheck(record.scope, record.tool, record.digest, record.group, within_us)


def insert(key: str = "second", within_us: int | None = None, **changed: Any) -> Write:
    """A call of the scope that departs, under the repeat check."""
    story = Story.of(**({"key": key, "scope": SCOPE, "arguments": ARGUMENTS} | changed)).depart()
    return replace(story.writes[0], repeat=check_for(story.record, within_us))


class RepeatTests(StoreTests):
    """Who is a twin, and who is not."""

    async def test_an_unsettled_twin_is_found(self, store: Store, owners: None) -> None:
        """The second caller learns which call it repeats; nothing is written."""
        first = insert("first")
        await applied(store, first)
        assert await refused(store, insert(), Refusal.REPEAT) == first.record
        assert await store.get(TENANT, "second") is None

    async def test_other_calls_are_no_twins(self, store: Store, owners: None) -> None:
        """Scope, tool and arguments must all be the same, and so must the tenant."""
        await applied(store, insert("first"))
        await applied(store, insert("other-arguments", arguments='{"amount_cents":1}'))
        await applied(store, insert("other-tool", contract=terms(tool="send_mail")))
        await applied(store, insert("other-scope", scope="run-2"))

    async def test_without_a_check_nothing_is_a_repeat(self, store: Store, owners: None) -> None:
        """A tool may allow repeats."""
        await applied(store, insert("first"))
        await applied(store, Story.of(key="second", scope=SCOPE, arguments=ARGUMENTS).depart().writes[0])

    async def test_siblings_of_one_group_are_no_repeats(self, store: Store, owners: None) -> None:
        """One answer of a model may ask for the same thing twice, on purpose."""
        await applied(store, insert("first", group="answer-1"))
        await applied(store, insert("sibling", group="answer-1"))
        await refused(store, insert("later", group="answer-2"), Refusal.REPEAT)

    async def test_no_group_is_nobodys_group(self, store: Store, owners: None) -> None:
        """Calls without a group are repeats of each other, and of calls that have one."""
        await applied(store, insert("first", group="answer-1"))
        await refused(store, insert("without"), Refusal.REPEAT)
        await applied(store, insert("alone", scope="run-2"))
        await refused(store, insert("with", scope="run-2", group="answer-1"), Refusal.REPEAT)
        await refused(store, insert("also-alone", scope="run-2"), Refusal.REPEAT)

    async def test_a_taken_key_is_told_before_a_repeat(self, store: Store, owners: None) -> None:
        """The same key again is the same call, not a twin of it."""
        first = insert("first")
        await applied(store, first)
        again = replace(insert("first"), write_id="again")
        assert await refused(store, again, Refusal.EXISTS) == first.record

    async def test_a_repeated_write_is_no_repeat_of_itself(self, store: Store, owners: None) -> None:
        """A lost acknowledgement must not hold a call for being its own twin."""
        first = insert("first")
        await applied(store, first)
        await applied(store, first)

    async def test_every_unsettled_state_makes_a_twin(self, store: Store, owners: None) -> None:
        """And of the settled ones only those inside the time asked for; what was refused had no effect."""
        for state, scene in PLAIN.items():
            await tell(store, scene(Story.of(key=f"first-{state}", scope=state.value, arguments=ARGUMENTS)))
            within = insert(f"within-{state}", LONG_AGO_US, scope=state.value)
            unlimited = insert(f"unlimited-{state}", scope=state.value)
            if state is State.REFUSED:
                await applied(store, within)
                continue
            await refused(store, within, Refusal.REPEAT)
            if state in SETTLED:
                await applied(store, unlimited)
            else:
                await refused(store, unlimited, Refusal.REPEAT)

    async def test_settled_longer_ago_is_no_twin(self, store: Store, owners: None) -> None:
        """``within`` counts from the last change of the settled call, on the store's clock."""
        now_us = await store.now_us()
        old = PLAIN[State.SUCCEEDED](
            Story.of(key="old", scope=SCOPE, arguments=ARGUMENTS, at_us=now_us - 3_600_000_000)
        )
        await tell(store, old)
        await refused(store, insert("inside", 3_700_000_000), Refusal.REPEAT)
        await applied(store, insert("outside", 3_500_000_000))


class ConcurrentTwinTests(StoreTests):
    """Twins that arrive at the same moment see no row of each other; they meet on the slot."""

    async def test_of_concurrent_twins_one_is_applied(self, store: Store, owners: None) -> None:
        """The others are repeats of it."""
        writes = [insert(f"twin-{n}", repeat_slot="slot") for n in range(20)]
        answers = await asyncio.gather(*map(store.write, writes))
        winners = [write.record for write, (answer,) in zip(writes, answers, strict=True) if answer.applied]
        assert len(winners) == 1
        others = [answer for (answer,) in answers if not answer.applied]
        assert all(answer.refusal is Refusal.REPEAT and answer.record == winners[0] for answer in others)

    async def test_concurrent_siblings_are_all_applied(self, store: Store, owners: None) -> None:
        """Slots of one group differ, so siblings do not meet."""
        writes = [insert(f"sibling-{n}", group="answer-1", repeat_slot=f"slot-{n}") for n in range(10)]
        answers = await asyncio.gather(*map(store.write, writes))
        assert all(answer.applied for (answer,) in answers)

    async def test_a_slot_is_free_once_its_call_is_settled(self, store: Store, owners: None) -> None:
        """A settled call holds nobody up."""
        story = Story.of(key="first", scope=SCOPE, repeat_slot="slot").hold().deny()
        await tell(store, story)
        assert story.record.repeat_slot is None
        await applied(store, insert("second", repeat_slot="slot"))
        third = insert("third", repeat_slot="slot", arguments='{"other":1}')
        twin = await refused(store, third, Refusal.REPEAT)
        assert twin is not None
        assert twin.key == "second"
