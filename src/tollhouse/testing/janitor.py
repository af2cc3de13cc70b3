"""Stops a PostgreSQL server and deletes its folder once nobody holds it, however its holders ended.

Run as a script by `tollhouse.testing.postgres` with the folder as its argument; standard library only, so that
it starts fast. A holder keeps a shared lock on the folder's file `holders`, which the kernel drops when the
process dies, by SIGKILL too. The janitor keeps a lock on the file `janitor` for as long as it lives.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
import time
from pathlib import Path

_STOP_TIMEOUT_S = 10.0


def main() -> None:
    """Go into the background, wait for the last holder to leave, clean up."""
    folder = Path(sys.argv[1])
    own = (folder / "janitor").open("w")
    fcntl.flock(own, fcntl.LOCK_EX)
    # The child inherits the lock, so whoever waits for this parent finds a janitor on duty.
    if os.fork():
        return
    os.setsid()
    with (folder / "holders").open() as holders:
        # Kept while cleaning up, so that nobody joins a server that is about to go.
        fcntl.flock(holders, fcntl.LOCK_EX)
        _stop(folder / "data")
        shutil.rmtree(folder, ignore_errors=True)


def _stop(data: Path) -> None:
    """End the server at once, without a checkpoint: its data is about to be deleted."""
    for sign in (signal.SIGQUIT, signal.SIGKILL):
        pid = _server(data)
        if pid is None:
            return
        os.kill(pid, sign)
        # Only a parent could wait for the process.
        patience = time.monotonic() + _STOP_TIMEOUT_S
        while _server(data) is not None and time.monotonic() < patience:
            time.sleep(0.02)


def _server(data: Path) -> int | None:
    """The process id of the running server; None when it does not run."""
    try:
        pid = int((data / "postmaster.pid").read_text().split("\n", 1)[0])
        os.kill(pid, 0)
    except (OSError, ValueError):
        return None
    command = Path(f"/proc/{pid}/cmdline")
    # After a crash of the server its number may belong to another process.
    return None if command.exists() and str(data).encode() not in command.read_bytes() else pid


if __name__ == "__main__":
    main()
