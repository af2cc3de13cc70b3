"""What the tests of the loop say of runs holds for runs on Temporal, word for word: they are the same tests.

Those that name their way of driving, or drive by themselves, are left out. ``make test`` runs a selection.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterator
from typing import Any

import pytest

from tests.runs import test_cancel, test_failures, test_limits, test_loop, test_output, test_subagents, test_waiting

pytestmark = pytest.mark.xdist_group("temporal")

QUICK = {
    "test_run_asks_calls_and_finishes",
    "test_siblings_each_have_their_own_result",
    "test_sibling_of_a_question_runs_once",
    "test_resuming_in_any_way_continues_at_the_open_call",
    "test_timer_ends_by_itself",
    "test_approval_expires_and_the_run_goes_on",
    "test_doubt_pauses_the_run_until_it_is_settled",
    "test_turns_stop_the_run_and_raising_lets_it_go_on",
    "test_wall_time_stops_a_run_that_waits",
    "test_model_that_comes_back_ends_the_wait",
    "test_child_succeeds_and_its_parent_hears_the_output",
    "test_cancel_when_queued_and_at_a_limit",
    "test_verifier_rejects_and_the_model_corrects",
}


def drives_itself(test: Callable[..., Any]) -> bool:
    """Whether the test chooses how runs are driven, or does that by hand."""
    chosen = any(mark.name == "parametrize" and mark.args[0] == "way" for mark in getattr(test, "pytestmark", ()))
    source = inspect.getsource(test)
    return chosen or any(
        word in source for word in ("LocalDriver", ".way", "runs.advance(", "runs.claim(", "_take_over_once", '"local"')
    )


def through_temporal(test: Callable[..., Any]) -> Callable[..., Any]:
    """The same test, for this module."""

    @functools.wraps(test)
    async def same(**fixtures: Any) -> None:
        await test(**fixtures)

    marks = [*getattr(test, "pytestmark", ())]
    same.pytestmark = marks if test.__name__ in QUICK else [*marks, pytest.mark.slow]  # type: ignore[attr-defined]
    return same


def shared() -> Iterator[Callable[..., Any]]:
    """Every test of the loop that leaves open who drives."""
    for module in (test_loop, test_waiting, test_failures, test_limits, test_output, test_subagents, test_cancel):
        tests = [test for name, test in vars(module).items() if name.startswith("test_")]
        yield from (test for test in tests if "open_stage" in _asked_for(test) and not drives_itself(test))


def _asked_for(test: Callable[..., Any]) -> Collection[str]:
    return inspect.signature(test).parameters


globals().update({test.__name__: through_temporal(test) for test in shared()})


def test_every_quick_one_is_there() -> None:
    """The selection names tests that exist."""
    assert globals().keys() >= QUICK
