"""The lease keeper's own connection: synchronous, for a thread of its own, and never dependent on the house's loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from tollhouse.errors import StoreUnavailable
from tollhouse.ledger.store import Counters, Owner, Renewal
from tollhouse.stores.common.errors import closed, crossed_fork
from tollhouse.stores.common.raw import restored_at_us
from tollhouse.stores.postgres.link import Link, patiently
from tollhouse.stores.postgres.statements import owners
from tollhouse.stores.postgres.target import Target

T = TypeVar("T")

_END_S = 2.0
"""How long a process that leaves spends on saying so."""

_RENEWAL_MIN_S = 1.0
"""What a renewal may take at least, however short its lease: a connection is not made in less on a busy machine."""

_GRACE_S = 1.0
"""What a step may take beyond its own bound before its thread counts as stuck."""


class Leases:
    """Registers, renews and ends owners. A renewal takes a third of its lease at most, so that another can follow.

    The connection lives on a loop in a thread of its own, begun when first needed; it is made again when it was lost.
    Every method blocks, may be called from any thread, and raises :class:`~tollhouse.errors.StoreUnavailable` (nothing
    is known then) or :class:`~tollhouse.errors.HouseClosed`.
    """

    def __init__(self, target: Target, *, volatile: bool) -> None:
        self._link = Link(target, Counters(), limit_s=target.try_s, volatile=volatile)
        self._pid = os.getpid()
        self._one_at_a_time = threading.Lock()
        self._closed = False
        self._thread: _LoopThread | None = None

    def register(self, owner: Owner, lease_s: float) -> Renewal:
        """Write the owner down with its first lease; a repeat of the same registration renews it."""
        values = (owner.tenant, owner.id, owner.host, owner.pid, owner.pid_started, owner.label)
        return self._renewed(owners.REGISTER, values, lease_s)

    def renew(self, tenant: str, owner_id: str, lease_s: float) -> Renewal:
        """Move the end of the lease, also of one that has passed; not of an owner that was ended."""
        return self._renewed(owners.RENEW, (tenant, owner_id), lease_s)

    def end(self, tenant: str, owner_id: str) -> None:
        """End the owner at once."""
        self._run(owners.END, (tenant, owner_id), _END_S)

    def close(self) -> None:
        """Close the connection and end the thread; twice is harmless."""
        if self._pid != os.getpid():
            return
        with self._one_at_a_time:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.finish(self._link.close())

    def _renewed(self, statement: str, values: tuple[Any, ...], lease_s: float) -> Renewal:
        (row,) = self._run(statement, (*values, round(lease_s * 1_000_000)), max(lease_s / 3, _RENEWAL_MIN_S))
        until_us = row["lease_until_us"]
        return Renewal(until_us is not None, row["now_us"], until_us or 0, restored_at_us(row["restored"]))

    def _run(self, statement: str, values: tuple[Any, ...], patience_s: float) -> list[Any]:
        if self._pid != os.getpid():
            raise crossed_fork()
        with self._one_at_a_time:
            if self._closed:
                raise closed()
            if self._thread is None:
                self._thread = _LoopThread()
            # Half the time for each try: a connection that went silent leaves time for another.
            step = patiently(
                self._link,
                lambda left_s: self._link.fetch(statement, *values, within_s=min(left_s, patience_s / 2)),
                patience_s,
            )
            return self._thread.run(step, patience_s + _GRACE_S)


class _LoopThread:
    """An event loop that runs in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tollhouse-lease-io", daemon=True)
        self._thread.start()

    def run(self, step: Coroutine[Any, Any, T], within_s: float) -> T:
        """Run ``step`` there and wait for it."""
        future = asyncio.run_coroutine_threadsafe(step, self._loop)
        try:
            return future.result(within_s)
        except TimeoutError:
            future.cancel()
            raise StoreUnavailable("The store did not answer in time.") from None

    def finish(self, last: Coroutine[Any, Any, None]) -> None:
        """Run ``last``, then end the thread."""
        # At worst the connection falls with its loop.
        with contextlib.suppress(StoreUnavailable):
            self.run(last, _END_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
