"""Conformance: values of any kind and size come back as they went in."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import pytest

from tollhouse.ledger.record import AttemptOutcome, Stored
from tollhouse.ledger.steps import Ending, end_attempt
from tollhouse.ledger.store import Blob, Store
from tollhouse.ledger.writes import write_of
from tollhouse.testing.conformance.base import TENANT, StoreTests, applied, history, tell
from tollhouse.testing.conformance.story import Story

TEXTS: dict[str, Any] = {
    "emoji": "\U0001f9fe paid \U0001f469\u200d\U0001f4bb",
    "nul and controls": "a\x00b\x01\x1f\x7f",
    "lone surrogate": "\ud83d",
    "quotes and escapes": "'\"\\ \\u0000 %s $1 ?1 :name {}",
    "line ends": "\r\n\u2028\u2029\x85",
    "right to left": "\u202e\u05e9\u05dc\u05d5\u05dd",
    "empty": "",
    "integers of any size": [2**53 + 1, -(2**63) - 1, 10**400],
    "floats": [1e-320, 1.7976931348623157e308, 0.1 + 0.2, -0.0],
    "deep": json.loads("[" * 90 + "]" * 90),
    "many keys": {f"k{n}": n for n in range(2000)},
    "one megabyte": "x" * 1_000_000,
}
"""Values as their JSON text is kept: compact and ASCII, so that no store's text column has to know the characters."""


def text_of(value: Any) -> str:
    """Its JSON text as it is kept."""
    return json.dumps(value, separators=(",", ":"))


class ValueTests(StoreTests):
    """Arguments, results, errors, evidence and bodies."""

    @pytest.mark.parametrize("name", TEXTS)
    async def test_arguments_and_results_survive(self, store: Store, owners: None, name: str) -> None:
        """Character by character."""
        text = text_of({"value": TEXTS[name]})
        story = Story.of(arguments=text).depart().end(AttemptOutcome.HAPPENED, result=text)
        await tell(store, story)
        assert story.record.result is not None
        assert (story.record.arguments, story.record.result.text) == (text, text)

    @pytest.mark.parametrize("name", sorted(set(TEXTS) - {"integers of any size"}))
    async def test_errors_and_evidence_survive(self, store: Store, owners: None, name: str) -> None:
        """In the row, and in the history that tells of them."""
        value = TEXTS[name]
        story = Story.of().depart().end(AttemptOutcome.UNKNOWN, error={"type": "Odd", "message": value})
        story.settle("happened", evidence={"seen": value}, reference="r-1")
        await tell(store, story)
        facts = [event.facts for event in await history(store)]
        assert facts[1]["error"]["message"] == value
        assert facts[2]["evidence"] == {"seen": value}

    async def test_names_of_every_length_survive(self, store: Store, owners: None) -> None:
        """The longest key, a scope and a requester with any letter."""
        story = Story.of(key="k" * 200, scope="R\u00fcckerstattung \U0001f9fe", requested_by='\u00c5sa O\'Hara \\ "x"')
        await tell(store, story.depart())

    async def test_numbers_of_64_bits_survive(self, store: Store, owners: None) -> None:
        """Times in microseconds need more than 32 bits; nothing rounds them."""
        await tell(store, Story.of(at_us=2**53 + 1).depart())

    @pytest.mark.parametrize(
        "data",
        [b"", bytes(range(256)), b"\x00" * 10, b"x" * 5_000_000],
        ids=["empty", "every byte", "zeroes", "five megabytes"],
    )
    async def test_bodies_survive(self, store: Store, owners: None, data: bytes) -> None:
        """A body kept outside the row comes back byte by byte, in the commit that refers to it."""
        digest = sha256(data).hexdigest()
        story = Story.of().depart()
        await tell(store, story)
        kept = Ending(AttemptOutcome.HAPPENED, result=Stored(blob=digest, size=len(data)))
        change = end_attempt(story.record, story.attempt().id, kept, story.now_us)
        await applied(store, write_of(change, "end", blobs=(Blob(digest, data),)))
        assert await store.blob(TENANT, digest) == data
        record = await store.get(TENANT, story.record.key)
        assert record is not None
        assert record.result == Stored(blob=digest, size=len(data))

    async def test_a_body_may_be_kept_twice(self, store: Store, owners: None) -> None:
        """Two calls with the same result share it."""
        blob = Blob(sha256(b"same").hexdigest(), b"same")
        for key in ("k1", "k2"):
            await applied(store, write_of(Story.of(key=key).depart().changes[0], key, blobs=(blob,)))
        assert await store.blob(TENANT, blob.digest) == b"same"
