"""A worker of the drill: one house in one process, steered over a socket, that notes what the checker needs to know.

The notes are the drill's witnesses on this side: when a last check before a send began and that it passed, when a write
was acknowledged, which attempt's function returned. Times are on the machine's own clock, which all processes share
and nothing steps (:func:`~tollhouse.ledger.clock.boot_us`). What is patched here is patched in this process only.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from tollhouse import RecordedCall, Tollhouse, did_not_happen, happened
from tollhouse.contract.answers import Answer
from tollhouse.errors import TollhouseError
from tollhouse.gate import context as gate_context
from tollhouse.gate.outcome import Outcome
from tollhouse.house.opening import open_house_over
from tollhouse.ledger.clock import boot_us
from tollhouse.ledger.store import Store, Write, Written
from tollhouse.settings import settings_of
from tollhouse.stores import open_store
from tollhouse.testing.crashpoints import Crash, Crashes, CrashingStore
from tollhouse.testing.drill.tools import tools
from tollhouse.testing.drill.wire import Line


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker is made from. ``skew_s``: its own clock is that far off; ``wall_back_s``: its time of day runs that
    far behind (SQLite, whose store clock follows it); ``only``: the tools it has (None: all but ``odd``)."""

    name: str
    socket: str
    store: str
    receiver: str
    lease_s: float
    services: bool = False
    mutant: str | None = None
    skew_s: float = 0.0
    hook_pause_s: float = 0.0
    blind: bool = False
    only: list[str] | None = None
    settings: dict[str, Any] = field(default_factory=dict)


class WitnessedStore:
    """A store that notes every acknowledged write: the call, its version, state and fence."""

    def __init__(self, store: Any, line: Line) -> None:
        self._store, self._line = store, line

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def write(self, *writes: Write) -> tuple[Written, ...]:
        """See :meth:`Store.write`."""
        written: tuple[Written, ...] = await self._store.write(*writes)
        at_us = boot_us()
        if all(each.applied for each in written):
            for each in writes:
                record = each.record
                self._line.say(
                    note="ack",
                    key=record.key,
                    version=record.version,
                    state=record.state.value,
                    fence=record.fence,
                    contradicted=record.contradicted,
                    running=any(a.running for a in record.attempts),
                    kinds=[event.kind for event in each.events],
                    at_us=at_us,
                )
        return written


async def work(job: Job) -> None:
    """Open the house, obey until the line ends, close the house."""
    line = Line(job.socket)
    line.say(hello=job.name, pid=os.getpid())
    crashes = Crashes(announce=lambda point: line.say(note="reached", point=point, at_us=boot_us()))
    skew_us = round(job.skew_s * 1e6)
    _witness_checks(line, skew_us)
    made = tools(job.receiver, crashes.reach, hook_pause_s=job.hook_pause_s, blind=job.blind)
    names = [name for name in made if name != "odd"] if job.only is None else job.only
    for each in made.values():
        each.fn = _witnessed(each.fn, line, is_async=each.is_async)
    settings = settings_of(
        {
            "tools": [made[name] for name in names],
            "lease_s": job.lease_s,
            "background": job.services,
            "every_s": 0.12,
            "grace_s": 3.0,
            "store_wait_s": 15.0,
            **job.settings,
        }
    )

    async def opened() -> Store:
        store = await open_store(job.store, busy_timeout_s=settings.store_wait_s)
        return cast(Store, CrashingStore(cast(Store, WitnessedStore(store, line)), crashes))

    house = await open_house_over(opened, settings, lambda: boot_us() + skew_us)
    await Obedience(house, crashes, line).until_end()
    await house.close()
    line.say(closed=True)


def _witness_checks(line: Line, skew_us: int) -> None:
    """Note each last check that passed: when it began, and until when its owner's lease ran as it knew."""
    context: Any = gate_context.Context
    check, check_sync = context.check, context.check_sync

    def note(self: Any, began_us: int) -> None:
        lease_us = self._sender.lease_until_local_us(self._owner) - skew_us
        passed = {"key": self.key, "attempt": self.attempt_id, "began_us": began_us, "at_us": boot_us()}
        line.say(note="check", **passed, lease_until_us=lease_us)

    async def witnessed(self: Any) -> None:
        began_us = boot_us()
        await check(self)
        note(self, began_us)

    def witnessed_sync(self: Any) -> None:
        began_us = boot_us()
        check_sync(self)
        note(self, began_us)

    context.check, context.check_sync = witnessed, witnessed_sync


def _witnessed(fn: Callable[..., Any], line: Line, *, is_async: bool) -> Callable[..., Any]:
    """The tool's function; note that it returned a value."""
    if is_async:

        async def asynchronous(**arguments: Any) -> Any:
            value = await fn(**arguments)
            _note_return(line, arguments["ctx"])
            return value

        return asynchronous

    def synchronous(**arguments: Any) -> Any:
        value = fn(**arguments)
        _note_return(line, arguments["ctx"])
        return value

    return synchronous


def _note_return(line: Line, ctx: Any) -> None:
    line.say(note="returned", key=ctx.key, attempt=ctx.attempt_id, at_us=boot_us())


class Obedience:
    """Carries out what the conductor asks for, each thing beside the others."""

    def __init__(self, house: Tollhouse, crashes: Crashes, line: Line) -> None:
        self._house, self._crashes, self._line = house, crashes, line
        self._end = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def until_end(self) -> None:
        """Obey until nobody asks any more."""
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._listen, args=(loop,), daemon=True).start()
        self._line.say(ready=True)
        await self._end.wait()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=10.0)

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        while (asked := self._line.hear()) is not None:
            loop.call_soon_threadsafe(self._take, asked)
        loop.call_soon_threadsafe(self._end.set)

    def _take(self, asked: dict[str, Any]) -> None:
        if asked.pop("end", False):
            self._end.set()
        elif (crash := asked.pop("crash", None)) is not None:
            self._crashes.lay_out(Crash(**crash))
        elif (back_s := asked.pop("wall_back_s", None)) is not None:
            self._step_wall(back_s)
        else:
            task = asyncio.get_running_loop().create_task(self._answer(**asked))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _step_wall(self, back_s: float) -> None:
        """The time of day of this process is set back; only an SQLite store has one."""
        clock: Any = getattr(self._house.store, "_clock", None)
        if clock is not None:
            wall = clock._wall
            clock._wall = lambda: wall() - round(back_s * 1e6)

    async def _answer(self, id: int, verb: str, kwargs: dict[str, Any]) -> None:
        try:
            value = await self._verb(verb)(**{name: _decoded(value) for name, value in kwargs.items()})
            self._line.say(id=id, value=_shown(value))
        except TollhouseError as error:
            self._line.say(id=id, error=error.code, cause=error.cause, sent=error.sent)
        except Exception as error:
            self._line.say(id=id, error=type(error).__name__, cause=str(error), sent=None)

    def _verb(self, verb: str) -> Callable[..., Awaitable[Any]]:
        if verb == "inside_transaction":
            return self._inside_transaction
        found: Callable[..., Awaitable[Any]] = getattr(self._house, verb)
        return found

    async def _inside_transaction(self, signal_name: str) -> None:
        """Kill or stop this process while it holds the ledger's write lock (SQLite)."""
        store: Any = self._house.store
        await asyncio.to_thread(store._decide, lambda _connection: self._strike(signal_name))

    def _strike(self, signal_name: str) -> None:
        self._line.say(note="reached", point="inside_transaction", at_us=boot_us())
        signal.pthread_kill(threading.get_ident(), signal.Signals[signal_name])


def _decoded(value: Any) -> Any:
    if isinstance(value, Mapping) and "finding" in value:
        answers: dict[str, Callable[[], Answer]] = {
            "happened": lambda: happened(value.get("value")),
            "did_not_happen": lambda: did_not_happen("looked", job_status=value.get("job_status")),
        }
        return answers[value["finding"]]()
    return value


def _shown(value: Any) -> Any:
    if isinstance(value, Outcome):
        return {"state": value.state.value, "value": value.value, "replayed": value.replayed}
    if isinstance(value, RecordedCall):
        return {
            "state": value.state.value,
            "version": value.version,
            "digest": value.digest,
            "contradicted": value.raw.contradicted,
            "fence": value.raw.fence,
            "round": value.raw.round,
            "running": any(a.running for a in value.attempts),
            "reference": value.reference,
        }
    return None
