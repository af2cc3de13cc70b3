"""The process that crashes while it is a Temporal worker: an office of the crash tests, its runs driven by Temporal.

Steered by JSON lines as :mod:`tests.crash.worker`; SIGTERM has it hand over what is under way, close and end.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Self

from tests.crash.runs.office import Office, Opened, opened
from tests.crash.runs.process import Driver
from tests.crash.worker import obey, say, tell
from tollhouse.runs.drivers.temporal import TemporalDriver
from tollhouse.testing.crashpoints import Crash, Crashes

HEARTBEAT_S = 1.0
EVERY_S = 0.1


class TemporalWorker(Driver):
    """The test's side of it. Make it with :meth:`work`."""

    module = "tests.runs.temporal.worker"

    @classmethod
    async def work(cls, office: Office, address: str, *crashes: Mapping[str, Any], grace_s: float = 10.0) -> Self:
        """Return once it works for the Temporal server at ``address``."""
        spec = {"office": office.as_json(), "address": address, "crashes": crashes, "grace_s": grace_s}
        return await cls.launch(spec)


@asynccontextmanager
async def working(
    office: Office, address: str, crashes: Crashes | None = None, *, grace_s: float = 10.0, **more: Any
) -> AsyncIterator[Opened]:
    """An open office, a worker of Temporal; at the end, hand over what is under way within its grace."""
    async with opened(office, crashes, drives=False, grace_s=grace_s, **more) as mine:
        driver = await TemporalDriver.connect(mine.runs, address, every_s=EVERY_S, heartbeat_s=HEARTBEAT_S)
        driver.start()
        try:
            yield mine
        finally:
            await driver.stop(grace_s)


async def main(spec: dict[str, Any]) -> None:
    """Work and obey until the input ends or a signal comes."""
    crashes = Crashes(*(Crash(**each) for each in spec["crashes"]), announce=lambda point: say(reached=point))
    office = Office.of(spec["office"])
    async with working(office, spec["address"], crashes, grace_s=spec["grace_s"], on_event=tell) as mine:
        work = asyncio.ensure_future(obey(mine))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.cancel)
        say(ready=mine.runs.owner_id)
        with suppress(asyncio.CancelledError):
            await work
    say(closed=True)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
