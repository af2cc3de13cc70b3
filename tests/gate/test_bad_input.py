"""Bad input gets a stable code, one sentence of cause, one of remedy, and the truth about what was sent; where nothing
was, the same key may go."""

from __future__ import annotations

import math
import uuid
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator

from tests.support.houses import OpenHouse
from tollhouse import Pass, Tollhouse, external, read, tool
from tollhouse.errors import (
    CallConflict,
    HouseClosed,
    InvalidArguments,
    InvalidKey,
    InvalidSetting,
    Refused,
    TollhouseError,
    UnknownTool,
)
from tollhouse.gate.request import ARGUMENTS_LENGTH_MOST

sent: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_sent_yet() -> None:
    sent.clear()


@tool(external())
async def pay(account: str, cents: int, note: Any = None) -> str:
    """Pay."""
    sent.append((account, cents))
    return f"{account}:{cents}"


@tool(external())
async def refund(account: str, cents: int, note: Any = None) -> str:
    """Pay back."""
    sent.append((account, -cents))
    return f"{account}:{-cents}"


@tool(read())
async def look(account: str) -> str:
    """Look."""
    return account


GOOD: dict[str, Any] = {"account": "a1", "cents": 10}


def check(error: TollhouseError, code: str) -> None:
    """The form in which every mistake is told: nothing was sent, and no value is shown."""
    assert error.code == code
    assert error.sent == "no"
    assert error.cause.endswith(".")
    assert "\n" not in error.cause
    assert error.remedy.endswith(".")
    assert len(str(error)) < 1000
    assert "secret" not in str(error)
    assert sent == []


class Opaque:
    """A value that has no encoding, and cannot even be printed."""

    def __repr__(self) -> str:
        raise RuntimeError("no representation")


def within_itself() -> dict[str, Any]:
    """A value that holds itself."""
    whole: dict[str, Any] = {}
    whole["self"] = whole
    return whole


def deep(levels: int) -> list[Any]:
    """Lists inside one another."""
    inner: list[Any] = []
    for _ in range(levels):
        inner = [inner]
    return inner


MISTAKES = {
    "missing": ({"account": "secret"}, "cents"),
    "of a wrong type": ({"account": "a1", "cents": "secret"}, "cents"),
    "extra": ({**GOOD, "currency": "secret"}, "currency"),
    "nan": ({**GOOD, "note": math.nan}, "$.note"),
    "infinity": ({**GOOD, "note": ["secret", -math.inf]}, "$.note[1]"),
    "decimal nan": ({**GOOD, "note": Decimal("NaN")}, "$.note"),
    "lone surrogate": ({**GOOD, "note": "secret\ud800"}, "$.note"),
    "lone surrogate in a key": ({**GOOD, "note": {"\udfff": "secret"}}, None),
    "a key that is no string": ({**GOOD, "note": {1: "secret"}}, "$.note"),
    "without encoding": ({**GOOD, "note": Opaque()}, "$.note"),
    "a function": ({**GOOD, "note": print}, "$.note"),
    "complex": ({**GOOD, "note": 1j}, "$.note"),
    "within itself": ({**GOOD, "note": within_itself()}, None),
    "too deep": ({**GOOD, "note": deep(200)}, None),
    "too long": ({**GOOD, "note": "x" * ARGUMENTS_LENGTH_MOST}, "$"),
    "no mapping": (["secret"], "$"),
}


async def test_arguments_that_cannot_be_are_refused_and_the_key_stays_free(open_house: OpenHouse) -> None:
    """The field is named, no row is written, and the corrected call goes under the same key."""
    house = await open_house(pay)
    for mistake, (arguments, path) in MISTAKES.items():
        with pytest.raises(InvalidArguments) as caught:
            await house.call(pay, arguments, key="k")  # type: ignore[call-overload]
        check(caught.value, "invalid_arguments")
        assert path in (None, caught.value.path), mistake
    assert await house.list() == []
    assert (await house.call(pay, GOOD, key="k")).value == "a1:10"


# case C43
async def test_nan_infinity_and_null_never_share_an_identity(open_house: OpenHouse) -> None:
    """What JSON cannot say is refused; null is a value like any other."""
    house = await open_house(pay)
    assert (await house.call(pay, {**GOOD, "note": None}, key="k")).replayed is False
    for odd in (math.nan, math.inf):
        with pytest.raises(InvalidArguments):
            await house.call(pay, {**GOOD, "note": odd}, key="k")
    assert len(sent) == 1


# case C37
async def test_what_cannot_be_fingerprinted_is_never_taken_for_the_same(open_house: OpenHouse) -> None:
    """Different statements and offsets all run; two calls whose arguments have no encoding are both refused."""
    house = await open_house(pay)
    for cents in (0, 50, 100):
        await house.call(pay, {"account": "page", "cents": cents}, key=f"page-{cents}", scope="run-1")
    assert len(sent) == 3
    for key in ("odd-1", "odd-2"):
        with pytest.raises(InvalidArguments):
            await house.call(pay, {**GOOD, "note": object()}, key=key, scope="run-1")
    assert len(sent) == 3


@dataclass
class Order:
    """Arguments of many types."""

    id: uuid.UUID
    day: date
    total: Decimal


# case C41
async def test_uuid_date_and_decimal_have_one_documented_encoding(open_house: OpenHouse) -> None:
    """The typed value and its JSON form are the same call; what arrives is what the hint says."""
    got: list[Order] = []

    @tool(external())
    async def ship(order: Order) -> str:
        got.append(order)
        return str(order.id)

    house = await open_house(ship)
    order = Order(uuid.UUID(int=7), date(2026, 11, 5), Decimal("2.50"))
    plain = {"id": str(order.id), "day": "2026-11-05", "total": "2.50"}
    first = await house.call(ship, {"order": order}, key="k")
    again = await house.call(ship, {"order": plain}, key="k")
    assert got == [order]
    assert again.replayed
    assert first.value == again.value


# case C40
async def test_the_order_of_attributes_makes_no_difference(open_house: OpenHouse) -> None:
    """A retry that serialises differently is the same call; so are 1 and 1.0."""
    house = await open_house(pay)
    await house.call(pay, {"account": "a1", "cents": 10, "note": {"a": 1, "b": 2}}, key="k")
    again = await house.call(pay, {"note": {"b": 2.0, "a": 1}, "cents": 10.0, "account": "a1"}, key="k")
    assert again.replayed
    assert len(sent) == 1


KEYS = {
    "missing": None,
    "empty": "",
    "10 kB": "k" * 10_000,
    "201 characters": "k" * 201,
    "a space": "order 7",
    "a slash": "order/7",
    "a leading dot": ".order",
    "a newline": "order\n",
    "a NUL": "order\x00",
    "not ASCII": "bestellung-ä",
    "a lone surrogate": "order\ud800",
    "a number": 7,
    "bytes": b"order",
}


async def test_a_key_that_is_none_is_refused(open_house: OpenHouse) -> None:
    """A call that may change something needs a key of its own; the text shows a few words of a bad one at most."""
    house = await open_house(pay)
    for kind, key in KEYS.items():
        with pytest.raises(InvalidKey) as caught:
            await house.call(pay, GOOD, key=key)  # type: ignore[arg-type]
        check(caught.value, "invalid_key")
        assert len(str(caught.value)) < 400, kind
    assert await house.list() == []


async def test_the_longest_key_is_fine(open_house: OpenHouse, house_tenant: str) -> None:
    """200 characters of the alphabet."""
    key = "aZ9._:@-" * 25
    house = await open_house(pay)
    assert (await house.call(pay, GOOD, key=key)).key == key
    assert (await house.get(key)).idempotency_key == f"{house_tenant}:{key}"


async def test_a_read_needs_no_key_but_a_good_one_if_any(open_house: OpenHouse) -> None:
    """Its key is minted; an ill-formed one is a mistake all the same."""
    house = await open_house(look)
    outcome = await house.call(look, {"account": "a1"})
    assert (await house.get(outcome.key)).state == "succeeded"
    with pytest.raises(InvalidKey):
        await house.call(look, {"account": "a1"}, key="")


# case C44
async def test_a_key_with_other_arguments_is_a_conflict_and_replays_nothing(open_house: OpenHouse) -> None:
    """A key names one intended use, for ever; the error tells neither the old nor the new arguments."""
    house = await open_house(pay, refund)
    given = {"account": "a1", "cents": 10, "note": "secret"}
    await house.call(pay, given, key="k")
    sent.clear()
    for other, arguments in ((pay, {**given, "cents": 99}), (refund, given)):
        with pytest.raises(CallConflict) as caught:
            await house.call(other, arguments, key="k")
        check(caught.value, "call_conflict")
        assert caught.value.key == "k"
    assert (await house.get("k")).result == "a1:10"


async def test_a_conflict_shows_while_the_first_call_is_in_doubt_or_held(open_house: OpenHouse) -> None:
    """Whatever the state under the key, it belongs to what was asked first."""

    @tool(external(approval=True))
    async def wire(account: str) -> None:
        """Held first."""

    @tool(external())
    async def lose(account: str) -> None:
        raise TimeoutError

    house = await open_house(wire, lose)
    for each in (wire, lose):
        with pytest.raises(TollhouseError):
            await house.call(each, {"account": "a1"}, key=each.name)
        with pytest.raises(CallConflict):
            await house.call(each, {"account": "a2"}, key=each.name)


async def test_an_unknown_tool_is_the_first_mistake_to_be_told(open_house: OpenHouse) -> None:
    """Its name is wrong, so nothing else can be judged; the tools that are there are named."""
    house = await open_house(pay)
    for key in ("k", None, "", "k" * 10_000):
        with pytest.raises(UnknownTool) as caught:
            await house.call("psy", {"note": math.nan}, key=key)
        check(caught.value, "unknown_tool")
        assert "'psy'" in caught.value.cause
        assert "pay" in caught.value.cause
    assert await house.list() == []


async def test_an_undecorated_function_is_no_tool(open_house: OpenHouse) -> None:
    """A mistake of the caller's, told like every other."""
    house = await open_house(pay)
    for odd in (pay.fn, None, 7):
        with pytest.raises(UnknownTool) as caught:
            await house.call(odd, GOOD, key="k")  # type: ignore[call-overload]
        check(caught.value, "unknown_tool")
        assert "@tool" in caught.value.remedy


async def test_a_tool_that_this_house_does_not_have_is_unknown(open_house: OpenHouse) -> None:
    """The tools of a house are its allowlist, whatever object the caller holds."""
    house = await open_house(pay)
    with pytest.raises(UnknownTool):
        await house.call(refund, GOOD, key="k")
    assert sent == []


async def test_a_tool_that_a_principal_may_not_see_does_not_exist_for_them(open_house: OpenHouse) -> None:
    """Neither its name nor a recorded outcome is shown; a check that fails shows nothing."""

    def visible(principal: str, name: str) -> bool:
        if principal == "mallory":
            raise RuntimeError("no answer")
        return principal == "ada" or name == "look"

    house = await open_house(pay, look, visible=visible, principal="ada")
    await house.call(pay, GOOD, key="k")
    sent.clear()
    for principal, known in (("bob", "look"), ("mallory", "No tools")):
        with pytest.raises(UnknownTool) as caught:
            await house.call(pay, GOOD, key="k", by=principal)
        check(caught.value, "unknown_tool")
        assert known in caught.value.cause
        assert "pay," not in caught.value.cause
    assert (await house.call(look, {"account": "a1"}, by="bob")).value == "a1"
    with pytest.raises(CallConflict) as conflict:
        await house.call(look, {"account": "a1"}, key="k", by="bob")
    assert "pay" not in str(conflict.value)
    gone = await open_house(look, visible=visible, principal="ada")
    assert (await gone.call("pay", GOOD, key="k")).replayed
    with pytest.raises(UnknownTool):  # its record is theirs no more than it was while the tool was here
        await gone.call("pay", GOOD, key="k", by="bob")


OPTIONS: list[dict[str, Any]] = [
    {"by": ""},
    {"by": "x" * 201},
    {"by": 7},
    {"scope": ""},
    {"scope": "s" * 201},
    {"group": 7},
    {"max_attempts": 0},
    {"max_attempts": 1.5},
    {"max_attempts": True},
    {"attempt_timeout_s": 0},
    {"attempt_timeout_s": math.nan},
    {"deadline_s": -1},
    {"deadline_s": math.inf},
    {"deadline_s": "10"},
]


async def test_an_option_out_of_bounds_is_refused(open_house: OpenHouse) -> None:
    """Told before anything is written."""
    house = await open_house(pay)
    for options in OPTIONS:
        with pytest.raises(InvalidSetting) as caught:
            await house.call(pay, GOOD, key="k", **options)
        check(caught.value, "invalid_setting")
        assert next(iter(options)) in caught.value.cause, options
    assert await house.list() == []


async def test_mistakes_are_told_to_the_listener_without_arguments(open_house: OpenHouse) -> None:
    """No row, but an audit line with the code."""
    told: list[tuple[str, dict[str, Any]]] = []
    house = await open_house(pay, on_event=lambda kind, facts: told.append((kind, dict(facts))))
    with pytest.raises(InvalidArguments):
        await house.call(pay, {"account": "secret"}, key="k")
    with pytest.raises(UnknownTool):
        await house.call("psy", {"account": "secret"}, key="k")
    assert [(kind, facts["code"]) for kind, facts in told] == [
        ("call_turned_away", "invalid_arguments"),
        ("call_turned_away", "unknown_tool"),
    ]
    assert "secret" not in str(told)


async def test_a_recorded_call_is_replayed_though_its_tool_is_gone_or_changed(open_house: OpenHouse) -> None:
    """The record outlives the code: new schemas and removed tools change nothing that happened."""
    first = await open_house(pay)
    await first.call(pay, GOOD, key="k")

    @tool(external(), name="pay")
    async def pay_differently(iban: str) -> int:
        raise AssertionError("never called")

    gone = await open_house(look)
    assert (await gone.call("pay", GOOD, key="k")).value == "a1:10"
    changed = await open_house(pay_differently)
    assert (await changed.call("pay", GOOD, key="k")).replayed
    assert len(sent) == 1


async def test_a_closed_house_says_so(shared_store_url: str) -> None:
    """Nothing is sent, and nothing hangs."""
    house = await Tollhouse.open(shared_store_url, tools=[pay])
    await house.close()
    with pytest.raises(HouseClosed) as caught:
        await house.call(pay, GOOD, key="k")
    check(caught.value, "house_closed")


def _picky(value: int) -> int:
    raise KeyError(f"account {value}")


async def test_a_check_of_the_arguments_that_raises_is_told_without_its_message(open_house: OpenHouse) -> None:
    """A validator of the author's may raise anything: the caller gets a stable code, and no value is shown."""

    @tool(external())
    async def check_in(account: Annotated[int, AfterValidator(_picky)]) -> None:
        raise AssertionError("never called")

    house = await open_house(check_in)
    with pytest.raises(InvalidArguments, match="KeyError") as caught:
        await house.call(check_in, {"account": 4711}, key="k")
    check(caught.value, "invalid_arguments")
    assert "4711" not in str(caught.value)


class _Broken:
    name = "broken"

    def check(self, asked: Any) -> Any:
        raise ValueError(f"cannot judge {asked.arguments}")


async def test_a_gate_that_raises_puts_no_argument_into_the_log(
    open_house: OpenHouse, caplog: pytest.LogCaptureFixture
) -> None:
    """It denies, and the log says what was raised and where; its message may hold anything."""
    house = await open_house(pay, gates=[_Broken()])
    with pytest.raises(Refused):
        await house.call(pay, {"account": "secret-account", "cents": 1}, key="k")
    assert "error_type=ValueError at=" in caplog.text
    assert "secret-account" not in caplog.text


async def test_a_name_never_looks_like_a_line_of_the_log(
    open_house: OpenHouse, caplog: pytest.LogCaptureFixture
) -> None:
    """Callers choose the name they ask for; what it holds stays on its line."""
    caplog.set_level("INFO", "tollhouse")
    house = await open_house(pay)
    with pytest.raises(UnknownTool):
        await house.call("x\ndoubt_appeared key=other", {}, key="k")
    lines = [line for line in caplog.text.splitlines() if "doubt_appeared" in line]
    assert len(lines) == 1
    assert "call_turned_away" in lines[0]


class _Meddling:
    name = "meddling"

    def check(self, asked: Any) -> Any:
        asked.arguments["note"]["to"] = "mallory"
        asked.arguments["cents"] = 10_000
        return Pass()


async def test_a_gate_cannot_change_what_is_sent(open_house: OpenHouse) -> None:
    """What runs is what was asked, digested and perhaps approved, whatever a gate does to what it is shown."""
    seen: list[Any] = []

    @tool(external())
    async def pay_out(cents: int, note: dict[str, str]) -> None:
        seen.append((cents, note))

    house = await open_house(pay_out, gates=[_Meddling()])
    await house.call(pay_out, {"cents": 10, "note": {"to": "ada"}}, key="k")
    assert seen == [(10, {"to": "ada"})]
