"""Real processes for tests: the command as it is installed, and a caller that can be killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.cli.conftest import Ran

ROOT = Path(__file__).resolve().parents[2]

TIMEOUT_S = 60.0


def tollhouse(*arguments: str, env: Mapping[str, str] | None = None) -> Ran:
    """Run the command in a process of its own."""
    done = subprocess.run(
        command(*arguments), env=environment(env), capture_output=True, timeout=TIMEOUT_S, check=False
    )
    return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())


def command(*arguments: str) -> list[str]:
    """The command line that starts it."""
    return [sys.executable, "-m", "tollhouse", *arguments]


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's, with the tests importable."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **(more or {})}


@contextmanager
def running(arguments: Sequence[str], env: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """A process with its streams at hand; it is gone afterwards."""
    process = subprocess.Popen(
        arguments, env=environment(env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def first_line(process: subprocess.Popen[str]) -> str:
    """What it says first; waits for it."""
    assert process.stdout is not None
    return process.stdout.readline()


def line_with(process: subprocess.Popen[str], text: str) -> str:
    """The next line of stderr that has ``text`` in it; waits for it."""
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            return line
    raise AssertionError(f"the process ended without saying {text!r}")
