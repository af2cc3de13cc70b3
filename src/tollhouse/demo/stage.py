"""What the scenes share: the billing service, the house in which people decide, the workers, and the story told."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tollhouse import Outcome, RecordedCall, State, Tollhouse
from tollhouse.demo.job import LOG_FORMAT, Job, Order
from tollhouse.demo.processes import WAIT_S, DemoStopped, Worker
from tollhouse.demo.report import Place
from tollhouse.demo.tools import BILLING_VARIABLE, GATES, TOOLS
from tollhouse.errors import TollhouseError
from tollhouse.ledger.keys import wire_key
from tollhouse.testing.receiver import Effect, Receiver

SHORT_LEASE_S = 2.0
"""Of workers that will be killed: this long the others wait before they call one lost."""
LONG_LEASE_S = 15.0
"""Of processes that live: a busy machine must not make them look dead."""


@dataclass(frozen=True)
class Line:
    """One line of the story, ``at_s`` seconds after its beginning. ``key``: the call it is about; empty: none."""

    at_s: float
    kind: Literal["act", "kill", "line"]
    key: str
    text: str


Tell = Callable[[Line], None]


class Stage:
    """See the module's docstring. Open one with :func:`open_stage`."""

    def __init__(self, place: Place, receiver: Receiver, house: Tollhouse, tell: Tell) -> None:
        self.place, self.receiver, self.house = place, receiver, house
        self._tell, self._began_s = tell, time.monotonic()
        self.workers: list[Worker] = []
        self.kills = 0

    # -- telling -----------------------------------------------------------------------------------------

    @property
    def elapsed_s(self) -> float:
        """Seconds since the story began."""
        return time.monotonic() - self._began_s

    def act(self, title: str) -> None:
        """A heading."""
        self._tell(Line(self.elapsed_s, "act", "", title))

    def say(self, key: str, text: str) -> None:
        """A line."""
        self._tell(Line(self.elapsed_s, "line", key, text))

    # -- processes ---------------------------------------------------------------------------------------

    async def worker(
        self,
        *orders: Order,
        callers: int = 1,
        crash_at: str | None = None,
        lease_s: float = LONG_LEASE_S,
        serve: bool = False,
    ) -> Worker:
        """Start a worker; see :class:`Job`."""
        place = self.place
        job = Job(place.store, place.tenant, lease_s, orders, callers, crash_at, serve)
        worker = await Worker.start(job, place.log)
        self.workers.append(worker)
        return worker

    async def died(self, worker: Worker, key: str, text: str) -> None:
        """Wait until a worker has died of SIGKILL, and say when that was in the life of its call."""
        await worker.killed()
        self.kills += 1
        self._tell(Line(self.elapsed_s, "kill", key, text))

    # -- both sides of a call ----------------------------------------------------------------------------

    def wire_key(self, key: str) -> str:
        """What the receiver gets as idempotency key."""
        return wire_key(self.place.tenant, key)

    def effects(self, key: str) -> list[Effect]:
        """What the receiver's book holds under a key."""
        return self.receiver.effects(key=self.wire_key(key))

    async def effect(self, key: str) -> Effect:
        """The first effect under a key, once the book holds it."""
        try:
            return (await self.receiver.await_for_effects(1, key=self.wire_key(key), timeout_s=WAIT_S))[0]
        except TimeoutError as late:
            raise DemoStopped(f"No effect under {key}: {late}.") from None

    async def settled(self, key: str) -> RecordedCall:
        """The recorded call, once it is settled, by whatever process."""
        try:
            return await self.house.wait(key, timeout_s=WAIT_S)
        except TollhouseError as error:
            raise DemoStopped(f"{key} did not settle within {WAIT_S:.0f} s: {error.cause}") from None

    async def call(self, order: Order, **options: Any) -> Outcome[Any]:
        """Make a call from this process, as the shop's agent. Raises as :meth:`Tollhouse.call`."""
        return await self.house.call(order.tool, order.arguments, key=order.key, **options)


@asynccontextmanager
async def open_stage(place: Place, tell: Tell) -> AsyncIterator[Stage]:
    """A stage over ``place``: the billing service runs, the house is open; on leaving every process has ended."""
    async with AsyncExitStack() as stack:
        receiver = stack.enter_context(Receiver.start(place.book))
        stack.enter_context(_billing_at(receiver.url))
        stack.enter_context(_logged_to(place.log))
        house = await stack.enter_async_context(
            Tollhouse.open(
                place.store,
                tools=TOOLS,
                gates=GATES,
                tenant=place.tenant,
                principal="shop-agent",
                lease_s=LONG_LEASE_S,
                background=False,
            )
        )
        stage = Stage(place, receiver, house, tell)
        stack.push_async_callback(_end_workers, stage)
        yield stage


async def _end_workers(stage: Stage) -> None:
    with suppress(OSError):  # Ctrl-C may have ended the receiver already
        stage.receiver.release()
    await asyncio.gather(*(worker.close() for worker in stage.workers))


@contextmanager
def _billing_at(url: str) -> Iterator[None]:
    """Name the billing service to the tools here and in every worker."""
    before = os.environ.get(BILLING_VARIABLE)
    os.environ[BILLING_VARIABLE] = url
    try:
        yield
    finally:
        if before is None:
            del os.environ[BILLING_VARIABLE]
        else:
            os.environ[BILLING_VARIABLE] = before


@contextmanager
def _logged_to(path: Path) -> Iterator[None]:
    """Keep this process's log lines out of the story."""
    log, handler = logging.getLogger("tollhouse"), logging.FileHandler(path)
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    propagated = log.propagate
    log.addHandler(handler)
    log.propagate = False
    try:
        yield
    finally:
        log.propagate = propagated
        log.removeHandler(handler)
        handler.close()


def in_state(call: RecordedCall, state: State) -> RecordedCall:
    """The call, if it stands there. Raises :class:`DemoStopped` otherwise: the story would not be true."""
    if call.state is not state:
        raise DemoStopped(f"{call.key} is {call.state}, not {state}.")
    return call


async def refused(attempt: Awaitable[Any], kind: type[TollhouseError]) -> None:
    """Return once ``attempt`` was turned away with that error, nothing sent. Raises :class:`DemoStopped` otherwise."""
    try:
        await attempt
    except kind as error:
        if error.sent == "no":
            return
    raise DemoStopped(f"Something went through that {kind.__name__} should have stopped.")
