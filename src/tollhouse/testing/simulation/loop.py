"""The scheduler of a simulated history: one event loop that stands for several processes, on a clock of its own.

Each simulated process keeps the order of its own callbacks, as a real loop does; which process goes next is drawn from
the history's seed. Time passes only when nobody has anything left to do. A process can be frozen (its callbacks wait),
thawed, or killed (they are dropped, for ever).
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from asyncio import events
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from random import Random
from typing import Any, cast

OUTSIDE = ""
"""The name of everything that is no process: the store, the network, the receiver, the hand of fate."""

PROCESS: ContextVar[str] = ContextVar("simulated_process", default=OUTSIDE)
"""To which process the running callback belongs; every task and timer inherits it."""


class ProcessEnded(BaseException):
    """Raised into what is left of a history that is over: nothing more can be waited for."""


class Lane:
    """The callbacks of one process that are ready to run, in their order."""

    __slots__ = ("dead", "frozen", "ready")

    def __init__(self) -> None:
        self.ready: deque[asyncio.Handle] = deque()
        self.frozen = False
        self.dead = False


class SimulatedLoop:
    """See the module's docstring. ``now_s`` is the world's time; processes have clocks of their own beside it.

    It has only what tasks, futures, timers and the kernel ask of a loop: no sockets, no signals, no threads.
    """

    def __init__(self, randomness: Random, *, start_s: float = 1000.0) -> None:
        self.now_s = start_s
        self.lanes: dict[str, Lane] = {OUTSIDE: Lane()}
        self.unhandled: list[dict[str, Any]] = []
        self._randomness = randomness
        self._timers: list[tuple[float, int, asyncio.TimerHandle, Lane]] = []
        self._count = itertools.count()
        self._tasks: list[asyncio.Task[Any]] = []
        self._over = False
        self._outside = Context()
        self._itself = cast(asyncio.AbstractEventLoop, self)

    # -- what asyncio asks of a loop ---------------------------------------------------------------------------

    def time(self) -> float:
        return self.now_s

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self._over

    def is_closed(self) -> bool:
        return self._over

    def create_future(self) -> asyncio.Future[Any]:
        if self._over:
            raise ProcessEnded
        return asyncio.Future(loop=self._itself)

    def create_task(
        self, coro: Any, *, name: str | None = None, context: Context | None = None, **_more: Any
    ) -> asyncio.Task[Any]:
        if self._over:
            coro.close()
            raise ProcessEnded
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self._itself, name=name or "simulated", context=context)
        self._tasks.append(task)
        return task

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> asyncio.Handle:
        context = copy_context() if context is None else context
        handle = asyncio.Handle(callback, args, self._itself, context)
        lane = self.lanes[context.get(PROCESS, OUTSIDE)]
        if not lane.dead:
            lane.ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.now_s + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        context = copy_context() if context is None else context
        handle = asyncio.TimerHandle(when, callback, args, self._itself, context)
        lane = self.lanes[context.get(PROCESS, OUTSIDE)]
        if not (lane.dead or self._over):
            heapq.heappush(self._timers, (when, next(self._count), handle, lane))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are skipped when their time comes."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self._over:
            self.unhandled.append(context)

    # -- processes ---------------------------------------------------------------------------------------------

    def outside(self, delay_s: float, callback: Callable[..., Any], *args: Any) -> None:
        """Have the world do something that no process can stop."""
        self.call_at(self.now_s + delay_s, callback, *args, context=self._outside)

    def begin(self, process: str, coroutine: Any) -> None:
        """Run a coroutine as that process, which exists from now on."""
        self.lanes.setdefault(process, Lane())
        context = Context()
        context.run(PROCESS.set, process)
        _ = self.create_task(coroutine, context=context)

    def kill(self, process: str) -> None:
        """Nothing of that process runs any more."""
        lane = self.lanes[process]
        lane.dead = True
        lane.ready.clear()

    # -- running -----------------------------------------------------------------------------------------------

    def run(self, until_s: float) -> None:
        """Run until nothing is left to do before ``until_s``, which is then the time."""
        events._set_running_loop(self._itself)
        try:
            while self._turn() or self._wait(until_s):
                pass
        finally:
            events._set_running_loop(None)

    def _turn(self) -> bool:
        """One pass of one process, drawn by lot: what a real loop does between two looks at the clock."""
        lanes = [lane for lane in self.lanes.values() if lane.ready and not lane.frozen]
        if not lanes:
            return False
        lane = lanes[0] if len(lanes) == 1 else lanes[int(self._randomness.random() * len(lanes))]
        ready = lane.ready
        for _ in range(len(ready)):
            if not ready or lane.frozen:
                break
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()
        return True

    def _wait(self, until_s: float) -> bool:
        timers = self._timers
        if not timers or timers[0][0] > until_s:
            self.now_s = max(self.now_s, until_s)
            return False
        self.now_s = max(self.now_s, timers[0][0])
        while timers and timers[0][0] <= self.now_s:
            _, _, handle, lane = heapq.heappop(timers)
            if not (handle._cancelled or lane.dead):
                lane.ready.append(handle)
        return True

    def end(self) -> None:
        """Close everything that still waits. No callback runs any more, and nothing can begin to wait."""
        self._over = True
        events._set_running_loop(self._itself)
        try:
            for task in self._tasks:
                if not task.done():
                    _close(task)
        finally:
            events._set_running_loop(None)
        for lane in self.lanes.values():
            lane.ready.clear()
        self._timers.clear()
        self._tasks.clear()


def _close(task: asyncio.Task[Any]) -> None:
    """Let the coroutine's own clean-up run to its end; whatever it raises is of no interest any more."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    try:
        coroutine: Any = task.get_coro()
        coroutine.close()
    except BaseException:
        return
