"""A stage: one ledger, one receiver, the processes over both, and what they noted, for the length of a chapter.

Plots (what happens to one call) act through it; in the end it brings together the facts about every call.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any

from tollhouse.testing.drill.crew import STOP_S, Crew, Gone, Lane, Worker, now_us
from tollhouse.testing.drill.evidence import Ack, Case, Check, Decided
from tollhouse.testing.drill.stores import Ledger
from tollhouse.testing.drill.tools import COLLECTIONS, KEYED
from tollhouse.testing.drill.worker import Job
from tollhouse.testing.receiver import Receiver

LEASE_S = 1.0


@dataclass(slots=True)
class Tally:
    """What was done to processes and stores."""

    kills: int = 0
    stops: int = 0
    outages: int = 0
    lost_acks: int = 0
    clock_steps: int = 0

    def add(self, other: Tally) -> None:
        """Count another's in."""
        for name in ("kills", "stops", "outages", "lost_acks", "clock_steps"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True)
class Watch:
    """What is known of a call from the acknowledgements of all processes."""

    case: Case
    state: str | None = None
    version: int = 0
    contradicted: bool = False
    running: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)


class Stage:
    """See the module's docstring. ``broken``: the mutant that every worker has."""

    def __init__(self, ledger: Ledger, receiver: Receiver, folder: Path, *, broken: str | None = None) -> None:
        self.ledger, self.receiver, self.folder = ledger, receiver, folder
        self.tally = Tally()
        self.broken = broken
        self.unfinished: list[int] = []
        """Seeds whose plot did not come to its end: a defect of the drill."""
        self._watches: dict[str, Watch] = {}
        self._returned: dict[str, Worker] = {}
        self._fresh = itertools.count()
        self.crew = Crew(folder, self._noted)
        self.calm = [self._lane("calm", 12) for _ in range(2)]
        self.harsh = [self._lane("harsh", 2) for _ in range(6)]
        self.lossy = [self._lane("lossy", 3, lossy=True) for _ in range(2)]
        self.desks = [self._lane("desk", 200, services=True) for _ in range(2)]

    # -- processes -----------------------------------------------------------------------------------------

    def job(self, name: str, *, lossy: bool = False, **options: Any) -> Job:
        """What a worker of this stage is made from."""
        url = self.ledger.lossy_url if lossy else self.ledger.url
        return Job(name, "", url, self.receiver.url, LEASE_S, mutant=self.broken, **options)

    def _lane(self, name: str, room: int, **options: Any) -> Lane:
        number = next(self._fresh)
        skew_s = (0.0, 3600.0, -1800.0)[number % 3]
        return Lane(self.crew, self.job(name, skew_s=skew_s, **options), room)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Stage]:
        """Set the receiver up and start the processes that work on their own."""
        async with self.crew:
            for collection in COLLECTIONS.values():
                await self.at_receiver(
                    self.receiver.mode,
                    collection,
                    keyed=collection in KEYED,
                    lookup=collection != "letters",
                    remembers_s=KEYED.get(collection),
                )
            for desk in self.desks:
                await desk.worker()
            yield self

    @asynccontextmanager
    async def alone(self, name: str, **options: Any) -> AsyncIterator[Worker]:
        """A process for one plot alone; it closes its house in the end, if it lives."""
        worker = await self.crew.start(self.job(name, **options))
        try:
            yield worker
        finally:
            await worker.end()

    async def at_receiver(self, ask: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Steer or ask the receiver, again where a busy machine let it answer too late."""
        for tries_left in reversed(range(5)):
            try:
                return await asyncio.to_thread(ask, *args, **kwargs)
            except (OSError, HTTPException):
                if not tries_left:
                    raise
        return None

    async def desk(self, number: int = 0) -> Worker:
        """A process in which people decide and services run; another where the first was killed."""
        return await self.desks[number % len(self.desks)].worker()

    async def close(self) -> None:
        """End all processes, so that everything they still had to write is written."""
        living = [worker for worker in self.crew.workers if not worker.dead.is_set()]
        await asyncio.gather(*(worker.end() for worker in living))

    # -- striking ------------------------------------------------------------------------------------------

    def kill(self, worker: Worker) -> None:
        """SIGKILL, from outside, at whatever moment this is."""
        self.tally.kills += worker.strike(signal.SIGKILL)

    async def freeze(self, worker: Worker, for_s: float = STOP_S) -> None:
        """SIGSTOP from outside, and SIGCONT later."""
        self.tally.stops += worker.strike(signal.SIGSTOP)
        await asyncio.sleep(for_s)
        worker.strike(signal.SIGCONT)

    # -- calls ---------------------------------------------------------------------------------------------

    def case(self, seed: int, plot: str, key: str) -> Case:
        """The file of a call, kept from now on."""
        return self._watch(key, Case(key, seed, plot)).case

    async def call(
        self, worker: Worker, tool: str, key: str, acts: list[dict[str, Any]] | None = None, *, alone: bool = False
    ) -> str:
        """Ask for the call; what came of it: a state, an error's code, or ``gone``.

        ``alone``: workers send it, once they may, without its caller.
        """
        arguments: dict[str, Any] = {} if tool == "count" else {"amount": 100, "acts": acts or []}
        try:
            told = await worker.ask("call", tool=tool, arguments=arguments, key=key, run_when_approved=alone)
        except Gone:
            return "gone"
        except TimeoutError:
            return "no_answer"
        return str(told.get("error") or told["value"]["state"])

    async def decide(self, worker: Worker, verb: str, key: str, by: str, **given: Any) -> bool:
        """Have a person decide; whether the house agreed. It is on file whatever came of it."""
        shown = given.pop("shown", given.get("digest"))
        asked_us = now_us()
        kwargs = {"by": by, "reason": f"{by} says so", **given}
        accepted = False
        with suppress(Gone, TimeoutError):
            accepted = "error" not in await worker.ask(verb, key=key, **kwargs)
        finding = given["answer"]["finding"] if "answer" in given else None
        file = self._watch(key).case.decisions
        file.append(Decided(verb, by, accepted, asked_us, now_us(), finding, shown))
        return accepted

    async def seen(self, key: str, number: int = 0) -> dict[str, Any] | None:
        """The call as a desk shows it; None where there is none."""
        for _ in range(3):
            try:
                told = await (await self.desk(number)).ask("get", key=key)
            except (Gone, TimeoutError):
                continue
            value: dict[str, Any] | None = told.get("value")
            if value is not None:
                self._learn(self._watch(key), value["version"], value)
            return value
        return None

    async def until(self, key: str, holds: Callable[[Watch], bool], timeout_s: float = 20.0) -> bool:
        """Wait until what is known of the call fits; False when it did not come to that."""
        watch, loop = self._watch(key), asyncio.get_running_loop()
        until = loop.time() + timeout_s
        while not holds(watch) and (left_s := until - loop.time()) > 0:
            watch.news.clear()
            try:
                async with asyncio.timeout(min(left_s, 2.0)):
                    await watch.news.wait()
            except TimeoutError:
                await self.seen(key)  # an acknowledgement may have died with its process
        return holds(watch)

    async def until_state(self, key: str, *states: str, timeout_s: float = 20.0) -> bool:
        """Wait until the call stands in one of these states."""
        return await self.until(key, lambda watch: watch.state in states, timeout_s)

    async def until_sent(self, key: str, count: int = 1, timeout_s: float = 10.0) -> bool:
        """Wait until so many checks before sends have passed. A ``def`` tool's first one is before its function."""
        return await self.until(key, lambda watch: len(watch.case.checks) >= count, timeout_s)

    async def until_arrived(self, key: str, timeout_s: float = 10.0) -> bool:
        """Wait until a request of the call is at the receiver."""
        filters = {"key": f"default:{key}", "method": "POST", "timeout_s": timeout_s}
        with suppress(OSError):  # TimeoutError is one
            await self.receiver.await_for_requests(1, **filters)
            return True
        return False

    def state(self, key: str) -> Watch:
        """What is known of the call."""
        return self._watch(key)

    # -- notes ---------------------------------------------------------------------------------------------

    def _watch(self, key: str, case: Case | None = None) -> Watch:
        if key not in self._watches:
            parent = self._watches.get(key.removesuffix(":compensate"))
            seed, plot = (parent.case.seed, parent.case.plot) if parent else (-1, "")
            self._watches[key] = Watch(case or Case(key, seed, plot))
        return self._watches[key]

    def _noted(self, worker: Worker, line: dict[str, Any]) -> None:
        match line["note"]:
            case "ack":
                watch = self._watch(line["key"])
                facts = (line["version"], line["state"], line["fence"], tuple(line["kinds"]), line["at_us"])
                watch.case.acks.append(Ack(*facts))
                self._learn(watch, line["version"], line)
            case "check":
                watch = self._watch(line["key"])
                times = (line["began_us"], line["at_us"], line["lease_until_us"])
                watch.case.checks.append(Check(line["attempt"], *times))
                watch.news.set()
            case "returned":
                self._returned[line["attempt"]] = worker
            case "stopped":
                self.tally.stops += 1
            case "died" if worker.points and not (worker.closed or worker.killed):
                self.tally.kills += 1  # at a point that it reached, by its own hand

    def _learn(self, watch: Watch, version: int, facts: dict[str, Any]) -> None:
        if version >= watch.version:
            watch.version, watch.state = version, facts["state"]
            watch.contradicted, watch.running = facts["contradicted"], facts["running"]
            watch.news.set()

    def watches(self) -> list[tuple[str, Watch]]:
        """All calls, with what is known of them."""
        return list(self._watches.items())

    def cases(self) -> list[Case]:
        """The files of all calls, with the attempts whose result nobody had a reason to lose."""
        lived = {attempt for attempt, worker in self._returned.items() if worker.closed}
        for watch in self._watches.values():
            attempts = {check.attempt for check in watch.case.checks}
            watch.case.returned = lived & attempts
        return [watch.case for watch in self._watches.values()]


def boot_offset_us() -> int:
    """What to add to the time of day to get the machine's own clock."""
    return now_us() - time.time_ns() // 1000


def key_of(seed: int) -> str:
    """The key of a seed's call."""
    return f"s{seed}"


def chance(rng: random.Random, share: float) -> bool:
    """Yes, that often."""
    return rng.random() < share
