"""A small world around one call: two workers, a network, a receiver, a look-up and people, all as careless as allowed.

The search in `test_lifecycle_search.py` lets every action happen in every order and asks the rules for each step. The
world knows what truly happened; the record knows what was heard. `promises.py` says what must never come apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tests.ledger.promises import (
    ACCEPTED,
    HAPPENED,
    NO,
    NO_EFFECT_STATES,
    NOT_SENT,
    REJECTED,
    UNKNOWN,
    YES,
    check_effect,
    needs_approval,
    said_of_round,
    say,
)
from tollhouse.contract.terms import US, Dedup, Effect, Terms
from tollhouse.ledger import approvals, decisions, steps
from tollhouse.ledger.change import Change
from tollhouse.ledger.decisions import Finding
from tollhouse.ledger.lifecycle import Forbidden
from tollhouse.ledger.record import AttemptOutcome, CallRecord, Lost, State
from tollhouse.ledger.steps import Ending, Start
from tollhouse.testing.conformance.story import T0, new_call, terms

TICK_S = 60
TICK_US = TICK_S * US
NETWORK_TICKS = 1
"""A request arrives within this many ticks of its sending, or never; ``absent_after_s`` is longer by one."""
WINDOW_TICKS = 5
"""How long a receiver that dedups by key recognises it."""

EFFECT_STATES = (State.SUCCEEDED, State.COMPENSATED)


def contract(**changed: Any) -> Terms:
    """Terms on the scale of the world: a sending lasts one tick, absence needs two, the window is five.

    By key a sending may last longer than what is left of the window.
    """
    times = {
        "attempt_timeout_s": TICK_S,
        "deadline_s": 4 * TICK_S,
        "absent_after_s": (NETWORK_TICKS + 1) * TICK_S,
        "resend_margin_s": 2 * TICK_S,
        "job_deadline_s": 2 * TICK_S,
        "max_attempts": 1,
        "dedup": Dedup(),
    }
    return terms(**(times | changed))


CONTRACTS: dict[str, Terms] = {
    "checked": contract(),
    "by_key": contract(
        dedup=Dedup("by_key", WINDOW_TICKS * TICK_S / 3600), max_attempts=3, attempt_timeout_s=3 * TICK_S
    ),
    "natural": contract(dedup=Dedup("natural"), max_attempts=3),
    "unchecked": contract(departs="at_start"),
    "accepts": contract(accepts=True),
    "accepts_by_key": contract(
        accepts=True, dedup=Dedup("by_key", WINDOW_TICKS * TICK_S / 3600), max_attempts=3, attempt_timeout_s=3 * TICK_S
    ),
    "approval": contract(effect=Effect.DESTRUCTIVE),
    "read": contract(effect=Effect.READ, dedup=Dedup("natural"), max_attempts=3),
}
"""What is searched. ``approval`` and ``read`` begin held."""


@dataclass(frozen=True, slots=True)
class Wire:
    """What became of an attempt's request: ``waiting``, ``flying``, ``working``, ``arrived``, ``lost``, ``refused``."""

    status: str
    sent_tick: int = -1


@dataclass(frozen=True, slots=True)
class Look:
    """A look-up under way: what the hook saw, when it began, and on which version of the call."""

    began_tick: int
    version: int
    finding: str | None
    job_status: str | None


@dataclass(frozen=True, slots=True)
class World:
    """One moment. ``effects``: attempts whose request took effect, in order; ``undone``: how many were undone."""

    contract: Terms
    call: CallRecord
    """The call before anything happened to it."""
    record: CallRecord | None = None
    change: Change | None = None
    """The step that made ``record``."""
    tick: int = 0
    wires: tuple[Wire, ...] = ()
    owners: tuple[str, str] = ("alive", "alive")
    effects: tuple[int, ...] = ()
    first_effect_tick: int = -1
    undone: int = 0
    look: Look | None = None
    disputed: bool = False
    """Whether, by the world's own book, two known statements disagree and nobody has decided."""
    granted: int = 0
    """Approvals given by people."""
    trace: tuple[str, ...] = ()

    @property
    def now_us(self) -> int:
        return T0 + self.tick * TICK_US

    @property
    def known(self) -> CallRecord:
        assert self.record is not None
        return self.record

    def key(self) -> tuple[Any, ...]:
        """What makes two worlds the same for the rules; ids, versions and texts do not."""
        return (self.tick, self.wires, self.owners, self.effects, self.first_effect_tick, self.undone,
                self._look_key(), self.disputed, self.granted, _record_key(self.record))  # fmt: skip

    def _look_key(self) -> Any:
        look = self.look
        return look and (look.began_tick, look.version == self.known.version, look.finding, look.job_status)


def _record_key(record: CallRecord | None) -> Any:
    if record is None:
        return None
    attempts = tuple(
        (a.round, a.owner, record.fence - a.fence, a.send_by_us, a.outcome, a.ended_at_us, a.lost, a.judged)
        for a in record.attempts
    )
    settlements = tuple(
        (s.kind, s.via, s.finding, s.round, tuple(s.covers.values())) for s in record.settlements
    )  # fmt: skip
    approval = record.approval and (record.approval.granted_at_us, record.approval.consumed_round)
    return (record.state, record.round, attempts, settlements, approval, record.contradicted, record.cancel_asked,
            record.deadline_at_us, record.departed_at_us, tuple(record.extra.items()))  # fmt: skip


Move = tuple[str, World]


def begin(name: str, **particulars: Any) -> World:
    """The world before the call of that contract."""
    chosen = CONTRACTS[name]
    call = new_call(contract=chosen, **particulars)
    world = World(chosen, call)
    if name not in ("approval", "read"):
        return world
    question = approvals.approval_for("asked", 1, 10_000, None, call.digest, chosen.version, T0)
    held = steps.first_hold(call, question, {})
    return replace(world, record=held.record, change=held)


def moves(world: World) -> Iterator[Move]:
    """Everything that can happen next."""
    for move in (_sendings, _network, _endings, _owners, _looks, _people, _time):
        yield from move(world)


# -- what can happen ---------------------------------------------------------------------------------------------------


def _tried(after: World, name: str, step: Callable[..., Change], *arguments: Any) -> Iterator[Move]:
    """The world after a step of the rules, if they allow it."""
    try:
        change = step(*arguments)
    except Forbidden:
        return
    yield name, replace(after, record=change.record, change=change)


def _start(world: World, owner: int) -> Start:
    number = len(world.wires) + 1
    lasts_us = round(world.contract.attempt_timeout_s * US)
    return Start(f"att_{number}", f"own_{owner}", world.now_us, world.now_us + lasts_us)


def _sendings(world: World) -> Iterator[Move]:
    if len(world.wires) >= 3:
        return
    after = replace(world, wires=(*world.wires, Wire("waiting")))
    for owner in (0, 1):
        if world.owners[owner] != "alive":
            continue
        start = _start(world, owner)
        if world.record is not None:
            yield from _tried(after, f"depart {owner}", steps.depart, world.record, start, {})
            yield from _tried(after, f"resend {owner}", steps.resend, world.record, start, world.contract, {})
        elif owner == 0:
            yield from _tried(after, "depart 0", steps.first_departure, world.call, start, {})


def _with_wire(world: World, index: int, status: str, **changes: Any) -> World:
    wire = Wire(status, world.tick if status == "flying" else world.wires[index].sent_tick)
    wires = (*world.wires[:index], wire, *world.wires[index + 1 :])
    return replace(world, wires=wires, **changes)


def _network(world: World) -> Iterator[Move]:
    for index, wire in enumerate(world.wires):
        if wire.status == "waiting" and _may_send(world, index):
            yield f"send {index}", _with_wire(world, index, "flying")
        elif wire.status == "flying":
            yield f"arrive {index}", _arrived(world, index)
            yield f"refuse {index}", _with_wire(world, index, "refused")
            yield f"lose {index}", _with_wire(world, index, "lost")
        elif wire.status == "working":
            yield f"job done {index}", _job_done(world, index)
            yield f"job failed {index}", _job_failed(world, index)


def _may_send(world: World, index: int) -> bool:
    """The last check before bytes leave; a tool that departs at its start has none."""
    attempt, record = world.known.attempts[index], world.known
    if _owner_of(world, index) == "dead":
        return False
    if not world.contract.sends_checked:
        return True
    return attempt.fence == record.fence and not record.cancel_asked and world.now_us < attempt.send_by_us


def _owner_of(world: World, index: int) -> str:
    return world.owners[int(world.known.attempts[index].owner[-1])]


def _arrived(world: World, index: int) -> World:
    if not world.contract.accepts:
        return _took_effect(world, index)
    jobs = [wire.status for wire in world.wires if wire.status in ("arrived", "refused")]
    if world.contract.dedup.allows_resend and jobs:
        return _with_wire(world, index, jobs[0])
    return _with_wire(world, index, "working")


def _job_failed(world: World, index: int) -> World:
    """Where the receiver dedups, requests under one key started one job."""
    if not world.contract.dedup.allows_resend:
        return _with_wire(world, index, "refused")
    return replace(
        world, wires=tuple(Wire("refused", w.sent_tick) if w.status == "working" else w for w in world.wires)
    )


def _job_done(world: World, index: int) -> World:
    done = _took_effect(world, index)
    if not world.contract.dedup.allows_resend:
        return done
    return replace(done, wires=tuple(Wire("arrived", w.sent_tick) if w.status == "working" else w for w in done.wires))


def _took_effect(world: World, index: int) -> World:
    dedup, arrived = world.contract.dedup.kind, _with_wire(world, index, "arrived")
    recognised = dedup == "by_key" and world.effects and world.tick - world.first_effect_tick < WINDOW_TICKS
    same_again = dedup == "natural" and len(world.effects) > world.undone
    if recognised or same_again or world.contract.effect is Effect.READ:
        return arrived
    first = world.tick if not world.effects else world.first_effect_tick
    after = replace(arrived, effects=(*world.effects, index), first_effect_tick=first)
    check_effect(after, index)
    return after


_HEARD = {
    "waiting": (NOT_SENT,),
    "flying": (UNKNOWN,),
    "working": (ACCEPTED, UNKNOWN),
    "arrived": (HAPPENED, UNKNOWN),
    "lost": (UNKNOWN,),
    "refused": (REJECTED, UNKNOWN),
}
"""What an owner can hear, first-hand, of a request in that state."""


def _endings(world: World) -> Iterator[Move]:
    for index, wire in enumerate(world.wires):
        if _owner_of(world, index) == "dead":
            continue
        record, attempt = world.known, world.known.attempts[index]
        for outcome in _HEARD[wire.status]:
            told = world if outcome is not NOT_SENT else _with_wire(world, index, "lost")
            name, ending = f"hear {index} {outcome}", Ending(outcome)
            for _, after in _tried(told, name, steps.end_attempt, record, attempt.id, ending, world.now_us):
                yield name, replace(after, disputed=world.disputed or _disputes(world, after, index, outcome))
        if record.state is State.DEPARTED and attempt.outcome is None:
            cancel = partial(steps.end_wait, cancel=True)
            yield from _tried(world, f"timeout {index}", steps.end_wait, record, attempt.id, "timeout", world.now_us)
            yield from _tried(world, f"cancel {index}", cancel, record, attempt.id, "cancel", world.now_us)


def _disputes(before: World, after: World, index: int, outcome: AttemptOutcome) -> bool:
    """Whether hearing this disagrees with what was said: the world's own rule, in terms of what people know."""
    record, attempt = after.known, after.known.attempts[index]
    said = said_of_round(record, attempt.round)
    if outcome is HAPPENED:
        reads_late = before.contract.effect is Effect.READ and attempt.round == record.round
        return not reads_late and (attempt.round < record.round or record.state in NO_EFFECT_STATES)
    if outcome is ACCEPTED:
        return said == NO
    round_outcomes = [a.outcome for a in record.attempts if a.round == attempt.round]
    return said == YES and all(o in (NOT_SENT, REJECTED) for o in round_outcomes)


def _owners(world: World) -> Iterator[Move]:
    if world.record is None:
        return
    record, now_us = world.record, world.now_us
    for owner in (0, 1):
        name, status = f"own_{owner}", world.owners[owner]
        if status == "alive":
            lost = _owner_status(world, owner, "lost")
            yield from _tried(
                lost, f"lease of {owner} ends", steps.owner_lost, record, name, now_us, Lost.LEASE, now_us
            )
        elif status == "lost":
            dead = _owner_status(world, owner, "dead")
            yield from _tried(dead, f"{owner} proven dead", steps.owner_proven_dead, record, name, now_us)


def _owner_status(world: World, owner: int, status: str) -> World:
    owners = list(world.owners)
    owners[owner] = status
    return replace(world, owners=(owners[0], owners[1]))


def _looks(world: World) -> Iterator[Move]:
    if world.record is None or world.contract.effect is Effect.READ:
        return
    record, look = world.record, world.look
    if look is None:
        if world.wires and record.state is not State.DEPARTED:
            yield "look", replace(world, look=_seen(world))
        return
    gone = replace(world, look=None)
    if look.finding is None or look.version != record.version:
        yield "look in vain", gone
        return
    found = Finding(
        f"dec_{len(record.settlements)}", look.finding, "hook", T0 + look.began_tick * TICK_US,
        job_status=look.job_status,
    )  # fmt: skip
    for name, after in _tried(gone, f"found {look.finding}", decisions.settle, record, found, world.now_us):
        against = (look.finding == YES) != (after.known.state in EFFECT_STATES)
        yield name, replace(after, disputed=world.disputed or against)


def _seen(world: World) -> Look:
    """The hook sees effects, and jobs; a call that was undone looks to it as if it had never been."""
    finding: str | None = YES if len(world.effects) > world.undone else NO
    job_status = None
    if world.contract.accepts and finding == NO:
        statuses = [wire.status for wire in world.wires]
        finding = None if "working" in statuses else NO
        job_status = "failed" if "refused" in statuses else None
    return Look(world.tick, world.known.version, finding, job_status)


def _people(world: World) -> Iterator[Move]:
    if world.record is None:
        return
    record, now_us = world.record, world.now_us
    yield from _tried(replace(world, granted=world.granted + 1), "approve", decisions.approve, record, "ada", now_us)
    yield from _tried(world, "cancel", decisions.cancel, record, "rita", now_us)
    for finding in (YES, NO):
        yield from _tried(world, f"say {finding}", say, record, finding, now_us)
    yield from _retries(world)
    decided, settled = replace(world, disputed=False), f"dec_{len(record.settlements)}"
    yield from _tried(decided, "overturn", decisions.overturn, record, "ada", "seen", settled, now_us)
    yield from _tried(decided, "uphold", decisions.uphold, record, "ada", "seen", settled, now_us)
    undone = replace(world, undone=len(world.effects))
    yield from _tried(undone, "compensate", decisions.compensated, record, "void", now_us)


def _retries(world: World) -> Iterator[Move]:
    """One more round, once; a careless caller passes the approval of the round before."""
    record = world.known
    if record.round > 1:
        return
    approval = None
    if needs_approval(world):
        approval = approvals.approval_for("asked", 1, 10_000, None, record.digest, "1", world.now_us)
    yield from _tried(world, "retry", decisions.retry, record, "ada", "again", approval, world.now_us)
    if record.approval is not None:
        old = record.approval
        yield from _tried(world, "retry as approved", decisions.retry, record, "ada", "again", old, world.now_us)


def _time(world: World) -> Iterator[Move]:
    flying = [wire.sent_tick for wire in world.wires if wire.status == "flying"]
    if world.record is None or world.tick >= 8 or any(world.tick - sent >= NETWORK_TICKS for sent in flying):
        return
    later = replace(world, tick=world.tick + 1)
    yield "tick", later
    ends_us = steps.job_deadline_us(world.record)
    if ends_us is not None and later.now_us >= ends_us:
        yield from _tried(later, "job deadline", steps.job_deadline, later.known, later.now_us)
