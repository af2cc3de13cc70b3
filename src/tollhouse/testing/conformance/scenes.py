"""Where calls can stand, and how to try every event there: the walk of all (state, event) pairs.

A scene is a story that real steps brought to a state. An event that needs something special (an attempt of long ago
that still runs, an open contradiction) gets a scene that has it, so that the lifecycle table alone decides whether
the event is possible.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tollhouse.ledger.lifecycle import Event, Forbidden
from tollhouse.ledger.record import AttemptOutcome, State
from tollhouse.testing.conformance.story import Story

_HAPPENED, _ACCEPTED, _UNKNOWN = AttemptOutcome.HAPPENED, AttemptOutcome.ACCEPTED, AttemptOutcome.UNKNOWN
NO, YES = "did_not_happen", "happened"

Scene = Callable[[Story], Story]

PLAIN: dict[State, Scene] = {
    State.HELD: lambda story: story.hold(),
    State.READY: lambda story: story.hold().approve(),
    State.DEPARTED: lambda story: story.depart(),
    State.ACCEPTED: lambda story: story.depart().end(_ACCEPTED),
    State.IN_DOUBT: lambda story: story.depart().end(_UNKNOWN),
    State.SUCCEEDED: lambda story: story.depart().end(_HAPPENED),
    State.FAILED: lambda story: story.depart().end(AttemptOutcome.REJECTED),
    State.REFUSED: lambda story: story.hold().deny(),
    State.COMPENSATED: lambda story: story.depart().end(_HAPPENED).later(3600).compensate(),
}
"""The shortest way to each state."""


def _abandoned(story: Story) -> Story:
    """Failed on a person's word while its attempt still runs."""
    return story.depart().end_wait().settle(NO, force=True)


HAUNTED: dict[State, Scene] = {
    State.HELD: lambda story: _abandoned(story).retry(approval=story.question()),
    State.READY: lambda story: _abandoned(story).retry(),
    State.DEPARTED: lambda story: story.depart().end_wait().resend(),
    State.ACCEPTED: lambda story: story.depart().end_wait().resend().end(_ACCEPTED),
    State.IN_DOUBT: lambda story: story.depart().end_wait(),
    State.SUCCEEDED: lambda story: story.depart().end_wait().resend().end(_HAPPENED),
    State.FAILED: _abandoned,
    State.REFUSED: lambda story: _abandoned(story).retry().cancel(),
    State.COMPENSATED: lambda story: story.depart().end_wait().resend().end(_HAPPENED).later(3600).compensate(),
}
"""Each state, with the first attempt still running."""


def _late_effect(story: Story) -> Story:
    """The first attempt, judged not to have happened, comes back with a result."""
    return story.end(_HAPPENED, number=1)


CONTRADICTED: dict[State, Scene] = {
    State.HELD: lambda story: _late_effect(HAUNTED[State.HELD](story)),
    State.READY: lambda story: _late_effect(HAUNTED[State.READY](story)),
    State.DEPARTED: lambda story: _late_effect(HAUNTED[State.READY](story).depart()),
    State.ACCEPTED: lambda story: _late_effect(HAUNTED[State.READY](story).depart().end(_ACCEPTED)),
    State.IN_DOUBT: lambda story: _late_effect(HAUNTED[State.READY](story).depart().end(_UNKNOWN)),
    State.SUCCEEDED: lambda story: story.depart().end(_UNKNOWN).settle(YES).later(3600).settle(NO, "hook"),
    State.FAILED: lambda story: _late_effect(_abandoned(story)),
    State.REFUSED: lambda story: _late_effect(HAUNTED[State.REFUSED](story)),
    State.COMPENSATED: lambda story: PLAIN[State.COMPENSATED](story).later(3600).settle(NO, "hook"),
}
"""Each state, with a contradiction open that could be decided either way where the state allows."""

QUORUM: dict[State, Scene] = {**PLAIN, State.HELD: lambda story: story.hold(quorum=2)}


@dataclass(frozen=True, slots=True)
class Trial:
    """How to try one event: ``act`` on a story, in one of ``scenes``; ``kinds``: what history calls it then."""

    act: Scene
    kinds: tuple[str, ...]
    scenes: dict[State, Scene]


TRIALS: dict[Event, Trial] = {
    Event.DEPART: Trial(lambda story: story.depart(), ("departed",), PLAIN),
    Event.VOTE: Trial(lambda story: story.approve(), ("voted",), QUORUM),
    Event.EDIT: Trial(lambda story: story.edit(), ("edited",), PLAIN),
    Event.APPROVE: Trial(lambda story: story.approve(), ("approved",), PLAIN),
    Event.DENY: Trial(lambda story: story.deny(), ("denied",), PLAIN),
    Event.EXPIRE: Trial(lambda story: story.later(3600).expire(), ("expired",), PLAIN),
    Event.CANCEL: Trial(lambda story: story.cancel(), ("cancelled",), PLAIN),
    Event.LAPSE: Trial(lambda story: story.lapse(), ("lapsed",), PLAIN),
    Event.OUTCOME: Trial(lambda story: story.end(_UNKNOWN, number=1), ("outcome", "late_outcome"), HAUNTED),
    Event.WAIT_ENDED: Trial(lambda story: story.end_wait(number=1), ("wait_ended",), HAUNTED),
    Event.OWNER_LOST: Trial(lambda story: story.lose(), ("owner_lost",), HAUNTED),
    Event.FORCE: Trial(lambda story: story.force(), ("forced",), PLAIN),
    Event.RESEND: Trial(lambda story: story.resend(), ("resent",), PLAIN),
    Event.DEADLINE: Trial(lambda story: story.later(3600).pass_deadline(), ("deadline_passed",), PLAIN),
    Event.EVIDENCE: Trial(lambda story: story.settle(YES), ("settled",), PLAIN),
    Event.FINDING: Trial(lambda story: story.settle(YES, "hook"), ("found",), PLAIN),
    Event.RETRY: Trial(lambda story: story.retry(), ("retried",), PLAIN),
    Event.OVERTURN: Trial(lambda story: story.overturn(), ("overturned",), CONTRADICTED),
    Event.UPHOLD: Trial(lambda story: story.uphold(), ("upheld",), CONTRADICTED),
    Event.COMPENSATED: Trial(lambda story: story.later(3600).compensate(), ("compensated",), PLAIN),
    Event.CANCEL_ASKED: Trial(lambda story: story.cancel(), ("cancel_asked",), PLAIN),
}
"""Every event that can meet a call already recorded."""

BEGINNINGS: dict[Event, Scene] = {
    Event.DEPART: lambda story: story.depart(),
    Event.HOLD: lambda story: story.hold(),
    Event.REFUSE: lambda story: story.refuse(),
    Event.RECORD: lambda story: story.read(_HAPPENED),
}
"""Every event with which a call begins."""


def attempted(event: Event, state: State, story: Story) -> tuple[Story, bool]:
    """A new story, brought to ``state`` when ``event`` was tried, and whether that took place."""
    trial = TRIALS[event]
    trial.scenes[state](story)
    assert story.state is state, f"the scene for {state} ends in {story.state}"
    told = len(story.changes)
    try:
        trial.act(story)
    except Forbidden:
        return story, False
    return story, story.changes[told].drafts[0].kind in trial.kinds
