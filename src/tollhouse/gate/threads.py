"""A bounded pool of daemon threads for ``def`` tools.

Not ``concurrent.futures``: its threads are joined at interpreter exit, so one tool that never returns would keep the
process alive, and its queue is unbounded. Here a thread that outlives its call is counted as leaked, and replaced
while the bound allows.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from typing import Any

MOST_THREADS = 64


class ThreadPool:
    """Runs functions in daemon threads, at most ``size`` at a time; more wait in order.

    ``leaked`` counts functions still running although nobody waits for them any more. Belongs to one event loop.
    """

    def __init__(self, size: int = MOST_THREADS) -> None:
        self._size = size
        self._lock = threading.Condition()
        self._waiting: OrderedDict[asyncio.Future[Any], Callable[[], None]] = OrderedDict()
        self._threads = 0
        self._idle = 0
        self._closed = False
        self._unfinished: set[asyncio.Future[Any]] = set()
        self._left: set[asyncio.Future[Any]] = set()

    @property
    def leaked(self) -> int:
        return sum(1 for future in self._unfinished if future in self._left or future.cancelled())

    def leave(self, future: asyncio.Future[Any]) -> None:
        """Nobody waits for this function any more; its result is still delivered."""
        if future in self._unfinished:
            self._left.add(future)

    def withdraw(self, future: asyncio.Future[Any]) -> bool:
        """Let a function that no thread has taken yet never run; False when one has. Its future is left as it is."""
        with self._lock:
            if self._waiting.pop(future, None) is None:
                return False
        self._unfinished.discard(future)
        self._left.discard(future)
        return True

    def run(self, fn: Callable[..., Any], /, **arguments: Any) -> asyncio.Future[Any]:
        """Start ``fn`` as soon as a thread is free; cancelling the future stops nothing that has begun."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._unfinished.add(future)
        context = copy_context()

        def work() -> None:
            try:
                value, error = context.run(fn, **arguments), None
            except BaseException as raised:
                value, error = None, raised
            with suppress(RuntimeError):  # the loop is gone, and with it everybody who could care
                loop.call_soon_threadsafe(self._answer, future, value, error)

        self._put(future, work)
        future.add_done_callback(lambda done: self.withdraw(done) if done.cancelled() else None)
        return future

    def _put(self, future: asyncio.Future[Any], work: Callable[[], None]) -> None:
        with self._lock:
            self._waiting[future] = work
            if len(self._waiting) <= self._idle:  # a thread that was woken counts as idle until it takes its work
                self._lock.notify()
            elif self._threads < self._size:
                self._threads += 1
                threading.Thread(target=self._serve, name="tollhouse-tool", daemon=True).start()

    def _serve(self) -> None:
        while True:
            with self._lock:
                while not self._waiting:
                    if self._closed:
                        self._threads -= 1
                        return
                    self._idle += 1
                    self._lock.wait()
                    self._idle -= 1
                _future, work = self._waiting.popitem(last=False)
            work()

    def close(self) -> None:
        """Let idle threads end; running ones end when their function does."""
        with self._lock:
            self._closed = True
            self._lock.notify_all()

    def _answer(self, future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
        self._unfinished.discard(future)
        self._left.discard(future)
        if future.done():
            return
        if error is None:
            future.set_result(value)
        elif isinstance(error, StopIteration | GeneratorExit):  # they would end the coroutine that waits
            wrapped = RuntimeError(f"the tool raised {type(error).__name__}")
            wrapped.__cause__ = error
            future.set_exception(wrapped)
        else:
            future.set_exception(error)
