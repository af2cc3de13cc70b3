"""What happens in a history: a wild mixture drawn from the seed, or a directed scene that reaches deep.

A directed scene lays out the first steps of a story that chance would find too seldom, leaves the rest to chance, and
says nothing about what must come of it: that is the model's business.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from tollhouse.testing.simulation.people import decide
from tollhouse.testing.simulation.store import Weather
from tollhouse.testing.simulation.tools import LEASE_S, LONG_S, MARGIN_S, SILENCE_S, TIMEOUT_S, WINDOW_S
from tollhouse.testing.simulation.world import DESK, Errand, World

KEY = "k1"
WORKERS = ("a", "b")

_KINDS = ("plain", "plain", "unchecked", "by_key", "by_key", "natural", "job", "approved", "approved_twice")
_VERBS = (
    "resolve", "resolve", "resolve_shown", "say_yes", "say_no", "force", "force_no", "force_yes", "retry", "retry",
    "cancel", "overturn", "uphold", "overturn_or_uphold", "compensate", "compensate", "deny",
)  # fmt: skip


def wild(world: World) -> float:
    """Anything at any time. Returns how long it goes on."""
    random, span_s = world.random, world.random.choice((4.0, 30.0, 90.0))
    if random.random() < 0.5:
        world.weather.ack_lost = random.choice((0.0, 0.03, 0.15))
        world.weather.unsent = random.choice((0.0, 0.03, 0.1))
        world.weather.late = random.choice((0.0, 0.0, 0.05))
        world.weather.slow = random.choice((0.0, 0.05, 0.3))
    _ask_now_and_then(world, span_s)
    _misfortunes(world, span_s)
    _services(world, span_s)
    _decisions(world, span_s)
    return span_s


def _ask_now_and_then(world: World, span_s: float) -> None:
    random = world.random
    options = {"run_when_approved": True} if random.random() < 0.3 else {}
    for number in range(random.randint(1, 4)):
        after_s = 0.0 if number == 0 else random.random() * span_s
        cancel_s = random.random() * 10 if random.random() < 0.1 else None
        world.at(after_s, partial(_ask, world, cancel_after_s=cancel_s, **options))


def _ask(world: World, **options: Any) -> None:
    world.call(_worker(world), KEY, **options)


def _worker(world: World) -> str:
    return world.random.choice(world.workers or [DESK])


def _misfortunes(world: World, span_s: float) -> None:
    random = world.random
    for _ in range(random.randint(0, 3)):
        name, drawn = random.choice(WORKERS), random.random()
        if drawn < 0.3:
            _hit(world, name, span_s, partial(_replace, world, name))
        elif drawn < 0.7:
            for_s = random.choice((0.2, 3.0, LEASE_S + 3.0, 2.5 * LEASE_S))
            _hit(world, name, span_s, partial(world.freeze, name, for_s))
        elif drawn < 0.9:
            for_s = random.choice((0.5, 5.0, LEASE_S + 2.0))
            _hit(world, name, span_s, partial(world.cut, name, for_s))
        else:
            world.at(random.random() * span_s, world.step_back, random.uniform(0.5, 15.0))


def _hit(world: World, name: str, span_s: float, fate: Callable[[], None]) -> None:
    """At any time, or just as one of its first requests leaves for the store."""
    if world.random.random() < 0.5:
        world.at_request(name, world.random.randint(2, 8), fate)
    else:
        world.at(world.random.random() * span_s, fate)


def _replace(world: World, name: str) -> None:
    """Killed, and mostly started anew under another name."""
    world.kill(name)
    if world.random.random() < 0.7 and len(world.processes) < 6:
        world.start(f"{name}{len(world.processes)}")


def _services(world: World, span_s: float) -> None:
    for _ in range(world.random.randint(1, 4 if span_s > 10 else 2)):
        world.at(world.random.random() * span_s, lambda: world.round(_worker(world)))
    if world.random.random() < 0.4:
        world.at(world.random.random() * span_s, lambda: world.reconcile(_worker(world), KEY))


def _decisions(world: World, span_s: float) -> None:
    random = world.random
    verbs: tuple[str, ...] = _VERBS
    if world.kind.startswith("approved"):
        verbs = (*_VERBS, "approve", "approve", "approve", "approve", "edit", "edit", "retry")
        for _ in range(random.randint(1, 3)):
            think_s = random.choice((0.0, 0.5, 5.0))
            world.at(random.random() * span_s / 3, partial(decide, world, "approve", KEY, think_s=think_s))
    elif world.kind == "job":
        verbs = (*_VERBS, "report", "report", "report")
    for _ in range(random.randint(0, 4)):
        _decision(world, random.choice(verbs), random.random() * span_s)


def _decision(world: World, verb: str, after_s: float) -> None:
    think_s = world.random.choice((0.0, 0.0, 0.05, 2.0, 10.0))
    world.at(after_s, lambda: decide(world, verb, KEY, think_s=think_s))
    if world.random.random() < 0.25:  # another at the same time, elsewhere, perhaps of another mind
        other = world.random.choice(_VERBS) if world.random.random() < 0.5 else verb
        world.at(after_s, lambda: decide(world, other, KEY, at=_worker(world), think_s=think_s))


def restless(world: World) -> float:
    """A long life: a bad receiver, and people who always find something to do about the call as it stands."""
    random, manners = world.random, world.manners
    manners.drop, manners.reply_lost, manners.error, manners.reject = (random.random() * 0.5 for _ in range(4))
    manners.slow = random.random() * 0.5
    if random.random() < 0.3:
        world.weather.ack_lost, world.weather.unsent, world.weather.slow = 0.08, 0.08, 0.2
    span_s = random.choice((20.0, 90.0, 150.0))
    options = {"run_when_approved": True} if random.random() < 0.3 else {}
    world.at(0.0, partial(_ask, world, **options))
    _misfortunes(world, span_s)
    for _ in range(random.randint(3, 14)):
        world.at(random.random() * span_s, _something_apt, world)
    return span_s


def _something_apt(world: World) -> None:
    random, record = world.random, world.record(KEY)
    if record is None:
        _ask(world)
        return
    contradicted = record.contradicted and random.random() < 0.7
    verb = random.choice(_APT["contradicted" if contradicted else record.state.value])
    if verb == "call":
        _ask(world)
    elif verb == "services":
        world.round(_worker(world))
    elif verb == "look":
        world.reconcile(_worker(world), KEY)
    else:
        _decision(world, verb, 0.0)


_APT: dict[str, tuple[str, ...]] = {
    "held": ("approve", "approve", "approve", "approve", "edit", "deny", "call", "cancel", "services"),
    "ready": ("call", "call", "call", "services", "cancel", "deny", "look"),
    "departed": ("call", "cancel", "force", "force_no", "force_yes", "say_no", "services", "services", "look"),
    "accepted": ("report", "report", "resolve", "say_no", "services", "look", "cancel", "call"),
    "in_doubt": ("resolve", "resolve_shown", "say_yes", "say_no", "say_no", "cancel", "services", "look", "call"),
    "succeeded": ("compensate", "overturn", "look", "call", "report", "services"),
    "failed": ("retry", "retry", "retry", "overturn", "look", "call", "services", "report"),
    "refused": ("retry", "retry", "overturn", "call", "look"),
    "compensated": ("compensate", "look", "call", "services", "overturn"),
    "contradicted": ("overturn", "uphold", "overturn_or_uphold", "look", "call", "retry", "compensate"),
}
"""What somebody may think of doing about a call, by its state."""


# -- directed scenes ----------------------------------------------------------------------------------------


def resend_near_the_end(world: World) -> float:
    """The first request took effect and nobody knows; it is sent again, slowly, just before the window ends."""
    world.kind = "by_key_long"
    world.manners.reject, world.manners.reply_lost = 0.0, 0.8
    after_s = WINDOW_S - MARGIN_S - world.random.uniform(0.1, 4.0)
    slow_s = world.random.uniform(0.6 * LONG_S, LONG_S)
    world.errands = [Errand(fate="quick"), Errand(slow_s), Errand(), Errand()]
    world.at(0.0, world.call, "a", KEY)
    world.at(0.3, world.kill, "a")
    world.looks = [(0.0, True), (0.0, True)]
    world.at(LEASE_S + 3.0, lambda: world.run_as("b", "sweep", lambda b: b.services._sweeper.sweep()))
    world.at(after_s, lambda: world.reconcile("b", KEY))
    return after_s + LONG_S + 10.0


def look_returns_late(world: World) -> float:
    """A look-up that saw nothing answers after the call was sent again and is in doubt once more."""
    world.kind = world.random.choice(("by_key", "natural", "natural"))
    world.manners.error, world.manners.reject, world.manners.reply_lost = 0.9, 0.0, 0.0
    world.manners.drop = world.manners.slow = 0.05
    world.errands = [Errand(fate="dropped"), Errand(), Errand(), Errand()]
    world.start("c")
    world.at(0.0, world.call, "a", KEY)
    world.at(0.05, world.kill, "a")
    world.at(LEASE_S + 3.0, lambda: world.run_as("b", "sweep", lambda b: b.services._sweeper.sweep()))
    look_s = LEASE_S + SILENCE_S + world.random.uniform(1.0, 10.0)
    world.looks = [(world.random.uniform(2.0, 12.0), False), (0.0, True)]
    world.at(look_s, world.reconcile, "c", KEY)
    world.at(look_s + 0.5, world.reconcile, "b", KEY)
    return look_s + 15.0


def two_on_one_key(world: World) -> float:
    """Two processes ask for one key at the same time, and the store loses what it was told."""
    world.kind = world.random.choice(("plain", "unchecked", "job"))
    world.weather.ack_lost, world.weather.unsent = 0.1, 0.35
    world.manners.reject = 0.0
    for name in WORKERS:
        world.at(world.random.random() * 0.02, world.call, name, KEY)
        world.at(world.random.uniform(0.0, 3.0), world.call, name, KEY)
    world.at(world.random.uniform(1.0, 20.0), world.round, world.random.choice(WORKERS))
    return 20.0


def runs_by_itself(world: World) -> float:
    """A call that goes again by itself as soon as it may, while its late outcome and people's word disagree."""
    world.kind = world.random.choice(("approved", "plain", "unchecked", "natural"))
    world.manners.reject = world.manners.reply_lost = world.manners.error = 0.02
    world.errands = [Errand(fate=world.random.choice(("quick", "slow", "slow", "slow")))]
    world.at(0.0, lambda: world.call("a", KEY, run_when_approved=True))
    world.at(0.3, lambda: decide(world, "approve", KEY))
    world.at(1.0, world.round, "a")
    world.at(1.5, lambda: decide(world, "force_no", KEY))
    for after_s in (26.0, 34.0) if world.random.random() < 0.7 else (world.random.uniform(1.6, 25.0), 26.0):
        world.at(after_s, lambda: decide(world, "retry", KEY))
        world.at(after_s + 1.0, lambda: decide(world, "approve", KEY))
        world.at(after_s + 2.0, world.round, "b")
    return 40.0


def set_aside_while_it_waits(world: World) -> float:
    """An operator settles a call whose tool has not sent yet."""
    world.kind = world.random.choice(("plain", "by_key", "job"))
    world.errands = [Errand(world.random.uniform(0.2, 10.0))]
    world.at(0.0, world.call, "a", KEY)
    verb = world.random.choice(("force_no", "force_yes", "cancel"))
    world.at(world.random.uniform(0.0, 8.0), lambda: decide(world, verb, KEY))
    return 20.0


def cancelled_and_looked_at(world: World) -> float:
    """A doubt is cancelled; whoever could send it again looks at it."""
    world.kind = world.random.choice(("by_key", "natural"))
    world.manners.reply_lost = 0.9
    world.errands = [Errand(), Errand()]
    world.at(0.0, world.call, "a", KEY)
    world.at(0.2, world.kill, "a")
    world.at(world.random.uniform(0.3, LEASE_S + 5.0), lambda: decide(world, "cancel", KEY))
    for after_s in (LEASE_S + 3.0, LEASE_S + 8.0, LEASE_S + 14.0):
        world.at(after_s, world.round, "b")
    return LEASE_S + 20.0


def undone_too_early(world: World) -> float:
    """A slow first request, a quick second one that happened, and somebody who undoes it at once."""
    world.kind = "natural"
    world.manners.reject = world.manners.error = world.manners.reply_lost = 0.0
    world.errands = [Errand(world.random.uniform(4.0, 14.0), 0.0, "slowest"), Errand(fate="quick"), Errand()]
    world.at(0.0, world.call, "a", KEY)
    world.at(TIMEOUT_S + 1.0 + world.random.random() * 4.0, lambda: decide(world, "compensate", KEY))
    return 50.0


def approved_in_view_of_another(world: World) -> float:
    """One edits while the other thinks about what they saw before."""
    world.kind = world.random.choice(("approved", "approved_twice"))
    world.at(0.0, world.call, "a", KEY)
    for _ in range(2):
        decide_s = world.random.uniform(0.2, 4.0)
        world.at(0.2, partial(decide, world, "approve", KEY, think_s=decide_s))
    world.at(world.random.uniform(0.3, 3.0), lambda: decide(world, "edit", KEY))
    world.at(4.5, lambda: decide(world, "approve", KEY))
    world.at(6.0, world.call, "b", KEY)
    return 10.0


def approved_once(world: World) -> float:
    """A call that was approved, failed, and is tried again without anybody being asked."""
    world.kind = "approved"
    world.manners.reject = 0.6
    world.at(0.0, world.call, "a", KEY)
    world.at(0.3, lambda: decide(world, "approve", KEY))
    world.at(1.0, world.call, "a", KEY)
    world.at(4.0, lambda: decide(world, world.random.choice(("resolve", "say_no")), KEY))
    world.at(5.0, lambda: decide(world, "retry", KEY))
    world.at(7.0, world.call, "b", KEY)
    return 12.0


def silence_and_slowness(world: World) -> float:
    """The owner dies with a slow request under way; look-ups ask early and often."""
    world.kind = world.random.choice(("plain", "unchecked", "by_key"))
    world.manners.reject = 0.0
    before_s = world.random.uniform(0.0, 11.0)
    world.errands = [Errand(before_s, 0.0, "slowest")]
    world.at(0.0, world.call, "a", KEY)
    world.at(before_s + 0.3, world.kill, "a")
    for number in range(3):
        world.at(before_s + LEASE_S + number * 3.0, world.round, "b")
    return 50.0


def outcomes_out_of_order(world: World) -> float:
    """Several sendings whose outcomes come in another order than they left."""
    world.kind = world.random.choice(("by_key", "natural"))
    world.manners.reject, world.manners.error = 0.4, 0.2
    world.errands = [Errand(world.random.choice((0.0, 5.0)), 0.0, "slow"), Errand(), Errand(refused=True)]
    world.random.shuffle(world.errands)
    world.at(0.0, world.call, "a", KEY)
    world.at(world.random.uniform(1.0, 30.0), world.freeze, "a", LEASE_S + 4.0)
    for number in range(4):
        world.at(LEASE_S + number * 7.0, world.round, "b")
    return 55.0


def two_decide_at_once(world: World) -> float:
    """Two operators settle one doubt at the same moment, of different minds."""
    world.kind = world.random.choice(("plain", "unchecked", "job"))
    world.manners.reply_lost, world.manners.error = 0.3, 0.6
    world.weather = world.weather if world.random.random() < 0.5 else _slow(world)
    world.at(0.0, world.call, "a", KEY)
    after_s = world.random.uniform(0.1, 2.0)
    for verb, name in (("force_yes", DESK), ("force_no", "b")):
        world.at(after_s, partial(decide, world, verb, KEY, at=name))
    return 25.0


def _slow(world: World) -> Weather:
    world.weather.slow, world.weather.slow_s = 0.5, 0.5
    return world.weather


def taken_for_lost(world: World) -> float:
    """Services take their turn just as a call departs, and long before its lease ends."""
    world.kind = world.random.choice(("plain", "unchecked", "by_key"))
    world.errands = [Errand(world.random.choice((0.01, 0.05, 1.0)))]
    for name in WORKERS:
        world.at(world.random.random() * 0.05, world.round, name)
    world.at(0.0, world.call, "a", KEY)
    world.at(world.random.random() * 0.5, world.round, "b")
    return 15.0


def late_reply_to_a_settled_call(world: World) -> float:
    """Frozen beyond its lease, set aside and settled; then the owner wakes with its outcome in hand."""
    world.kind = world.random.choice(("plain", "by_key", "natural", "unchecked"))
    world.manners.reject = 0.3
    world.at(0.0, world.call, "a", KEY)
    world.at(world.random.uniform(0.005, 0.3), world.freeze, "a", LEASE_S + 12.0)
    world.at(LEASE_S + 2.0, world.round, "b")
    verb = world.random.choice(("say_no", "say_yes", "resolve"))
    world.at(LEASE_S + 5.0, lambda: decide(world, verb, KEY))
    if world.random.random() < 0.5:
        world.at(LEASE_S + 7.0, lambda: decide(world, "retry", KEY))
        world.at(LEASE_S + 8.0, world.call, "b", KEY)
    return 45.0


DIRECTED: tuple[Callable[[World], float], ...] = (
    resend_near_the_end,
    look_returns_late,
    two_on_one_key,
    runs_by_itself,
    set_aside_while_it_waits,
    cancelled_and_looked_at,
    undone_too_early,
    approved_in_view_of_another,
    approved_once,
    silence_and_slowness,
    outcomes_out_of_order,
    two_decide_at_once,
    taken_for_lost,
    late_reply_to_a_settled_call,
)


def choose(randomness: Random) -> tuple[str, Callable[[World], float]]:
    """The kind of call and the scene of a history: a third wild, a third restless, a third directed."""
    kind, drawn = randomness.choice(_KINDS), randomness.random()
    if drawn < 1 / 3:
        return kind, wild
    return kind, restless if drawn < 2 / 3 else randomness.choice(DIRECTED)
