"""The house without ``await``: the same methods, run on a loop of their own in a background thread."""

from __future__ import annotations

import asyncio
import builtins
import os
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, TypeVar, Unpack, overload

from tollhouse.contract.answers import Answer
from tollhouse.contract.tool import Tool
from tollhouse.errors import HouseClosed, NotAllowed
from tollhouse.gate.outcome import Outcome
from tollhouse.gate.view import RecordedCall
from tollhouse.house.house import CROSSED_FORK, STOP_S, CallOptions, Tollhouse
from tollhouse.house.opening import open_house
from tollhouse.ledger.record import State
from tollhouse.settings import HouseSettings

T = TypeVar("T")
R = TypeVar("R")

_OTHER_THREAD = "Ask from another thread: a `def` tool runs in one; a listener or an `async def` tool does not."
_ASK_AGAIN = "Open a house and ask for the same key: it says what became of the call."


class SyncTollhouse:
    """See :class:`~tollhouse.house.Tollhouse` for what each method promises. Safe to share between threads."""

    def __init__(self, store: str, settings: HouseSettings) -> None:
        self._store, self._settings = store, settings
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._house: Tollhouse | None = None
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def __enter__(self) -> SyncTollhouse:
        loop = self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_serve, args=(loop,), name="tollhouse-loop", daemon=True)
        self._thread.start()
        try:
            self._house = self._run(open_house(self._store, self._settings))
        except BaseException:
            self._stop_loop()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """See :meth:`Tollhouse.close`. A call that another thread still waits for then raises :class:`HouseClosed`."""
        if self._pid == os.getpid() and self._house is not None:
            with suppress(HouseClosed):  # another thread has closed it meanwhile
                self._run(self._house.close())
            self._stop_loop()
        self._house = None

    def _stop_loop(self) -> None:
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(_cancel_others(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        future = self._begin(coroutine)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()  # ends the wait, not the attempt
            raise
        except CancelledError:
            raise HouseClosed("The house was closed meanwhile.", remedy=_ASK_AGAIN) from None

    def _begin(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        if self._pid != os.getpid():
            coroutine.close()
            raise HouseClosed(CROSSED_FORK)
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise NotAllowed("This is the house's own thread: it would wait here for itself.", remedy=_OTHER_THREAD)
        with self._lock:  # so that nothing is begun on a loop that is about to stop
            if self._loop is None:
                coroutine.close()
                raise HouseClosed("The house is closed.")
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    @property
    def _opened(self) -> Tollhouse:
        if self._house is None:
            raise HouseClosed("The house is not open.", remedy="Use it inside `with Tollhouse.open_sync(...)`.")
        return self._house

    @overload
    def call(
        self,
        tool: Tool[R],
        arguments: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Outcome[R]: ...

    @overload
    def call(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Outcome[Any]: ...

    def call(
        self,
        tool: Any,
        arguments: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Outcome[Any]:
        """See :meth:`Tollhouse.call`."""
        return self._run(self._opened.call(tool, arguments, key=key, **options))

    def get(self, key: str) -> RecordedCall:
        """See :meth:`Tollhouse.get`."""
        return self._run(self._opened.get(key))

    def list(self, **query: Any) -> list[RecordedCall]:
        """See :meth:`Tollhouse.list`; a plain list."""
        listing = self._opened.list(**query)

        async def everything() -> list[RecordedCall]:
            return await listing

        return self._run(everything())

    def count(self) -> dict[State, int]:
        """See :meth:`Tollhouse.count`."""
        return self._run(self._opened.count())

    def wait(self, key: str, *, timeout_s: float | None = None) -> RecordedCall:
        """See :meth:`Tollhouse.wait`."""
        return self._run(self._opened.wait(key, timeout_s=timeout_s))

    def reconcile(self, key: str) -> RecordedCall:
        """See :meth:`Tollhouse.reconcile`."""
        return self._run(self._opened.reconcile(key))

    def resolve(self, key: str, answer: Answer, **decision: Any) -> RecordedCall:
        """See :meth:`Tollhouse.resolve`."""
        return self._run(self._opened.resolve(key, answer, **decision))

    def report(self, key: str, answer: Answer, *, reference: str) -> RecordedCall:
        """See :meth:`Tollhouse.report`."""
        return self._run(self._opened.report(key, answer, reference=reference))

    def approve(self, key: str, **decision: Any) -> RecordedCall:
        """See :meth:`Tollhouse.approve`."""
        return self._run(self._opened.approve(key, **decision))

    def deny(self, key: str, **decision: Any) -> RecordedCall:
        """See :meth:`Tollhouse.deny`."""
        return self._run(self._opened.deny(key, **decision))

    def edit(self, key: str, arguments: Mapping[str, Any], **decision: Any) -> RecordedCall:
        """See :meth:`Tollhouse.edit`."""
        return self._run(self._opened.edit(key, arguments, **decision))

    def retry(self, key: str, **decision: Any) -> RecordedCall:
        """See :meth:`Tollhouse.retry`."""
        return self._run(self._opened.retry(key, **decision))

    def cancel(self, key: str, **decision: Any) -> RecordedCall:
        """See :meth:`Tollhouse.cancel`."""
        return self._run(self._opened.cancel(key, **decision))

    def overturn(self, key: str, **decision: Any) -> RecordedCall:
        """See :meth:`Tollhouse.overturn`."""
        return self._run(self._opened.overturn(key, **decision))

    def uphold(self, key: str, **decision: Any) -> RecordedCall:
        """See :meth:`Tollhouse.uphold`."""
        return self._run(self._opened.uphold(key, **decision))

    def compensate(self, key: str, *, by: str, reason: str) -> Outcome[Any]:
        """See :meth:`Tollhouse.compensate`."""
        return self._run(self._opened.compensate(key, by=by, reason=reason))

    @property
    def tools(self) -> builtins.list[Tool[Any]]:
        """See :attr:`Tollhouse.tools`."""
        return self._opened.tools


async def _cancel_others() -> None:
    """End what still runs on this loop, so that no thread waits for ever for an answer that nobody will give."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=STOP_S)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
