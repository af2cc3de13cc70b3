"""A Temporal development server for tests: one for each test process that asks, in memory, a task queue for each test.

`tests/conftest.py` makes the fixture known. A test that stops its server, or loses it, makes one of its own.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

BINARY = Path(sys.executable).parent / "temporal"
STARTED_S = 30.0


class TemporalServer:
    """A development server at a port of its own. Use it as a context."""

    def __init__(self) -> None:
        self.address = f"127.0.0.1:{_free_port()}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Return once it answers. What an earlier start knew is gone."""
        port = self.address.rpartition(":")[2]
        command = [str(BINARY), "server", "start-dev", "--headless", "--ip", "127.0.0.1", "--port", port]
        self._process = subprocess.Popen(
            [*command, "--log-level", "never"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 - one call, no locks
        )
        ends_s = time.monotonic() + STARTED_S
        while not _answers(self.address):
            if self._process.poll() is not None or time.monotonic() > ends_s:
                self.stop()
                pytest.fail("the Temporal development server did not start")
            time.sleep(0.05)

    def stop(self) -> None:
        """End it; whatever it knew is gone."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()  # it keeps nothing that a gentle end would save
        process.wait()

    def freeze(self) -> None:
        """Nobody is answered from now on."""
        self._signal(signal.SIGSTOP)
        assert self._process is not None
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)  # all its threads stand still

    def go_on(self) -> None:
        """Answer again."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _die_with_parent() -> None:
    """A test process that is killed leaves no server behind."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _answers(address: str) -> bool:
    """Whether the server has its namespace, and says so."""
    command = [str(BINARY), "operator", "namespace", "describe", "--address", address, "default"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="session")
def temporal_server() -> Iterator[TemporalServer]:
    """The server that the tests of a process share; nobody stops it."""
    with TemporalServer() as server:
        yield server
