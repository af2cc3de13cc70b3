"""The context of one attempt: its identity towards the receiver, and the last check before bytes leave."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from tollhouse.contract.answers import NotSent
from tollhouse.contract.context import CallContext
from tollhouse.contract.terms import US
from tollhouse.errors import TollhouseError
from tollhouse.gate.http import Sends
from tollhouse.ledger.keys import subkey
from tollhouse.ledger.record import Attempt, CallRecord
from tollhouse.ledger.store import Fence

if TYPE_CHECKING:
    import httpx2

COMMIT_IS_CHECK_US = 100_000
"""Commit 1 stands in for the fence check of a send that starts this soon after its acknowledgement.

Counted from before that commit, since a process may stand still before it hears the acknowledgement."""

FENCE_CHECK_S = 2.0
"""How long the store may take to answer the last check; slower means no."""


class DepartureRefused(NotSent):
    """The last check said no: this attempt may not send any more."""


class Sender(Protocol):
    """What the context needs of the house: the store's word on the fence, the lease, the clock, HTTP transports."""

    def local_us(self) -> int: ...

    def lease_until_local_us(self, owner_id: str) -> int: ...

    def to_local_us(self, store_us: int) -> int: ...

    async def read_fence(self, tenant: str, key: str) -> Fence | None: ...

    def http_client(self, context: Context) -> httpx2.AsyncClient: ...

    def http_client_sync(self, context: Context) -> httpx2.Client: ...


class Context(CallContext):
    """What a tool receives for its :class:`CallContext` parameter. One per attempt; closed when the attempt ends."""

    def __init__(
        self,
        sender: Sender,
        record: CallRecord,
        attempt: Attempt,
        *,
        acknowledged_local_us: int,
        loop: asyncio.AbstractEventLoop,
        principal: str,
        secrets: Mapping[str, str] | None = None,
        rejected_statuses: frozenset[int] = frozenset(),
        is_rejection: Callable[[BaseException], bool] = lambda _error: False,
    ) -> None:
        self.key, self.tenant, self.principal = record.key, record.tenant, principal
        self.idempotency_key = record.wire_key
        self.attempt = attempt.number
        self.attempt_id = attempt.id
        self.timeout_s = record.limits.attempt_timeout_s
        self.rejected_statuses, self.is_rejection = rejected_statuses, is_rejection
        self._sender, self._owner, self._fence = sender, attempt.owner, attempt.fence
        self._send_by_local_us = sender.to_local_us(attempt.send_by_us)
        self._acknowledged_local_us = acknowledged_local_us
        self._loop, self._secrets = loop, dict(secrets or {})
        self._loop_thread = threading.get_ident()
        self._http: httpx2.AsyncClient | None = None
        self._http_sync: httpx2.Client | None = None
        left_s = (self._send_by_local_us - sender.local_us()) / US
        self.deadline = time.time() + left_s
        self.confirmed = False
        """A check has passed: from here on something may have left."""
        self.sends = Sends()
        """What ``ctx.http`` has put on the wire: nothing after this can be *not sent*."""
        self._begun = threading.Lock()
        self.started = False
        self.thread: asyncio.Future[Any] | None = None
        """Where the function of a ``def`` tool runs."""
        self._stopped: str | None = None

    @property
    def remaining_s(self) -> float:
        return max(0.0, (self._send_by_local_us - self._sender.local_us()) / US)

    @property
    def secrets(self) -> dict[str, str]:
        return dict(self._secrets)

    @property
    def http(self) -> httpx2.AsyncClient:
        if self._http is None:
            self._http = self._sender.http_client(self)
        return self._http

    @property
    def http_sync(self) -> httpx2.Client:
        if self._http_sync is None:
            self._http_sync = self._sender.http_client_sync(self)
        return self._http_sync

    def subkey(self, name: str) -> str:
        return subkey(self.idempotency_key, name)

    def stop(self, why: str) -> None:
        """From now on every check says no: the call was cancelled, or its attempt has ended."""
        self._stopped = self._stopped or why

    def stop_unless_started(self, why: str) -> bool:
        """Stop an attempt whose function has not begun; False when it has."""
        with self._begun:
            if self.started:
                return False
            self.stop(why)
            return True

    def begin(self) -> None:
        """The function of the tool begins now. Raises when the attempt was stopped before."""
        with self._begun:
            self._may_send()
            self.started = True

    async def confirm(self) -> None:
        await self.check()
        self.confirmed = self.sends.elsewhere = True

    async def check(self) -> None:
        """The last check, without the statement that something leaves now."""
        self._may_send()
        if not self._fresh():
            self._read_says_yes(await self._read_fence())
            self._may_send()

    def confirm_sync(self) -> None:
        self.check_sync()
        self.confirmed = self.sends.elsewhere = True

    def check_sync(self) -> None:
        """:meth:`check` from a thread. On the event loop, which it would block, it says no."""
        self._may_send()
        if not self._fresh():
            if threading.get_ident() == self._loop_thread:
                raise DepartureRefused("An `async def` tool awaits ctx.confirm() and uses ctx.http: nothing was sent.")
            asked = asyncio.run_coroutine_threadsafe(self._read_fence(), self._loop)
            try:
                answer = asked.result(FENCE_CHECK_S * 2)
            except (TimeoutError, asyncio.CancelledError, RuntimeError):
                asked.cancel()
                raise DepartureRefused("The store did not answer the last check, so nothing was sent.") from None
            self._read_says_yes(answer)
            self._may_send()

    def _fresh(self) -> bool:
        """Whether commit 1 is recent enough to be the check itself; only for the first send of an attempt."""
        return not self.confirmed and self._sender.local_us() - self._acknowledged_local_us <= COMMIT_IS_CHECK_US

    async def _read_fence(self) -> Fence | None:
        try:
            return await asyncio.wait_for(self._sender.read_fence(self.tenant, self.key), FENCE_CHECK_S)
        except (TollhouseError, TimeoutError):
            raise DepartureRefused("The store did not answer the last check, so nothing was sent.") from None

    def _read_says_yes(self, fence: Fence | None) -> None:
        if fence is None or fence.fence != self._fence:
            raise DepartureRefused("The call was taken over or settled before this attempt could send.")
        if fence.cancel_asked:
            raise DepartureRefused("The call was cancelled before this attempt could send.")

    def _may_send(self) -> None:
        if self._stopped is not None:
            raise DepartureRefused(self._stopped)
        now_us = self._sender.local_us()
        if now_us >= self._send_by_local_us:
            raise DepartureRefused("The attempt ran out of time before it could send.")
        if now_us >= self._sender.lease_until_local_us(self._owner):
            raise DepartureRefused("The process lost its lease before this attempt could send.")
