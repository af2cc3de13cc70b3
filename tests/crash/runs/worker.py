"""The process that crashes while it drives runs: an office, steered by JSON lines as :mod:`tests.crash.worker`.

SIGTERM has it hand over what is under way, close and end, as a deployment does.
"""

import asyncio
import json
import signal
import sys
from contextlib import suppress
from typing import Any

from tests.crash.runs.office import Office, opened
from tests.crash.worker import obey, say, tell
from tollhouse.testing.crashpoints import Crash, Crashes


async def main(spec: dict[str, Any]) -> None:
    """Open the office, obey until the input ends or a signal comes, close it."""
    crashes = Crashes(*(Crash(**each) for each in spec["crashes"]), announce=lambda point: say(reached=point))
    async with opened(
        Office.of(spec["office"]), crashes, drives=spec["drives"], on_event=tell, grace_s=spec["grace_s"]
    ) as office:
        work = asyncio.ensure_future(obey(office))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.cancel)
        say(ready=office.runs.owner_id)
        with suppress(asyncio.CancelledError):
            await work
    say(closed=True)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
