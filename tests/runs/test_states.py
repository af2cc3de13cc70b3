"""The table of a run's life, walked over every pair of a state and an event, legal and illegal."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tollhouse.errors import RunNotAllowed
from tollhouse.ledger.record import replace
from tollhouse.ledger.run_record import RunRecord
from tollhouse.models.port import ModelFailed, ModelReply
from tollhouse.runs import steps
from tollhouse.runs.agents import Limits
from tollhouse.runs.body import Body, Waiting
from tollhouse.runs.states import AWAITING, FINISHED, PAUSED, RUN_TABLE, RUN_TRANSITIONS, RunEvent, RunState

NOW = 1_000_000
QUESTION = Waiting("answer", "run_1:1.1", NOW, NOW + 100, "who?")


def record(state: RunState, waiting: tuple[Waiting, ...] = (QUESTION,)) -> RunRecord:
    """A run that stands in that state."""
    return RunRecord(
        tenant="t", id="run_1", agent="clerk", agent_version="v", driver="local", state=state, version=7,
        owner="own_1" if state is RunState.RUNNING else None, start_key=None, start_digest="d", thread=None,
        parent_run_id=None, parent_key=None, source_run_id=None, attempt_no=1, requested_by="ada", created_at_us=NOW,
        updated_at_us=NOW, due_at_us=None, finished=state in FINISHED, head_seq=9, head_hash="h",
        body=Body(waiting=waiting).text,
    )  # fmt: skip


REPLY = ModelReply("hello", (), "stop", "m", ())
FAILURE = ModelFailed("model_timeout", "no answer", transient=True)
STEPS: dict[RunEvent, list[Callable[[RunRecord], steps.RunChange]]] = {
    RunEvent.STARTED: [lambda r: steps.started(replace(r, state="queued"), {})],
    RunEvent.CLAIMED: [lambda r: steps.claimed(r, "own_2", None, NOW)],
    RunEvent.RELEASED: [lambda r: steps.released(r, NOW)],
    RunEvent.MODEL_ANSWERED: [lambda r: steps.model_answered(r, REPLY, 1, NOW)],
    RunEvent.MODEL_FAILED: [
        lambda r: steps.model_failed(r, FAILURE, 1, NOW + 5, NOW),
        lambda r: steps.model_failed(r, FAILURE, 1, None, NOW),
    ],
    RunEvent.CALLS_SETTLED: [lambda r: steps.calls_settled(r, 1, [], (), NOW)],
    RunEvent.WAITING: [
        lambda r: steps.waits_meanwhile(r, (QUESTION,), NOW),
        *(
            lambda r, kind=kind: steps.paused(r, (Waiting(kind, "run_1:1.1", NOW),), None, NOW)
            for kind in ("reconciliation", "approval", "answer", "work", "time")
        ),
    ],
    RunEvent.QUESTION_ANSWERED: [lambda r: steps.question_answered(r, QUESTION.id, "me", "bob", NOW)],
    RunEvent.REMINDED: [lambda r: steps.paused(r, (QUESTION,), None, NOW + 60)],
    RunEvent.LIMIT_REACHED: [lambda r: steps.limit_reached(r, "turns", "5", NOW)],
    RunEvent.LIMITS_RAISED: [lambda r: steps.limits_raised(r, Limits(), "bob", NOW)],
    RunEvent.VERIFIED: [lambda r: steps.verified(r, "schema", False, "no", (), NOW)],
    RunEvent.SUCCEEDED: [lambda r: steps.succeeded(r, "done", NOW)],
    RunEvent.FAILED: [lambda r: steps.failed(r, "code", "cause", NOW)],
    RunEvent.CANCELLED: [lambda r: steps.cancelled(r, "bob", "why", [], NOW)],
    RunEvent.TIDIED: [lambda r: steps.tidied(r, [], [], None, NOW)],
    RunEvent.PURGED: [lambda r: steps.purged(r, NOW)],
}
"""Every function that makes a step, by the event that it tells of."""

EXISTING = list(RunState)
PAIRS = [(state, event) for state in EXISTING for event in RunEvent if event is not RunEvent.STARTED]


@pytest.mark.parametrize(("state", "event"), PAIRS)
def test_every_pair_is_in_the_table_or_refused(state: RunState, event: RunEvent) -> None:
    """A step that the table has leads to its targets, one version on; every other raises and changes nothing."""
    row = RUN_TABLE.get((state, event))
    for step in STEPS[event]:
        before = record(state)
        if row is None:
            with pytest.raises(RunNotAllowed):
                step(before)
            continue
        after = step(before).record
        reached = state if event is RunEvent.REMINDED else RunState(after.state)
        assert reached in row.targets
        assert (after.version, after.id) == (before.version + 1, before.id)
        assert after.finished == (after.state in FINISHED)
        assert (after.owner is not None) == (after.state == RunState.RUNNING)


def test_every_target_of_the_table_is_reached() -> None:
    """No row promises a step that no function makes."""
    made: dict[tuple[RunState | None, RunEvent], set[str]] = {(None, RunEvent.STARTED): {"queued"}}
    for state, event in PAIRS:
        if (state, event) in RUN_TABLE:
            reached = {step(record(state)).record.state for step in STEPS[event]}
            made[state, event] = {str(state)} if event is RunEvent.REMINDED else reached
    assert made == {key: {str(target) for target in row.targets} for key, row in RUN_TABLE.items()}


def test_table_has_one_row_for_a_pair_and_every_state_a_sentence() -> None:
    """The table is a function, every state is explained, and the groups of states are what they say."""
    assert len(RUN_TABLE) == len(RUN_TRANSITIONS)
    assert all(state.sentence for state in RunState)
    assert set(STEPS) == set(RunEvent)
    assert not AWAITING & FINISHED
    assert AWAITING | {RunState.LIMIT_REACHED} == PAUSED
    leaving = {t.source for t in RUN_TRANSITIONS if t.source in FINISHED and t.targets != {t.source}}
    assert not leaving


def test_event_of_a_step_says_the_state_it_leads_to() -> None:
    """Each event has its kind and the state; a reminder that of the step it belongs to."""
    for event, made in STEPS.items():
        source = next(t.source for t in RUN_TRANSITIONS if t.event is event)
        for step in made:
            change = step(record(source or RunState.QUEUED))
            assert event in [draft.kind for draft in change.drafts]
            assert dict(change.drafts[-1].data)["state"] == change.record.state


def test_every_event_has_its_row_in_the_reference() -> None:
    """The page about the journal leaves no kind out, and has none that does not exist."""
    page = Path(__file__).parents[2] / "docs" / "reference" / "journal.md"
    rows = re.findall(r"^\| `(\w+)` \|", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [event.value for event in RunEvent]


def facts(change: steps.RunChange) -> dict[str, Any]:
    """What the last event of a step says."""
    return dict(change.drafts[-1].data)


def test_two_steps_in_one_commit_are_one_version() -> None:
    """A step on top of another adds its event; the row moves by one version."""
    first = steps.model_answered(record(RunState.RUNNING), REPLY, 1, NOW)
    both = first.then(steps.succeeded(first.record, "done", NOW))
    assert [draft.kind for draft in both.drafts] == ["model_answered", "run_succeeded"]
    assert both.record.version == record(RunState.RUNNING).version + 1
    assert facts(both)["output"] == "done"
