"""Proof that a process is gone: absence counts after it, so it is never given for one that lives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tollhouse.ledger import lease
from tollhouse.ledger.lease import host_id, process_started, proven_dead
from tollhouse.ledger.store import Owner

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="a process is proven dead by /proc")

CHILD = """
import sys
for name in sys.stdin:
    open("/proc/self/comm", "wb").write(name.strip().encode())
    print("done", flush=True)
"""


@pytest.fixture
def child() -> Iterator[subprocess.Popen[str]]:
    """A process that takes the names it is given."""
    with subprocess.Popen([sys.executable, "-c", CHILD], stdin=-1, stdout=-1, text=True, encoding="utf-8") as process:
        yield process
        process.kill()


def owned_by(process: subprocess.Popen[str]) -> Owner:
    """The owner that the process registered as."""
    return Owner("t1", "own_a", host_id(), process.pid, process_started(process.pid) or "", "label")


def named(process: subprocess.Popen[str], name: str) -> None:
    """Have the process take that name."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{name}\n")
    process.stdin.flush()
    assert process.stdout.readline() == "done\n"


def test_a_process_is_proven_dead_once_it_was_killed(child: subprocess.Popen[str]) -> None:
    """Before it was waited for, and after: it runs no more."""
    owner = owned_by(child)
    assert not proven_dead(owner)
    child.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert proven_dead(owner)
    child.wait()
    assert proven_dead(owner)


@pytest.mark.parametrize("name", ["Zöllner", "a) S 1"])
def test_a_live_process_may_have_any_name(child: subprocess.Popen[str], name: str) -> None:
    """It is known by when it began, whatever it calls itself meanwhile."""
    owner = owned_by(child)
    named(child, name)
    assert not proven_dead(owner)
    assert process_started(child.pid) == owner.pid_started


def test_a_live_process_that_cannot_be_looked_at_is_not_proven_dead(
    child: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where /proc hides the processes of other users, that one is missing there proves nothing."""
    owner = owned_by(child)
    read = lease._read
    monkeypatch.setattr(lease, "_read", lambda path: None if path == f"/proc/{child.pid}/stat" else read(path))
    assert not proven_dead(owner)
    child.kill()
    child.wait()
    assert proven_dead(owner)
