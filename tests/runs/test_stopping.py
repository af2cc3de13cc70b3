"""A driver that was stopped looks at its store no more."""

from __future__ import annotations

import asyncio

from tests.support.houses import on_one_store
from tests.support.runs import OpenStage, agent, driven_only
from tollhouse.runs.drivers.local import LocalDriver


@on_one_store
@driven_only
async def test_driver_that_is_stopped_just_as_something_moves_looks_no_more(open_stage: OpenStage) -> None:
    """Stopping it and waking it in one moment stops it; it went on for ever once, over a house that was closed."""
    stage = await open_stage(agents=[agent()], clerk=["done"])
    driver = LocalDriver(stage.runs, every_s=60.0)
    driver.start()
    run = await stage.runs.start("clerk", "go", by="ada")
    while not (await stage.runs.get(run.id)).record.finished:  # noqa: ASYNC110 - the driver tells nobody
        await asyncio.sleep(0.01)
    driver._poked.set()
    await asyncio.sleep(0)
    await driver.stop()
    assert driver._loop is not None
    done, _ = await asyncio.wait([driver._loop], timeout=5)
    assert done
    assert driver._loop.cancelled()
