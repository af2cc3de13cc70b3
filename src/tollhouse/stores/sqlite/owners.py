"""What is decided about owners, each in the transaction that is open: registration, renewal, ends.

Every decision is taken on a time that is written down with it, so that none is ever taken on an earlier one.
"""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from typing import Any

from tollhouse.ledger.store import Owner, Renewal
from tollhouse.stores.common.raw import RESTORED, restored_at_us
from tollhouse.stores.sqlite.clock import NeverBack
from tollhouse.stores.sqlite.statements import calls, meta, owners

CLOCK = "clock_us"
"""Where `meta` keeps the greatest time that was ever decided by."""


def register(connection: sqlite3.Connection, clock: NeverBack, owner: Owner, lease_us: int) -> Renewal:
    """Write the owner down with its first lease; a repeat of the same registration renews it."""
    now_us = time_of_decision(connection, clock)
    until_us = now_us + lease_us
    values = (owner.tenant, owner.id, owner.host, owner.pid, owner.pid_started, owner.label, until_us, now_us)
    if connection.execute(owners.REGISTER, values).rowcount == 1:
        return Renewal(True, now_us, until_us, _restored_at_us(connection))
    return renew(connection, clock, owner.tenant, owner.id, lease_us)


def renew(connection: sqlite3.Connection, clock: NeverBack, tenant: str, owner_id: str, lease_us: int) -> Renewal:
    """Move the end of its lease, unless the owner was ended."""
    now_us = time_of_decision(connection, clock)
    if connection.execute(owners.RENEW, (now_us + lease_us, tenant, owner_id)).rowcount == 1:
        return Renewal(True, now_us, now_us + lease_us, _restored_at_us(connection))
    ended = get(connection, tenant, owner_id)
    return Renewal(False, now_us, ended.lease_until_us if ended else 0)


def end(connection: sqlite3.Connection, clock: NeverBack, tenant: str, owner_id: str) -> None:
    """End the owner now, if it has not ended."""
    connection.execute(owners.END, (time_of_decision(connection, clock), tenant, owner_id))


def end_dead(connection: sqlite3.Connection, clock: NeverBack, tenant: str, owner_id: str) -> None:
    """End the owner and record that its process is proven gone."""
    connection.execute(owners.END_DEAD, (time_of_decision(connection, clock), tenant, owner_id))


def end_expired(connection: sqlite3.Connection, clock: NeverBack, tenant: str, by_us: int | None) -> None:
    """End every owner of the tenant whose lease has ended; nobody when it is later than ``by_us``."""
    now_us = time_of_decision(connection, clock)
    if by_us is None or now_us <= by_us:
        connection.execute(owners.END_EXPIRED, (now_us, tenant, now_us))


def time_of_decision(connection: sqlite3.Connection, clock: NeverBack) -> int:
    """The store's time, at or after every earlier decision's; remembered in the same transaction."""
    now_us = clock.now_us(at_least_us=last_decision_us(connection))
    connection.execute(meta.PUT, (CLOCK, str(now_us)))
    return now_us


def last_decision_us(connection: sqlite3.Connection) -> int:
    """The greatest time that was ever decided by; 0 before the first."""
    rows = connection.execute(meta.GET, (CLOCK,)).fetchall()
    return int(rows[0][0]) if rows else 0


def _restored_at_us(connection: sqlite3.Connection) -> int | None:
    rows = connection.execute(meta.GET, (RESTORED,)).fetchall()
    return restored_at_us(rows[0][0] if rows else None)


# -- readings ----------------------------------------------------------------------------------------------------


def any_expired(connection: sqlite3.Connection, tenant: str, now_us: int) -> bool:
    """Whether :func:`end_expired` would find one: asked first, as a sweep that finds nothing should write nothing."""
    return bool(connection.execute(owners.EXPIRED, (tenant, now_us)).fetchall())


def get(connection: sqlite3.Connection, tenant: str, owner_id: str) -> Owner | None:
    """The owner, ended or not."""
    rows = connection.execute(owners.GET, (tenant, owner_id)).fetchall()
    return _owner(rows[0]) if rows else None


def ended_with_open_attempts(connection: sqlite3.Connection, tenant: str) -> list[Owner]:
    """Ended owners of attempts that have not ended, by id. It looks at open attempts, as owners are never forgotten."""
    rows = connection.execute(calls.OPEN_OWNERS, (tenant,)).fetchall()
    named = sorted({name for (joined,) in rows for name in joined.split()})
    found = (get(connection, tenant, name) for name in named)
    return [owner for owner in found if owner is not None and owner.ended_at_us is not None]


def _owner(row: tuple[Any, ...]) -> Owner:
    owner = Owner(*row)
    return replace(owner, proven_dead=bool(owner.proven_dead))
