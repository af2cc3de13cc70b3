"""The conductor's side of the processes: the nursery, a worker, and lanes, whose workers are replaced when they die."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tollhouse.ledger.clock import boot_us
from tollhouse.testing.drill.worker import Job

START_S = 150.0
STOP_S = 1.8
"""How long a process is stopped: past its lease and the sweepers' next round."""
WAKE_AFTER = (1, 3, 9)
"""It is woken after so many times that: one that was slow to stop itself, on a busy machine, slept through the first
and kept whatever lock it had."""
ANSWER_S = 45.0
"""How long an answer may take: longer than any wait of a house, on a machine that has other work."""

Note = Callable[["Worker", dict[str, Any]], None]


class Gone(Exception):
    """The worker died before it answered."""


class Worker:
    """One process. ``notes``: what it noted goes there as it comes."""

    def __init__(self, job: Job, note: Note) -> None:
        self.job, self._note = job, note
        self._ids = itertools.count()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._reached: dict[str, asyncio.Event] = {}
        self.pid = 0
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.dead = asyncio.Event()
        self.closed = self.killed = False
        self._stops: set[str] = set()
        self.points = 0
        """Points at which something was laid out and that it reached."""

    def attach(self, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> asyncio.Task[None]:
        """It has said hello; it is ready once its house is open."""
        self.pid, self._writer = pid, writer
        return asyncio.get_running_loop().create_task(self._read(reader))

    # -- asking --------------------------------------------------------------------------------------------

    def tell(self, **line: Any) -> None:
        """Say something that has no answer. Nothing happens where it is dead."""
        if self._writer is not None and not self.dead.is_set():
            self._writer.write(json.dumps(line).encode() + b"\n")

    async def ask(self, verb: str, **kwargs: Any) -> dict[str, Any]:
        """Its answer: ``value``, or ``error`` with ``sent``. Raises :class:`Gone`; TimeoutError after 45 s."""
        if self.dead.is_set():
            raise Gone
        number = next(self._ids)
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self.tell(id=number, verb=verb, kwargs=kwargs)
        try:
            async with asyncio.timeout(ANSWER_S):
                return await future
        finally:
            self._waiting.pop(number, None)

    def lay(self, point: str, action: str, key: str, nth: int = 1) -> asyncio.Event:
        """Lay out a misfortune there; the event tells that its point was reached. What stops is woken after a while."""
        if action == "stop":
            self.expect_stop(point)
        self.tell(crash={"point": point, "action": action, "key": key, "nth": nth})
        return self.reached(point)

    def expect_stop(self, point: str) -> None:
        """It will stop itself at this point: wake it after a while."""
        self._stops.add(point)

    def reached(self, point: str) -> asyncio.Event:
        """Set when it says that it comes to this point."""
        return self._reached.setdefault(point, asyncio.Event())

    # -- striking ------------------------------------------------------------------------------------------

    def strike(self, number: signal.Signals) -> bool:
        """Send it a signal; whether there was a process to take it."""
        if self.dead.is_set() or not self.pid:
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        self.killed = self.killed or number == signal.SIGKILL
        return True

    async def end(self) -> None:
        """Let it close its house; kill it when it does not."""
        self.strike(signal.SIGCONT)
        self.tell(end=True)
        try:
            async with asyncio.timeout(20):
                await self.dead.wait()
        except TimeoutError:
            self.strike(signal.SIGKILL)
            await self.dead.wait()

    # -- hearing -------------------------------------------------------------------------------------------

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):
            while (line := await reader.readline()).endswith(b"\n"):
                self._take(json.loads(line))
        self.dead.set()
        self._note(self, {"note": "died"})
        if not self.ready.done():
            self.ready.set_exception(Gone(f"{self.job.name} ended before its house was open"))
        for event in self._reached.values():
            event.set()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(Gone())
                future.exception()  # nobody need wait for it
        if self._writer is not None:
            self._writer.close()

    def _take(self, line: dict[str, Any]) -> None:
        if "id" in line:
            future = self._waiting.get(line["id"])
            if future is not None and not future.done():
                future.set_result(line)
        elif "ready" in line:
            self.ready.set_result(None)
        elif "closed" in line:
            self.closed = True
        else:
            if line["note"] == "reached":
                self._at(line["point"])
            self._note(self, line)

    def _at(self, point: str) -> None:
        self.points += 1
        self.reached(point).set()
        if point in self._stops:
            self._note(self, {"note": "stopped"})
            for times in WAKE_AFTER:
                asyncio.get_running_loop().call_later(times * STOP_S, self.strike, signal.SIGCONT)


class Crew:
    """All processes of a stage. An async context manager that ends them."""

    def __init__(self, folder: Path, note: Note) -> None:
        self._folder, self._note = folder, note
        self._names = itertools.count(1)
        self._expected: dict[str, Worker] = {}
        self._nursery: asyncio.subprocess.Process | None = None
        self._server: asyncio.Server | None = None
        self._reading: set[asyncio.Task[None]] = set()
        self.workers: list[Worker] = []

    @property
    def socket(self) -> str:
        """Where workers say hello."""
        return str(self._folder / "crew")

    async def __aenter__(self) -> Crew:
        self._server = await asyncio.start_unix_server(self._hello, self.socket, limit=2**20)
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        with (self._folder / "workers.log").open("ab") as log:
            self._nursery = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tollhouse.testing.drill.nursery"),
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the conductor; the end of its input ends the nursery
            )
        return self

    async def __aexit__(self, *_exc: object) -> None:
        for worker in self.workers:
            if not worker.dead.is_set():
                worker.strike(signal.SIGCONT)
                worker.strike(signal.SIGKILL)
        nursery, server = self._nursery, self._server
        assert nursery is not None
        assert server is not None
        _stdin(nursery).close()
        await nursery.wait()
        server.close()
        for task in list(self._reading):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(task, 5)

    async def start(self, job: Job) -> Worker:
        """A fresh worker with an open house, whenever the store lets it open. Raises TimeoutError, naming the log."""
        loop = asyncio.get_running_loop()
        until = loop.time() + START_S
        while loop.time() < until:
            worker = self._send_for(replace(job, name=f"{job.name}-{next(self._names)}", socket=self.socket))
            with contextlib.suppress(TimeoutError, Gone):
                async with asyncio.timeout(until - loop.time()):
                    await worker.ready
                return worker
            await asyncio.sleep(0.2)
        raise TimeoutError(f"A worker did not start within {START_S:g} s; see {self._folder / 'workers.log'}.")

    def _send_for(self, job: Job) -> Worker:
        worker = self._expected[job.name] = Worker(job, self._note)
        self.workers.append(worker)
        assert self._nursery is not None
        _stdin(self._nursery).write(json.dumps(asdict(job)).encode() + b"\n")
        return worker

    async def _hello(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.readline()
        if not first.endswith(b"\n"):
            writer.close()
            return
        hello = json.loads(first)
        worker = self._expected.pop(hello["hello"])
        task = worker.attach(hello["pid"], reader, writer)
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)


class Lane:
    """Room for some calls at a time in one process, which is replaced when it died."""

    def __init__(self, crew: Crew, job: Job, room: int) -> None:
        self._crew, self._job = crew, job
        self._room = asyncio.Semaphore(room)
        self._starting = asyncio.Lock()
        self._worker: Worker | None = None

    @property
    def busy(self) -> bool:
        """Whether all its room is taken."""
        return self._room.locked()

    async def worker(self) -> Worker:
        """The process of the lane, a fresh one where the last has died."""
        async with self._starting:
            if self._worker is None or self._worker.dead.is_set():
                self._worker = await self._crew.start(self._job)
            return self._worker

    async def close(self) -> None:
        """End its process, if it lives, so that what it still had to write is written."""
        if self._worker is not None and not self._worker.dead.is_set():
            await self._worker.end()

    @asynccontextmanager
    async def place(self) -> AsyncIterator[Worker]:
        """A place for one call."""
        async with self._room:
            worker = await self.worker()
            yield worker


def _stdin(process: asyncio.subprocess.Process) -> asyncio.StreamWriter:
    assert process.stdin is not None
    return process.stdin


def now_us() -> int:
    """The machine's own clock, for notes of the conductor."""
    return boot_us()
