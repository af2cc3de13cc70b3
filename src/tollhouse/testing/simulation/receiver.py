"""The receiver of a simulated history, and the network before it: what truly happened, which no process sees whole."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random

from tollhouse.testing.simulation.loop import SimulatedLoop
from tollhouse.testing.simulation.tools import NETWORK_S, WINDOW_S

REPLY_LOST_S = 22.0
"""After this a tool that heard nothing gives up by itself."""

_DELAYS_S = {"quick": (0.001, 0.2), "slow": (5.0, NETWORK_S), "slowest": (0.8 * NETWORK_S, NETWORK_S)}


@dataclass(frozen=True, slots=True)
class Request:
    """One request on the wire. ``undoes``: the wire key of the original, for a compensation."""

    attempt: str
    wire_key: str
    kind: str
    amount: int
    undoes: str | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back: ``ok``, ``rejected``, ``error``, ``accepted``."""

    word: str
    reference: str | None = None


@dataclass(frozen=True, slots=True)
class Effect:
    """Something that truly happened, in the order of ``at_s``."""

    request: Request
    at_s: float


@dataclass(slots=True)
class Job:
    """Long work at the receiver. ``ended``: ``done``, ``failed``, or None while it runs."""

    request: Request
    reference: str
    ended: str | None = None


@dataclass(slots=True)
class Manners:
    """How the network and the receiver behave: chances of a request or reply being slow, lost or refused."""

    drop: float = 0.1
    slow: float = 0.2
    reply_lost: float = 0.15
    reject: float = 0.1
    error: float = 0.1
    slow_job: float = 0.5


class Receiver:
    """Takes requests after a delay, remembers keys where its kind promises so, and counts effects."""

    def __init__(self, loop: SimulatedLoop, randomness: Random, manners: Manners) -> None:
        self._loop, self._random, self.manners = loop, randomness, manners
        self.effects: list[Effect] = []
        self.jobs: list[Job] = []
        self._known: dict[str, tuple[float, Reply]] = {}

    def send(self, request: Request, *, fate: str | None = None) -> asyncio.Future[Reply]:
        """The system call: from here on the request is out of everybody's hands. Raises what a tool's client would.

        ``fate``: ``dropped``, ``quick``, ``slow`` or ``slowest`` (arrives late), None to draw it.
        """
        reply: asyncio.Future[Reply] = self._loop.create_future()
        self._loop.call_later(REPLY_LOST_S, _give_up, reply)
        drawn = fate or self._fate()
        if drawn != "dropped":
            self._loop.outside(self._random.uniform(*_DELAYS_S[drawn]), self._arrive, request, reply)
        return reply

    def _fate(self) -> str:
        drawn = self._random.random()
        if drawn < self.manners.drop:
            return "dropped"
        return "slow" if drawn < self.manners.drop + self.manners.slow else "quick"

    def _arrive(self, request: Request, reply: asyncio.Future[Reply]) -> None:
        word = self._recognised(request) or self._act(request)
        if self._random.random() >= self.manners.reply_lost:
            self._loop.outside(self._random.uniform(0.001, 0.2), _answer, reply, word)

    def _recognised(self, request: Request) -> Reply | None:
        """What a receiver that dedups by key says to a key that it has seen."""
        seen = self._known.get(request.wire_key) if request.kind.startswith("by_key") else None
        return seen[1] if seen is not None and self._loop.now_s - seen[0] < WINDOW_S else None

    def _act(self, request: Request) -> Reply:
        if self._random.random() < self.manners.reject:
            return Reply("rejected")
        if request.kind == "job":
            return self._take_on(request)
        reply = Reply("ok")
        self.effects.append(Effect(request, self._loop.now_s))
        self._known[request.wire_key] = (self._loop.now_s, reply)
        return Reply("error") if self._random.random() < self.manners.error else reply

    def _take_on(self, request: Request) -> Reply:
        job = Job(request, f"job-{len(self.jobs) + 1}")
        self.jobs.append(job)
        slow = self._random.random() < self.manners.slow_job
        self._loop.outside(self._random.uniform(20.0, 70.0) if slow else self._random.uniform(0.1, 3.0), self._end, job)
        return Reply("accepted", job.reference)

    def _end(self, job: Job) -> None:
        job.ended = "failed" if self._random.random() < 0.3 else "done"
        if job.ended == "done":
            self.effects.append(Effect(job.request, self._loop.now_s))

    # -- what a look-up sees -----------------------------------------------------------------------------------

    def took_effect(self, wire_key: str) -> bool:
        """Whether anything under that key took effect by now."""
        return any(effect.request.wire_key == wire_key for effect in self.effects)


def _answer(reply: asyncio.Future[Reply], word: Reply) -> None:
    if not reply.done():
        reply.set_result(word)


def _give_up(reply: asyncio.Future[Reply]) -> None:
    if not reply.done():
        reply.set_exception(TimeoutError("no reply"))
