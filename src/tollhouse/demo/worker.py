"""A worker of the demo: a process that passes calls through the gate and may be killed while it does.

``processes.py`` starts it as ``python -m tollhouse.demo.worker JOB``. It tells what it sees as JSON lines on standard
output, logs on standard error, and ends when its standard input does, so that it never outlives the demo.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
from contextlib import AbstractAsyncContextManager
from typing import Any

from tollhouse import Outcome, Tollhouse
from tollhouse.demo.job import LOG_FORMAT, Job, Order
from tollhouse.demo.tools import GATES, TOOLS
from tollhouse.errors import TollhouseError
from tollhouse.testing.crashpoints import Crash, Crashes, crashing_house

ROUND_EVERY_S = 0.1


async def work(job: Job) -> None:
    """Do the job, or stop half-way when standard input ends."""
    loop, parent_gone = asyncio.get_running_loop(), asyncio.Event()
    threading.Thread(target=_watch_stdin, args=(loop, parent_gone), daemon=True).start()
    async with _house(job) as house:
        waits: set[asyncio.Task[Any]] = {loop.create_task(parent_gone.wait())}
        if not job.serve:
            waits.add(loop.create_task(_make_calls(house, job)))
        done, left = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in left:
            task.cancel()
        for task in done:
            task.result()


def _house(job: Job) -> AbstractAsyncContextManager[Tollhouse]:
    settings: dict[str, Any] = {
        "tools": TOOLS,
        "gates": GATES,
        "tenant": job.tenant,
        "principal": "shop-agent",
        "lease_s": job.lease_s,
        "background": job.serve,
        "every_s": ROUND_EVERY_S,
        "grace_s": 0.5,
        "on_event": lambda kind, facts: tell(kind, **facts),
    }
    if job.crash_at is None:
        return Tollhouse.open(job.store, **settings)
    return crashing_house(job.store, Crashes(Crash(job.crash_at)), **settings)


async def _make_calls(house: Tollhouse, job: Job) -> None:
    await asyncio.gather(*(_call(house, order) for order in job.orders for _ in range(job.callers)))


async def _call(house: Tollhouse, order: Order) -> None:
    tell("asks", key=order.key)
    try:
        outcome: Outcome[Any] = await house.call(order.tool, order.arguments, key=order.key)
    except TollhouseError as error:
        tell("answered", key=order.key, code=error.code, replayed=None)
    else:
        tell("answered", key=order.key, code=None, replayed=outcome.replayed)


def tell(event: str, **facts: Any) -> None:
    """One line to the parent, whole and at once."""
    sys.stdout.write(json.dumps({"event": event, **facts}, default=str) + "\n")
    sys.stdout.flush()


def _watch_stdin(loop: asyncio.AbstractEventLoop, ended: asyncio.Event) -> None:
    # Not through `sys.stdin`: its lock, held here, would stall the interpreter's exit.
    while os.read(0, 1):
        pass
    loop.call_soon_threadsafe(ended.set)


def main() -> None:
    """The process: its job is its only argument."""
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
    asyncio.run(work(Job.loads(sys.argv[1])))


if __name__ == "__main__":
    main()
