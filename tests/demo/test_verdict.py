"""The verdict notices every way in which a ledger and the receiver's book can fail to fit."""

from __future__ import annotations

import pytest

from tollhouse import State
from tollhouse.demo.report import Report, Row, Scenario
from tollhouse.demo.verdict import LedgerLine, Verdict, judge
from tollhouse.testing.receiver import Effect


def line(key: str, state: State = State.SUCCEEDED, *, sendings: int = 1, doubted: bool = False) -> LedgerLine:
    """A call as the ledger has it."""
    return LedgerLine(key, f"default:{key}", state, sendings, doubted)


def effect(key: str | None, sequence: int = 1) -> Effect:
    """An entry of the receiver's book."""
    wire_key = None if key is None else f"default:{key}"
    return Effect(sequence, f"refunds-{sequence}", "refunds", wire_key, None, {}, "", 0)


def report(verdict: Verdict, scenarios: tuple[Scenario, ...] = (), problem: str | None = None) -> Report:
    """What the demo would hand back with this verdict, over one honest call."""
    rows = [Row("a", line("a"), (effect("a"),), 1)]
    return Report(verdict, rows, scenarios, kills=0, seconds=1.0, problem=problem)


def test_one_effect_per_departed_call_passes() -> None:
    """A ledger and a book that say the same are found good, and are counted."""
    ledger = [line("a"), line("b", doubted=True), line("c", State.REFUSED, sendings=0)]
    verdict = judge(ledger, [effect("a"), effect("b")])
    assert verdict == Verdict(calls=3, effects=2, duplicates=0, lost=0, in_doubt=0, doubts_seen=1, disagreements=0)
    assert report(verdict).passed


@pytest.mark.parametrize(
    ("ledger", "book", "found"),
    [
        pytest.param([line("a")], [effect("a"), effect("a")], {"duplicates": 1}, id="an effect twice"),
        pytest.param([line("a")], [effect("a")] * 4, {"duplicates": 3}, id="an effect four times"),
        pytest.param([line("a")], [effect("a"), effect("b")], {"lost": 1}, id="an effect without a call"),
        pytest.param([line("a")], [effect("a"), effect(None)], {"lost": 1}, id="an effect without a key"),
        pytest.param(
            [line("a", State.REFUSED, sendings=0)],
            [effect("a")],
            {"lost": 1, "disagreements": 1},
            id="an effect of a call that never departed",
        ),
        pytest.param([], [effect("a"), effect("a")], {"lost": 2, "duplicates": 1}, id="lost, and twice"),
        pytest.param([line("a", State.FAILED)], [effect("a")], {"disagreements": 1}, id="failed, with an effect"),
        pytest.param([line("a")], [], {"disagreements": 1}, id="succeeded, without an effect"),
        pytest.param([line("a", State.COMPENSATED)], [], {"disagreements": 1}, id="undone, but never done"),
        pytest.param([line("a", State.IN_DOUBT)], [effect("a")], {"in_doubt": 1}, id="a doubt left over"),
        pytest.param([line("a", State.DEPARTED)], [], {"in_doubt": 1}, id="a departure left over"),
    ],
)
def test_whatever_does_not_fit_is_counted_and_fails(
    ledger: list[LedgerLine], book: list[Effect], found: dict[str, int]
) -> None:
    """Each misfit appears in its own count, in words, and in the verdict as a whole."""
    verdict = judge(ledger, book)
    counts = ("duplicates", "lost", "in_doubt", "disagreements")
    assert {name: getattr(verdict, name) for name in counts if getattr(verdict, name)} == found
    assert len(verdict.findings) == len(found)
    assert not report(verdict).passed


GOOD = judge([line("a")], [effect("a")])


def test_a_scenario_that_ends_otherwise_fails() -> None:
    """Honest records are not enough: what was to be shown must have been seen."""
    as_told = Scenario("told", "a", State.SUCCEEDED, 1)
    assert report(GOOD, (as_told,)).passed
    for otherwise in (
        Scenario("another state", "a", State.COMPENSATED, 1),
        Scenario("another number of effects", "a", State.SUCCEEDED, 0),
        Scenario("never asked for", "b", State.SUCCEEDED, 1),
    ):
        failed = report(GOOD, (as_told, otherwise))
        assert not failed.passed
        assert [otherwise.key in reason for reason in failed.reasons] == [True]


def test_a_story_that_stopped_half_way_fails() -> None:
    """Records that fit so far do not make a demo that did not come to its end pass."""
    stopped = report(GOOD, problem="A worker ended before it told 'asks'.")
    assert not stopped.passed
    assert stopped.as_json()["reasons"] == ["A worker ended before it told 'asks'."]
