"""A peer in a process of its own, asked for one measurement at a time, so that it takes its turn in every round."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from tollhouse.errors import InvalidSetting

VENV = ".venv-peers"
PYTHON_ENV = "TOLLHOUSE_BENCH_PEERS_PYTHON"
NAMES = ("dbos", "langgraph")
_SCRIPT = Path(__file__).with_name("job.py")
_PATIENCE_S = 60.0


def python() -> str:
    """The interpreter that has the peers. Raises :class:`InvalidSetting` when there is none."""
    named = os.environ.get(PYTHON_ENV)
    found = Path(named) if named else Path(VENV) / "bin" / "python"
    if not found.exists():
        raise InvalidSetting(
            f"The peers are not installed: there is no {found}.",
            remedy=f"Run make bench ARGS=--peers, or name an interpreter that has them in {PYTHON_ENV}.",
        )
    return str(found)


class Peer:
    """One of :data:`NAMES`, running; :meth:`close` it."""

    def __init__(self, process: asyncio.subprocess.Process, name: str) -> None:
        self._process, self.name = process, name

    @classmethod
    async def start(cls, name: str, url: str, callers: int) -> Peer:
        """Start it over an empty database and let it make its tables."""
        pipe = asyncio.subprocess.PIPE
        command = (python(), str(_SCRIPT), name, url, str(callers))
        peer = cls(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe), name)
        if await peer._line() != "ready":
            raise RuntimeError(f"{name} said something else than that it is ready")
        return peer

    async def rate(self, callers: int, seconds: float) -> float:
        """Jobs per second with that many callers."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{callers} {seconds}\n".encode())
        return float(await self._line())

    async def _line(self) -> str:
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), _PATIENCE_S)
        if not line:
            raise RuntimeError(f"{self.name} ended with {await self._process.wait()}")
        return line.decode().strip()

    async def close(self) -> None:
        """End its input and wait until it is gone."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), _PATIENCE_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
