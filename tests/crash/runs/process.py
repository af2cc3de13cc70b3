"""The test's side of a process that drives runs."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from typing import Any, Self

from tests.crash.process import Worker
from tests.crash.runs.office import Office


class Driver(Worker):
    """One process with one office. Make it with :meth:`drive`."""

    module = "tests.crash.runs.worker"

    @classmethod
    async def drive(
        cls, office: Office, *crashes: Mapping[str, Any], drives: bool = True, grace_s: float = 10.0
    ) -> Self:
        """Return once its office is open. ``drives``: whether it takes runs, or only says what it is asked to."""
        spec = {"office": office.as_json(), "crashes": crashes, "drives": drives, "grace_s": grace_s}
        return await cls.launch(spec)

    def begin(self, key: str = "order-7", agent: str = "clerk", input: str = "credit a1") -> asyncio.Future[Any]:
        """Have it start a run under a key; the run, for those who care for the answer."""
        return self.ask("runs.start", agent, input, by="ada", key=key)

    async def terminate(self) -> None:
        """SIGTERM; returns when it has closed its office and ended."""
        self.signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            assert await self._process.wait() == 0
            await self._reading
        assert self.closed
