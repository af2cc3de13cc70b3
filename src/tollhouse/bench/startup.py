"""What a process waits for before its first call: the import in a fresh interpreter, and the opening of a house."""

from __future__ import annotations

import compileall
import contextlib
import io
import statistics
import subprocess
import sys
import time
from pathlib import Path

import tollhouse
from tollhouse import Tollhouse
from tollhouse.bench.job import TOOLS

_IMPORT = "import time; t = time.perf_counter(); import tollhouse; print(time.perf_counter() - t)"


def import_s(tries: int) -> float:
    """The median seconds of ``import tollhouse`` in ``tries`` fresh interpreters, byte-compiled."""
    with contextlib.redirect_stdout(io.StringIO()):
        compileall.compile_dir(Path(tollhouse.__file__).parent, quiet=2)
    figures = [
        float(subprocess.run([sys.executable, "-c", _IMPORT], check=True, capture_output=True, text=True).stdout)
        for _ in range(tries)
    ]
    return statistics.median(figures)


async def open_s(url: str, tries: int) -> float:
    """The median seconds of opening a house over a ledger that is there, its lease included."""
    figures = []
    for _ in range(tries):
        began_s = time.perf_counter()
        async with Tollhouse.open(url, tools=TOOLS):
            figures.append(time.perf_counter() - began_s)
    return statistics.median(figures)
