"""The life of a call as one table: every state, every event, every step that exists.

Steps (``ledger/steps.py``) look their transition up here before they make it; the stores' constraints are checked
against it; the lifecycle page and its diagram are generated from it; tests walk every (state, event) pair. A call's
state is never set anywhere else.

The order of outcomes and the table were model-checked (two workers, crash, freeze, lost acknowledgements, delayed
requests, hooks, operators, approvals, rounds, compensation). Weaken nothing without a counter-example search.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tollhouse.contract.terms import Effect
from tollhouse.ledger.record import SETTLED, AttemptOutcome, CallRecord, State


class Event(StrEnum):
    """What can happen to a call."""

    DEPART = "depart"
    HOLD = "hold"
    REFUSE = "refuse"
    RECORD = "record"
    VOTE = "vote"
    EDIT = "edit"
    APPROVE = "approve"
    DENY = "deny"
    EXPIRE = "expire"
    CANCEL = "cancel"
    LAPSE = "lapse"
    OUTCOME = "outcome"
    WAIT_ENDED = "wait_ended"
    OWNER_LOST = "owner_lost"
    FORCE = "force"
    RESEND = "resend"
    DEADLINE = "deadline"
    EVIDENCE = "evidence"
    FINDING = "finding"
    RETRY = "retry"
    OVERTURN = "overturn"
    UPHOLD = "uphold"
    COMPENSATED = "compensated"
    CANCEL_ASKED = "cancel_asked"


_S = State
_SETTLED = set(SETTLED)
FOLDED = frozenset({_S.READY, _S.FAILED, _S.IN_DOUBT, _S.ACCEPTED, _S.SUCCEEDED})
"""The images of :data:`FOLD`: where a call can stand once its attempts have ended."""
_UNHEARD = FOLDED - {_S.FAILED}
"""Where it can stand once one of its attempts became unknown. Ready is an abandoned read only."""


@dataclass(frozen=True, slots=True)
class Transition:
    """One row of the table. ``source`` None: no row under this key yet. ``targets``: where the step may lead."""

    source: State | None
    event: Event
    targets: frozenset[State]
    by: str
    guard: str = ""


def _rows(
    sources: set[State] | set[None],
    event: Event,
    targets: set[State] | frozenset[State],
    by: str,
    guard: str = "",
) -> list[Transition]:
    ordered = [source for source in (None, *State) if source in sources]
    return [Transition(source, event, frozenset(targets), by, guard) for source in ordered]


def _unmoved(sources: set[State], event: Event, by: str, guard: str) -> list[Transition]:
    """Rows for what is written down without moving the call."""
    return [Transition(source, event, frozenset({source}), by, guard) for source in State if source in sources]


TRANSITIONS: tuple[Transition, ...] = (
    *_rows({None}, Event.DEPART, {_S.DEPARTED}, "gate", "no row under this key"),
    *_rows({None}, Event.HOLD, {_S.HELD}, "gate", "no row under this key"),
    *_rows({None}, Event.REFUSE, {_S.REFUSED}, "gate", "no row under this key"),
    *_rows({None}, Event.RECORD, {_S.SUCCEEDED, _S.FAILED}, "a read, after it ran", "no row under this key"),
    *_rows({_S.HELD}, Event.VOTE, {_S.HELD}, "approver", "below quorum; digest equal; not the requester"),
    *_rows({_S.HELD}, Event.EDIT, {_S.HELD}, "approver", "nothing of this call ever departed; votes become void"),
    *_rows({_S.HELD}, Event.APPROVE, {_S.READY}, "approver", "quorum; digest equal; not the requester"),
    *_rows({_S.HELD, _S.READY}, Event.DENY, {_S.REFUSED}, "person, or a gate at departure"),
    *_rows({_S.HELD, _S.READY}, Event.EXPIRE, {_S.REFUSED}, "clock"),
    *_rows({_S.HELD, _S.READY}, Event.CANCEL, {_S.REFUSED}, "caller"),
    *_rows({_S.READY}, Event.LAPSE, {_S.HELD}, "gate", "contract, policy or digest changed since approval"),
    *_rows({_S.READY}, Event.DEPART, {_S.DEPARTED}, "same-key call, driver or worker", "approval valid; guard D"),
    *_rows({_S.DEPARTED}, Event.OUTCOME, FOLDED | {_S.DEPARTED}, "owner, fence equal; late outcome", "fold"),
    *_rows(
        {_S.DEPARTED},
        Event.WAIT_ENDED,
        _UNHEARD | {_S.DEPARTED},
        "owner: timeout or cancel of the wait",
        "fold",
    ),
    *_rows({_S.DEPARTED}, Event.OWNER_LOST, _UNHEARD | {_S.DEPARTED}, "anyone", "the owner's lease ended; fold"),
    *_rows({_S.DEPARTED}, Event.FORCE, _UNHEARD, "operator", "one transaction with the resolution; fold"),
    *_rows({_S.DEPARTED}, Event.RESEND, {_S.DEPARTED}, "owner", "guards D and R"),
    *_rows({_S.ACCEPTED}, Event.OUTCOME, {_S.ACCEPTED, _S.SUCCEEDED}, "late outcome", "fold"),
    *_rows({_S.ACCEPTED}, Event.EVIDENCE, {_S.SUCCEEDED, _S.FAILED}, "poll, callback, sub-run, operator"),
    *_rows({_S.ACCEPTED}, Event.DEADLINE, {_S.IN_DOUBT}, "clock", "fold"),
    *_rows(
        {_S.IN_DOUBT},
        Event.EVIDENCE,
        {_S.SUCCEEDED, _S.FAILED},
        "hook, operator",
        "guard S for a hook's negative",
    ),
    *_rows({_S.IN_DOUBT}, Event.OUTCOME, FOLDED, "late outcome", "fold of the current round"),
    *_rows({_S.IN_DOUBT}, Event.RESEND, {_S.DEPARTED}, "reconciler where the tool is", "guards D and R"),
    *_rows(
        {_S.READY},
        Event.OUTCOME,
        {_S.READY, _S.SUCCEEDED, _S.FAILED},
        "late outcome",
        "moves an abandoned read only (fold)",
    ),
    *_unmoved(_SETTLED | {_S.HELD}, Event.OUTCOME, "late outcome", "written to its attempt; may contradict"),
    *_unmoved(
        set(_S) - {_S.DEPARTED}, Event.OWNER_LOST, "anyone", "the owner's lease ended while an attempt still ran"
    ),
    *_unmoved(_SETTLED | {_S.HELD, _S.READY}, Event.FINDING, "hook, callback", "kept beside the state; may contradict"),
    *_rows(
        {_S.FAILED, _S.REFUSED},
        Event.RETRY,
        {_S.HELD, _S.READY},
        "named person, a reason",
        "new round; guard D",
    ),
    *_rows(
        {_S.FAILED, _S.REFUSED, _S.READY, _S.HELD},
        Event.OVERTURN,
        {_S.SUCCEEDED},
        "operator, reason",
        "a recorded happened or a hook's finding",
    ),
    *_rows(
        {_S.SUCCEEDED},
        Event.OVERTURN,
        {_S.FAILED},
        "operator, reason",
        "contrary evidence; no attempt is happened",
    ),
    *_unmoved(set(_S), Event.UPHOLD, "operator, reason", "a contradiction is open"),
    *_rows(
        {_S.SUCCEEDED},
        Event.COMPENSATED,
        {_S.COMPENSATED},
        "its compensation's settlement",
        "guard S; not contradicted",
    ),
    *_unmoved(
        {_S.DEPARTED, _S.ACCEPTED, _S.IN_DOUBT}, Event.CANCEL_ASKED, "caller, after departure", "forbids resends"
    ),
)

TABLE: dict[tuple[State | None, Event], Transition] = {(t.source, t.event): t for t in TRANSITIONS}


class Forbidden(Exception):
    """A step that the table or a guard forbids. ``guard``: ``table``, ``D``, ``R``, ``S`` or the rule's name."""

    def __init__(self, guard: str, cause: str) -> None:
        super().__init__(cause)
        self.guard = guard
        self.cause = cause


def check(source: State | None, event: Event, target: State | None = None) -> None:
    """Raise :class:`Forbidden` unless the table has this step (and, where given, this target)."""
    row = TABLE.get((source, event))
    if row is None:
        raise Forbidden("table", f"A call that is {source or 'not recorded'} allows no {event.replace('_', ' ')}.")
    if target is not None and target not in row.targets:
        raise Forbidden("table", f"{event} leads from {source or 'nothing'} to {sorted(row.targets)}, not {target}.")


FOLD: dict[AttemptOutcome | None, State] = {
    None: State.READY,
    AttemptOutcome.NOT_SENT: State.READY,
    AttemptOutcome.REJECTED: State.FAILED,
    AttemptOutcome.UNKNOWN: State.IN_DOUBT,
    AttemptOutcome.ACCEPTED: State.ACCEPTED,
    AttemptOutcome.HAPPENED: State.SUCCEEDED,
}


def strongest(outcomes: list[AttemptOutcome]) -> AttemptOutcome | None:
    """The strongest of these outcomes; None for none."""
    if len(outcomes) == 1:
        return outcomes[0]
    return max(outcomes, key=lambda outcome: outcome.rank, default=None)


def fold(record: CallRecord) -> State:
    """The state that the attempts of the current round amount to.

    While an attempt is out the call stays ``departed``. A read is never in doubt: one that was abandoned may run again.
    """
    effective = [attempt.effective for attempt in record.round_attempts]
    if None in effective:
        return State.DEPARTED
    best = strongest([outcome for outcome in effective if outcome is not None])
    if record.effect == Effect.READ and best is AttemptOutcome.UNKNOWN:
        return State.READY
    return FOLD[best]
