"""The codec: results come back as they were, arguments are what JSON says, and nothing else gets in."""

from __future__ import annotations

import contextlib
import ipaddress
import math
import threading
import zoneinfo
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, IntEnum, IntFlag, StrEnum
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import (
    AliasChoices,
    AliasPath,
    AnyUrl,
    BaseModel,
    ConfigDict,
    Field,
    HttpUrl,
    RootModel,
    SecretStr,
    TypeAdapter,
    field_serializer,
)
from typing_extensions import TypedDict

from tests.ledger.stack import with_stack_left
from tollhouse.errors import InvalidArguments
from tollhouse.ledger.canonical import canonical
from tollhouse.ledger.codec import MAX_DEPTH, NotStorable, Unreadable, dumps, from_tree, loads, to_tree
from tollhouse.ledger.encodings import ENCODINGS, Encoding


class Colour(Enum):
    """As in the documented table."""

    RED = "red"
    PAIR = (1, 2)


class _Name(StrEnum):
    A = "a"


class _Size(IntEnum):
    BIG = 3


class _Mode(IntFlag):
    READ = 4
    WRITE = 2


@dataclass(frozen=True)
class Point:
    """As in the documented table."""

    x: int
    y: int


class Order(BaseModel):
    """As in the documented table."""

    id: int


class _Pair(NamedTuple):
    left: int
    right: str


def _stored(value: object) -> Any:
    """What a result is when it comes back from the ledger."""
    return from_tree(loads(dumps(to_tree(value, lossless=True))))


def _as_argument(value: object) -> Any:
    """What an argument is when it comes back from the ledger."""
    return from_tree(loads(canonical(to_tree(value, lossless=False)).decode()))


def _same(one: Any, other: Any) -> bool:
    """Equal and of the same type all the way down; NaN is itself, and -0.0 is not 0.0."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return repr(one) == repr(other)
    if isinstance(one, complex):
        return _same(one.real, other.real) and _same(one.imag, other.imag)
    if isinstance(one, Decimal):
        return str(one) == str(other)
    if isinstance(one, dict):
        one, other = list(one.items()), list(other.items())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, (set, frozenset)):
        return len(one) == len(other) and all(any(_same(a, b) for b in other) for a in one)
    if isinstance(one, (datetime, time)):
        return bool(one == other) and one.fold == other.fold and one.utcoffset() == other.utcoffset()
    return bool(one == other)


ANY_TEXT = st.text(st.characters(exclude_categories=[]))
ZONES = st.none() | st.timezones() | st.builds(timezone, st.timedeltas(-timedelta(hours=23), timedelta(hours=23)))
HASHABLE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    ANY_TEXT,
    st.binary(),
    st.complex_numbers(),
    st.decimals(),
    st.uuids(),
    st.dates(),
    st.times(timezones=ZONES),
    st.datetimes(timezones=ZONES),
    st.timedeltas(),
    st.ip_addresses(),
    st.builds(range, st.integers(), st.integers(), st.integers(1)),
)
KEYS = st.one_of(st.text("$ab", max_size=3), ANY_TEXT)
# Members that are equal across types (1, True, 1.0) leave it open which of them a set keeps.
MEMBERS = st.one_of(ANY_TEXT, st.binary(), st.integers(2), st.tuples(ANY_TEXT, st.floats(allow_nan=False)))
VALUES = st.recursive(
    st.one_of(HASHABLE, st.binary().map(bytearray), st.sets(MEMBERS, max_size=4), st.frozensets(MEMBERS, max_size=4)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(KEYS, inner, max_size=4),
        st.dictionaries(MEMBERS, inner, max_size=4),
    ),
    max_leaves=15,
)
PLAIN_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(st.characters(exclude_categories=["Cs"])), st.binary()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("$bytes", max_size=6), inner, max_size=4),
    max_leaves=15,
)


@given(VALUES)
@example({"$bytes": "aGk="})
@example({"$": 1, "$$": 2, "$$$": {"$tuple": []}})
@example([math.nan, math.inf, -math.inf, -0.0, 0.0, 1.0, 1])
@example({1: "a", None: "b", (1, "x"): {"$set": frozenset({1})}})
@example(["\ud800", "\x00", {"\udfff": "\U0001f600"}])
@example([timedelta.min, timedelta.max, -timedelta.resolution, timedelta()])
@example([Decimal("sNaN12"), Decimal("-0E+7"), Decimal("1.10"), Decimal("-Infinity")])
@example(datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1))
@example([time(2, 30, tzinfo=ZoneInfo("Europe/Berlin")), datetime(2026, 1, 1, fold=1)])  # noqa: DTZ001
@example([Path("a/b"), PurePosixPath("/x"), PureWindowsPath("c:\\x"), ipaddress.ip_network("10.0.0.0/8")])
@example(10**5000)
@example({"n": [-(10**5000), 2**100]})
def test_results_of_builtin_types_come_back_equal_and_of_the_same_type(value: object) -> None:
    """What the first caller got, every replay gets: through JSON text, without loss."""
    assert _same(_stored(value), value)


@given(PLAIN_VALUES)
@example({"$bytes": "aGk="})
@example({"$bytes": b"hi", "a": [b"", {"$$bytes": 1}]})
def test_arguments_that_json_can_say_come_back_equal(value: object) -> None:
    """Plain values and bytes survive, and a caller's own dollar keys are never taken for marks."""
    assert _as_argument(value) == value


def _tree_or_error(value: object) -> Any:
    try:
        return to_tree(value, lossless=False)
    except InvalidArguments as error:
        return error


@given(VALUES)
def test_arguments_are_encoded_or_refused_and_nothing_else(value: object) -> None:
    """Whatever a caller passes, the answer is a tree or an error that names a path."""
    made = _tree_or_error(value)
    if isinstance(made, InvalidArguments):
        assert str(made.path).startswith("$")
    else:
        assert loads(dumps(made)) == made
        assert dumps(to_tree(from_tree(made), lossless=False)) == dumps(made)


TYPES_IN_EXAMPLES = [AnyUrl, Colour, Decimal, IPv4Address, Order, Path, Point, SecretStr, UUID, ZoneInfo]
NAMES_IN_EXAMPLES = {kind.__name__: kind for kind in [*TYPES_IN_EXAMPLES, date, datetime, time, timedelta]} | {
    "UTC": UTC
}


@pytest.mark.parametrize("row", ENCODINGS, ids=lambda row: row.type)
def test_each_row_of_the_documented_table_holds(row: Encoding) -> None:
    """The table that the docs show is what the code does: both forms, and what comes back."""
    # case C41
    value = eval(row.example, NAMES_IN_EXAMPLES)
    if row.argument is None:
        with pytest.raises((InvalidArguments, ValueError)):
            canonical(to_tree(value, lossless=False))
    else:
        assert canonical(to_tree(value, lossless=False)).decode() == row.argument
    if row.result is None:
        with pytest.raises(NotStorable):
            to_tree(value, lossless=True)
    else:
        assert dumps(to_tree(value, lossless=True)) == row.result
        assert _same(_stored(value), value) == (row.comes_back_as is None)
        assert type(_stored(value)).__name__ == (row.comes_back_as or type(value).__name__)


def test_nothing_stored_is_shared_with_the_callers_objects() -> None:
    """A tool that changes its input, or a caller its result, changes nothing that is kept."""
    # case C32
    inner: list[int] = [1]
    for value in ({"a": 1}, {"a": inner}, [inner]):
        before = repr(value)
        for lossless in (True, False):
            tree = to_tree(value, lossless=lossless)
            back = from_tree(tree)
            tree.clear()  # type: ignore[union-attr]
            assert repr(value) == before == repr(back)
            assert back is not value


def test_sharing_of_objects_does_not_matter() -> None:
    """The same list twice, and two equal lists, are one value."""
    # case C11
    shared = [1, {"a": 2}]
    for lossless in (True, False):
        assert to_tree({"a": shared, "b": shared}, lossless=lossless) == to_tree(
            {"a": [1, {"a": 2}], "b": [1, {"a": 2}]}, lossless=lossless
        )


def test_equal_sets_have_one_encoding() -> None:
    """A set has no order, so its encoding must not depend on how it was filled."""
    members = [f"m{number}" for number in range(50)]
    for kind in (set, frozenset):
        assert to_tree(kind(members), lossless=True) == to_tree(kind(reversed(members)), lossless=True)
        assert to_tree(kind(members), lossless=False) == sorted(members)


def _nested(levels: int, wrap: Callable[[Any], Any]) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = wrap(value)
    return value


@pytest.mark.parametrize(
    "wrap",
    [
        lambda inner: [inner],
        lambda inner: (inner,),
        lambda inner: {"a": inner},
        lambda inner: {7: inner},
        lambda inner: frozenset({inner}),
        lambda inner: deque([inner]),
    ],
    ids=["list", "tuple", "dict", "odd dict", "set", "deque"],
)
def test_a_value_of_the_deepest_depth_allowed_survives_whole(wrap: Callable[[Any], Any]) -> None:
    """What is admitted can always be written and read again; one level more is refused."""
    deepest = _nested(MAX_DEPTH, wrap)
    tree = to_tree(deepest, lossless=True)
    assert to_tree(from_tree(loads(dumps(tree))), lossless=True) == tree
    assert canonical(tree)
    with pytest.raises(NotStorable, match=f"more than {MAX_DEPTH} levels"):
        to_tree(wrap(deepest), lossless=True)
    with pytest.raises(NotStorable):
        to_tree(_nested(5000, lambda inner: [inner]), lossless=True)


@dataclass
class _Node:
    next: Any = None


LOOP_LIST: list[Any] = []
LOOP_LIST.append((LOOP_LIST,))
LOOP_DICT: dict[str, Any] = {}
LOOP_DICT["self"] = LOOP_DICT
LOOP_NODE = _Node()
LOOP_NODE.next = [LOOP_NODE]


@pytest.mark.parametrize("value", [LOOP_LIST, LOOP_DICT, LOOP_NODE], ids=["list", "dict", "dataclass"])
def test_a_value_that_contains_itself_is_refused_as_such(value: object) -> None:
    """Endless values end in a clear error, in both modes."""
    with pytest.raises(NotStorable, match="contains itself") as caught:
        to_tree({"a": value}, lossless=True)
    assert len(caught.value.safe_repr) <= 500
    with pytest.raises(InvalidArguments, match="contains itself"):
        to_tree({"a": value}, lossless=False)


def test_a_nearly_full_stack_is_an_error_of_its_own() -> None:
    """A caller deep in recursion gets a sentence, never a bare RecursionError."""
    value = _nested(90, lambda inner: [inner])
    with pytest.raises(NotStorable, match="stack"):
        with_stack_left(100, lambda: to_tree(value, lossless=True))
    with pytest.raises(InvalidArguments, match="stack"):
        with_stack_left(100, lambda: to_tree(value, lossless=False))
    tree = to_tree(value, lossless=True)
    with pytest.raises(Unreadable, match="RecursionError"):
        with_stack_left(60, lambda: from_tree(tree))
    assert from_tree(tree) == value


@dataclass(eq=False)
class _AllEqual:
    inner: Any

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def test_an_object_that_only_claims_to_be_its_parent_is_not_a_loop() -> None:
    """Whether a value contains itself is a matter of identity, not of equality."""
    value = _nested(MAX_DEPTH + 1, _AllEqual)
    with pytest.raises(NotStorable, match="levels deep"):
        to_tree(value, lossless=True)


@pytest.mark.parametrize(
    ("value", "path"),
    [({7: object()}, "$[7]"), ({(1, "x"): [object()]}, "$[\"(1, 'x')\"][0]"), ({"a": {b"k": {1j}}, "b": len}, "$.b")],
    ids=["integer key", "tuple key", "string key"],
)
def test_paths_through_keys_of_other_types_can_be_read(value: object, path: str) -> None:
    """A key that is no string is shown by its representation."""
    with pytest.raises(NotStorable) as caught:
        to_tree(value, lossless=True)
    assert caught.value.path == path


class _Loud:
    def __repr__(self) -> str:
        raise RuntimeError("no")


class _Long:
    def __repr__(self) -> str:
        return "\x00\ud800\n" * 1000


def _numbers() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("value", "type_name"),
    [
        (object(), "object"),
        (_numbers(), "generator"),
        (threading.Lock(), "_thread.lock"),
        (int, "type"),
        (Point, "type"),
        (len, "builtin_function_or_method"),
        (ValueError("x"), "ValueError"),
        (memoryview(b"x"), "memoryview"),
        (SecretStr("hunter2"), "pydantic.types.SecretStr"),
        (_Loud(), f"{__name__}._Loud"),
        (_Long(), f"{__name__}._Long"),
    ],
    ids=lambda part: part if isinstance(part, str) else "value",
)
def test_what_has_no_encoding_is_refused_with_path_and_type(value: object, type_name: str) -> None:
    """A result keeps a bounded, printable trace of what it was; an argument's error never shows the value."""
    # case C37
    with pytest.raises(NotStorable, match="has no encoding") as kept:
        to_tree({"a": [0, value]}, lossless=True)
    assert kept.value.path == "$.a[1]"
    assert kept.value.type_name == type_name
    assert len(kept.value.safe_repr) <= 500
    assert kept.value.safe_repr.isprintable()
    assert "hunter2" not in kept.value.safe_repr
    with pytest.raises(InvalidArguments) as refused:
        to_tree({"a": [0, value]}, lossless=False)
    assert refused.value.path == "$.a[1]"
    assert type_name in refused.value.cause
    assert refused.value.sent == "no"


@pytest.mark.parametrize(
    ("value", "path", "problem"),
    [
        # case C43
        ({"x": math.nan}, "$.x", "is nan"),
        ({"x": [math.inf]}, "$.x[0]", "is inf"),
        ({"x": Decimal("NaN")}, "$.x", "Decimal('NaN')"),
        ({"x": {1: 2}}, "$.x", "key of type int"),
        ({"x": {Colour.RED: 2}}, "$.x", "key of type"),
        ({"x": 1j}, "$.x", "of type complex"),
        ({"x": range(3)}, "$.x", "of type range"),
        ({"x": time(1, tzinfo=ZoneInfo("Europe/Berlin"))}, "$.x", "depends on the day"),
    ],
    ids=lambda part: part if isinstance(part, str) else "value",
)
def test_arguments_that_json_cannot_say_are_refused(value: object, path: str, problem: str) -> None:
    """NaN is not null, a key is a string, and what would lose its meaning does not go at all."""
    with pytest.raises(InvalidArguments) as caught:
        to_tree(value, lossless=False)
    assert caught.value.path == path
    assert problem in caught.value.cause


class _Broken(Mapping[str, object]):
    def __getitem__(self, key: str) -> object:
        raise OSError("disk")

    def __iter__(self) -> Iterator[str]:
        return iter("a")

    def __len__(self) -> int:
        return 1


@dataclass
class _Unset:
    value: int

    def __init__(self) -> None:
        pass


class _Timestamp(datetime):
    """As of a data-frame library: a datetime of nanoseconds."""

    nanosecond = 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Timestamp) and super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = datetime.__hash__


@pytest.mark.parametrize(
    "value",
    [_Broken(), _Unset(), _Timestamp(2026, 1, 1, tzinfo=UTC), {Point(1, 2): 1}, {Colour.RED: 1, "red": 2}],
    ids=["raising mapping", "unset field", "richer subclass", "unhashable key", "keys that meet"],
)
def test_a_result_that_would_be_lost_in_part_is_refused_whole(value: object) -> None:
    """Objects that raise when read, or whose plain form says less, are not stored as something else."""
    with pytest.raises(NotStorable) as caught:
        to_tree([value], lossless=True)
    assert caught.value.path.startswith("$[0]")


class _Sub(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (_Name.A, "a"),
        (_Size.BIG, 3),
        (_Mode.READ | _Mode.WRITE, 6),
        (Colour.PAIR, (1, 2)),
        ({_Name.A: _Name.A}, {"a": "a"}),
        (_Sub("x"), "x"),
        (type("Int", (int,), {})(5), 5),
        (type("Float", (float,), {})(2.5), 2.5),
        (type("Bytes", (bytes,), {})(b"x"), b"x"),
        (type("Day", (date,), {})(2026, 1, 2), date(2026, 1, 2)),
        (type("Moment", (datetime,), {})(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)),
        (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (defaultdict(list, a=[1]), {"a": [1]}),
        (MappingProxyType({"a": 1}), {"a": 1}),
        (deque([1, 2]), [1, 2]),
        (_Pair(1, "x"), (1, "x")),
        (Point(1, 2), {"x": 1, "y": 2}),
        ({Point(1, 2)}, [{"x": 1, "y": 2}]),
        (Order(id=1), {"id": 1}),
        (RootModel[list[int]]([1]), [1]),
        (AnyUrl("https://a.example/x"), "https://a.example/x"),
    ],
    ids=lambda part: type(part).__name__,
)
def test_richer_types_are_kept_in_their_plain_form(value: object, plain: object) -> None:
    """Subclasses, enums, models and dataclasses become built-in values, keys included."""
    assert _same(_stored(value), plain)


class _Line(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)

    colour: Colour
    price: Decimal = Field(alias="unitPrice")
    at: datetime
    connection: Any = Field(default=None, exclude=True)

    @field_serializer("at")
    def _for_readers(self, at: datetime) -> str:
        return at.strftime("%d/%m/%y")


def test_a_field_that_its_model_excludes_is_left_out() -> None:
    """What a model never serialises (a connection, say) is neither stored nor in the way."""
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    line = _Line(colour=Colour.RED, unitPrice=Decimal(1), at=moment, connection=threading.Lock())
    assert _stored(line) == {"colour": "red", "price": Decimal(1), "at": moment}


class _Basket(TypedDict):
    lines: list[_Line]
    seen: set[Point]


class _Visit(BaseModel):
    basket: _Basket
    pair: _Pair
    queue: deque[bytes]
    page: HttpUrl
    by_point: dict[int, Point]


def test_a_typed_result_is_built_again_from_its_plain_form() -> None:
    """The result type turns the plain form into an equal value, whatever its serialisers and aliases are."""
    moment = datetime(2026, 11, 5, 9, 30, 1, 7, tzinfo=ZoneInfo("Asia/Tokyo"))
    line = _Line(colour=Colour.RED, unitPrice=Decimal("2.50"), at=moment, note={"$k": (1, 2)})  # type: ignore[call-arg]
    visit = _Visit(
        basket={"lines": [line], "seen": {Point(1, 2), Point(3, 4)}},
        pair=_Pair(1, "x"),
        queue=deque([b"\x00\xff"]),
        page=HttpUrl("https://a.example/"),
        by_point={1: Point(0, 0)},
    )
    assert TypeAdapter(_Visit).validate_python(_stored(visit), by_alias=True, by_name=True) == visit


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (UUID, UUID(int=9)),
        (date, date(2026, 11, 5)),
        (time, time(9, 30, 0, 5)),
        (datetime, datetime(2026, 11, 5, 9, 30, tzinfo=timezone(timedelta(hours=-3)))),
        (Decimal, Decimal("1E+2")),
        (timedelta, timedelta(days=-400, microseconds=1)),
        (timedelta, timedelta.max),
        (timedelta, timedelta.min),
        (bytes, b"\x00\xff"),
        (Path, Path("a/b")),
        (set[str], {"b", "a"}),
        (tuple[int, str], (1, "x")),
        (Colour, Colour.RED),
        (Point, Point(1, 2)),
        (Order, Order(id=3)),
        (HttpUrl, HttpUrl("https://a.example/")),
        (IPv6Address, IPv6Address("::1")),
    ],
    ids=lambda part: str(part) if isinstance(part, type) else "value",
)
def test_a_typed_argument_reaches_the_tool_as_it_was_given(kind: Any, value: object) -> None:
    """The tool's parameter type reads what JSON says back into an equal value."""
    # case C41
    assert TypeAdapter(kind).validate_python(_as_argument(value)) == value


class _Aliased(BaseModel):
    unit_price: int = Field(alias="unitPrice")
    currency: str = Field(validation_alias=AliasChoices(AliasPath("money", 0), "ccy"), serialization_alias="out")  # type: ignore[pydantic-alias]
    plain: int


class _ByName(BaseModel):
    model_config = ConfigDict(validate_by_alias=False, validate_by_name=True)

    unit_price: int = Field(alias="unitPrice")


@pytest.mark.parametrize(
    ("kind", "written"),
    [(_Aliased, {"unitPrice": 1, "ccy": "EUR", "plain": 2}), (_ByName, {"unit_price": 1})],
)
def test_a_model_in_arguments_goes_by_the_names_that_it_reads(kind: type[BaseModel], written: Any) -> None:
    """A model given from Python and the JSON that its schema asks for are the same arguments."""
    model = kind.model_validate(written)
    assert _as_argument([model]) == [written]
    assert kind.model_validate(_as_argument(model)) == model
    assert kind.model_validate(_stored(model), by_alias=True, by_name=True) == model


@given(st.timedeltas())
def test_every_duration_is_iso_8601_to_the_microsecond(value: timedelta) -> None:
    """Another reader of ISO 8601 agrees with ours."""
    text = to_tree(value, lossless=False)
    assert TypeAdapter(timedelta).validate_python(text) == value


class _Odd(tzinfo):
    def utcoffset(self, when: datetime | None) -> timedelta:
        return timedelta(hours=5, minutes=45)

    def dst(self, when: datetime | None) -> timedelta | None:
        return None

    def tzname(self, when: datetime | None) -> str | None:
        return None


def test_a_zone_of_another_library_is_kept_as_its_offset() -> None:
    """The instant is what counts; a class of somebody's own cannot be stored."""
    moment = datetime(2026, 1, 1, tzinfo=_Odd())
    assert _stored(moment) == moment
    assert _stored(moment).utcoffset() == timedelta(hours=5, minutes=45)


@pytest.mark.parametrize(
    "payload",
    [
        ["2026-07-01T12:00:00+02:00", "Atlantis/Capital", 0],  # no such zone here
        ["2026-07-01T12:00:00+02:00", "../../etc/passwd", 0],
        ["2026-07-01T12:00:00+02:00", "Asia/Tokyo", 0],  # its rules were others when this was written
    ],
)
def test_the_recorded_offset_wins_where_the_zone_is_unknown_or_has_changed(payload: list[Any]) -> None:
    """A stored instant never moves, even where its zone's rules did."""
    moment = from_tree({"$datetime": payload})
    assert moment == datetime(2026, 7, 1, 10, tzinfo=UTC)
    assert moment.utcoffset() == timedelta(hours=2)


def test_zones_keep_their_name() -> None:
    """A result that counts on to tomorrow needs the zone, not just today's offset."""
    moment = datetime(2026, 3, 28, 12, tzinfo=ZoneInfo("Europe/Berlin"))
    back = _stored(moment)
    assert isinstance(back.tzinfo, zoneinfo.ZoneInfo)
    assert (back + timedelta(days=1)).isoformat() == "2026-03-29T12:00:00+02:00"


def test_stored_text_suits_any_text_column() -> None:
    """PostgreSQL's text holds no NUL, and UTF-8 no lone surrogate; the escapes are plain ASCII."""
    text = dumps(to_tree(["\x00", "\ud800", "\u00e9"], lossless=True))
    assert text.isascii()
    assert "\x00" not in text


TREES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text("$a", max_size=3), inner, max_size=3),
        st.builds(
            lambda mark, payload: {mark: payload},
            st.sampled_from(["$tuple", "$set", "$dict", "$float", "$int", "$bytes", "$datetime", "$range", "$uuid"]),
            inner,
        ),
    ),
    max_leaves=10,
)


@given(TREES)
@example({"$unheard": 1})
@example({"$tuple": [], "a": 1})
@example({"$dict": [[[1], 2]]})
@example({"$timedelta": "P1Y"})
@example({"$decimal": {}})
def test_damaged_trees_are_unreadable_and_nothing_worse(tree: Any) -> None:
    """A row that was damaged, or written by a newer release, is an error that says so."""
    with contextlib.suppress(Unreadable):
        from_tree(tree)


@pytest.mark.parametrize("tree", [{"$unheard": 1}, {"$tuple": [], "a": 1}, [object()], {"$bytes": "%"}])
def test_trees_that_no_release_wrote_are_refused(tree: Any) -> None:
    """Decoding never guesses."""
    with pytest.raises(Unreadable):
        from_tree(tree)


def test_text_that_is_not_json_stays_an_error() -> None:
    """The way round Python's limit on integers swallows no syntax error."""
    with pytest.raises(ValueError, match="Expecting value"):
        loads("[1,")
