"""The house without ``await``: the same methods, run on a loop of their own in a background thread."""

from __future__ import annotations

import asyncio
import builtins
import threading
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from tollhouse.contract.answers import Answer
from tollhouse.contract.tool import Tool
from tollhouse.errors import HouseClosed
from tollhouse.gate.outcome import Outcome
from tollhouse.gate.view import RecordedCall
from tollhouse.house.house import Tollhouse
from tollhouse.house.opening import open_house
from tollhouse.ledger.record import State
from tollhouse.settings import HouseSettings

T = TypeVar("T")


class SyncTollhouse:
    """See :class:`~tollhouse.house.Tollhouse` for what each method promises. Safe to share between threads."""

    def __init__(self, store: str, settings: HouseSettings) -> None:
        self._store, self._settings = store, settings
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._house: Tollhouse | None = None

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
        """See :meth:`Tollhouse.close`."""
        if self._house is not None:
            self._run(self._house.close())
            self._house = None
        self._stop_loop()

    def _stop_loop(self) -> None:
        if self._loop is None or self._thread is None:
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = None

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self._loop is None or not self._loop.is_running():
            coroutine.close()
            raise HouseClosed("The house is closed.")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()  # ends the wait, not the attempt
            raise

    @property
    def _opened(self) -> Tollhouse:
        if self._house is None:
            raise HouseClosed("The house is not open.", remedy="Use it inside `with Tollhouse.open_sync(...)`.")
        return self._house

    def call(
        self,
        tool: Tool[Any] | str,
        arguments: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        **options: Any,
    ) -> Outcome[Any]:
        """See :meth:`Tollhouse.call`."""
        name: Any = tool
        return self._run(self._opened.call(name, arguments, key=key, **options))

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


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
