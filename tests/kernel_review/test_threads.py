"""The threads of ``def`` tools: none waits for another's function while there is room for one more thread."""

from __future__ import annotations

import asyncio
import threading

from tollhouse.gate.threads import ThreadPool


async def test_two_functions_that_come_at_once_run_beside_each_other() -> None:
    """One idle thread takes one of them only; the other gets a thread of its own."""
    pool, together = ThreadPool(), threading.Barrier(2)
    await pool.run(threading.get_ident)
    while not pool._idle:  # noqa: ASYNC110 - a thread that is idle again tells nobody
        await asyncio.sleep(0.001)
    both = [pool.run(together.wait, timeout=10) for _ in range(2)]
    assert sorted(await asyncio.gather(*both)) == [0, 1]
    pool.close()
