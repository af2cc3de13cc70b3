"""Processes that the bench measures from outside: a server, and drivers of runs that are killed.

``python -m tollhouse.bench.processes serve URL`` answers calls of the bench's tools over HTTP; ``drive URL`` drives
runs whose model takes its time. Each prints one line of JSON when it is ready.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tollhouse import Tollhouse
from tollhouse.bench.job import TOOLS
from tollhouse.house.collector import seldom_collected
from tollhouse.house.running import open_runs
from tollhouse.models.port import ModelReply, ModelRequest, OnText
from tollhouse.runs.agents import Agent
from tollhouse.runs.drivers.local import LocalDriver
from tollhouse.runs.service import Runs

LEASE_S = 10.0
SLOW_S = 3600.0
SLOW = Agent(name="slow", model="slow")


class SlowModel:
    """Never answers while anybody measures."""

    async def ask(self, request: ModelRequest, on_text: OnText | None = None) -> ModelReply:
        """Take an hour."""
        await asyncio.sleep(SLOW_S)
        return ModelReply("done", (), "stop", "slow", ())

    async def close(self) -> None:
        """Nothing to close."""


@asynccontextmanager
async def process(*arguments: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, dict[str, Any]]]:
    """One of them, and what it said when it was ready; killed on leaving."""
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tollhouse.bench.processes", *arguments, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert running.stdout is not None
        yield running, json.loads(await running.stdout.readline())
    finally:
        if running.returncode is None:
            running.kill()
        await running.wait()


async def kill_to_continued_s(url: str) -> float:
    """Seconds from the death of a process that drives a run until another one has it in hand; lease 10 s."""
    async with Tollhouse.open(url, tools=TOOLS, background=False, lease_s=3600.0) as house:
        runs = await open_runs(house, {SLOW.name: SLOW}, SlowModel())
        run_id = (await runs.start(SLOW.name, "Take your time.", by="bench")).id
        async with process("drive", url) as (first, _), process("drive", url):
            owner = await _owned_by_another(runs, run_id, None)
            # The second one may have been quicker: whoever has it is killed.
            second = first.pid != (await _pid_of(house, owner))
            if second:
                os.kill(await _pid_of(house, owner), signal.SIGKILL)
            else:
                first.kill()
            began_s = time.perf_counter()
            await _owned_by_another(runs, run_id, owner)
            return time.perf_counter() - began_s


async def _pid_of(house: Tollhouse, owner_id: str) -> int:
    owner = await house.store.owner(house.tenant, owner_id)
    assert owner is not None
    return owner.pid


async def _owned_by_another(runs: Runs, run_id: str, owner: str | None) -> str:
    async with asyncio.timeout(120):
        while True:
            found = (await runs.get(run_id)).record.owner
            if found not in (None, owner):
                return str(found)
            await asyncio.sleep(0.02)


async def serve_ready_s(folder: str) -> float:
    """Seconds from the start of ``tollhouse serve`` without a file until it says that it is ready."""
    began_s = time.perf_counter()
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tollhouse", "serve", "--json", "--listen", "127.0.0.1:0",
        cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert running.stdout is not None
        url = json.loads(await running.stdout.readline())["url"]
        await _until_ready(url)
        return time.perf_counter() - began_s
    finally:
        running.terminate()
        await running.wait()


async def _until_ready(url: str) -> None:
    import httpx2

    async with httpx2.AsyncClient(trust_env=False) as client:
        for _ in range(6000):
            if (await client.get(f"{url}/readyz")).status_code == 200:
                return
            await asyncio.sleep(0.01)
    raise TimeoutError("The server was not ready within a minute.")


# -- inside the processes --------------------------------------------------------------------------------------------


def _say(**facts: Any) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


async def _drive(url: str) -> None:
    async with Tollhouse.open(url, tools=TOOLS, lease_s=LEASE_S) as house:
        driver = LocalDriver(await open_runs(house, {}, SlowModel()))
        driver.start()
        _say(pid=os.getpid())
        await asyncio.Event().wait()


async def _serve(url: str) -> None:
    from tollhouse.api.app import create_app
    from tollhouse.api.server import serving

    async with (
        Tollhouse.open(url, tools=TOOLS, background=False, lease_s=3600.0) as house,
        serving(create_app(house), "127.0.0.1", 0) as address,
    ):
        _say(url=address)
        await asyncio.Event().wait()


def main(what: str, url: str) -> None:
    """Run one of them until it is killed."""
    from tollhouse.api.server import run

    with seldom_collected():
        run({"drive": _drive, "serve": _serve}[what](url))


if __name__ == "__main__":
    main(*sys.argv[1:])
