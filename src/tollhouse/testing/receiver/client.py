"""The test's side of the receiver: start it, steer it, and read its book over HTTP.

Every method is a short blocking call on a connection of its own, safe from any thread. The two that wait
have a twin in front of which an `a` stands, for tests whose sender runs on the same event loop.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self
from urllib.parse import urlencode

from .book import Effect, SeenRequest
from .faults import Fault

_START_TIMEOUT_S: Final = 30.0
_CALL_TIMEOUT_S: Final = 10.0
# Starts this package alone, under a name of its own: the child imports nothing else of Tollhouse.
_LAUNCH: Final = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("receiver", sys.argv.pop(1))
sys.modules["receiver"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["receiver"])
from receiver.__main__ import main
main()
"""


class Receiver:
    """A receiver in a process of its own; a context manager that ends the process on leaving.

    The process also ends by itself when the process that started it dies. The book outlives both.
    """

    def __init__(self, book: Path) -> None:
        """Describe a receiver over `book`; `start` runs it."""
        self.book = book
        self.port = 0
        self._process: subprocess.Popen[str] | None = None

    @classmethod
    def start(cls, book: Path, *, port: int = 0) -> Self:
        """Run a receiver over `book` (made if missing) and return once it listens on 127.0.0.1.

        Raises RuntimeError when it did not start within 30 seconds.
        """
        receiver = cls(book)
        receiver._run(port)
        return receiver

    @property
    def url(self) -> str:
        """Where it listens, without a path: `http://127.0.0.1:PORT`."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def running(self) -> bool:
        """Whether the process is there; a paused one is."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id, for signals. Raises RuntimeError when it does not run."""
        return self._running().pid

    def kill(self) -> None:
        """SIGKILL the process: the receiver crashes; effects stay in the book, held requests are lost."""
        process = self._running()
        process.kill()
        self._reap(process)

    def restart(self) -> None:
        """Run again on the same book and port, after a kill or instead of this process.

        Modes and jobs are as before; faults that were laid out are gone.
        """
        if self._process is not None:
            self.kill()
        self._run(self.port)

    def pause(self) -> None:
        """SIGSTOP: connections are taken by the kernel, and nobody answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT after a pause."""
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """End the process; does nothing when it has ended."""
        if self._process is not None:
            self.kill()

    def fault(
        self,
        fault: Fault | str,
        *,
        times: int = 1,
        collection: str | None = None,
        method: str = "POST",
        key: str | None = None,
        **options: Any,
    ) -> None:
        """Misbehave for the next `times` requests that fit; faults queue up, oldest first, one per request.

        `options` are those of the fault's row: `seconds`, `status`, `retry_after_s`, `location`, or
        `size_bytes`.
        Raises ValueError for a name or an option that does not exist.
        """
        name = Fault.named(fault).value
        plan = {"fault": name, "times": times, "collection": collection, "method": method, "key": key}
        self._post("/faults", {**plan, "options": options})

    def clear_faults(self) -> None:
        """Behave well from now on; what was laid out and not met is gone."""
        self._post("/faults/clear", {})

    def mode(
        self, collection: str, *, keyed: bool = False, lookup: bool = True, remembers_s: float | None = None
    ) -> None:
        """Set whether a collection recognises repeated keys, for how long (None: for ever), and look-ups.

        A collection starts unkeyed, so that a duplicate is a second effect, and with look-ups.
        """
        mode = {"keyed": keyed, "lookup": lookup, "remembers_s": remembers_s}
        self._post("/modes", {"collection": collection, **mode})

    def release(self, times: int | None = None) -> None:
        """Let the oldest `times` held requests go on; None lets all go."""
        self._post("/release", {"times": times})

    def reset(self) -> None:
        """Forget effects, requests, modes, jobs and faults; requests under way are cut off without effect."""
        self._post("/reset", {})

    def finish_job(self, name: str, status: str = "done", result: Any = None) -> None:
        """Say what became of long work. Raises ValueError for an unknown job or status."""
        self._post(f"/jobs/{name}/finish", {"status": status, "result": result})

    def effects(
        self, collection: str | None = None, *, key: str | None = None, reference: str | None = None
    ) -> list[Effect]:
        """What took effect, oldest first; a filter that is None admits all.

        Effects and requests share one sequence, so their numbers tell which came first.
        """
        return _effects(self._get("/book", collection=collection, key=key, reference=reference))

    def requests(
        self, collection: str | None = None, *, key: str | None = None, method: str | None = None
    ) -> list[SeenRequest]:
        """What arrived under `/v1`, with effect or without, oldest first; filters as for `effects`."""
        return _requests(self._get("/requests", collection=collection, key=key, method=method))

    def wait_for_requests(
        self,
        count: int,
        *,
        timeout_s: float = 10.0,
        collection: str | None = None,
        key: str | None = None,
        method: str | None = None,
    ) -> list[SeenRequest]:
        """Return once `count` fitting requests have arrived; a fault that holds them back is then in force.

        Raises TimeoutError, naming how many had arrived.
        """
        filters = {"collection": collection, "key": key, "method": method}
        return _requests(self._wait("/requests", count, timeout_s, filters))

    def wait_for_effects(
        self, count: int, *, timeout_s: float = 10.0, collection: str | None = None, key: str | None = None
    ) -> list[Effect]:
        """Return once `count` fitting effects are in the book. Raises TimeoutError, naming how many were."""
        return _effects(self._wait("/book", count, timeout_s, {"collection": collection, "key": key}))

    async def await_for_requests(self, count: int, **filters: Any) -> list[SeenRequest]:
        """`wait_for_requests` without blocking the event loop."""
        return await asyncio.to_thread(self.wait_for_requests, count, **filters)

    async def await_for_effects(self, count: int, **filters: Any) -> list[Effect]:
        """`wait_for_effects` without blocking the event loop."""
        return await asyncio.to_thread(self.wait_for_effects, count, **filters)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, port: int) -> None:
        package = str(Path(__file__).resolve().with_name("__init__.py"))
        options = ["--book", str(self.book), "--port", str(port), "--until-stdin-ends"]
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", _LAUNCH, package, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for whoever started it; the end of its input ends it, quietly
        )
        too_late = threading.Timer(_START_TIMEOUT_S, process.kill)
        too_late.start()
        line = _pipe(process.stdout).readline()
        too_late.cancel()
        if not line.startswith("listening "):
            process.kill()
            self._reap(process)
            raise RuntimeError("the receiver did not start; its standard error says why")
        self.port = int(line.rsplit(":", 1)[1])
        self._process = process

    def _reap(self, process: subprocess.Popen[str]) -> None:
        process.wait()
        _pipe(process.stdin).close()
        _pipe(process.stdout).close()
        self._process = None

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise RuntimeError("the receiver does not run")
        return self._process

    def _wait(self, path: str, count: int, timeout_s: float, filters: dict[str, str | None]) -> list[Any]:
        found = self._get(path, timeout_s, at_least=str(count), timeout_s=str(timeout_s), **filters)
        if len(found) < count:
            raise TimeoutError(f"{len(found)} of {count} seen at {path} within {timeout_s} s")
        return found

    def _get(self, path: str, wait_s: float = 0.0, /, **query: str | None) -> list[Any]:
        given = {name: text for name, text in query.items() if text is not None}
        found = self._call("GET", f"{path}?{urlencode(given)}", None, _CALL_TIMEOUT_S + wait_s)
        assert isinstance(found, list)
        return found

    def _post(self, path: str, given: dict[str, Any]) -> None:
        self._call("POST", path, json.dumps(given), _CALL_TIMEOUT_S)

    def _call(self, method: str, path: str, body: str | None, timeout_s: float) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            connection.request(method, path, body, {"Connection": "close"})
            response = connection.getresponse()
            answer = json.loads(response.read())
        finally:
            connection.close()
        if response.status != 200:
            raise ValueError(answer["error"])
        return answer


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def _effects(found: list[Any]) -> list[Effect]:
    return [Effect(**each) for each in found]


def _requests(found: list[Any]) -> list[SeenRequest]:
    return [SeenRequest(**each) for each in found]
