"""One history from one seed: a world, a scene, peace, people who settle what is open, and the model's verdicts."""

from __future__ import annotations

import gc
import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random

from tollhouse.ledger.lease import proven_dead
from tollhouse.ledger.store import Owner
from tollhouse.testing.mutants.patching import Patches
from tollhouse.testing.simulation.model import Violation
from tollhouse.testing.simulation.people import decide, next_deed
from tollhouse.testing.simulation.scenes import WORKERS, choose
from tollhouse.testing.simulation.store import Weather
from tollhouse.testing.simulation.tools import NETWORK_S, acting_in
from tollhouse.testing.simulation.world import DESK, World

PEACE_S = NETWORK_S + 10.0
SETTLING_TURNS = 8
TURN_S = 6.0


@dataclass(frozen=True, slots=True)
class Report:
    """What came of one seed. ``defects``: exceptions that nothing in the kernel should have let through."""

    seed: int
    scene: str
    kind: str
    violations: tuple[Violation, ...]
    residual: int
    defects: tuple[str, ...]
    calls: int
    lines: list[tuple[float, str, str]] = field(repr=False)

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.violations and not self.defects

    @property
    def trace(self) -> str:
        """The history in lines: seconds, who, what."""
        told = [f"{at - 1000.0:9.3f}  {who:<6} {what}" for at, who, what in self.lines]
        return "\n".join([f"seed {self.seed}, {self.scene}, {self.kind}", *told])


class _Ear(logging.Handler):
    """Hears of errors that the kernel caught and logged."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self.heard.append(f"{record.getMessage()}: {error!r}")


_worlds: list[World] = []


def _known_dead(owner: Owner) -> bool:
    return _worlds[-1].is_dead(owner.host)


@contextmanager
def simulated_machine() -> Iterator[_Ear]:
    """While the block runs, processes die in simulations, and what the kernel logs as an error is heard, not printed.

    Enter it once around many histories.
    """
    patches, ear, log = Patches(), _Ear(), logging.getLogger("tollhouse")
    before = (log.level, log.propagate)
    collecting = gc.isenabled()
    patches.everywhere(proven_dead, _known_dead)
    log.addHandler(ear)
    log.setLevel(logging.ERROR)
    log.propagate = False
    gc.disable()
    state = random.getstate()
    try:
        yield ear
    finally:
        random.setstate(state)
        log.removeHandler(ear)
        log.setLevel(before[0])
        log.propagate = before[1]
        patches.undo()
        if collecting:
            gc.enable()


def play(seed: int, ear: _Ear) -> Report:
    """One history, inside :func:`simulated_machine`. The same seed gives the same history."""
    chance = Random(seed)
    kind, scene = choose(chance)
    return play_scene(seed, chance, kind, scene, ear)


def play_scene(seed: int, chance: Random, kind: str, scene: Callable[[World], float], ear: _Ear) -> Report:
    """One history of a given scene; what the scene leaves open is drawn from ``chance``."""
    ear.heard.clear()
    random.seed(seed)  # the kernel's own jitter
    world = World(chance, kind)
    _worlds.append(world)
    try:
        with acting_in(world):
            _happen(world, scene)
    finally:
        world.loop.end()
        _worlds.pop()
    unhandled = (str(context.get("exception")) for context in world.loop.unhandled if "handle" in context)
    return Report(
        seed,
        scene.__name__,
        world.kind,
        tuple(world.model.violations),
        world.model.residual,
        (*ear.heard, *world.defects, *unhandled),
        len(world.model.calls),
        world.trace,
    )


def _happen(world: World, scene: Callable[[World], float]) -> None:
    for name in (*WORKERS, DESK):
        world.start(name)
    world.loop.run(world.loop.now_s + 0.1)
    span_s = scene(world)
    world.loop.run(world.loop.now_s + span_s)
    _make_peace(world)
    world.loop.run(world.loop.now_s + PEACE_S)
    for name in world.workers[:1]:
        world.round(name)
    _settle(world)
    world.model.finish(world.receiver, set(world.workers) | {DESK})


def _make_peace(world: World) -> None:
    """No more misfortunes: the store is back, nobody is frozen."""
    calm = Weather(slow=0.0)
    for process in world.processes.values():
        process.store.link.away_until_s = 0.0
        process.store.link._weather = calm
        process.store.link.at_request = lambda _nth: None
        if not process.killed:
            process.frozen_until_s = world.loop.now_s
            world.loop.lanes[process.name].frozen = False
    if not world.workers:
        world.start("z")


def _settle(world: World) -> None:
    """People act until every call is settled, and give up after a while: then it was stuck."""
    for _ in range(SETTLING_TURNS):
        world.loop.run(world.loop.now_s + TURN_S)
        deeds = [
            (deed, key)
            for key, known in world.model.calls.items()
            if known.record is not None and (deed := next_deed(world, known.record)) is not None
        ]
        if not deeds:
            return
        for deed, key in deeds:
            decide(world, deed, key)
    world.loop.run(world.loop.now_s + TURN_S)
