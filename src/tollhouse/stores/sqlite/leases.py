"""The lease keeper's view of the store: synchronous, for a thread of its own, and never dependent on the event loop."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Protocol, TypeVar

from tollhouse.ledger.store import Owner, Renewal
from tollhouse.stores.sqlite import owners
from tollhouse.stores.sqlite.clock import NeverBack

T = TypeVar("T")


class Decide(Protocol):
    """Runs a function of the connection in a write transaction, durable on return."""

    def __call__(self, step: Callable[[sqlite3.Connection], T], /) -> T: ...


class Leases:
    """Registers, renews and ends owners through the store's writer thread, ahead of all waiting writes.

    No second connection: SQLite lets one write at a time, so it would only wait for the writer's lock, out of turn and
    with an fsync of its own. What must not stop a renewal is the event loop, and the writer thread does not need it.
    Renewals are as durable as every write. Losing the last one in a power cut would do no harm, as its process is gone
    too; one fsync in ten seconds is not worth a second kind of commit.

    Every method blocks, and raises :class:`~tollhouse.errors.StoreUnavailable` (nothing is known then) or
    :class:`~tollhouse.errors.HouseClosed`.
    """

    def __init__(self, decide: Decide, clock: NeverBack) -> None:
        self._decide = decide
        self._clock = clock

    def register(self, owner: Owner, lease_s: float) -> Renewal:
        """Write the owner down with its first lease."""
        return self._decide(lambda connection: owners.register(connection, self._clock, owner, _us(lease_s)))

    def renew(self, tenant: str, owner_id: str, lease_s: float) -> Renewal:
        """Move the end of the lease, also of one that has passed; not of an owner that was ended."""
        return self._decide(lambda connection: owners.renew(connection, self._clock, tenant, owner_id, _us(lease_s)))

    def end(self, tenant: str, owner_id: str) -> None:
        """End the owner at once."""
        self._decide(lambda connection: owners.end(connection, self._clock, tenant, owner_id))

    def close(self) -> None:
        """Nothing to close: the writer belongs to the store."""


def _us(seconds: float) -> int:
    return round(seconds * 1_000_000)
