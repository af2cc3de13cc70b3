"""Digests: equal arguments have one, unlike arguments never share one, and what cannot be encoded has none."""

from __future__ import annotations

import hashlib
import json
import math
import random
import re
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel

from tollhouse.errors import InvalidArguments
from tollhouse.ledger.canonical import Unencodable, canonical
from tollhouse.ledger.codec import dumps, from_tree, loads
from tollhouse.ledger.digest import digest, encode_arguments

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXT, st.binary()
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=15
)
ARGUMENTS = st.dictionaries(TEXT, VALUES, max_size=5)


def shuffled(value: Any, randomness: random.Random) -> Any:
    """An equal value that shares no container with the first and has its keys in another order."""
    if isinstance(value, dict):
        items = [(key, shuffled(member, randomness)) for key, member in value.items()]
        randomness.shuffle(items)
        return dict(items)
    if isinstance(value, list):
        return [shuffled(member, randomness) for member in value]
    return value


def fingerprint(value: Any) -> Any:
    """An independent notion of what JSON can tell apart: numbers by value, booleans and null as themselves."""
    if isinstance(value, dict):
        return ("object", frozenset((key, fingerprint(member)) for key, member in value.items()))
    if isinstance(value, list):
        return ("array", tuple(map(fingerprint, value)))
    if isinstance(value, (bool, bytes, str, type(None))):
        return (type(value).__name__, value)
    return ("number", value)


@given(ARGUMENTS, st.randoms())
def test_equal_arguments_have_one_digest_in_any_order_of_keys(
    arguments: dict[str, Any], randomness: random.Random
) -> None:
    """A retry that builds its arguments anew, in another order, is the same call."""
    # case C40
    again = encode_arguments(shuffled(arguments, randomness))
    assert again == encode_arguments(arguments)


@given(ARGUMENTS, ARGUMENTS)
@example({"x": 1}, {"x": True})
@example({"x": None}, {})
@example({"x": b"hi"}, {"x": {"$bytes": "aGk="}})
@example({"x": "1"}, {"x": 1})
@example({"x": 1}, {"x": 1.0})
@example({"x": 2**53}, {"x": 2**53 + 1})
@example({"x": 0.1}, {"x": 0.1 + 1e-17})
@example({"x": [[1], 2]}, {"x": [1, [2]]})
def test_arguments_share_a_digest_exactly_when_they_are_the_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Unlike arguments are never taken for one call, nor like ones for two."""
    # case C37
    assert (encode_arguments(one).digest == encode_arguments(other).digest) == (fingerprint(one) == fingerprint(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({-0.0, -1.0}, {0, -1}),
        ({1e16, 123}, {10**16, 123}),
        (frozenset({2.0, 1.5}), {1.5, 2}),
        ({"é", "z"}, {"z", "é"}),
    ],
)
def test_equal_sets_have_one_digest(one: set[Any], other: set[Any]) -> None:
    """Whatever their members are written as in Python: 1 and 1.0 are the same, in a set too."""
    assert one == other
    assert encode_arguments({"of": one}) == encode_arguments({"of": other})


def test_a_shared_object_counts_as_its_value() -> None:
    """One object in two places, and two equal objects, are the same arguments."""
    # case C11
    shared = {"x": [1, 2]}
    apart = {"a": {"x": [1, 2]}, "b": {"x": [1, 2]}}
    assert encode_arguments({"a": shared, "b": shared}) == encode_arguments(apart)


class _Customer(BaseModel):
    id: UUID
    born: date
    limit: Decimal


CUSTOMER = _Customer(id=UUID(int=1), born=date(2000, 2, 29), limit=Decimal("10.50"))


def test_models_with_dates_and_the_like_have_a_stable_digest() -> None:
    """The text, and so the digest, of a documented type is pinned: a release that changed it would break retries."""
    # case C41
    encoded = encode_arguments({"customer": CUSTOMER, "raw": b"hi", "n": 1.0})
    assert encoded.text == (
        '{"customer":{"born":"2000-02-29","id":"00000000-0000-0000-0000-000000000001","limit":"10.50"},'
        '"n":1,"raw":{"$bytes":"aGk="}}'
    )
    assert encoded.digest == hashlib.sha256(encoded.text.encode()).hexdigest()
    assert encode_arguments({}).digest == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


UNENCODABLE: list[tuple[Any, str]] = [
    ({"x": math.nan}, "$.x"),
    ({"x": math.inf}, "$.x"),
    ({"x": [0, -math.inf]}, "$.x[1]"),
    ({"x": {"y": object()}}, "$.x.y"),
    ({"x": [{"y": lambda: None}]}, "$.x[0].y"),
    ({"x": "\ud800"}, "$.x"),
    ({"\udc00": 1}, '$["\\udc00"]'),
    ({"x": {1: 2}}, "$.x"),
    ({3: "x"}, "$"),
    ([("x", 1)], "$"),
    (None, "$"),
    ("{}", "$"),
    (CUSTOMER, "$"),
]


@pytest.mark.parametrize(("arguments", "path"), UNENCODABLE, ids=[path for _, path in UNENCODABLE])
def test_what_cannot_be_encoded_is_refused_with_the_field_named(arguments: Any, path: str) -> None:
    """Before anything is stored or sent, and without showing the value."""
    # case C41
    # case C43
    with pytest.raises(InvalidArguments) as caught:
        encode_arguments(arguments)
    assert caught.value.path == path
    assert caught.value.sent == "no"
    assert str(caught.value).isascii()


def test_arguments_that_cannot_be_encoded_never_merge() -> None:
    """Two calls that both cannot be fingerprinted are two errors, not one identity."""
    # case C37
    for value in (object(), math.nan):
        for _ in range(2):
            with pytest.raises(InvalidArguments):
                encode_arguments({"x": value})


def test_nan_and_infinity_are_not_null() -> None:
    """Null is a value with a digest; NaN and infinity have none."""
    # case C43
    assert encode_arguments({"x": None}).text == '{"x":null}'
    for number in (math.nan, math.inf, -math.inf):
        with pytest.raises(Unencodable):
            digest({"x": number})


@given(ARGUMENTS)
@example({"n": 10**5000, "m": -0.0, "k": 1e300})
@example({"b": 1.0, "a": {"d": 2, "c": b""}})
def test_the_text_decodes_to_the_very_tree_that_runs(arguments: dict[str, Any]) -> None:
    """The first attempt and one made from the store hours later run on the same value, to the order of its keys."""
    encoded = encode_arguments(arguments)
    parsed = loads(encoded.text)
    assert parsed == encoded.tree
    assert dumps(parsed) == dumps(encoded.tree)
    assert canonical(parsed).decode() == encoded.text
    assert list(parsed) == sorted(parsed, key=lambda key: key.encode("utf-16-be"))  # type: ignore[arg-type]
    assert from_tree(encoded.tree) == arguments
    assert digest(encoded.tree) == encoded.digest


def test_the_tree_shares_nothing_with_the_callers_arguments() -> None:
    """A tool that changes its input does not change what was recorded."""
    # case C32
    arguments: dict[str, Any] = {"a": [1], "b": {"c": 2}}
    encoded = encode_arguments(arguments)
    arguments["a"].append(2)
    arguments["b"].clear()
    assert encoded.tree == {"a": [1], "b": {"c": 2}} == json.loads(encoded.text)


def test_any_mapping_will_do() -> None:
    """Arguments may come in a read-only view, and are the same arguments."""
    plain: Mapping[str, object] = {"a": 1}
    assert encode_arguments(MappingProxyType(dict(plain))) == encode_arguments(plain)


def test_a_digest_is_64_lower_case_hexadecimal_digits() -> None:
    """The form in which it is stored, compared and shown."""
    assert re.fullmatch(r"[0-9a-f]{64}", digest([1, "a"]))
