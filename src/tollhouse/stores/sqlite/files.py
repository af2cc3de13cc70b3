"""Whether the ledger's files are still the ones that were opened.

A file that is deleted or replaced while open goes on taking writes that nobody will ever see again: SQLite does not
notice. So the files are looked at before each write and each read; it costs microseconds.
"""

from __future__ import annotations

import os
from pathlib import Path

from tollhouse.errors import StoreUnavailable


class Files:
    """The database, remembered by identity, and its write-ahead log. ``path`` None: nothing to lose."""

    def __init__(self, path: Path | None) -> None:
        self._path = None if path is None else str(path)
        self._log = f"{path}-wal"
        self._opened = self._identity()

    def require_intact(self) -> None:
        """Raise :class:`~tollhouse.errors.StoreUnavailable` while a file is missing or the database another one."""
        if self._path is None:
            return
        # No stat of the log: since Linux 6.13 that makes the next write to it stamp its inode, and each commit dearer.
        if self._identity() != self._opened or not os.access(self._log, os.F_OK):
            raise StoreUnavailable(
                f"The ledger's file {self._path} or its -wal was deleted or replaced while it was open.",
                remedy="Put the file back, or restore the ledger and open it anew.",
            )

    def _identity(self) -> tuple[int, int] | None:
        if self._path is None:
            return None
        try:
            status = os.stat(self._path)  # noqa: PTH116 - asked before every commit, and twice as fast as a Path
        except OSError:
            return None
        return status.st_dev, status.st_ino
