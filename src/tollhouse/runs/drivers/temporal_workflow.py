"""The workflow that drives one run on Temporal: advance, wait for a signal or a timer, advance again.

It holds nothing of the run: all of that is in the store. Temporal keeps where the run waits, wakes it, and moves it to
another worker when one dies. Kept apart from the driver, since Temporal loads it in a sandbox and replays it: what it
decides may depend on its order, on what activities told, and on nothing else.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from temporalio import workflow
from temporalio.common import RetryPolicy

DRIVE = "tollhouse-drive"
"""The activity's name: drives a run until it waits, ends, or has made some steps."""

DRIVE_S_MOST = 7 * 86_400
"""A step may contain a tool that works for days; the heartbeat says whether its worker lives."""
ROUNDS_MOST = 100
"""Rounds before the workflow continues as new: its history stays short, and quick to replay where it moves to."""


@dataclass(frozen=True)
class Order:
    """What the workflow is to do. ``heartbeat_s``: how long a worker may go unheard before another is asked."""

    run_id: str
    heartbeat_s: float = 10.0
    rounds_most: int = ROUNDS_MOST


@dataclass(frozen=True)
class Stands:
    """Where the run stands after an activity. ``wait_s`` None: until it is woken. ``version``: of its record."""

    kind: Literal["continue", "wait", "done"]
    state: str
    version: int
    wait_s: float | None = None


@workflow.defn(name="tollhouse-run")
class RunWorkflow:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._wakes = 0
        self._newest = 0

    @workflow.signal
    def wake(self, version: int) -> None:
        """Something that the run waits for moved; it was seen when the run stood at that version."""
        self._wakes += 1
        self._newest = max(self._newest, version)

    @workflow.run
    async def run(self, order: Order) -> str:
        """Drive the run to its end; its last state."""
        rounds = 0
        while True:
            stands = await self._drive(order)
            if stands.kind == "done":
                return stands.state
            if stands.kind == "wait":
                await self._wait(stands)
            rounds += 1
            if rounds >= order.rounds_most or workflow.info().is_continue_as_new_suggested():
                workflow.continue_as_new(order)  # a signal that came meanwhile is no loss: it begins by driving

    async def _drive(self, order: Order) -> Stands:
        stands: Stands = await workflow.execute_activity(
            DRIVE,
            order.run_id,
            result_type=Stands,
            start_to_close_timeout=timedelta(seconds=DRIVE_S_MOST),
            heartbeat_timeout=timedelta(seconds=order.heartbeat_s),
            retry_policy=RetryPolicy(
                initial_interval=timedelta(seconds=0.5), backoff_coefficient=2.0, maximum_interval=timedelta(seconds=2)
            ),
        )
        return stands

    async def _wait(self, stands: Stands) -> None:
        """A wake that was seen before the activity took the run up was seen by the activity, too."""
        known = self._wakes if self._newest < stands.version else -1
        timeout = None if stands.wait_s is None else timedelta(seconds=stands.wait_s)
        with suppress(TimeoutError):
            await workflow.wait_condition(lambda: self._wakes > known, timeout=timeout)
