"""One simulated world: processes, store, network, receiver and people, and the hand of fate over all of them.

Scenes (``scenes.py``) lay out what happens when; the world makes it happen, and tells the model and the trace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from random import Random
from typing import Any

from tollhouse.contract.answers import Accepted, Answer, NotSent, Rejected, did_not_happen, happened, unknown
from tollhouse.errors import TollhouseError
from tollhouse.gate.request import Options
from tollhouse.gate.view import RecordedCall
from tollhouse.ledger.record import CallRecord
from tollhouse.testing.memory_store import MemoryLedger
from tollhouse.testing.simulation.loop import PROCESS, SimulatedLoop
from tollhouse.testing.simulation.model import Model
from tollhouse.testing.simulation.process import TENANT, Process, make_process
from tollhouse.testing.simulation.receiver import Manners, Receiver, Request
from tollhouse.testing.simulation.store import Link, LinkedStore, Weather
from tollhouse.testing.simulation.tools import TOOLS

EPOCH_US = 1_700_000_000_000_000
SKEW_S = 100_000.0
DESK = "desk"


@dataclass(slots=True)
class Errand:
    """How one sending goes on our side: seconds before the last check, seconds between it and the system call, and
    what becomes of the request (None: drawn). ``refused``: no connection could be made."""

    before_s: float = 0.0
    between_s: float = 0.0
    fate: str | None = None
    refused: bool = False


class World:
    """See the module's docstring. All chance comes from ``randomness``."""

    def __init__(self, randomness: Random, kind: str) -> None:
        self.random, self.kind = randomness, kind
        self.loop = SimulatedLoop(randomness)
        self.stepped_us = 0
        self.ledger = MemoryLedger(clock_us=self._store_us)
        self.trace: list[tuple[float, str, str]] = []
        self.model = Model(self.ledger, self.note)
        self.weather, self.manners = Weather(), Manners()
        self.receiver = Receiver(self.loop, randomness, self.manners)
        self.processes: dict[str, Process] = {}
        self.errands: list[Errand] = []
        """For the next sendings, in order; drawn when used up."""
        self.looks: list[tuple[float, bool]] = []
        """For the next look-ups, in order: how long each takes, and whether it fails; drawn when used up."""
        self.slow_look_s = 3.0
        self.defects: list[str] = []
        self._people = 0

    def _store_us(self) -> int:
        return EPOCH_US + round(self.loop.now_s * 1_000_000) - self.stepped_us

    def note(self, who: str, what: str) -> None:
        """One line of the history."""
        self.trace.append((self.loop.now_s, who, what))

    # -- processes and their misfortunes -----------------------------------------------------------------------

    def start(self, name: str) -> Process:
        """A process begins; it has its lease a little later."""
        skew_us = round(self.random.uniform(0.0, SKEW_S) * 1_000_000)
        link = Link(self.loop, self.random, self.weather, self.model)
        store = LinkedStore(name, self.ledger, link, lambda: round(self.loop.now_s * 1_000_000) + skew_us)
        process = make_process(name, self.loop, store, self.random, skew_us)
        self.processes[name] = process
        self.loop.begin(name, process.live())
        return process

    def kill(self, name: str) -> None:
        """The process is gone, for ever. What it has sent is not."""
        process = self.processes[name]
        if not process.killed:
            self.note(name, "killed")
            process.killed = process.store.link.dead = True
            self.loop.kill(name)

    def freeze(self, name: str, for_s: float) -> None:
        """The process stands still; its clock does not."""
        process = self.processes[name]
        if process.killed:
            return
        self.note(name, f"frozen for {for_s:.1f} s")
        until_s = self.loop.now_s + for_s
        process.frozen_until_s = max(process.frozen_until_s, until_s)
        self.loop.lanes[name].frozen = True
        self.loop.outside(for_s, self._thaw, name)

    def _thaw(self, name: str) -> None:
        if self.loop.now_s >= self.processes[name].frozen_until_s and self.loop.lanes[name].frozen:
            self.note(name, "thawed")
            self.loop.lanes[name].frozen = False

    def cut(self, name: str, for_s: float) -> None:
        """The store cannot be reached from this process for a while."""
        link = self.processes[name].store.link
        link.away_until_s = max(link.away_until_s, self.loop.now_s + for_s)
        self.note(name, f"store away for {for_s:.1f} s")

    def step_back(self, by_s: float) -> None:
        """The store's clock is set back."""
        self.stepped_us += round(by_s * 1_000_000)
        self.note("store", f"clock set back by {by_s:.1f} s")

    def is_dead(self, name: str) -> bool:
        """Whether that process is known on its machine to be gone."""
        return name in self.processes and self.processes[name].killed

    @property
    def workers(self) -> list[str]:
        """Processes with tools that are not gone."""
        return [name for name, process in self.processes.items() if name != DESK and not process.killed]

    def at_request(self, name: str, nth: int, fate: Callable[[], None]) -> None:
        """Have something happen as the nth request to the store leaves that process."""
        link = self.processes[name].store.link
        before = link.at_request

        def strike(number: int) -> None:
            before(number)
            if number == nth:
                fate()

        link.at_request = strike

    # -- what is asked -----------------------------------------------------------------------------------------

    def at(self, after_s: float, act: Callable[..., Any], *args: Any) -> None:
        """Have something happen so long from the beginning of the scene."""
        self.loop.outside(after_s, act, *args)

    def run_as(self, name: str, what: str, make: Callable[[Process], Coroutine[Any, Any, Any]]) -> None:
        """Do something in that process, if it is up."""
        process = self.processes.get(name)
        if process is not None and process.ready:
            self.loop.begin(name, self._told(process, what, make))

    async def _told(self, process: Process, what: str, make: Callable[[Process], Coroutine[Any, Any, Any]]) -> None:
        name = process.name
        self.note(name, what)
        try:
            answer = await make(process)
        except TollhouseError as error:
            self.note(name, f"{what}: {type(error).__name__}: {error.cause}")
        except asyncio.CancelledError:
            self.note(name, f"{what}: cancelled")
        except Exception as error:
            self.note(name, f"{what}: {error!r}")
            self.defects.append(f"{what}: {error!r}")
        else:
            state = getattr(answer, "state", None)
            self.note(name, f"{what}: {state.value if state is not None else answer}")

    def call(self, name: str, key: str, *, cancel_after_s: float | None = None, **options: Any) -> None:
        """A caller asks that process for the call under this key."""

        async def called(process: Process) -> Any:
            arguments = {"amount": 1}
            asked = process.gate.call(TOOLS[self.kind], arguments, key, Options(wait=False, **options))
            if cancel_after_s is None:
                return await asked
            task = asyncio.ensure_future(asked)
            asyncio.get_running_loop().call_later(cancel_after_s, task.cancel)
            return await task

        self.run_as(name, f"call {key}", called)

    def round(self, name: str) -> None:
        """The background services of that process take a turn."""
        self.run_as(name, "services", lambda process: process.services.round())

    def reconcile(self, name: str, key: str) -> None:
        """That process looks at the call."""

        async def looked(process: Process) -> Any:
            record = await process.store.get(TENANT, key)
            return None if record is None else await process.reconciler.reconcile(record)

        self.run_as(name, f"reconcile {key}", looked)

    def record(self, key: str) -> CallRecord | None:
        """The call as it stands, seen from nowhere."""
        return self.model.calls[key].record

    def somebody(self) -> str:
        """A name that nobody had before."""
        self._people += 1
        return f"person-{self._people}"

    # -- what tools and look-ups do ----------------------------------------------------------------------------

    async def send(self, kind: str, amount: int, ctx: Any) -> int:
        """The function of a tool: prepare, check for the last time, send, wait for the reply."""
        return await self._errand(Request(ctx.attempt_id, ctx.idempotency_key, kind, amount), ctx)

    async def undo(self, original_key: str, ctx: Any) -> int:
        """The function of the compensating tool."""
        return await self._errand(Request(ctx.attempt_id, ctx.idempotency_key, "undo", 0, original_key), ctx)

    async def _errand(self, request: Request, ctx: Any) -> int:
        name = PROCESS.get()
        try:
            value = await self._sent(name, request, ctx)
        except (NotSent, Rejected, Accepted, TimeoutError, RuntimeError) as error:
            truth = _TRUTHS.get(type(error), "not_sent" if isinstance(error, NotSent) else "unknown")
            self.note(name, f"{request.attempt[-6:]} {ctx.key}: {truth} ({error})")
            self.model.ended(request.attempt, truth)
            raise
        self.note(name, f"{request.attempt[-6:]} {ctx.key}: happened")
        self.model.ended(request.attempt, "happened")
        return value

    async def _sent(self, name: str, request: Request, ctx: Any) -> int:
        errand, local_us = self._next_errand(), self.processes[name].core.local_us
        if request.kind == "unchecked":
            self.model.passed(name, ctx.key, request.attempt, local_us())
        if errand.before_s:
            await asyncio.sleep(errand.before_s)
        if request.kind != "unchecked":
            self.model.begins(name, ctx.key)
            await ctx.confirm()
            self.model.passed(name, ctx.key, request.attempt, local_us())
        if errand.refused:
            raise NotSent("no connection") from ConnectionRefusedError()
        if errand.between_s:
            await asyncio.sleep(errand.between_s)
        self.model.sends(ctx.key, request.attempt, request.amount)
        self.note(name, f"{request.attempt[-6:]} {ctx.key}: sent, amount {request.amount}")
        reply = await self.receiver.send(request, fate=errand.fate)
        if reply.word == "accepted":
            raise Accepted(reply.reference or "")
        if reply.word == "rejected":
            raise Rejected("no", transient=self.random.random() < 0.3)
        if reply.word == "error":
            raise RuntimeError("500")
        return 1

    def _next_errand(self) -> Errand:
        if self.errands:
            return self.errands.pop(0)
        drawn, random = self.random.random(), self.random
        if drawn < 0.5:
            return Errand()
        if drawn < 0.6:
            return Errand(refused=True)
        between_s = random.choice((0.001, 1.0, 10.0)) if random.random() < 0.1 else 0.0
        return Errand(random.choice((0.01, 0.3, 3.0, 12.0, 18.0)), between_s)

    async def look(self, record: RecordedCall) -> Answer:
        """The look-up: slow, sometimes out of order, never lying; what it saw may be old when it answers."""
        after_s, fails = self.looks.pop(0) if self.looks else self._drawn_look()
        answer = self._seen(record)
        if after_s:
            await asyncio.sleep(after_s)
        if fails:
            raise RuntimeError("look-up failed")
        return answer

    def _drawn_look(self) -> tuple[float, bool]:
        slow = self.random.random() < 0.5
        return self.random.random() * self.slow_look_s if slow else 0.0, self.random.random() < 0.1

    def _seen(self, record: RecordedCall) -> Answer:
        if self.receiver.took_effect(record.idempotency_key):
            return happened(1)
        jobs = [job for job in self.receiver.jobs if job.request.wire_key == record.idempotency_key]
        if any(job.ended is None for job in jobs):
            return unknown("running")
        return did_not_happen("nothing there", job_status="failed" if jobs else None)


_TRUTHS: dict[type[BaseException], str] = {Rejected: "rejected", Accepted: "accepted"}
