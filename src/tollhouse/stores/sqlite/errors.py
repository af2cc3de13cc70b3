"""The one place where errors of SQLite and of the file system become ours."""

from __future__ import annotations

import errno
import sqlite3

from tollhouse.errors import (
    StoreFenced,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
    StoreSchema,
    StoreUnavailable,
    TollhouseError,
)
from tollhouse.stores.common.raw import FENCED

_DATA_ERRORS = (
    sqlite3.DataError,
    sqlite3.IntegrityError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
    OverflowError,
    TypeError,
    UnicodeEncodeError,
)
_BY_SQLITE_CODE: dict[int, tuple[type[StoreUnavailable], str]] = {
    sqlite3.SQLITE_BUSY: (StoreLocked, "is locked by another process"),
    sqlite3.SQLITE_LOCKED: (StoreLocked, "is locked by another connection"),
    sqlite3.SQLITE_PROTOCOL: (StoreLocked, "is locked by another process"),
    sqlite3.SQLITE_FULL: (StoreFull, "has no room left: its disk or its page limit is full"),
    sqlite3.SQLITE_READONLY: (StoreReadOnly, "cannot be written"),
    sqlite3.SQLITE_PERM: (StoreReadOnly, "cannot be written"),
    sqlite3.SQLITE_CORRUPT: (StoreUnavailable, "is damaged"),
    sqlite3.SQLITE_NOTADB: (StoreUnavailable, "is not an SQLite database"),
    sqlite3.SQLITE_CANTOPEN: (StoreUnavailable, "cannot be opened"),
    sqlite3.SQLITE_IOERR: (StoreUnavailable, "cannot be read or written: the disk reports an error"),
}
_BY_ERRNO: dict[int, tuple[type[StoreUnavailable], str]] = {
    errno.ENOSPC: (StoreFull, "has no room left on its disk"),
    errno.EDQUOT: (StoreFull, "has no room left in its quota"),
    errno.EROFS: (StoreReadOnly, "is on a file system that cannot be written"),
    errno.EACCES: (StoreReadOnly, "may not be written by this user"),
    errno.EPERM: (StoreReadOnly, "may not be written by this user"),
}
_EXPLAINED_BY_REMEDY = {
    sqlite3.SQLITE_CORRUPT: "Restore it from a backup; keep the damaged file for inspection.",
    sqlite3.SQLITE_NOTADB: "Name the ledger's file in the URL, or a new file.",
}


def store_error(raw: sqlite3.Error | OSError, name: str) -> TollhouseError:
    """Our error for what SQLite or the file system raised about the ledger ``name``; ``raw`` is its ``__cause__``."""
    kind: type[TollhouseError]
    if isinstance(raw, OSError):
        kind, what = _BY_ERRNO.get(raw.errno or 0, (StoreUnavailable, "cannot be reached"))
        remedy = None
    elif is_fenced(raw):
        kind, what, remedy = StoreFenced, "is fenced: it was moved, or is being moved", None
    elif str(raw).startswith("no such table"):
        kind, what, remedy = StoreSchema, "lacks a table that this release needs", None
    else:
        code = getattr(raw, "sqlite_errorcode", 0) & 0xFF
        kind, what = _BY_SQLITE_CODE.get(code, (StoreUnavailable, "cannot be used"))
        remedy = _EXPLAINED_BY_REMEDY.get(code)
    detail = "" if what != "cannot be used" else f" ({raw})"
    error = kind(f"The ledger {name} {what}{detail}.", remedy=remedy)
    error.__cause__ = raw
    return error


def is_busy(raw: sqlite3.Error) -> bool:
    """Whether another process holds a lock, so that waiting helps."""
    code = getattr(raw, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)


def is_bad_value(raw: Exception) -> bool:
    """Whether a statement failed for the values bound to it, not for the state of the ledger."""
    return isinstance(raw, _DATA_ERRORS) and not _is_misuse(raw) and not is_fenced(raw)


def is_fenced(raw: Exception) -> bool:
    """Whether a trigger of the ledger's fence refused it."""
    return isinstance(raw, sqlite3.IntegrityError) and str(raw) == FENCED


def _is_misuse(raw: Exception) -> bool:
    """A closed connection is a ProgrammingError too; binding errors carry no code or say what was bound."""
    return isinstance(raw, sqlite3.ProgrammingError) and "closed" in str(raw)
