"""Awaiting something that must come to its end, without a task of its own for it.

A task for each lone write would cost a tenth of its two commits. Used by the writer, for steps that are bound to no
task: no ``asyncio.timeout`` inside.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Unhurried(Generic[T]):
    """Runs ``steps`` in the task that awaits it; when that is cancelled, they go on in a task that ``adopt`` makes."""

    def __init__(self, steps: Coroutine[Any, Any, T], adopt: Callable[[Coroutine[Any, Any, T]], object]) -> None:
        self._steps = steps
        self._adopt = adopt

    def __await__(self) -> Generator[Any, None, T]:
        loop = asyncio.get_running_loop()
        while True:
            try:
                awaited: asyncio.Future[Any] = self._steps.send(None)
            except StopIteration as done:
                result: T = done.value
                return result
            # A cancelled task cancels what it waits for, so it must not wait for that itself.
            heard: asyncio.Future[None] = loop.create_future()
            awaited.add_done_callback(lambda _, heard=heard: heard.done() or heard.set_result(None))  # type: ignore[misc]
            try:
                yield from heard
            except BaseException:
                # Where it stands, the coroutine can be resumed only once that is done.
                awaited.add_done_callback(lambda _: self._adopt(self._steps))
                raise
