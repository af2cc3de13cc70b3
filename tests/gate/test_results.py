"""Results are kept without loss: the first caller and every replay get the same value, built from what is stored; a
result that cannot be kept, or is not what was declared, changes nothing about the effect."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from pydantic import AnyUrl, BaseModel, ConfigDict, Field, field_validator

from tests.support.houses import OpenHouse
from tollhouse import State, Tool, external, read, tool
from tollhouse.gate.results import INLINE_BYTES_MOST, Unavailable


class Line(BaseModel):
    """A part with an alias that JSON readers know."""

    model_config = ConfigDict(populate_by_name=False)
    unit_price: Decimal = Field(alias="unitPrice")


class Order(BaseModel):
    """A model of models."""

    id: UUID
    placed: datetime
    lines: list[Line]
    page: AnyUrl


@dataclass
class Point:
    """A dataclass in a dataclass."""

    x: float
    inner: dict[str, Point] = field(default_factory=dict)


class Pair(NamedTuple):
    """A tuple with names."""

    left: int
    right: bytes


class Colour(Enum):
    """An enum."""

    RED = "red"


ORDER = Order(
    id=UUID(int=5),
    placed=datetime(2026, 11, 5, 9, 30, tzinfo=UTC),
    lines=[Line(unitPrice=Decimal("2.50"))],
    page=AnyUrl("https://shop.example/orders/5"),
)


def returning(kind: Any, value: Any, number: int = 0) -> Tool[Any]:
    """A tool declared to return that type, which returns that value."""

    async def give() -> Any:
        return value

    give.__annotations__["return"] = kind
    return tool(external(), name=f"give_{number}")(give)


def each_returning(values: list[tuple[Any, Any]]) -> list[tuple[Tool[Any], Any]]:
    """A tool for each of these, with its value."""
    return [(returning(kind, value, number), value) for number, (kind, value) in enumerate(values)]


VALUES: list[tuple[Any, Any]] = [
    (None, None),
    (bool, True),
    (int, 2**200),
    (float, -0.0),
    (str, 'caf\u00e9 \U0001f600 \x00 \ud800 "\\'),
    (bytes, bytes(range(256))),
    (Any, (1, (2, [3, {"a": {4, 5}}]))),
    (Any, {("a", 1): b"\xff", None: frozenset({1})}),
    (dict[str, Any], {"$bytes": "not a marker", "$$x": 1}),
    (Decimal, Decimal("1.500")),
    (date, date(2026, 11, 5)),
    (timedelta, timedelta(days=-1, microseconds=1)),
    (Any, datetime(2026, 11, 5, tzinfo=UTC)),
    (Any, complex(1, -2)),
    (Order, ORDER),
    (list[Order], [ORDER, ORDER]),
    (Point, Point(1.5, {"a": Point(2.5)})),
    (Pair, Pair(1, b"\x00\xff")),
    (Colour, Colour.RED),
    (AnyUrl, AnyUrl("https://a.example/")),
    (str, "x" * INLINE_BYTES_MOST),
    (bytes, b"\xf0" * (4 * 1024 * 1024)),
    (list[Point], [Point(float(n)) for n in range(5000)]),
]


async def test_every_replay_gets_the_value_that_the_first_caller_got(open_house: OpenHouse) -> None:
    """Equal and of the same type, whatever the type, from the same house and from one opened later."""
    given = each_returning(VALUES)
    house = await open_house(*(give for give, _ in given))
    later = await open_house(*(give for give, _ in given))
    for give, value in given:
        outcomes = [await each.call(give, key=give.name) for each in (house, house, later)]
        for outcome in outcomes:
            assert outcome.value == value
            assert type(outcome.value) is type(value), value
            assert outcome.problem is None, value
        assert [outcome.replayed for outcome in outcomes] == [False, True, True]
        assert (await house.get(give.name)).result == value


async def test_nan_and_infinity_come_back(open_house: OpenHouse) -> None:
    """JSON has no word for them; results keep them all the same."""
    house = await open_house(give := returning(Any, [math.nan, math.inf, -math.inf, Decimal("NaN")]))
    for _ in range(2):
        nan, inf, minus, odd = (await house.call(give, key="k")).value
        assert math.isnan(nan)
        assert (inf, minus) == (math.inf, -math.inf)
        assert isinstance(odd, Decimal)
        assert odd.is_nan()


async def test_a_caller_may_change_the_value_it_got(open_house: OpenHouse) -> None:
    """It is the caller's own: the next replay is built anew."""
    house = await open_house(give := returning(dict[str, list[int]], {"a": [1]}))
    for _ in range(3):
        outcome = await house.call(give, key="k")
        assert outcome.value == {"a": [1]}
        outcome.value["a"].append(2)


# case C50
async def test_a_result_of_4_megabytes_is_kept_apart_and_ends_the_call(open_house: OpenHouse) -> None:
    """Its body is a blob by its SHA-256, so the row stays small; nothing is retried."""
    ran = []

    @tool(read())
    async def dump() -> str:
        ran.append(1)
        return "y" * (4 * 1024 * 1024)

    house = await open_house(dump)
    assert len((await house.call(dump, key="k")).value) == 4 * 1024 * 1024
    assert len((await house.call(dump, key="k")).value) == 4 * 1024 * 1024
    stored = (await house.get("k")).raw.result
    assert stored is not None
    assert stored.text is None
    assert stored.blob is not None
    assert ran == [1]


class Picky(BaseModel):
    """A type whose own validator may raise anything."""

    size: int

    @field_validator("size")
    @classmethod
    def not_huge(cls, size: int) -> int:
        if size > 100:
            raise RuntimeError("no such size")
        return size


NOT_AS_DECLARED: list[tuple[Any, Any]] = [
    (int, "secret"),
    (Order, {"id": "secret"}),
    (Picky, {"size": 1000}),
    (int, "x" * (INLINE_BYTES_MOST + 1)),
    (list[int], ["x"] * 40_000),
]


async def test_a_result_that_is_not_as_declared_is_kept_as_it_came(open_house: OpenHouse) -> None:
    """The effect stands; the call says what is wrong, on replay too, and however large the result."""
    given = each_returning(NOT_AS_DECLARED)
    house = await open_house(*(give for give, _ in given))
    for give, value in given:
        for replayed in (False, True):
            outcome = await house.call(give, key=give.name)
            assert (outcome.state, outcome.replayed) == (State.SUCCEEDED, replayed)
            assert outcome.value == value
            assert outcome.problem == "not_as_declared"
            assert outcome.problem_detail
            assert len(outcome.problem_detail) < 500
            assert "secret" not in outcome.problem_detail


class Connection:
    """A live object, which no ledger can keep."""

    def __repr__(self) -> str:
        return "<Connection to db>"


# case C49
async def test_a_result_that_cannot_be_stored_is_described_and_the_effect_stands(open_house: OpenHouse) -> None:
    """Succeeded, with a bounded description in place of the value; the first caller and every replay get the same."""
    ran = []
    odd = {"an object": Connection(), "inside": {"page": Connection()}, "an iterator": iter([1]), "code": print}

    @tool(external())
    async def act(what: str) -> Any:
        ran.append(what)
        return odd[what]

    house = await open_house(act)
    for number, what in enumerate(odd):
        for replayed in (False, True):
            outcome = await house.call(act, {"what": what}, key=f"k{number}")
            assert (outcome.state, outcome.replayed) == (State.SUCCEEDED, replayed)
            assert outcome.problem == "not_storable"
            assert isinstance(outcome.value, Unavailable)
            assert outcome.problem_detail
            assert len(outcome.problem_detail) < 800
    assert ran == list(odd)


class Unprintable:
    """A result whose every method fails."""

    def __repr__(self) -> str:
        raise RuntimeError("no")

    __str__ = __repr__
    __reduce__ = __repr__


async def test_a_result_type_that_makes_no_schema_is_no_reason_to_lose_the_result(open_house: OpenHouse) -> None:
    """Whatever a type does while its schema is made, the effect has happened and is recorded."""

    class Hostile:
        @classmethod
        def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> Any:
            raise ZeroDivisionError

    house = await open_house(give := returning(Hostile, {"id": 1}))
    assert (await house.call(give, key="k")).value == {"id": 1}
    odd = returning(Any, Unprintable())
    assert (await (await open_house(odd)).call(odd, key="k2")).problem == "not_storable"


# case C52
async def test_bytes_that_are_no_text_are_kept_whole(open_house: OpenHouse, tmp_path: Path) -> None:
    """A command prints one byte that is no UTF-8 and makes a file: its output comes back whole, and it ran once."""
    program = "import sys, pathlib; sys.stdout.buffer.write(b'a\\xf0b'); pathlib.Path(sys.argv[1]).open('x')"

    @tool(external())
    def run(name: str) -> dict[str, Any]:
        done = subprocess.run([sys.executable, "-c", program, str(tmp_path / name)], capture_output=True, check=True)
        return {"bytes": done.stdout, "text": done.stdout.decode(errors="surrogateescape")}

    house = await open_house(run)
    for _ in range(2):
        outcome = await house.call(run, {"name": "made"}, key="k")
        assert outcome.value == {"bytes": b"a\xf0b", "text": "a\udcf0b"}
    assert (tmp_path / "made").exists()


class Exact(BaseModel):
    """A type that takes nothing but instances."""

    model_config = ConfigDict(strict=True)
    colour: Colour
    at: date


async def test_a_strict_model_is_rebuilt_from_its_plain_form(open_house: OpenHouse) -> None:
    """It was strict about what the tool made; that the ledger keeps an enum as its value is no mistake of the tool."""

    @tool(external())
    async def paint() -> Exact:
        return Exact(colour=Colour.RED, at=date(2024, 2, 29))

    house = await open_house(paint)
    for _ in range(2):
        outcome = await house.call(paint, key="k")
        assert (outcome.value, outcome.problem) == (Exact(colour=Colour.RED, at=date(2024, 2, 29)), None)
