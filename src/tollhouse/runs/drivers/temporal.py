"""The Temporal driver: every run is a workflow, so that runs survive whole fleets of workers, and Temporal's own tools
show and move them. For those who outgrow one PostgreSQL's polling; see ``docs/explanation/drivers.md``.

The store stays the authority: a claim, a lease and the gate keep effects single, whatever Temporal repeats. What wakes
a run is seen in the store by any process of this driver and sent on as a signal.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from tollhouse.errors import ExtraMissing, StoreUnavailable, TollhouseError
from tollhouse.ledger.run_record import RunRecord
from tollhouse.runs.advance import Lost, Step
from tollhouse.runs.drivers.driving import see_through
from tollhouse.runs.service import Runs

try:
    from temporalio import activity
    from temporalio.client import Client
    from temporalio.common import WorkflowIDConflictPolicy
    from temporalio.worker import Worker
    from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

    from tollhouse.runs.drivers.temporal_workflow import DRIVE, HEARTBEAT_S, RunWorkflow
except ImportError:
    raise ExtraMissing(
        "The Temporal driver needs packages that are not installed.", remedy="pip install 'tollhouse[temporal]'"
    ) from None

log = logging.getLogger("tollhouse")

STEPS_MOST = 50
"""Steps of one activity; a run that makes more becomes visible in Temporal's history in between."""
OTHERS_S = 1.0
"""How soon to look again at a run that another process has in hand."""
ROUND_MOST = 500
SIGNAL_AGAIN_S = 5.0
"""A run that is still to be taken so long after its signal gets another one."""


class TemporalDriver:
    """Drives the runs of one house through Temporal. Made by :meth:`connect`."""

    name = "temporal"

    def __init__(
        self, runs: Runs, client: Client, *, agents: Collection[str] | None, task_queue: str, every_s: float = 0.25
    ) -> None:
        self._runs, self._client, self._agents, self._every_s = runs, client, agents, every_s
        self._task_queue = task_queue
        self._signalled: dict[tuple[str, int], float] = {}
        self._poked = asyncio.Event()
        self._stopping = False
        self._tasks: list[asyncio.Task[Any]] = []
        self._worker: Worker | None = None
        self.last_round_s: float | None = None
        """When the store was last looked at, on ``time.monotonic``; for health checks."""

    @classmethod
    async def connect(
        cls,
        runs: Runs,
        address: str,
        *,
        namespace: str = "default",
        agents: Collection[str] | None = None,
        task_queue: str | None = None,
        every_s: float = 0.25,
    ) -> TemporalDriver:
        """Connect to the Temporal server at ``address`` (``host:port``). ``task_queue`` None: one for each tenant.

        Raises :class:`StoreUnavailable` when nobody answers there.
        """
        try:
            client = await Client.connect(address, namespace=namespace)
        except RuntimeError as error:
            raise StoreUnavailable(
                f"No Temporal server answers at {address}.", remedy="Start it, or name another with --temporal."
            ) from error
        queue = task_queue or f"tollhouse-{runs.tenant}"
        return cls(runs, client, agents=agents, task_queue=queue, every_s=every_s)

    def start(self) -> None:
        """Begin, on the running loop: a worker for the workflows and their steps, and the look-out for wakes."""
        self._runs.driver, self._runs.on_start = self.name, self._poked.set
        runner = SandboxedWorkflowRunner(
            restrictions=SandboxRestrictions.default.with_passthrough_modules("tollhouse", "pydantic", "pydantic_core")
        )
        self._worker = Worker(
            self._client,
            task_queue=self._task_queue,
            workflows=[RunWorkflow],
            activities=[self.drive],
            workflow_runner=runner,
        )
        self._tasks = [asyncio.create_task(self._worker.run()), asyncio.create_task(self._rounds())]

    async def stop(self, grace_s: float = 10.0) -> None:
        """Take no more; hand each run over after its step, or after ``grace_s`` in the middle of it."""
        self._stopping = True
        if not self._tasks:
            return
        working, looking = self._tasks
        looking.cancel()
        assert self._worker is not None
        with suppress(TimeoutError, RuntimeError):
            await asyncio.wait_for(self._worker.shutdown(), grace_s)
        working.cancel()
        await asyncio.gather(working, looking, return_exceptions=True)

    # -- the activity --------------------------------------------------------------------------------------

    @activity.defn(name=DRIVE)
    async def drive(self, run_id: str) -> dict[str, Any]:
        """Drive a run until it waits or ends: the workflow's activity. ``wait_s`` None: until it is woken."""
        record = await self._runs.store.run(self._runs.tenant, run_id)
        if record is None:
            return {"kind": "done", "state": "unknown"}
        if record.finished:
            return self._told(Step("done", await self._runs.tidy(record)))
        beating = asyncio.create_task(_beat())
        try:
            drive = await self._runs.claim(record)
            step = await see_through(self._runs, drive, stopping=lambda: self._stopping, most_steps=STEPS_MOST)
            return self._told(step)
        except Lost:
            return {"kind": "wait", "wait_s": OTHERS_S}
        finally:
            beating.cancel()

    def _told(self, step: Step) -> dict[str, Any]:
        """Where the run stands, as the workflow hears it."""
        wait_s = None
        if step.kind == "wait" and step.record.due_at_us is not None:
            wait_s = max(0.0, (step.record.due_at_us - self._runs.now_here_us()) / 1_000_000)
        return {"kind": step.kind, "state": step.record.state, "wait_s": wait_s}

    # -- waking --------------------------------------------------------------------------------------------

    async def _rounds(self) -> None:
        while True:
            self._poked.clear()
            try:
                await self.round()
            except TollhouseError as error:
                log.warning("driver_waits code=%s", error.code, extra={"tollhouse": {"code": error.code}})
            except Exception:
                log.exception("driver_round_failed")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._poked.wait(), self._every_s * random.uniform(0.75, 1.25))

    async def round(self) -> int:
        """Signal the workflow of every run that may go on, starting it where there is none; how many."""
        found = await self._runs.store.runs_to_take(self._runs.tenant, self.name, ROUND_MOST, agents=self._agents)
        self.last_round_s = now_s = time.monotonic()
        self._signalled = {run: at_s for run, at_s in self._signalled.items() if now_s - at_s < SIGNAL_AGAIN_S}
        fresh = [record for record in found if (record.id, record.version) not in self._signalled]
        await asyncio.gather(*(self._signal(record) for record in fresh))
        return len(fresh)

    async def _signal(self, record: RunRecord) -> None:
        if record.finished:
            await self._runs.tidy(record)
            return
        await self._client.start_workflow(
            RunWorkflow.run,
            record.id,
            id=f"{record.tenant}:{record.id}",
            task_queue=self._task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            start_signal="wake",
        )
        self._signalled[record.id, record.version] = time.monotonic()


async def _beat() -> None:
    while True:
        activity.heartbeat()
        await asyncio.sleep(HEARTBEAT_S / 4)
