"""The one-tool job in a durable-execution library and in a graph framework; run by the bench in another interpreter.

``python job.py NAME URL CALLERS``, then a line ``<callers> <seconds>`` on stdin for each measurement; the answer is one
line with jobs per second. Each is set up as its documentation says for production and for the same promise: what is
about to happen, and what came of it, is durable before the next step and before the caller is told. Pools are as large
as there are callers. Imports nothing of the project, which is not installed there.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

Job = Callable[[int], Awaitable[object]]
_numbers = itertools.count(time.time_ns())


async def pay(account_id: str, amount_cents: int) -> dict[str, Any]:
    """What the measured tool does, too."""
    return {"id": "cr_1", "account_id": account_id, "amount_cents": amount_cents, "note": "x" * 100}


@asynccontextmanager
async def dbos_jobs(url: str, callers: int) -> AsyncIterator[Job]:
    """One workflow of one step, named by the key; asynchronous, quiet, nothing else switched on."""
    from dbos import DBOS, SetWorkflowID  # type: ignore[import-not-found,unused-ignore]

    DBOS(
        config={
            "name": "bench",
            "system_database_url": url,
            "sys_db_pool_size": callers,
            "log_level": "ERROR",
            "enable_otlp": False,
        }
    )
    step = DBOS.step()(pay)

    async def once(account_id: str, amount_cents: int) -> Any:
        return await step(account_id, amount_cents)

    workflow = DBOS.workflow()(once)
    DBOS.launch()

    async def job(number: int) -> object:
        with SetWorkflowID(f"order-{number}:pay"):
            return await workflow("a1", number)

    try:
        yield job
    finally:
        DBOS.destroy()


@asynccontextmanager
async def langgraph_jobs(url: str, callers: int) -> AsyncIterator[Job]:
    """A graph of one node over a pool; ``durability="sync"``, so that a checkpoint is kept before the next step."""
    from langgraph.checkpoint.postgres.aio import (  # type: ignore[import-not-found,unused-ignore]
        AsyncPostgresSaver,
    )
    from langgraph.graph import END, START, StateGraph  # type: ignore[import-not-found,unused-ignore]
    from psycopg.rows import dict_row  # type: ignore[import-not-found,unused-ignore]
    from psycopg_pool import AsyncConnectionPool  # type: ignore[import-not-found,unused-ignore]

    async def node(state: dict[str, Any]) -> dict[str, Any]:
        return {"result": await pay(state["account_id"], state["amount_cents"])}

    settings = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    async with AsyncConnectionPool(url, min_size=callers, max_size=callers, kwargs=settings) as pool:
        await AsyncPostgresSaver(pool).setup()

        def graph() -> Any:
            built = StateGraph(dict)
            built.add_node("pay", node)
            built.add_edge(START, "pay")
            built.add_edge("pay", END)
            return built.compile(checkpointer=AsyncPostgresSaver(pool))

        # A saver takes one caller at a time, so each has its own.
        graphs = [graph() for _ in range(callers)]

        async def job(number: int) -> object:
            config = {"configurable": {"thread_id": f"order-{number}"}}
            asked = {"account_id": "a1", "amount_cents": number}
            return await graphs[number % callers].ainvoke(asked, config, durability="sync")

        yield job


async def rate(job: Job, callers: int, seconds: float) -> float:
    """Jobs per second with ``callers`` at work at the same time."""
    done = 0
    until = time.perf_counter() + seconds

    async def caller() -> None:
        nonlocal done
        while time.perf_counter() < until:
            await job(next(_numbers))
            done += 1

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    return done / (time.perf_counter() - began)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


PEERS = {"dbos": dbos_jobs, "langgraph": langgraph_jobs}


async def main(name: str, url: str, most_callers: int) -> None:
    """Answer one measurement a line until the input ends."""
    async with PEERS[name](url, most_callers) as job:
        await rate(job, most_callers, 0.5)
        _say("ready")
        while line := await asyncio.to_thread(sys.stdin.readline):
            callers, seconds = line.split()
            _say(str(await rate(job, int(callers), float(seconds))))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
