"""The workflow that drives one run on Temporal: advance, wait for a signal or a timer, advance again.

It holds nothing of the run: all of that is in the store. Temporal keeps where the run waits, wakes it, and moves it to
another worker when one dies. Kept apart from the driver, since Temporal loads it in a sandbox.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy

DRIVE = "tollhouse-drive"
"""The activity's name: drives a run until it waits, ends, or has made some steps."""

HEARTBEAT_S = 10
DRIVE_S_MOST = 7 * 86_400
"""A step may contain a tool that works for days; the heartbeat says whether its worker lives."""
ROUNDS_MOST = 500
"""Rounds before the workflow continues as new, so that its history stays short."""


@workflow.defn(name="tollhouse-run")
class RunWorkflow:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._woken = False

    @workflow.signal
    def wake(self) -> None:
        """Something that the run waits for moved."""
        self._woken = True

    @workflow.run
    async def run(self, run_id: str) -> str:
        """Drive the run to its end; its last state."""
        rounds = 0
        while True:
            self._woken = False
            stands = await self._drive(run_id)
            if stands["kind"] == "done":
                return str(stands["state"])
            if stands["kind"] == "wait":
                await self._wait(stands["wait_s"])
            rounds += 1
            if rounds == ROUNDS_MOST or workflow.info().is_continue_as_new_suggested():
                workflow.continue_as_new(run_id)  # a signal that came meanwhile is no loss: it begins by driving

    async def _drive(self, run_id: str) -> dict[str, Any]:
        stands: dict[str, Any] = await workflow.execute_activity(
            DRIVE,
            run_id,
            start_to_close_timeout=timedelta(seconds=DRIVE_S_MOST),
            heartbeat_timeout=timedelta(seconds=HEARTBEAT_S),
            retry_policy=RetryPolicy(
                initial_interval=timedelta(seconds=0.5), backoff_coefficient=2.0, maximum_interval=timedelta(seconds=10)
            ),
        )
        return stands

    async def _wait(self, seconds: float | None) -> None:
        try:
            timeout = None if seconds is None else timedelta(seconds=seconds)
            await workflow.wait_condition(lambda: self._woken, timeout=timeout)
        except TimeoutError:
            pass
