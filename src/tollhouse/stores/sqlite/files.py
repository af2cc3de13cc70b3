"""Whether the ledger's files are still the ones that were opened.

A file that is deleted or replaced while open goes on taking writes that nobody will ever see again: SQLite does not
notice. So the files are looked at before each write and each read that a decision hangs on; it costs microseconds.
"""

from __future__ import annotations

import os
from pathlib import Path

from tollhouse.errors import StoreUnavailable


class Files:
    """The database and its write-ahead log, remembered by identity. ``path`` None: nothing to lose."""

    def __init__(self, path: Path | None) -> None:
        self._paths = () if path is None else (str(path), f"{path}-wal")
        self._opened = tuple(map(_identity, self._paths))

    def require_intact(self) -> None:
        """Raise :class:`~tollhouse.errors.StoreUnavailable` while a file is missing or another one."""
        for path, opened in zip(self._paths, self._opened, strict=True):
            if _identity(path) != opened:
                raise StoreUnavailable(
                    f"The ledger's file {path} was deleted or replaced while it was open.",
                    remedy="Put the file back, or restore the ledger and open it anew.",
                )


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - asked before every commit, and twice as fast as a Path
    except OSError:
        return None
    return status.st_dev, status.st_ino
