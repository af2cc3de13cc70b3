"""Many readers of one run's event stream: whether each gets every event once, and how late.

A child process serves and writes, as ``tollhouse serve`` does with a run it drives; the readers are here. Run as a
module it is that child: it says where to read, begins when its input says so, and says how many events it wrote.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import tempfile
import time
from array import array
from functools import partial
from typing import Any
from urllib.parse import urlsplit

CONNECTED_AT_ONCE = 100
ENDS_WITHIN_S = 30.0
_EVENT = re.compile(rb'^id: ([0-9]+)\nevent: [a-z_]+\ndata: (?:.*"sent":([0-9]+))?', re.MULTILINE)


async def measure_streams(readers: int = 1_000, rate: float = 100, seconds: float = 10.0) -> dict[str, Any]:
    """Have so many readers follow one run that gets ``rate`` events each second, each a durable commit.

    ``lost`` and ``duplicates`` count events over all readers; ``p99_lag_s`` and ``max_lag_s`` are from before the
    commit of an event to its receipt; ``events`` is what was written, and ``rate`` how much of it came each second.
    """
    with tempfile.TemporaryDirectory(prefix="tollhouse-streams-") as folder:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tollhouse.bench.streams", folder, str(rate), str(seconds)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            return await _measured(child, readers)
        finally:
            if child.returncode is None:
                child.kill()
            await child.wait()


async def _measured(child: asyncio.subprocess.Process, readers: int) -> dict[str, Any]:
    assert child.stdin is not None
    assert child.stdout is not None
    place = json.loads(await child.stdout.readline())
    following = await _connected(place["url"], place["path"], readers)
    child.stdin.write(b"go\n")
    written = json.loads(await child.stdout.readline())
    async with asyncio.timeout(ENDS_WITHIN_S):
        await asyncio.gather(*(reader.ended for reader in following))
    child.stdin.close()
    head = written["head"]
    lags = sorted(lag for reader in following for lag in reader.lags)
    return {
        "readers": readers,
        "events": head,
        "rate": round(written["rate"], 1),
        "lost": sum(reader.lost + head - reader.last for reader in following),
        "duplicates": sum(reader.duplicates for reader in following),
        "p50_lag_s": _part(lags, 0.5),
        "p99_lag_s": _part(lags, 0.99),
        "max_lag_s": _part(lags, 1.0),
    }


def _part(lags: list[int], part: float) -> float:
    return round(lags[min(len(lags) - 1, int(len(lags) * part))] / 1e6, 4) if lags else 0.0


async def _connected(url: str, path: str, readers: int) -> list[_Reader]:
    loop, at = asyncio.get_running_loop(), urlsplit(url)
    host, port = at.hostname or "", at.port or 0
    following: list[_Reader] = []
    while len(following) < readers:
        some = [_Reader(path, loop) for _ in range(min(CONNECTED_AT_ONCE, readers - len(following)))]
        await asyncio.gather(*(loop.create_connection(partial(_itself, one), host, port) for one in some))
        await asyncio.gather(*(one.began for one in some))
        following += some
    return following


def _itself(reader: _Reader) -> _Reader:
    return reader


class _Reader(asyncio.Protocol):
    """One connection. Counts events by their numbers, and notes how late each came, in microseconds."""

    def __init__(self, path: str, loop: asyncio.AbstractEventLoop) -> None:
        self._path, self._rest = path, b""
        self.began: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.last = self.lost = self.duplicates = 0
        self.lags = array("q")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the stream."""
        assert isinstance(transport, asyncio.Transport)
        transport.write(f"GET {self._path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())

    def data_received(self, data: bytes) -> None:
        """Take in whole events; what is cut off waits for its rest."""
        now_us = time.time_ns() // 1000
        whole, _, self._rest = (self._rest + data).rpartition(b"\n\n")
        for number, sent in _EVENT.findall(whole):
            self._take(int(number))
            if sent:
                self.lags.append(now_us - int(sent))
        if self.last and not self.began.done():
            self.began.set_result(None)

    def _take(self, number: int) -> None:
        if number <= self.last:
            self.duplicates += 1
            return
        self.lost += number - self.last - 1
        self.last = number

    def connection_lost(self, exc: Exception | None) -> None:
        """The stream has ended."""
        for future in (self.began, self.ended):
            if not future.done():
                future.set_result(None)


# -- the child -----------------------------------------------------------------------------------------------------


async def _serve(folder: str, rate: float, seconds: float) -> None:
    from tollhouse.api.app import create_app
    from tollhouse.api.server import serving
    from tollhouse.house import Tollhouse
    from tollhouse.house.running import open_runs
    from tollhouse.models.book import ModelBook
    from tollhouse.runs.agents import Agent

    async with Tollhouse.open(f"sqlite:///{folder}/ledger.db") as house:
        runs = await open_runs(house, {"one": Agent(name="one", model="scripted:none")}, ModelBook())
        view = await runs.start("one", "", by="bench")
        async with serving(create_app(house, runs=runs), port=0) as url:
            _say({"url": url, "path": f"/v1/runs/{view.id}/events"})
            await asyncio.to_thread(sys.stdin.readline)
            began_s = time.perf_counter()
            head = await _write(runs, view.record, rate, seconds)
            _say({"head": head, "rate": head / (time.perf_counter() - began_s)})
            await asyncio.to_thread(sys.stdin.readline)


async def _write(runs: Any, record: Any, rate: float, seconds: float) -> int:
    """Write events at that rate, then the end of the run; how many the journal has then."""
    from tollhouse.ledger.change import Draft
    from tollhouse.ledger.record import replace
    from tollhouse.runs.journal import commit
    from tollhouse.runs.live import Moved
    from tollhouse.runs.steps import RunChange

    began_s = time.perf_counter()
    for number in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, began_s + number / rate - time.perf_counter()))
        facts = {"state": record.state, "ids": [], "sent": time.time_ns() // 1000}
        after = replace(record, version=record.version + 1)
        record, _ = await commit(runs.store, RunChange(record, after, (Draft("reminded", facts),)), f"w{number}")
        runs.bus.tell(Moved(record.id, record.head_seq, record.state))
    ended = await runs.cancel(record.id, by="bench")
    head: int = ended.record.head_seq
    return head


def _say(said: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    from tollhouse.api.server import run

    run(_serve(sys.argv[1], float(sys.argv[2]), float(sys.argv[3])))
