"""The lock file beside a ledger, held around each write transaction so that processes take fair turns.

SQLite's own waiting is a poll: measured, one busy process starved another for seconds. A lock that the kernel queues
is handed on in order, and dies with its holder. SQLite's locks stay the authority on the data; whoever bypasses this
one (a copy tool, the sqlite3 shell) loses fairness only.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

if sys.platform == "win32":
    import msvcrt

    def _lock(fd: int) -> bool:
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def _lock_in_turn(fd: int) -> None:
        while not _lock(fd):
            time.sleep(0.001)

    def _unlock(fd: int) -> None:
        msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)
else:
    import fcntl

    def _lock(fd: int) -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _lock_in_turn(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX)

    def _unlock(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_UN)


class FileLock:
    """A lock that excludes other processes, and other handles of this one. Not re-entrant. ``path`` None: no lock.

    Making one raises OSError where the file cannot be created or written.
    """

    def __init__(self, path: Path | None) -> None:
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
        self._fd = None if path is None else os.open(path, flags, 0o666)

    def try_acquire(self) -> bool:
        """Take it if nobody holds it."""
        return self._fd is None or _lock(self._fd)

    def acquire(self) -> None:
        """Take it when the turn comes, however long that takes."""
        if self._fd is not None:
            _lock_in_turn(self._fd)

    def acquire_within(self, timeout_s: float) -> bool:
        """Take it within that time, out of turn; for the rare locking that nobody else bounds."""
        deadline = time.monotonic() + timeout_s
        while not self.try_acquire():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.002)
        return True

    def release(self) -> None:
        """Let the next one have it."""
        if self._fd is not None:
            _unlock(self._fd)

    def close(self) -> None:
        """Give the file up. In a forked child: lets go of the copy, so that the lock dies with the parent."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)
