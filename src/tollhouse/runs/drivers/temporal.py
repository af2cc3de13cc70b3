"""The Temporal driver: every run is a workflow, so that runs survive whole fleets of workers, and Temporal's own tools
show and move them. For those who outgrow one PostgreSQL's polling; see ``docs/explanation/drivers.md``.

The store stays the authority: a claim, a lease and the gate keep effects single, whatever Temporal repeats or loses.
What wakes a run is seen in the store by any process of this driver and sent on as a signal; where the workflow is gone,
that starts it anew.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Collection
from contextlib import suppress
from datetime import timedelta
from typing import Any

from tollhouse.errors import ExtraMissing, HouseClosed, TollhouseError
from tollhouse.ledger.run_record import RunRecord
from tollhouse.runs.advance import Lost, Step
from tollhouse.runs.drivers.driving import STALE_S
from tollhouse.runs.drivers.hands import AT_ONCE, Hands
from tollhouse.runs.service import Runs
from tollhouse.runs.states import RunState

try:
    from temporalio import activity
    from temporalio.client import Client
    from temporalio.common import WorkflowIDConflictPolicy
    from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
    from temporalio.service import RPCError
    from temporalio.worker import Worker
    from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

    from tollhouse.runs.drivers import temporal_client
    from tollhouse.runs.drivers.temporal_workflow import DRIVE, Order, RunWorkflow, Stands
except ImportError:
    raise ExtraMissing(
        "The Temporal driver needs packages that are not installed.",
        remedy="Run pip install 'tollhouse[temporal]'.",
    ) from None

log = logging.getLogger("tollhouse")

STEPS_MOST = 50
"""Steps of one activity; a run that makes more becomes visible in Temporal's history in between."""
OTHERS_S = 1.0
"""How soon to look again at a run that another process has in hand."""
MISSING_S = 5.0
"""How soon to look again at a run for which something is away, or not known here."""
HANDED_OVER_S = 0.1
TASK_S = 5.0
"""How long a worker may take to decide what is next for a workflow: one that froze keeps it for so long."""
ROUND_MOST = 500
SIGNAL_AGAIN_S = 5.0
"""A run that is still to be taken so long after its signal gets another one."""
STICKY_S = 2.0
"""How long a workflow waits for the worker that knows it before any other may take it up."""
WATCH_S = 5.0
"""How often the server is asked whether it is there, for the log."""
SHUTDOWN_S = 5.0
"""How long ending waits for the server's word, once nothing is in hand any more."""


class TemporalDriver:
    """Drives the runs of one house through Temporal. Made by :meth:`connect`."""

    name = "temporal"

    def __init__(
        self,
        runs: Runs,
        client: Client,
        *,
        task_queue: str,
        agents: Collection[str] | None = None,
        every_s: float = 0.25,
        heartbeat_s: float = 10.0,
        **order: Any,
    ) -> None:
        self._runs, self._client, self._agents, self._every_s = runs, client, agents, every_s
        self.task_queue = task_queue
        self._order = {"heartbeat_s": heartbeat_s, **order}
        self._hands = Hands(runs, most_steps=STEPS_MOST)
        self._signalled: dict[tuple[str, int], float] = {}
        self._poked = asyncio.Event()
        self._tasks: list[asyncio.Task[Any]] = []
        self._worker: Worker | None = None
        self._last_round_s: float | None = None

    @classmethod
    async def connect(
        cls, runs: Runs, address: str, *, namespace: str | None = None, task_queue: str | None = None, **options: Any
    ) -> TemporalDriver:
        """Connect to the Temporal server at ``address`` (``host:port``).

        ``namespace`` None: that of the environment, or ``default``. ``task_queue`` None: one for each tenant.
        ``options``: ``agents`` None: runs of every agent; ``every_s``: the pause between looks for what woke up;
        ``heartbeat_s``: how long a worker may go unheard before Temporal asks another; ``rounds_most``: see the
        workflow. Raises :class:`DriverUnavailable` when nobody answers there.
        """
        client = await temporal_client.connected(address, namespace)
        return cls(runs, client, task_queue=task_queue or f"tollhouse-{runs.tenant}", **options)

    def start(self) -> None:
        """Begin, on the running loop: a worker for the workflows and their steps, and the look-out for wakes."""
        self._runs.driver, self._runs.on_start = self.name, lambda _record: self._poked.set()
        self._worker = Worker(
            self._client,
            task_queue=self.task_queue,
            workflows=[RunWorkflow],
            activities=[self.drive],
            workflow_runner=workflow_runner(),
            max_concurrent_activities=AT_ONCE,
            max_heartbeat_throttle_interval=timedelta(seconds=self._order["heartbeat_s"] / 3),
            workflow_failure_exception_types=[Exception],  # what cannot go on, as after an upgrade, is begun anew
            sticky_queue_schedule_to_start_timeout=timedelta(seconds=STICKY_S),
            graceful_shutdown_timeout=timedelta(days=365),  # `stop` knows better when to end what is under way
        )
        self._hands.start()
        parts = (self._work(self._worker), self._rounds(), self._watch())
        self._tasks = [asyncio.create_task(part) for part in parts]

    @property
    def in_hand(self) -> int:
        """How many runs this process drives now."""
        return len(self._hands)

    async def stop(self, grace_s: float = 10.0) -> None:
        """Take no more; hand each run over after its step, or after ``grace_s`` in the middle of it."""
        self._hands.stopping = True
        if self._worker is None:
            return
        working, *looking = self._tasks
        for task in looking:
            task.cancel()
        ending = asyncio.create_task(self._worker.shutdown())
        await self._hands.stop(grace_s)
        await asyncio.wait([ending, working], timeout=SHUTDOWN_S)
        for task in (ending, working):
            task.cancel()
        await asyncio.wait([ending, *self._tasks], timeout=SHUTDOWN_S)

    async def is_well(self) -> bool:
        """Whether this process looks at its store, works for Temporal, and is heard there."""
        last_s, working = self._last_round_s, bool(self._tasks) and not self._tasks[0].done()
        fresh = last_s is not None and time.monotonic() - last_s < STALE_S
        return fresh and working and await temporal_client.answers(self._client)

    async def _work(self, worker: Worker) -> None:
        try:
            await worker.run()
        except Exception:
            log.exception("temporal_worker_failed")

    async def _watch(self) -> None:
        heard = True
        while True:
            await asyncio.sleep(WATCH_S)
            if (hears := await temporal_client.answers(self._client)) != heard:
                log.warning("temporal_back" if hears else "temporal_away", extra={"tollhouse": {}})
            heard = hears

    # -- the activity --------------------------------------------------------------------------------------

    @activity.defn(name=DRIVE)
    async def drive(self, run_id: str) -> Stands:
        """Drive a run until it waits or ends: the workflow's activity.

        Temporal may lose sight of this and ask again, here or elsewhere. The run is not disturbed: who asks here joins
        what is under way, who asks elsewhere is told to come back.
        """
        beating = asyncio.create_task(_beat())
        try:
            return await self._drive(run_id)
        except ApplicationError:
            raise
        except Lost:
            raise _again("Another process has the run in hand.", OTHERS_S) from None
        except HouseClosed:
            raise _again("This process is stopping.", HANDED_OVER_S) from None
        except TollhouseError as missing:
            log.warning("run_not_driven run=%s code=%s", run_id, missing.code)
            raise _again(missing.cause, MISSING_S) from None
        except Exception:
            log.exception("run_not_driven run=%s", run_id)
            raise _again("A defect; the worker's log has it.", MISSING_S) from None  # words of a run stay here
        finally:
            beating.cancel()

    async def _drive(self, run_id: str) -> Stands:
        record = await self._runs.store.run(self._runs.tenant, run_id)
        if record is None:
            return Stands("done", "unknown", 0)
        if self._agents is not None and record.agent not in self._agents:
            raise _again(f"This process does not know the agent {record.agent}.", OTHERS_S)
        if record.state == RunState.LIMIT_REACHED:
            return self._stands(Step("wait", record))
        if self._hands.stopping:
            raise _again("This process is stopping.", HANDED_OVER_S)
        task = self._hands.take(record)
        await asyncio.wait([task])
        if task.cancelled():
            raise _again("The run was handed over in the middle of a step.", HANDED_OVER_S)
        step = task.result()
        assert step is not None
        return self._stands(step)

    def _stands(self, step: Step) -> Stands:
        """Where the run stands, as the workflow hears it."""
        record, wait_s = step.record, None
        if step.kind == "wait" and record.due_at_us is not None:
            wait_s = max(0.0, (record.due_at_us - self._runs.now_here_us()) / 1_000_000)
        return Stands(step.kind, record.state, record.version, wait_s)

    # -- waking --------------------------------------------------------------------------------------------

    async def _rounds(self) -> None:
        while True:
            self._poked.clear()
            try:
                await self.round()
            except TollhouseError as error:
                log.warning("driver_waits code=%s", error.code, extra={"tollhouse": {"code": error.code}})
            except RPCError as error:
                log.warning("driver_waits code=driver_unavailable", extra={"tollhouse": {"status": error.status.name}})
            except Exception:
                log.exception("driver_round_failed")
            with suppress(TimeoutError):
                async with asyncio.timeout(self._every_s * random.uniform(0.75, 1.25)):
                    await self._poked.wait()  # not by `wait_for`, which loses a cancel that comes with the poke

    async def round(self) -> int:
        """Signal the workflow of every run that may go on, starting it where there is none; how many."""
        for record in await self._hands.stop_cancelled_elsewhere():
            if record.driver == self.name and record.id not in self._hands:
                _ = self._hands.take(record)  # let go of when something failed; nobody else can take it
        found = await self._runs.store.runs_to_take(self._runs.tenant, self.name, ROUND_MOST, agents=self._agents)
        self._last_round_s = now_s = time.monotonic()
        self._signalled = {run: at_s for run, at_s in self._signalled.items() if now_s - at_s < SIGNAL_AGAIN_S}
        for record in found:
            if record.owner is not None and self._room > 0:
                _ = self._hands.take(record)  # its process was lost: sooner than Temporal may notice
        fresh = [record for record in found if (record.id, record.version) not in self._signalled]
        await asyncio.gather(*(self._signal(record) for record in fresh))
        return len(fresh)

    @property
    def _room(self) -> int:
        return self._hands.at_once - len(self._hands)

    async def _signal(self, record: RunRecord) -> None:
        if record.finished:
            await self._runs.tidy(record)
            return
        await self._client.start_workflow(
            RunWorkflow.run,
            Order(record.id, **self._order),
            id=f"{record.tenant}:{record.id}",
            task_queue=self.task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            task_timeout=timedelta(seconds=TASK_S),
            start_signal="wake",
            start_signal_args=[record.version],
        )
        self._signalled[record.id, record.version] = time.monotonic()


def workflow_runner() -> SandboxedWorkflowRunner:
    """The sandbox of the workflow, which need not load this package anew for each run."""
    known = SandboxRestrictions.default.with_passthrough_modules("tollhouse", "pydantic", "pydantic_core")
    return SandboxedWorkflowRunner(restrictions=known)


def _again(why: str, after_s: float) -> ApplicationError:
    """Have Temporal ask again, here or elsewhere, as when a worker is lost: no defect, and nothing in its history."""
    delay = timedelta(seconds=after_s * random.uniform(0.75, 1.25))
    return ApplicationError(why, next_retry_delay=delay, category=ApplicationErrorCategory.BENIGN)


async def _beat() -> None:
    timeout = activity.info().heartbeat_timeout
    assert timeout is not None
    while True:
        activity.heartbeat()
        await asyncio.sleep(timeout.total_seconds() / 4)
