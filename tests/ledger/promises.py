"""The promises, checked in the small world after each action by formulas that share nothing with the rules.

A :class:`Violation` names the verdict that was broken: repeated, unexplained, unfenced, weakened, stuck, overspent,
silent; or ``fold`` where the state is not what was heard and said, and ``false alarm`` for a groundless contradiction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tollhouse.contract.terms import Effect
from tollhouse.ledger import decisions
from tollhouse.ledger.change import Change
from tollhouse.ledger.decisions import Finding
from tollhouse.ledger.lifecycle import Forbidden
from tollhouse.ledger.record import AttemptOutcome, CallRecord, State

if TYPE_CHECKING:
    from tests.ledger.world import World

NOT_SENT, REJECTED, UNKNOWN = AttemptOutcome.NOT_SENT, AttemptOutcome.REJECTED, AttemptOutcome.UNKNOWN
ACCEPTED, HAPPENED = AttemptOutcome.ACCEPTED, AttemptOutcome.HAPPENED
NO, YES = "did_not_happen", "happened"
NO_EFFECT_STATES = (State.FAILED, State.REFUSED, State.READY, State.HELD)


class Violation(AssertionError):
    """A promise was broken. ``verdict``: its name in the list of verdicts."""

    def __init__(self, verdict: str, trace: tuple[str, ...], detail: str = "") -> None:
        super().__init__(f"{verdict}: {' · '.join(trace)} {detail}")
        self.verdict = verdict
        self.trace = trace


def said_of_round(record: CallRecord, number: int) -> str | None:
    """What was last said of that round, by evidence or by overturning it; None: nothing."""
    said = [s.finding for s in record.settlements if s.round == number and s.kind in ("evidence", "overturn")]
    return said[-1] if said else None


def say(record: CallRecord, finding: str, now_us: int) -> Change:
    """A person's word, setting the owner aside where one is at it."""
    said = Finding(f"dec_{len(record.settlements)}", finding, "person", now_us, by="ada", reason="sure")
    if record.state is not State.DEPARTED:
        return decisions.settle(record, said, now_us, force=True)
    forced = decisions.force(record, "ada", "sure", now_us)
    if forced.record.state not in (State.IN_DOUBT, State.ACCEPTED):
        return forced
    return forced.then(lambda doubt: decisions.settle(doubt, said, now_us, force=True))


def _decided_by_person(record: CallRecord, attempt_id: str) -> bool:
    """Whether a person answered for that attempt: they said what became of it, or decided in view of it."""
    return any(s.via == "person" and attempt_id in s.covers for s in record.settlements)


def check_effect(world: World, index: int) -> None:
    """A second effect needs a person's word about each attempt that could have had the first."""
    record, attempt = world.known, world.known.attempts[index]
    if record.state is State.COMPENSATED and world.undone and not _decided_by_person(record, attempt.id):
        raise Violation("unexplained", world.trace, "effect after it was undone")
    for earlier in world.effects[:-1]:
        if earlier < world.undone:
            continue
        before = record.attempts[earlier]
        answered = any(_decided_by_person(record, a.id) for a in (before, attempt))
        if before.round == attempt.round or not answered:
            raise Violation("repeated", world.trace, f"by attempts {earlier} and {index}")


def check(before: World, after: World) -> None:
    """Raise :class:`Violation` when the step from ``before`` broke a promise."""
    if after.record is None:
        return
    _check_explained(after)
    _check_disputes(after)
    _check_state(after)
    if before.record is not None and before.record is not after.record:
        _check_step(before, after)
    _check_departures(before, after)
    _check_way_out(after)


def _check_explained(world: World) -> None:
    record = world.known
    if record.contradicted or record.state not in NO_EFFECT_STATES:
        return
    for index in world.effects:
        if not _decided_by_person(record, record.attempts[index].id):
            raise Violation("unexplained", world.trace, f"effect of attempt {index} under {record.state}")


def _check_disputes(world: World) -> None:
    if world.disputed and not world.known.contradicted:
        raise Violation("silent", world.trace)
    if world.known.contradicted and not world.disputed:
        raise Violation("false alarm", world.trace)


_RANK = {NOT_SENT: State.READY, REJECTED: State.FAILED, UNKNOWN: State.IN_DOUBT, ACCEPTED: State.ACCEPTED,
         HAPPENED: State.SUCCEEDED}  # fmt: skip
_BY_PEOPLE = {State.HELD, State.REFUSED, State.COMPENSATED}


def _check_state(world: World) -> None:
    """The state is what was said of the round, or else the strongest outcome of its attempts."""
    record = world.known
    outcomes = [a.outcome for a in record.attempts if a.round == record.round]
    said = said_of_round(record, record.round)
    if record.state in _BY_PEOPLE:
        return
    if said is not None:
        expected = State.SUCCEEDED if said == YES else State.FAILED
    elif None in outcomes:
        expected = State.DEPARTED
    else:
        strongest = max((o for o in outcomes if o is not None), key=list(_RANK).index, default=NOT_SENT)
        abandoned = world.contract.effect is Effect.READ and strongest is UNKNOWN
        expected = State.READY if abandoned else _RANK[strongest]
    if record.state is not expected:
        raise Violation("fold", world.trace, f"{record.state} instead of {expected}")


def _check_step(before: World, after: World) -> None:
    old, new = before.known, after.known
    action = after.trace[-1] if after.trace else ""
    for was, became in zip(old.attempts, new.attempts, strict=False):
        final = was.outcome in (NOT_SENT, REJECTED, HAPPENED)
        aged = was.outcome is ACCEPTED and action != "job deadline"
        if (final or aged) and became.outcome is not was.outcome:
            raise Violation("weakened", after.trace, f"{was.outcome} became {became.outcome}")
    left_success = old.state is State.SUCCEEDED and new.state is not State.SUCCEEDED
    if left_success and action not in ("overturn", "compensate"):
        raise Violation("weakened", after.trace, f"succeeded became {new.state}")
    if old.contradicted and not new.contradicted and action not in ("overturn", "uphold"):
        raise Violation("silent", after.trace, "a contradiction closed by itself")
    moved = action.split(" ")[0] in ("depart", "resend", "retry", "say", "overturn", "lease")
    if moved and new.fence <= old.fence:
        raise Violation("unfenced", after.trace, "the fence did not move")
    if new.version <= old.version or new.updated_at_us < old.updated_at_us:
        raise Violation("unfenced", after.trace, "the version or the time ran back")


def _check_departures(before: World, after: World) -> None:
    """Nothing departs while a happened attempt is known and undecided, after a cancel, or without its approval."""
    if len(after.wires) == len(before.wires) or before.record is None:
        return
    old, action = before.known, after.trace[-1].split(" ")[0]
    if before.disputed:
        raise Violation("repeated", after.trace, "departed under an open contradiction")
    for attempt in old.attempts:
        if attempt.outcome is HAPPENED and not _decided_by_person(old, attempt.id):
            raise Violation("repeated", after.trace, "departed though an attempt is known to have happened")
    if action == "resend" and "cancel" in " ".join(after.trace).split("retry")[-1]:
        raise Violation("repeated", after.trace, "sent again after a cancel")
    rounds = {a.round for a in after.known.attempts}
    if needs_approval(after) and len(rounds) > after.granted:
        raise Violation("overspent", after.trace, f"{len(rounds)} rounds on {after.granted} approvals")


def needs_approval(world: World) -> bool:
    """Whether each round of this call needs an approval of its own."""
    return world.contract.effect is Effect.DESTRUCTIVE


def _check_way_out(world: World) -> None:
    """People can always bring it to an end: decide the contradiction, then settle or refuse."""
    record, now_us = world.known, world.now_us
    try:
        if record.contradicted:
            record = decisions.uphold(record, "eve", "decided", "dec_x", now_us).record
        if record.state in (State.HELD, State.READY):
            record = decisions.cancel(record, "eve", now_us).record
        elif record.state in (State.DEPARTED, State.ACCEPTED, State.IN_DOUBT):
            record = _way_out_of_doubt(record, now_us)
    except Forbidden as forbidden:
        raise Violation("stuck", world.trace, f"in {record.state}: {forbidden}") from None
    if record.contradicted:
        raise Violation("stuck", world.trace, "still contradicted")


def _way_out_of_doubt(record: CallRecord, now_us: int) -> CallRecord:
    return say(record, YES, now_us).record
