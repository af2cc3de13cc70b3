"""The text of a file is read within bounds, by YAML 1.2, and every mistake has its place."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollhouse.runs.yaml_reader import MAX_BYTES, MAX_DEPTH, MAX_VALUES, Document, Place, read


def value(text: str) -> object:
    """What a text that must be right says."""
    document = read(text.encode())
    assert document.mistakes == ()
    return document.value


def mistakes(text: str | bytes) -> list[tuple[int, int, str]]:
    """Places and causes."""
    document = read(text if isinstance(text, bytes) else text.encode())
    return [(mistake.line, mistake.column, mistake.cause) for mistake in document.mistakes]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("yes", "yes"), ("no", "no"), ("on", "on"), ("off", "off"), ("y", "y"),
        ("true", True), ("False", False), ("~", None), ("null", None), ("''", ""), ("'1'", "1"), ('"true"', "true"),
        ("12", 12), ("-3", -3), ("007", 7), ("0o17", 15), ("0x1F", 31), ("1_000", "1_000"), ("12:30", "12:30"),
        ("1.5", 1.5), ("1e3", 1000.0), (".5", 0.5), ("1.", 1.0), ("1.2.3", "1.2.3"), ("2026-01-01", "2026-01-01"),
        ("9" * 30, 1e30), ("|\n a\n b", "a\nb"), ("[a, {b: c}]", ["a", {"b": "c"}]),
        ("{on: 1}", {"on": 1}), ("a: &x [1]\nb: *x", {"a": [1], "b": [1]}), ("<<: {a: b}", {"<<": {"a": "b"}}),
        ("\ufeffa: b", {"a": "b"}), ('"\\ud83d\\ude00"', "😀"),
    ],
)  # fmt: skip
def test_scalars_follow_yaml_1_2(text: str, expected: object) -> None:
    """So that yes is a word and 12:30 no number."""
    found = value(text)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("text", "line", "column", "cause"),
    [
        ("a: 1\na: 2", 2, 1, "'a' is given twice."),
        ("a:\n  b: 1\n  c: 2\n  b: 3", 4, 3, "'b' is given twice."),
        ("a: [1, 2", 1, 9, "This is no YAML"),
        ("a: 1\n\tb: 2", 2, 1, "This is no YAML"),
        ("a: b: c", 1, 5, "This is no YAML"),
        ("a: @x", 1, 4, "This is no YAML"),
        ("a: 'x\n", 2, 1, "This is no YAML"),
        ("a: \x01", 1, 4, "This is no YAML"),
        (b"a: b\nc: \xff", 2, 4, "not UTF-8"),
        ("1: x", 1, 1, "A key is text."),
        ("true: x", 1, 1, "A key is text."),
        ("[a]: x", 1, 1, "A key is text."),
        ("? {a: b}\n: x", 1, 3, "A key is text."),
        ("a: .inf", 1, 4, ".inf is no finite number."),
        ("a: .nan", 1, 4, ".nan is no finite number."),
        ("a: 1e999", 1, 4, "1e999 is no finite number."),
        ("a: !!python/object/apply:os.system [ls]", 1, 4, "has no meaning here."),
        ("a: !!str 1", 1, 4, "has no meaning here."),
        ('a: "x\\ud800"', 1, 4, "half a character"),
        ('"\\udc00": 1', 1, 1, "half a character"),
        ("a: *b", 1, 4, "Nothing before this is marked &b."),
        ("a: &a [*a]", 1, 8, "Nothing before this is marked &a."),
        ("a: 1\n---\nb: 2", 2, 1, "A second document begins here."),
        ("%YAML 1.1\n---\na: yes", 2, 1, "not YAML 1.2"),
        ("[" * 200, 1, MAX_DEPTH + 2, f"more than {MAX_DEPTH} deep"),
        ("- " * 200 + "x", 1, 2 * MAX_DEPTH + 3, f"more than {MAX_DEPTH} deep"),
        (b" " * (MAX_BYTES + 1), 1, 1, "larger than 1,000,000 bytes"),
    ],
)  # fmt: skip
def test_mistake_is_told_at_its_place(text: str | bytes, line: int, column: int, cause: str) -> None:
    """Counted from 1, as editors do."""
    found = mistakes(text)
    assert [place[:2] for place in found] == [(line, column)]
    assert cause in found[0][2]


def test_aliases_cannot_stand_for_more_than_the_bound() -> None:
    """Ten lines that mean ten thousand million values are refused before they are made."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    ((line, _column, cause),) = mistakes("\n".join(lines))
    assert cause == f"The file holds more than {MAX_VALUES:,} values."
    assert line == 5


def test_what_an_alias_stands_for_is_where_the_alias_is() -> None:
    """That is the line to mend."""
    document = read(b"a: &x {b: 1}\nc: *x")
    assert document.place(("a", "b")) == Place(1, 11)
    assert document.place(("c", "b")) == Place(2, 4)
    assert document.place(("c",), of_key=True) == Place(2, 1)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.text(st.characters(codec="ascii")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(min_size=1, max_size=5), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_json_is_read_as_what_it_says(given: object) -> None:
    """YAML 1.2 takes JSON in."""
    assert read(json.dumps(given).encode()).value == given


@given(st.binary(max_size=200) | st.text(alphabet="ab:-[]{},&*!|>'\"#%@`? \n\t1.", max_size=80).map(str.encode))
def test_no_text_breaks_the_reader(data: bytes) -> None:
    """It gives a value, or says what is wrong; numbers are finite."""
    document = read(data)
    assert isinstance(document, Document)
    assert document.mistakes or document.places
    for mistake in document.mistakes:
        assert min(mistake.line, mistake.column) >= 1
    assert not (isinstance(document.value, float) and not math.isfinite(document.value))
