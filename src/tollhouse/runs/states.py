"""The life of a run as one table: every state, every event, every step that exists.

``runs/steps.py`` looks a transition up here before it makes it, the reference page is generated from it, and tests
walk every pair. A run's state is never set anywhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class RunState(StrEnum):
    """Where a run stands."""

    QUEUED = "queued"
    RUNNING = "running"
    AWAITING_APPROVAL = "awaiting_approval"
    AWAITING_RECONCILIATION = "awaiting_reconciliation"
    AWAITING_ANSWER = "awaiting_answer"
    AWAITING_WORK = "awaiting_work"
    AWAITING_TIME = "awaiting_time"
    LIMIT_REACHED = "limit_reached"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def sentence(self) -> str:
        """The state in words, for docs, CLI and console."""
        return _SENTENCES[self]


_S = RunState

_SENTENCES = {
    _S.QUEUED: "may go on; waits for a driver",
    _S.RUNNING: "a driver is making its next step",
    _S.AWAITING_APPROVAL: "one of its calls waits for people",
    _S.AWAITING_RECONCILIATION: "one of its calls is in doubt; goes on by itself when that is settled",
    _S.AWAITING_ANSWER: "it asked a person something",
    _S.AWAITING_WORK: "long work is under way at a receiver, or a run of another agent",
    _S.AWAITING_TIME: "waits until a moment, or for something that was away",
    _S.LIMIT_REACHED: "stopped at one of its limits; goes on when that is raised",
    _S.SUCCEEDED: "finished with an output",
    _S.FAILED: "ended without an output, for the reason it names",
    _S.CANCELLED: "was stopped by name; what had left before is listed",
}

FINISHED = frozenset({_S.SUCCEEDED, _S.FAILED, _S.CANCELLED})
"""States that nothing leaves; a rerun is a new run."""

AWAITING = frozenset(
    {_S.AWAITING_APPROVAL, _S.AWAITING_RECONCILIATION, _S.AWAITING_ANSWER, _S.AWAITING_WORK, _S.AWAITING_TIME}
)
"""Nothing runs; the run is rows only. When several things are awaited, the state names the first of this order:
a doubt, an approval, an answer, work, time."""

PAUSED = AWAITING | {_S.LIMIT_REACHED}


class RunEvent(StrEnum):
    """What can happen to a run, and the kind of the event that tells of it."""

    STARTED = "run_started"
    CLAIMED = "run_claimed"
    RELEASED = "run_released"
    MODEL_ANSWERED = "model_answered"
    MODEL_FAILED = "model_failed"
    CALLS_SETTLED = "calls_settled"
    WAITING = "run_waiting"
    QUESTION_ANSWERED = "question_answered"
    REMINDED = "reminded"
    LIMIT_REACHED = "limit_reached"
    LIMITS_RAISED = "limits_raised"
    VERIFIED = "output_verified"
    SUCCEEDED = "run_succeeded"
    FAILED = "run_failed"
    CANCELLED = "run_cancelled"
    TIDIED = "run_tidied"
    PURGED = "run_purged"


@dataclass(frozen=True, slots=True)
class RunTransition:
    """One row. ``source`` None: no run under this id yet."""

    source: RunState | None
    event: RunEvent
    targets: frozenset[RunState]
    by: str


def _rows(
    sources: frozenset[RunState] | set[RunState] | set[None], event: RunEvent, targets: set[RunState], by: str
) -> list[RunTransition]:
    ordered = [source for source in (None, *RunState) if source in sources]
    return [RunTransition(source, event, frozenset(targets or {source} - {None}), by) for source in ordered]


_UNFINISHED = frozenset(RunState) - FINISHED
_E = RunEvent

RUN_TRANSITIONS: tuple[RunTransition, ...] = (
    *_rows({None}, _E.STARTED, {_S.QUEUED}, "caller, or the call of a parent run"),
    *_rows({_S.QUEUED, _S.RUNNING, *AWAITING}, _E.CLAIMED, {_S.RUNNING}, "driver; the owner before it has ended"),
    *_rows({_S.RUNNING}, _E.RELEASED, {_S.QUEUED}, "its driver, when it is shut down"),
    *_rows({_S.RUNNING}, _E.MODEL_ANSWERED, {_S.RUNNING}, "its driver"),
    *_rows({_S.RUNNING}, _E.MODEL_FAILED, {_S.AWAITING_TIME, _S.FAILED}, "its driver"),
    *_rows({_S.RUNNING}, _E.CALLS_SETTLED, {_S.RUNNING}, "its driver"),
    *_rows({_S.RUNNING}, _E.VERIFIED, {_S.RUNNING}, "its driver"),
    *_rows({_S.RUNNING}, _E.WAITING, {_S.RUNNING, *AWAITING}, "its driver; running while siblings of a question run"),
    *_rows({_S.QUEUED, *AWAITING}, _E.QUESTION_ANSWERED, {_S.QUEUED}, "a named person"),
    *_rows({_S.RUNNING}, _E.QUESTION_ANSWERED, {_S.RUNNING}, "a named person"),
    *_rows({_S.RUNNING}, _E.REMINDED, set(), "its driver, half-way to the end of a wait for people"),
    *_rows({_S.RUNNING}, _E.LIMIT_REACHED, {_S.LIMIT_REACHED}, "its driver"),
    *_rows({_S.LIMIT_REACHED}, _E.LIMITS_RAISED, {_S.QUEUED}, "a named person"),
    *_rows({_S.RUNNING}, _E.SUCCEEDED, {_S.SUCCEEDED}, "its driver"),
    *_rows({_S.RUNNING}, _E.FAILED, {_S.FAILED}, "its driver"),
    *_rows(_UNFINISHED, _E.CANCELLED, {_S.CANCELLED}, "a named person, or the cancel of its parent"),
    *_rows(FINISHED, _E.TIDIED, set(), "driver: calls forbidden, children cancelled, parent told"),
    *_rows(FINISHED, _E.PURGED, set(), "purge, once the run is tidied"),
)

RUN_TABLE: dict[tuple[RunState | None, RunEvent], RunTransition] = {(t.source, t.event): t for t in RUN_TRANSITIONS}
