"""The parent's side of a worker: start it, steer it, wait for its death or its stop by signals, and judge."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[2]
LEASE_S = 1.0
"""Short, since the tests wait for its end; long enough for a process that must share two cores."""


class Answered(Exception):
    """The worker's house raised an error with this code."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(f"{error['code']}: {error['cause']}")
        self.code: str = error["code"]
        self.cause: str = error["cause"]
        self.sent: str | None = error["sent"]


class Gone(Exception):
    """The worker died before it answered."""


class Worker:
    """One process with one house. Make it with :meth:`start`."""

    module = "tests.crash.worker"

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._ids = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._changed = asyncio.Condition()
        self.reached: list[str] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.owner = ""
        self.ready = self.closed = self.gone = False
        self._reading = asyncio.get_running_loop().create_task(self._read())

    @classmethod
    async def start(
        cls,
        store: str,
        tools: Mapping[str, Mapping[str, Any]],
        *crashes: Mapping[str, Any],
        **settings: Any,
    ) -> Worker:
        """Return once its house is open. ``tools``: factories by ``module:function``, with their options."""
        return await cls.launch(
            {"store": store, "tools": tools, "crashes": crashes, "settings": {"lease_s": LEASE_S, **settings}}
        )

    @classmethod
    async def launch(cls, spec: Mapping[str, Any]) -> Self:
        """Return once the process that was made to ``spec`` is ready."""
        # Byte code makes a start three times as fast, and these tests start many.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            cls.module,
            json.dumps(spec),
            cwd=ROOT,
            env=environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        worker = cls(process)
        await worker.until(lambda: worker.ready)
        return worker

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    # -- asking --------------------------------------------------------------------------------------------

    def ask(self, verb: str, *args: Any, **kwargs: Any) -> asyncio.Future[Any]:
        """Have it call ``house.verb(*args, **kwargs)``; its answer, :class:`Answered` or :class:`Gone`."""
        number = next(self._ids)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        line = json.dumps({"id": number, "verb": verb, "args": args, "kwargs": kwargs})
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        return future

    async def until(self, holds: Any) -> None:
        """Wait until something it said makes ``holds()`` true. Raises :class:`Gone` when it dies first."""
        async with asyncio.timeout(30), self._changed:
            await self._changed.wait_for(lambda: holds() or self.gone)
        if not holds():
            raise Gone("the worker died")

    async def until_told(self, kind: str, count: int = 1) -> None:
        """Wait until its house has told ``kind`` so often."""
        await self.until(lambda: sum(each == kind for each, _ in self.events) >= count)

    # -- dying ---------------------------------------------------------------------------------------------

    async def until_dead(self, within_s: float = 30.0) -> None:
        """Wait for its death by SIGKILL."""
        async with asyncio.timeout(within_s):
            code = await self._process.wait()
            await self._reading
        assert code == -signal.SIGKILL, f"it ended with {code}"

    async def until_stopped(self) -> None:
        """Wait until it stands still by SIGSTOP."""
        async with asyncio.timeout(30):
            await asyncio.to_thread(os.waitid, os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it lives. Not by asyncio, which looks first whether the process has ended: one that ends
        in that moment is taken from under the watcher that waits for it, and how it ended is lost."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def stop(self) -> None:
        """SIGSTOP: nothing of it runs."""
        self.signal(signal.SIGSTOP)
        await self.until_stopped()

    def go_on(self) -> None:
        """SIGCONT after a stop."""
        self.signal(signal.SIGCONT)

    async def kill(self) -> None:
        """SIGKILL; returns when it is dead."""
        self.signal(signal.SIGKILL)
        await self.until_dead()

    async def close(self) -> None:
        """Let its house close, and wait for its end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        async with asyncio.timeout(30):
            assert await self._process.wait() == 0
            await self._reading

    async def end(self) -> None:
        """End it in whatever state it is; for clearing up."""
        if self._process.returncode is None:
            self.signal(signal.SIGKILL)
            await self._process.wait()
        await self._reading
        assert self._process.stdin is not None
        self._process.stdin.close()

    # -- listening -----------------------------------------------------------------------------------------

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            async with self._changed:
                self._take(json.loads(line))
                self._changed.notify_all()
        async with self._changed:
            self.gone = True
            self._changed.notify_all()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(Gone("the worker died"))
                future.exception()  # a test need not ask for every answer

    def _take(self, line: dict[str, Any]) -> None:
        match line:
            case {"id": number, "value": value}:
                self._waiting.pop(number).set_result(value)
            case {"id": number, "error": error}:
                future = self._waiting.pop(number)
                future.set_exception(Answered(error))
                future.exception()
            case {"reached": point}:
                self.reached.append(point)
            case {"event": kind, "facts": facts}:
                self.events.append((kind, facts))
            case {"ready": owner}:
                self.owner, self.ready = owner, True
            case {"closed": _}:
                self.closed = True
