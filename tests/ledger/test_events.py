"""The chain of events: any alteration, gap or swap shows; erasing a payload does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollhouse.ledger.change import Draft
from tollhouse.ledger.events import GENESIS, Event, first_break, seal
from tollhouse.ledger.writes import call_stream
from tollhouse.testing.conformance.scenes import CONTRADICTED, HAUNTED, PLAIN
from tollhouse.testing.conformance.story import Story

DRAFTS = [Draft("departed", {"n": 1}), Draft("outcome", {"n": 2}), Draft("settled", {"n": 3})]


def chain() -> list[Event]:
    """Three events of one stream."""
    return list(seal("call:k1", 0, GENESIS, DRAFTS, 1000, "w1"))


def test_events_are_numbered_and_chained() -> None:
    """From 1, without a gap, each over the hash before it."""
    events = chain()
    assert [event.seq for event in events] == [1, 2, 3]
    assert len({event.hash for event in events}) == 3
    assert first_break(events) is None
    assert first_break([]) is None


def test_a_chain_goes_on_where_it_ended() -> None:
    """Sealed in one write or in three, the stream is whole."""
    events: list[Event] = []
    for draft in DRAFTS:
        head = (events[-1].seq, events[-1].hash) if events else (0, GENESIS)
        events += seal("call:k1", *head, [draft], 1000, "w1")
    assert first_break(events) is None


ALTERED: dict[str, tuple[Any, int]] = {
    "another kind": (lambda e: [e[0], replace(e[1], kind="upheld"), e[2]], 2),
    "another time": (lambda e: [e[0], replace(e[1], at_us=999), e[2]], 2),
    "another payload": (lambda e: [e[0], replace(e[1], data='{"n":9}'), e[2]], 2),
    "another payload with its digest": (
        lambda e: [e[0], replace(e[1], data=e[2].data, salt=e[2].salt, payload_digest=e[2].payload_digest), e[2]], 2
    ),
    "another stream": (lambda e: [replace(e[0], stream="call:k2"), *e[1:]], 1),
    "one missing": (lambda e: [e[0], e[2]], 2),
    "the first missing": (lambda e: e[1:], 1),
    "two swapped": (lambda e: [e[0], e[2], e[1]], 2),
    "one twice": (lambda e: [e[0], e[0], *e[1:]], 2),
    "one forged with a hash of its own": (
        lambda e: [e[0], *seal("call:k1", 1, GENESIS, [Draft("settled", {})], 1000, "w"), e[2]], 2
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ALTERED)
def test_the_first_break_is_found(case: str) -> None:
    """By the number at which the chain stops holding."""
    alter, at = ALTERED[case]
    assert first_break(alter(chain())) == at


def test_erasing_payloads_keeps_the_chain() -> None:
    """It covers salted digests only, so that a person's data can be forgotten."""
    erased = [replace(event, data="") for event in chain()]
    assert first_break(erased) is None
    assert erased[0].facts == {}


def test_equal_payloads_have_different_digests() -> None:
    """The salt keeps a guess about erased data from being confirmed."""
    first, second = seal("s", 0, GENESIS, [Draft("k", {}), Draft("k", {})], 0, "w")
    assert first.salt != second.salt
    assert first.payload_digest != second.payload_digest


TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=5), TREES, max_size=4))
def test_facts_come_back_as_they_were(facts: dict[str, Any]) -> None:
    """Any JSON, in any letters."""
    (event,) = seal("call:k1", 0, GENESIS, [Draft("noted", facts)], 0, "w1")
    assert event.facts == facts
    assert event.data.isascii()
    assert first_break([event]) is None


def test_every_life_is_one_chain_and_tells_each_state() -> None:
    """The head on the row is the chain's end; each event names the state after it."""
    for scenes in (PLAIN, HAUNTED, CONTRADICTED):
        for scene in scenes.values():
            story = scene(Story())
            events = [event for write in story.writes for event in write.events]
            assert first_break(events) is None
            assert (story.record.head_seq, story.record.head_hash) == (events[-1].seq, events[-1].hash)
            assert {event.stream for event in events} == {call_stream(story.record.key)}
            assert events[-1].facts["state"] == story.state
            assert len({event.write_id for event in events}) == len(story.writes)
