"""A search for holes in the rules: every action of a small careless world, in every order, then at random and deeper.

The world (`world.py`) has two workers, delayed and lost requests, late replies, look-ups, people who may be wrong,
rounds, approvals and compensation. What is checked after each action (`promises.py`) shares nothing with the rules.
That the search can see is shown by breaking one rule at a time: the trace that it forbids then ends in the verdict.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.ledger.promises import Violation, check
from tests.ledger.world import CONTRACTS, World, begin, moves
from tollhouse.contract.terms import Terms
from tollhouse.ledger import change, decisions, guards, steps
from tollhouse.ledger.change import Change
from tollhouse.ledger.lifecycle import FOLD
from tollhouse.ledger.record import Approval, Attempt, AttemptOutcome, CallRecord, Settlement, State
from tollhouse.ledger.steps import Ending

DEPTH, DEPTH_SLOW = 6, 8
WALKS, LENGTH = 150, 40
SEED = os.environ.get("TOLLHOUSE_TEST_SEED", "0")


def search(contract: str, depth: int) -> int:
    """Every trace up to that many actions; worlds that the rules cannot tell apart are searched once."""
    seen: set[Any] = set()
    frontier = [begin(contract)]
    for _ in range(depth):
        following = []
        for world in frontier:
            for action, moved in moves(world):
                after = replace(moved, trace=(*world.trace, action))
                check(world, after)
                if (key := after.key()) not in seen:
                    seen.add(key)
                    following.append(after)
        frontier = following
    return len(seen)


def walk(contract: str, seed: str) -> World:
    """One long trace. Each walk likes some kinds of action more than others, so that walks differ in kind."""
    chance, world = random.Random(seed), begin(contract)
    liking: dict[str, float] = defaultdict(lambda: 10 ** chance.uniform(-2, 0))
    for _ in range(LENGTH):
        choices = list(moves(world))
        if not choices:
            break
        action, moved = chance.choices(choices, [liking[name.split(" ")[0]] for name, _ in choices])[0]
        after = replace(moved, trace=(*world.trace, action))
        check(world, after)
        world = after
    return world


@pytest.mark.parametrize("contract", CONTRACTS)
def test_no_short_trace_breaks_a_promise(contract: str) -> None:
    """All of them, by whoever's hand."""
    assert search(contract, DEPTH) > 1000


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("contract", CONTRACTS)
def test_no_longer_trace_breaks_a_promise(contract: str) -> None:
    """The same, deeper than most of the known ways to break a rule; resends multiply the worlds, so less deep there."""
    resends = contract != "read" and CONTRACTS[contract].dedup.allows_resend
    assert search(contract, DEPTH_SLOW - resends) > 20_000


@pytest.mark.parametrize("contract", CONTRACTS)
def test_no_long_walk_breaks_a_promise(contract: str) -> None:
    """At random; the seed is in the name of the walk, and TOLLHOUSE_TEST_SEED gives others."""
    ends = set()
    for number in range(WALKS):
        seed = f"{contract}/{SEED}/{number}"
        try:
            ends.add(walk(contract, seed).known.state)
        except Violation as violation:
            raise AssertionError(f"walk {seed}: {violation}") from violation
    assert len(ends) > 2


# -- broken rules -----------------------------------------------------------------------------------------------------


def late_discarded(record: CallRecord, attempt_id: str, ending: Ending, now_us: int) -> Change:
    """What comes after the wait is thrown away."""
    attempt = record.attempt(attempt_id)
    assert attempt is not None
    if record.state is not State.DEPARTED or attempt.fence != record.fence:
        return change.advance(record, now_us, "ignored", {})
    return _end_attempt(record, attempt_id, ending, now_us)


def timeout_is_failure(record: CallRecord, attempt_id: str, _why: str, now_us: int, *, cancel: bool = False) -> Change:
    """A caller that stops waiting fails the call."""
    return _end_attempt(record, attempt_id, Ending(AttemptOutcome.REJECTED), now_us)


def last_outcome_counts(record: CallRecord) -> State:
    """The last attempt decides alone."""
    effective = [attempt.effective for attempt in record.round_attempts]
    return State.DEPARTED if None in effective else FOLD[effective[-1]]


def no_cancel_in_r(record: CallRecord, today: Terms, now_us: int) -> int | None:
    """A cancel stops no resend."""
    return _guard_r(replace(record, cancel_asked=False, extra={}), today, now_us)


def approval_survives(record: CallRecord, by: str, reason: str, _approval: Approval | None, now_us: int) -> Change:
    """The new round is ready, on the approval of the old one."""
    retried = _retry(record, by, reason, None, now_us)
    return replace(retried, record=replace(retried.record, approval=record.approval))


def any_approval(record: CallRecord, _now_us: int) -> Approval | None:
    """An approval is good for ever."""
    return record.approval


def silence_only(*, undoing: bool) -> Callable[..., None]:
    """Guard S for one of its two uses, and nothing for the other."""

    def guard(record: CallRecord, now_us: int, **use: bool) -> None:
        if use.get("undoing", False) is undoing:
            _guard_s(record, now_us, undoing=undoing)

    return guard


def death_is_the_lease(attempt: Attempt, checked: bool) -> int | None:
    """What a process may have sent ended with its lease, checked or not."""
    until_us = _may_send_until_us(attempt, checked)
    return None if until_us is None else attempt.send_by_us


_end_attempt, _retry, _guard_r, _guard_s = steps.end_attempt, decisions.retry, guards.guard_r, guards.guard_s
_may_send_until_us = guards._may_send_until_us

Patch = tuple[object, str, Any]


def absence_of_all(record: CallRecord, finding: Settlement) -> bool:
    """Any finding against any state, whatever it can have known."""
    return (finding.finding == "happened") != (record.state in (State.SUCCEEDED, State.COMPENSATED))


MUTANTS: dict[str, tuple[list[Patch], str, str, str]] = {
    # the rule broken, the contract, the trace that it forbids, the verdict
    "late outcome discarded": (
        [(steps, "end_attempt", late_discarded)],
        "checked", "depart 0 · send 0 · arrive 0 · say did_not_happen · hear 0 happened", "silent",
    ),
    "resend after cancel": (
        [(steps, "guard_r", no_cancel_in_r)], "by_key", "depart 0 · cancel 0 · resend 0", "repeated",
    ),
    "timeout taken as failure": (
        [(steps, "end_wait", timeout_is_failure)],
        "checked", "depart 0 · send 0 · timeout 0 · arrive 0", "unexplained",
    ),
    "approval survives its round": (
        [(decisions, "retry", approval_survives), (steps, "_approval_for_sending", any_approval)],
        "approval", "approve · depart 0 · send 0 · refuse 0 · hear 0 rejected · retry · depart 0", "overspent",
    ),
    "last outcome replaces the fold": (
        [(steps, "fold", last_outcome_counts)],
        "by_key", "depart 0 · timeout 0 · resend 0 · hear 1 not_sent", "fold",
    ),
    "negative evidence without silence": (
        [(decisions, "guard_s", silence_only(undoing=True))],
        "checked", "depart 0 · send 0 · timeout 0 · look · arrive 0 · found did_not_happen", "unexplained",
    ),
    "compensation without silence": (
        [(decisions, "guard_s", silence_only(undoing=False))],
        "natural",
        "depart 0 · send 0 · timeout 0 · resend 0 · send 1 · arrive 1 · hear 1 happened · compensate · arrive 0",
        "unexplained",
    ),
    "compensation of one of several": (
        [(guards, "_may_still_arrive", lambda record, _undoing: [a for a in record.attempts if a.unsettled])],
        "natural",
        "depart 0 · send 0 · timeout 0 · resend 0 · send 1 · arrive 1 · timeout 1 · look · found happened · compensate"
        " · arrive 0",
        "unexplained",
    ),
    "silence from the lease of a process that died later": (
        [(guards, "_may_send_until_us", death_is_the_lease)],
        "unchecked",
        "depart 0 · lease of 0 ends · tick · tick · send 0 · 0 proven dead · look · found did_not_happen · arrive 0",
        "unexplained",
    ),
    "retry despite happened": (
        [(decisions, "guard_d", lambda _record: None), (steps, "guard_d", lambda _record: None)],
        "checked",
        "depart 0 · send 0 · arrive 0 · say did_not_happen · hear 0 happened · retry · depart 1",
        "repeated",
    ),
    "departure despite happened": (
        [(steps, "guard_d", lambda _record: None)],
        "checked",
        "depart 0 · send 0 · arrive 0 · say did_not_happen · retry · hear 0 happened · depart 1",
        "repeated",
    ),
    "resend without dedup": (
        [(steps, "guard_r", lambda _record, _today, _now_us: None)],
        "checked", "depart 0 · send 0 · arrive 0 · timeout 0 · resend 0 · send 1 · arrive 1", "repeated",
    ),
    "send_by beyond the window": (
        [(steps, "_within", lambda start, _window_end_us: start)],
        "by_key",
        "depart 0 · send 0 · arrive 0 · timeout 0 · tick · tick · resend 0 · tick · tick · send 1 · tick · arrive 1",
        "repeated",
    ),
    "contradictions never open": (
        [(change, "contradicted", lambda _record: False)],
        "checked", "depart 0 · say happened · hear 0 not_sent", "silent",
    ),
    "an absence speaks of what began after it": (
        [(guards, "_finding_is_against", absence_of_all)],
        "checked",
        "depart 0 · hear 0 not_sent · look · found did_not_happen · depart 0 · send 1 · arrive 1 · hear 1 happened",
        "stuck",
    ),
    "an abandoned read ignores its reply": (
        [(steps, "_moved_by_outcomes", lambda record: record.state in steps.LIVE)],
        "read", "approve · depart 0 · send 0 · arrive 0 · timeout 0 · hear 0 happened", "fold",
    ),
}  # fmt: skip


def follow(contract: str, trace: str) -> str:
    """Where a trace leads: the verdict it breaks, ``possible``, or the action that was not possible."""
    world = begin(contract)
    try:
        for action in trace.split(" · "):
            choices = dict(moves(world))
            if action not in choices:
                return f"no {action}"
            after = replace(choices[action], trace=(*world.trace, action))
            check(world, after)
            world = after
    except Violation as violation:
        return violation.verdict
    return "possible"


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_rule_is_seen(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the rule in force the trace ends before the harm; without it the harm is done, and named."""
    patches, contract, trace, verdict = MUTANTS[mutant]
    assert follow(contract, trace) != verdict
    for module, name, broken in patches:
        monkeypatch.setattr(module, name, broken)
    assert follow(contract, trace) == verdict
