"""Ids: unique, sortable, named for their table, and repeatable from a seed."""

from __future__ import annotations

import os
import random
import re
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollhouse.ledger.ids import Ids, Prefix, SeededIds, SystemIds, base32
from tollhouse.ledger.keys import check_key

ID = re.compile(r"[a-z]{3}_[0-9a-hjkmnp-tv-z]{26}")
BITS_128 = st.integers(0, 2**128 - 1)
SOURCES = [SystemIds(), SeededIds(random.Random(7))]


def _number_of(base32_text: str) -> int:
    number = 0
    for char in base32_text:
        number = number * 32 + "0123456789abcdefghjkmnpqrstvwxyz".index(char)
    return number


@given(BITS_128, BITS_128)
def test_base32_keeps_value_and_order(one: int, other: int) -> None:
    """26 characters that decode to the number and sort as the numbers do."""
    texts = base32(one), base32(other)
    assert [_number_of(text) for text in texts] == [one, other]
    assert {len(text) for text in texts} == {26}
    assert (texts[0] < texts[1]) == (one < other)


@pytest.mark.parametrize("ids", SOURCES, ids=["system", "seeded"])
def test_ids_are_named_for_their_table_and_are_uuids_of_version_7(ids: Ids) -> None:
    """The prefix says where a row is; the rest is a well-formed UUID that other tools can read."""
    for prefix in Prefix:
        text = ids.new(prefix)
        assert ID.fullmatch(text)
        assert text.startswith(f"{prefix.value}_")
        decoded = uuid.UUID(int=_number_of(text[4:]))
        assert decoded.version == 7
        assert decoded.variant == uuid.RFC_4122


@pytest.mark.parametrize("ids", SOURCES, ids=["system", "seeded"])
def test_later_ids_sort_after_earlier_ones_and_none_comes_twice(ids: Ids) -> None:
    """An index over ids grows at its end, also within one millisecond."""
    made = [ids.new(Prefix.ATTEMPT) for _ in range(5000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)


@pytest.mark.parametrize("ids", SOURCES, ids=["system", "seeded"])
def test_minted_keys_are_keys(ids: Ids) -> None:
    """A read without a key of its own gets one that passes the same check as a caller's."""
    keys = {ids.mint_key() for _ in range(100)}
    assert len(keys) == 100
    for key in keys:
        assert check_key(key).startswith("read-")


def test_a_seed_repeats_every_id() -> None:
    """The drill and the simulation replay a whole run from one number."""
    runs = []
    for seed in (1, 1, 2):
        ids = SeededIds(random.Random(seed))
        runs.append([ids.new(Prefix.ATTEMPT), ids.mint_key(), ids.new(Prefix.OWNER)])
    assert runs[0] == runs[1]
    assert not set(runs[0]) & set(runs[2])


def test_threads_never_share_an_id() -> None:
    """One source serves every thread of a process at once."""
    ids = SystemIds()
    barrier = threading.Barrier(4)

    def make() -> list[str]:
        barrier.wait(timeout=30)
        return [ids.new(Prefix.ATTEMPT) for _ in range(2000)]

    with ThreadPoolExecutor(4) as pool:
        made = [text for future in [pool.submit(make) for _ in range(4)] for text in future.result()]
    assert len(set(made)) == len(made) == 8000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform does not fork")
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_forked_children_do_not_repeat_their_parents_randomness() -> None:
    """Workers forked from one parent within a millisecond still mint different ids."""
    ids = SystemIds()
    ids.new(Prefix.ATTEMPT)
    reading, writing = os.pipe()
    children = []
    for _ in range(8):
        child = os.fork()
        if child == 0:
            try:
                os.write(writing, f"{ids.new(Prefix.ATTEMPT)}\n".encode())
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as lines:
        random_parts = [line.strip()[-12:] for line in lines]
    assert len(set(random_parts)) == len(random_parts) == 8
