"""Canonical JSON: equal trees give equal bytes, and what has no encoding is refused by path."""

from __future__ import annotations

import json
import math
from enum import IntEnum, StrEnum
from typing import Any

import pytest
import rfc8785
from hypothesis import example, given
from hypothesis import strategies as st

from tests.ledger.stack import with_stack_left
from tollhouse.ledger.canonical import MAX_DEPTH, Unencodable, canonical, int_text, json_path, parse_int

EXACT = 2**53 - 1
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
KEYS = st.one_of(st.text("abc$", max_size=3), TEXT)
NUMBERS = st.one_of(
    st.integers(-EXACT, EXACT),
    st.floats(-EXACT, EXACT),
    st.floats(-1e-3, 1e-3),
    st.sampled_from([1e-4, 1e-5, 1e-6, 1e-7, 5e-324, 9.999999999999997e-05, 0.1, -0.0, 1.0, 123456789012345.67]),
)


def _json_trees(numbers: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        st.one_of(st.none(), st.booleans(), numbers, TEXT),
        lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=4)),
        max_leaves=20,
    )


@given(_json_trees(NUMBERS))
@example({"\U0001f600": 1, "\ufb33": 2, "\u20ac": 3, "\r": 4, "1": 5})
@example({"a": [0.00001, 1e-6, 1e-7], "\u00e9": {"b": '\x00\x1f\x7f"\\/\u2028'}})
def test_trees_within_its_domain_are_written_as_rfc_8785_says(tree: Any) -> None:
    """Where RFC 8785 has an answer, ours is the same, byte for byte."""
    assert canonical(tree) == rfc8785.dumps(tree)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (5e-324, "5e-324"),
        (-5e-324, "-5e-324"),
        (9.999999999999997e-7, "9.999999999999997e-7"),
        (0.000001, "0.000001"),
        (-0.0000125, "-0.0000125"),
        (333333333.3333332, "333333333.3333332"),
        (0.1 + 0.2, "0.30000000000000004"),
        (-0.0, "0"),
        (1.0, "1"),
        (1e21, "1000000000000000000000"),
        (2.0**60, "1152921504606846976"),
        (10**21, "1000000000000000000000"),
        (-(2**64), "-18446744073709551616"),
    ],
)
def test_numbers_are_written_in_their_documented_form(number: float, text: str) -> None:
    """Fractions as ECMAScript writes them, whole numbers in full, alone and inside a tree."""
    assert canonical(number) == text.encode()
    assert canonical({"n": [number]}) == f'{{"n":[{text}]}}'.encode()


@given(st.floats(allow_nan=False, allow_infinity=False).map(lambda number: float(math.floor(number))))
@example(1e308)
@example(1e21)
@example(-0.0)
def test_a_float_without_a_fraction_is_written_as_its_integer(number: float) -> None:
    """Numbers that Python calls equal encode the same at any size, as values and deep inside."""
    assert canonical({"n": number}) == canonical({"n": int(number)})
    assert canonical(number) == str(int(number)).encode()


@pytest.mark.parametrize("sign", ["", "-"])
def test_integers_beyond_the_conversion_limit_stay_exact(sign: str) -> None:
    """Python refuses to convert more than 4,300 digits at once; digests and text do not depend on that limit."""
    number = (10**5000 + 7) * (-1 if sign else 1)
    digits = "1" + "0" * 4999 + "7"
    assert canonical([number]) == f"[{sign}{digits}]".encode()
    assert int_text(number) == sign + digits
    assert parse_int(sign + digits) == number


@given(_json_trees(st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False))))
def test_the_text_parses_to_an_equal_tree(tree: object) -> None:
    """Nothing is lost: any JSON parser gets an equal tree back."""
    assert json.loads(canonical(tree)) == tree


def test_subclasses_of_plain_types_are_written_as_the_plain_value() -> None:
    """An enum that is a string or an integer is that string or integer, as key and as value."""

    class Colour(StrEnum):
        RED = "red"

    class Level(IntEnum):
        HIGH = 3

    assert canonical({Colour.RED: [Colour.RED, Level.HIGH, True]}) == b'{"red":["red",3,true]}'


LOOP: dict[str, Any] = {"a": []}
LOOP["a"].append(LOOP)


@pytest.mark.parametrize(
    ("tree", "path", "problem"),
    [
        # case C43
        ({"a": [0, math.nan]}, "$.a[1]", "is nan"),
        ({"a": math.inf}, "$.a", "is inf"),
        (-math.inf, "$", "is -inf"),
        ({"a": {"b": "\ud800"}}, "$.a.b", "lone surrogate"),
        ({"a": {"\udc00": 1}}, '$.a["\\udc00"]', "lone surrogate"),
        ([{1: "x"}], "$[0]", "key of type int"),
        ({"a": {None: "x"}}, "$.a", "key of type NoneType"),
        ({"a b": (1, 2)}, '$["a b"]', "of type tuple"),
        ({"a": b"x"}, "$.a", "of type bytes"),
        ({"a": {1, 2}}, "$.a", "of type set"),
        ({"x" * 1000: object()}, f'$["{"x" * 57}..."]', "of type object"),
        (LOOP, "$" + ".a[0]" * (MAX_DEPTH // 2), "contains itself"),
    ],
)
def test_what_has_no_encoding_is_refused_by_path(tree: object, path: str, problem: str) -> None:
    """The error names where the fault is and what it is; nothing is coerced or dropped."""
    with pytest.raises(Unencodable) as caught:
        canonical(tree)
    assert caught.value.path == path
    assert problem in caught.value.problem
    assert str(caught.value).isascii()


def _nested(levels: int, innermost: object) -> object:
    tree = innermost
    for _ in range(levels):
        tree = [tree]
    return tree


@pytest.mark.parametrize("innermost", ["x", 1.0], ids=["plain", "careful"])
def test_depth_is_bounded_alike_on_both_ways(innermost: object) -> None:
    """The bound is a number of levels, whatever is inside; deeper is an error, not a crash."""
    assert canonical(_nested(MAX_DEPTH, innermost)).startswith(b"[[[")
    for levels in (MAX_DEPTH + 1, 100_000):
        with pytest.raises(Unencodable, match="levels deep"):
            canonical(_nested(levels, innermost))


def test_a_nearly_full_stack_is_an_error_of_its_own() -> None:
    """A caller deep in recursion gets a sentence, never a bare RecursionError."""
    tree = _nested(200, 1.0)
    with pytest.raises(Unencodable, match="stack"):
        with_stack_left(120, lambda: canonical(tree))
    assert canonical(tree)


@pytest.mark.parametrize(
    ("steps", "path"),
    [
        ([], "$"),
        (["a", 2, "b_1"], "$.a[2].b_1"),
        (["", "1x", 'q"', "\u00e9"], '$[""]["1x"]["q\\""]["\\u00e9"]'),
    ],
)
def test_paths_read_as_json_paths(steps: list[str | int], path: str) -> None:
    """Plain names by dot, indices and other names in brackets, always ASCII."""
    assert json_path(steps) == path
