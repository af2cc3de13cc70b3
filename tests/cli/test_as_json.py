"""Values of users as JSON: plain where JSON has a word, marked where it has none, the same in every process."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel

from tollhouse import Tollhouse, read, tool
from tollhouse.house.as_json import call_as_json, facts_as_json, outcome_as_json
from tollhouse.ledger.plain import moment, plain_json

CASES: list[tuple[Any, Any]] = [
    (None, None),
    ({"$gt": 5, "$$x": 1, "a": [{"$set": 1}]}, {"$gt": 5, "$$x": 1, "a": [{"$set": 1}]}),
    ((1, [2, (3,)]), [1, [2, [3]]]),
    ({2, 1}, [1, 2]),
    (Decimal("2.50"), "2.50"),
    (date(2026, 11, 5), "2026-11-05"),
    (datetime(2026, 11, 5, 9, 30, tzinfo=UTC), "2026-11-05T09:30:00+00:00"),
    (b"hi", {"$bytes": "aGk="}),
    ({"x": float("nan")}, {"x": {"$float": "nan"}}),
    ({(1, 2): "x"}, {"$dict": [[{"$tuple": [1, 2]}, "x"]]}),
    (2**70, 2**70),
    (10**6000, {"$int": hex(10**6000)}),
]


@pytest.mark.parametrize(("value", "expected"), CASES, ids=range(len(CASES)))
def test_value_is_plain_json_where_json_has_a_word_for_it(value: Any, expected: Any) -> None:
    """And it can always be written and read again."""
    shown = plain_json(value)
    assert shown == expected
    assert json.loads(json.dumps(shown)) == expected


class Money(BaseModel):
    """A result type."""

    amount: Decimal
    tags: set[str]


async def test_result_reads_the_same_with_and_without_its_tool() -> None:
    """A process that has the type and one that has not answer alike, the first answer and its replay too."""

    @tool(read())
    async def look() -> Money:
        return Money(amount=Decimal("1.50"), tags={"b", "a"})

    async with Tollhouse.open("sqlite:///:memory:", tools=[look], volatile=True) as house:
        first = await house.call(look, key="k")
        again = await house.call(look, key="k")
        typed = await house.get("k")
    plain = type(typed)(typed.raw, {"amount": Decimal("1.50"), "tags": {"a", "b"}}, typed.history)
    expected = {"amount": "1.50", "tags": ["a", "b"]}
    assert isinstance(typed.result, Money)
    assert call_as_json(typed)["result"] == expected
    assert call_as_json(plain) == call_as_json(typed)
    assert outcome_as_json(first)["result"] == outcome_as_json(again)["result"] == expected
    assert (outcome_as_json(first)["replayed"], outcome_as_json(again)["replayed"]) == (False, True)


@pytest.mark.parametrize("size", [10, 200_000])
async def test_result_of_any_size_is_whole(size: int) -> None:
    """Also where its body is kept apart from the row."""

    @tool(read())
    async def fetch() -> dict[str, Any]:
        return {"text": "x" * size, "when": date(2026, 1, 1)}

    async with Tollhouse.open("sqlite:///:memory:", tools=[fetch], volatile=True) as house:
        await house.call(fetch, key="k")
        shown = call_as_json(await house.get("k"))
    assert shown["result"] == {"text": "x" * size, "when": "2026-01-01"}


async def test_result_that_could_not_be_kept_says_why() -> None:
    """The effect stands; the value is described, not invented."""

    @tool(read())
    async def odd() -> Any:
        return object()

    async with Tollhouse.open("sqlite:///:memory:", tools=[odd], volatile=True) as house:
        outcome = await house.call(odd, key="k")
        shown = call_as_json(await house.get("k"))
    for answer in (shown, outcome_as_json(outcome)):
        assert (answer["result"], answer["result_problem"]) == (None, "not_storable")
        assert "object" in answer["result_detail"]


def test_moments_are_exact_to_the_microsecond() -> None:
    """No float has come between."""
    assert moment(None) is None
    assert moment(0) == "1970-01-01T00:00:00.000000Z"
    assert moment(1_796_000_000_123_457) == "2026-11-30T00:53:20.123457Z"
    assert facts_as_json({"next_us": None, "send_by_us": 1, "why": "x"}) == {
        "next": None, "send_by": "1970-01-01T00:00:00.000001Z", "why": "x",
    }  # fmt: skip
