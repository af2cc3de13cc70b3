"""The one place where errors of the driver and the server become ours, and where it is said what to do about them.

Asked after every statement that failed: may it be repeated, is its connection still of use, and what will the caller
hear. Repeating is safe because every write is guarded and carries its ``write_id``.
"""

from __future__ import annotations

from dataclasses import dataclass

import asyncpg

from tollhouse.errors import (
    StoreFenced,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
    StoreSchema,
    StoreUnavailable,
    TollhouseError,
)
from tollhouse.stores.common.errors import BadValue
from tollhouse.stores.postgres.statements.raw import FENCED_STATE

_SAFE = "then use the same key again, which is safe."


@dataclass(frozen=True, slots=True)
class Fault:
    """What a failure means.

    ``repeat``: waiting and repeating may help. ``keeps``: the connection works on. ``bad_value``: the statement failed
    for what was bound to it, so it alone must fail.
    """

    kind: type[TollhouseError]
    what: str
    remedy: str | None = None
    repeat: bool = False
    keeps: bool = True
    bad_value: bool = False


GONE = Fault(StoreUnavailable, "cannot be reached", repeat=True, keeps=False)

_POOLER = "Behind PgBouncer in transaction mode, add ?pgbouncer=1 to the URL."

_BY_STATE = {
    "08P01": Fault(StoreUnavailable, "breaks off what was begun", remedy=_POOLER, repeat=True, keeps=False),
    "0A000": Fault(StoreUnavailable, "changes its schema", repeat=True, keeps=False),
    "25006": Fault(StoreReadOnly, "cannot be written: the server or the session is read-only", keeps=False),
    "25P03": GONE,
    "26000": Fault(
        StoreUnavailable,
        "loses prepared statements between transactions",
        remedy=_POOLER,
        repeat=True,
        keeps=False,
    ),
    "28000": Fault(StoreUnavailable, "does not let this role in", remedy="Correct role, database or pg_hba.conf."),
    "28P01": Fault(StoreUnavailable, "refuses the password", remedy=f"Correct user and password; {_SAFE}"),
    "3D000": Fault(StoreUnavailable, "has no such database", remedy="Create the database, or correct the URL."),
    "3F000": Fault(StoreSchema, "has no such schema"),
    "40001": Fault(StoreLocked, "kept colliding with other transactions", repeat=True),
    "40P01": Fault(StoreLocked, "kept meeting deadlocks", repeat=True),
    "42501": Fault(StoreUnavailable, "forbids this role", remedy="Grant the role all rights on the ledger's tables."),
    "42703": Fault(StoreSchema, "lacks a column that this release needs"),
    "42704": Fault(StoreSchema, "lacks a type that this release needs"),
    "42P01": Fault(StoreSchema, "lacks a table that this release needs"),
    "53100": Fault(StoreFull, "has no room left on its disk"),
    "53200": Fault(StoreUnavailable, "is out of memory", repeat=True),
    "53300": Fault(
        StoreUnavailable,
        "has no connection left",
        remedy=f"Raise max_connections or put a pooler before it; {_SAFE}",
        repeat=True,
        keeps=False,
    ),
    "55P03": Fault(StoreLocked, "kept a row locked for too long", repeat=True),
    FENCED_STATE: Fault(StoreFenced, "is fenced: it was moved, or is being moved"),
    "57014": Fault(StoreUnavailable, "took too long over a statement", repeat=True),
}
_BY_CLASS = {
    "08": GONE,
    "22": Fault(StoreUnavailable, "refuses a value", bad_value=True),
    "23": Fault(StoreUnavailable, "refuses a value", bad_value=True),
    "57": GONE,
}


_UNKNOWN = Fault(StoreUnavailable, "failed", keeps=False)
_NO_WRITABLE_HOST = Fault(StoreReadOnly, "has no host that can be written", repeat=True, keeps=False)


class Unfit(Exception):
    """A connection was made, but to no server that may keep this ledger; carries what whoever opens it hears."""

    def __init__(self, error: TollhouseError) -> None:
        super().__init__(error.cause)
        self.error = error


def fault_of(raw: Exception) -> Fault:
    """What the failure means."""
    state = getattr(raw, "sqlstate", None)
    if state is not None:
        return _BY_STATE.get(state) or _BY_CLASS.get(state[:2]) or _UNKNOWN
    if isinstance(raw, asyncpg.TargetServerAttributeNotMatched):
        return _NO_WRITABLE_HOST
    return _UNKNOWN if isinstance(raw, Unfit) else GONE


def more_telling(earlier: Exception | None, raw: Exception) -> Exception:
    """Which failure of a series to report: a silence at the end tells less than what was said before it."""
    return earlier if earlier is not None and isinstance(raw, TimeoutError) else raw


def error_of(raw: Exception, url: str) -> Exception:
    """What the caller hears about the store at ``url``.

    The driver's error is its ``__cause__``, but for a bad value, which that might show.
    """
    if isinstance(raw, Unfit):
        return StoreUnavailable(raw.error.cause, remedy=raw.error.remedy)
    fault = fault_of(raw)
    if fault.bad_value:
        return BadValue(f"The store cannot keep a value that it was given{_said(raw)}.")
    error = fault.kind(f"The ledger at {url} {fault.what}{_said(raw)}.", remedy=fault.remedy)
    error.__cause__ = raw
    return error


def _said(raw: Exception) -> str:
    if isinstance(raw, asyncpg.PostgresError):
        # Errors that the driver makes itself quote the argument; those of the server have a severity.
        return f" ({raw.sqlstate}: {raw.args[0]})" if raw.severity else f" ({type(raw.__cause__ or raw).__name__})"
    if isinstance(raw, TimeoutError):
        return " (no answer in time)"
    return f" ({raw.strerror or raw})" if isinstance(raw, OSError) else f" ({type(raw).__name__})"


# What a statement on a connection can raise; everything else is a defect of ours and is not caught.
FAILURES = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, Unfit)
