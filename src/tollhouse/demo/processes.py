"""The demo's side of its workers: start one, hear what it tells, see it die."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from tollhouse.demo.job import Job

WAIT_S = 30.0
"""How long the demo waits for anything before it gives up: on a healthy machine each thing takes about a second."""


class DemoStopped(Exception):
    """The story did not go on: something that must happen did not. Says what."""


class Worker:
    """A worker process. It ends by itself when the process that started it does."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._told: list[dict[str, Any]] = []
        self._news = asyncio.Event()
        self._ended = False
        self._reader = asyncio.get_running_loop().create_task(self._read())

    @classmethod
    async def start(cls, job: Job, log: Path) -> Self:
        """Run a worker; what it logs is appended to ``log``."""
        with log.open("ab") as log_file:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tollhouse.demo.worker", job.dumps()),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log_file,
                start_new_session=True,  # Ctrl-C is for the demo alone; its workers end with their standard input
            )
        return cls(process)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    async def heard(self, event: str, count: int = 1, **facts: Any) -> list[dict[str, Any]]:
        """Return once the worker has told ``count`` events of that kind with these facts.

        Raises :class:`DemoStopped` when it ended before, or after 30 seconds.
        """
        try:
            async with asyncio.timeout(WAIT_S):
                while len(found := self._told_of(event, facts)) < count:
                    if self._ended:
                        raise DemoStopped(f"A worker ended before it told {event!r}.")
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise DemoStopped(f"A worker did not tell {event!r} within {WAIT_S:.0f} s.") from None
        return found

    async def killed(self) -> None:
        """Return once the worker has died of SIGKILL. Raises :class:`DemoStopped` when it ends otherwise, or not."""
        try:
            async with asyncio.timeout(WAIT_S):
                await self._reap()
        except TimeoutError:
            raise DemoStopped(f"A worker did not come to its crash point within {WAIT_S:.0f} s.") from None
        if self._process.returncode != -signal.SIGKILL:
            raise DemoStopped(f"A worker ended with {self._process.returncode} before its crash point.")

    async def kill(self) -> None:
        """SIGKILL: the process gets no chance to do anything more."""
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._reap()

    async def close(self) -> None:
        """Ask the process to end, and see that it does."""
        stdin = self._process.stdin
        assert stdin is not None
        stdin.close()
        try:
            async with asyncio.timeout(WAIT_S):
                await self._reap()
        except TimeoutError:
            await self.kill()

    async def _reap(self) -> None:
        await self._process.wait()
        await self._reader

    def _told_of(self, event: str, facts: dict[str, Any]) -> list[dict[str, Any]]:
        wanted = {"event": event, **facts}.items()
        return [each for each in self._told if wanted <= each.items()]

    async def _read(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        async for line in stdout:
            if line.endswith(b"\n"):  # a kill may cut the last line short
                self._told.append(json.loads(line))
                self._news.set()
        self._ended = True
        self._news.set()
