"""The lease keeper's own connection: synchronous, for a thread of its own, and never dependent on the house's loop."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from tollhouse.ledger.store import Counters, Owner, Renewal
from tollhouse.stores.common.errors import closed, crossed_fork
from tollhouse.stores.postgres.link import Link, patiently
from tollhouse.stores.postgres.statements import owners
from tollhouse.stores.postgres.target import Target

_END_S = 2.0
"""How long a process that leaves spends on saying so."""


class Leases:
    """Registers, renews and ends owners. A renewal takes a third of its lease at most, so that another can follow.

    It connects when first used and again when the connection was lost. Every method blocks, and raises
    :class:`~tollhouse.errors.StoreUnavailable` (nothing is known then) or :class:`~tollhouse.errors.HouseClosed`.
    """

    def __init__(self, target: Target, *, volatile: bool) -> None:
        self._target = target
        self._volatile = volatile
        self._pid = os.getpid()
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._link: Link | None = None

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
        """Close the connection; twice is harmless."""
        self._closed = True
        loop, self._loop = self._loop, None
        if loop is not None and self._link is not None and self._pid == os.getpid():
            loop.run_until_complete(self._link.close())
            loop.close()

    def _renewed(self, statement: str, values: tuple[Any, ...], lease_s: float) -> Renewal:
        (row,) = self._run(statement, (*values, round(lease_s * 1_000_000)), lease_s / 3)
        until_us = row["lease_until_us"]
        return Renewal(until_us is not None, row["now_us"], until_us or 0)

    def _run(self, statement: str, values: tuple[Any, ...], patience_s: float) -> list[Any]:
        if self._pid != os.getpid():
            raise crossed_fork()
        if self._closed:
            raise closed()
        if self._loop is None or self._link is None:
            self._loop = asyncio.new_event_loop()
            self._link = Link(self._target, Counters(), limit_s=max(patience_s / 2, 0.1), volatile=self._volatile)
        link = self._link
        step = patiently(link, lambda left_s: link.fetch(statement, *values, within_s=left_s), patience_s)
        return self._loop.run_until_complete(step)
