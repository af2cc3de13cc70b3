"""Crash points: named moments of a call's or a run's life at which a process kills, stops or fails itself.

Used by the crash tests, the drill, and by anyone who wants to see what their own tools come to. Nothing of this can be
reached in production: the points are in a wrapper around the store, in one around each tool's function and in one
around the model, and only a house opened with :func:`crashing_house` has them. POSIX only, since Windows has neither
signal.
"""

from __future__ import annotations

import copy
import functools
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, cast

from tollhouse.contract.tool import Tool
from tollhouse.errors import StoreUnavailable
from tollhouse.house.house import Tollhouse
from tollhouse.house.opening import open_house_over
from tollhouse.ledger.events import Event
from tollhouse.ledger.run_record import RunWrite, RunWritten
from tollhouse.ledger.store import LeaseConnection, Owner, Renewal, Store, Write, Written
from tollhouse.models.port import Model, ModelFailed, ModelReply, ModelRequest, OnText
from tollhouse.settings import settings_of
from tollhouse.stores import open_store

_DECISIONS = (
    "approved", "voted", "denied", "edited", "retried", "cancelled", "cancel_asked", "forced", "overturned", "upheld",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit that has a point before and one after it: the events it writes, and whose word they must carry."""

    sentence: str
    kinds: frozenset[str]
    via: str | None = None

    def has(self, event: Event) -> bool:
        """Whether this event belongs to such a commit."""
        if event.kind in ("settled", "found"):
            return self.via is not None and event.facts.get("via") == self.via
        return event.kind in self.kinds


COMMITS: dict[str, Commit] = {
    "departure": Commit("commit 1: the call departs", frozenset({"departed"})),
    "outcome": Commit("commit 2: an attempt ends, first-hand", frozenset({"outcome", "late_outcome"})),
    "record": Commit("the only commit of a read", frozenset({"recorded"})),
    "hold": Commit("the call waits for people", frozenset({"held"})),
    "wait_end": Commit("the caller's wait ends, the attempt goes on", frozenset({"wait_ended"})),
    "set_aside": Commit("a lost owner is set aside", frozenset({"owner_lost"})),
    "resend": Commit("the call is sent again", frozenset({"resent"})),
    "look_up": Commit("what a hook answered is written", frozenset({"looked_up"}), "hook"),
    "callback": Commit("what the receiver reported is written", frozenset(), "callback"),
    "decision": Commit("what a person decided is written", frozenset(_DECISIONS), "person"),
    "expiry": Commit("a hold or an approval ends", frozenset({"expired"})),
    "compensation": Commit("a compensation settles, with its original", frozenset({"compensated"})),
}
"""The commits of a call's life by name. ``before_<name>``: nothing of it is written. ``after_<name>``: it is durable,
and nobody has seen its acknowledgement."""

RUN_COMMITS: dict[str, Commit] = {
    "run_start": Commit("a run is started", frozenset({"run_started"})),
    "run_claim": Commit("a driver takes it", frozenset({"run_claimed"})),
    "run_release": Commit("its driver hands it over", frozenset({"run_released"})),
    "model_answer": Commit("what the model answered", frozenset({"model_answered"})),
    "model_failure": Commit("no model answered", frozenset({"model_failed"})),
    "calls_settled": Commit("what calls of the turn came to", frozenset({"calls_settled"})),
    "run_wait": Commit("what it waits for", frozenset({"run_waiting"})),
    "answer": Commit("what a person answered", frozenset({"question_answered"})),
    "verdict": Commit("what a check said of its final answer", frozenset({"output_verified"})),
    "limit": Commit("it stops at a limit, or is let go on", frozenset({"limit_reached", "limits_raised"})),
    "run_end": Commit("it ends", frozenset({"run_succeeded", "run_failed", "run_cancelled"})),
    "tidy": Commit("what it left is tidied up", frozenset({"run_tidied"})),
}
"""The commits of a run's life by name, with a point before and after each as for :data:`COMMITS`. A commit that ends a
run together with what ends it passes the points of both."""

MODEL_POINTS: dict[str, str] = {
    "before_model": "a model request is about to be sent",
    "after_model": "the model has answered, or failed; nothing of that is written",
}
WAKE_POINTS: dict[str, str] = {
    "before_forget": "the run was taken; the notes of what woke it are about to be forgotten",
    "after_forget": "the notes of what woke it are gone, nothing was read yet",
}

FUNCTION_POINTS: dict[str, str] = {
    "before_function": "the tool's function is about to begin",
    "after_function": "the tool's function has returned, nothing of that is written",
}
INSIDE = "inside_"
"""Names that begin so are a tool's own points; it reaches them by :meth:`Crashes.reach`."""

POINTS: tuple[str, ...] = (
    *(f"{moment}_{name}" for name in COMMITS for moment in ("before", "after")),
    *FUNCTION_POINTS,
)
"""Every point of a call's life; a tool may add its own (:data:`INSIDE`)."""

RUN_POINTS: tuple[str, ...] = (
    *(f"{moment}_{name}" for name in RUN_COMMITS for moment in ("before", "after")),
    *WAKE_POINTS,
    *MODEL_POINTS,
)
"""Every point of a run's life besides those of its calls. A run's points know its id as their key."""


class Action(StrEnum):
    """What happens at a point."""

    KILL = "kill"  # SIGKILL: nothing of this process runs any more
    STOP = "stop"  # SIGSTOP: nothing of it runs until somebody sends SIGCONT
    RAISE = "raise"  # the store is away: StoreUnavailable, or a function that fails


@dataclass(slots=True)
class Crash:
    """One misfortune: at the ``nth`` time (from 1) that ``point`` is reached, and ``times`` times from there on.

    ``key``: only where that call is concerned; None: any (a function's own points know no key). ``error``: what
    ``Action.RAISE`` raises. Raises ValueError for a point that does not exist.
    """

    point: str
    action: Action = Action.KILL
    nth: int = 1
    times: int = 1
    key: str | None = None
    error: Callable[[str], BaseException] = StoreUnavailable
    seen: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.point not in (*POINTS, *RUN_POINTS) and not self.point.startswith(INSIDE):
            raise ValueError(f"no crash point is named {self.point}")
        self.action = Action(self.action)

    def due(self, point: str, key: str | None) -> bool:
        """Count the passage; whether it happens now."""
        if point != self.point or (self.key is not None and key != self.key):
            return False
        self.seen += 1
        return self.nth <= self.seen < self.nth + self.times


class Crashes:
    """The misfortunes laid out for this process. ``reached`` lists the points that were passed, in order.

    ``announce(point)`` is called just before anything happens, on the thread that reached it.
    """

    def __init__(self, *crashes: Crash, announce: Callable[[str], None] = lambda _point: None) -> None:
        self._crashes, self._announce = list(crashes), announce
        self._lock = threading.Lock()
        self.reached: list[str] = []
        self.renewing = threading.Lock()
        """Held while the lease is renewed: a process stopped in the middle of that would hold SQLite's write lock, and
        what others come to meanwhile would be about that lock and not about the point."""

    def lay_out(self, crash: Crash) -> None:
        """One more, from now on."""
        with self._lock:
            self._crashes.append(crash)

    def reach(self, point: str, key: str | None = None) -> None:
        """Pass a point; what is laid out for it happens here. Callable from any thread."""
        with self._lock:
            self.reached.append(point)
            due = [crash for crash in self._crashes if crash.due(point, key)]
        for crash in due:
            self._announce(point)
            self._happen(crash, point)

    def _happen(self, crash: Crash, point: str) -> None:
        if crash.action is Action.RAISE:
            raise crash.error(f"The crash point {point} was reached.")
        # Sent to this very thread, which runs not one more instruction; it is the whole process that ends or stops.
        if crash.action is Action.KILL:
            signal.pthread_kill(threading.get_ident(), signal.SIGKILL)
        with self.renewing:
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


class CrashingStore:
    """A store whose writes pass crash points; everything else is the store's own."""

    def __init__(self, store: Store, crashes: Crashes) -> None:
        self._store, self._crashes = store, crashes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def write(self, *writes: Write) -> tuple[Written, ...]:
        """See :meth:`Store.write`. The points after a commit are passed only where it was applied."""
        passed = [(name, write.record.key) for write in writes for name in _commits_of(write.events, COMMITS)]
        self._pass("before", passed)
        written = await self._store.write(*writes)
        if all(each.applied for each in written):
            self._pass("after", passed)
        return written

    async def write_run(self, write: RunWrite) -> RunWritten:
        """See :meth:`RunStore.write_run`."""
        passed = [(name, write.record.id) for name in _commits_of(write.events, RUN_COMMITS)]
        self._pass("before", passed)
        store: Any = self._store
        written: RunWritten = await store.write_run(write)
        if written.applied:
            self._pass("after", passed)
        return written

    def lease_connection(self) -> LeaseConnection:
        """See :meth:`Store.lease_connection`."""
        return _Renewing(self._store.lease_connection(), self._crashes)

    async def forget_wakes(self, tenant: str, run_id: str) -> None:
        """See :meth:`RunStore.forget_wakes`."""
        self._crashes.reach("before_forget", run_id)
        store: Any = self._store
        await store.forget_wakes(tenant, run_id)
        self._crashes.reach("after_forget", run_id)

    def _pass(self, moment: str, passed: list[tuple[str, str]]) -> None:
        for name, key in passed:
            self._crashes.reach(f"{moment}_{name}", key)


class _Renewing:
    """A lease connection that no stop comes in the middle of; see :attr:`Crashes.renewing`."""

    def __init__(self, lease: LeaseConnection, crashes: Crashes) -> None:
        self._lease, self._crashes = lease, crashes

    def register(self, owner: Owner, lease_s: float) -> Renewal:
        with self._crashes.renewing:
            return self._lease.register(owner, lease_s)

    def renew(self, tenant: str, owner_id: str, lease_s: float) -> Renewal:
        with self._crashes.renewing:
            return self._lease.renew(tenant, owner_id, lease_s)

    def end(self, tenant: str, owner_id: str) -> None:
        self._lease.end(tenant, owner_id)

    def close(self) -> None:
        self._lease.close()


def _commits_of(events: Iterable[Event], commits: dict[str, Commit]) -> list[str]:
    return [name for name, commit in commits.items() if any(commit.has(event) for event in events)]


class CrashingModel:
    """A model whose requests pass crash points; the answers are the model's own."""

    def __init__(self, model: Model, crashes: Crashes) -> None:
        self._model, self._crashes = model, crashes

    async def ask(self, request: ModelRequest, on_text: OnText | None = None) -> ModelReply:
        """See :meth:`Model.ask`."""
        run_id = request.key.partition(":")[0]
        self._crashes.reach("before_model", run_id)
        try:
            reply = await self._model.ask(request, on_text)
        except ModelFailed:
            self._crashes.reach("after_model", run_id)
            raise
        self._crashes.reach("after_model", run_id)
        return reply

    async def close(self) -> None:
        """Close the model."""
        await self._model.close()


def crashing_tool(tool: Tool[Any], crashes: Crashes) -> Tool[Any]:
    """The same tool, its function between two crash points."""
    fn = tool.fn

    @functools.wraps(fn)
    async def asynchronous(**arguments: Any) -> Any:
        crashes.reach("before_function")
        value = await fn(**arguments)
        crashes.reach("after_function")
        return value

    @functools.wraps(fn)
    def synchronous(**arguments: Any) -> Any:
        crashes.reach("before_function")
        value = fn(**arguments)
        crashes.reach("after_function")
        return value

    wrapped = copy.copy(tool)
    wrapped.fn = asynchronous if tool.is_async else synchronous
    return wrapped


@asynccontextmanager
async def crashing_house(
    url: str, crashes: Crashes, *, tools: Iterable[Tool[Any]] = (), **settings: Any
) -> AsyncIterator[Tollhouse]:
    """A house as :meth:`Tollhouse.open` opens it, with crash points. ``settings`` and errors are the same."""
    chosen = settings_of({**settings, "tools": [crashing_tool(each, crashes) for each in tools]})

    async def opened() -> Store:
        store = await open_store(url, volatile=chosen.volatile, busy_timeout_s=chosen.store_wait_s)
        return cast(Store, CrashingStore(store, crashes))

    house = await open_house_over(opened, chosen)
    try:
        yield house
    finally:
        await house.close()
