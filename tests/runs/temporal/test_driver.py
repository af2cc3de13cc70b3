"""The Temporal driver: what it leaves to the store, what it hands over, and what no outage of the server can do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any, cast

import pytest
from temporalio import workflow
from temporalio.api.enums.v1 import EventType, PendingActivityState
from temporalio.client import WorkflowExecutionStatus
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError
from temporalio.worker import Replayer, Worker

from tests.runs.temporal.conftest import TemporalStage
from tests.support.houses import on_one_store
from tests.support.runs import Bank, OpenStage, agent, calls, on_sqlite
from tests.support.temporal import TemporalServer
from tollhouse import CallContext, Tool, external, tool
from tollhouse.errors import DriverUnavailable
from tollhouse.models.port import ModelRequest
from tollhouse.runs.agents import AgentApproval, Limits
from tollhouse.runs.drivers.local import LocalDriver
from tollhouse.runs.drivers.temporal import TemporalDriver, workflow_runner
from tollhouse.runs.drivers.temporal_workflow import RunWorkflow
from tollhouse.runs.view import RunView

pytestmark = [pytest.mark.xdist_group("temporal")]

TOOLS = ("credit", "letter", "balance")
CREDIT = ("credit", {"account": "a1", "cents": 5})
LETTER = ("letter", {"to": "a1", "text": "hello"})
ASK = ("ask_person", {"question": "How much?"})
WAIT = ("wait", {"seconds": 3600})
NEEDS = {"credit": AgentApproval(), "letter": AgentApproval()}

OpenTemporal = Callable[..., Awaitable[TemporalStage]]


@pytest.fixture
def open_temporal(open_stage: OpenStage) -> OpenTemporal:
    """The same stages, as what they are here."""
    return cast(OpenTemporal, open_stage)


@pytest.fixture
async def own_server() -> AsyncIterator[TemporalServer]:
    """A server of this test's own, to be frozen and lost."""
    with TemporalServer() as server:
        yield server


async def until(stage: TemporalStage, run_id: str, state: str, key: str | None = None) -> RunView:
    """The run once it is in that state, because of that call where one is named."""
    async with asyncio.timeout(30):
        while True:
            run = await stage.runs.get(run_id)
            if run.state == state and key in (None, *(each.id for each in run.waiting)):
                return run
            await asyncio.sleep(0.01)  # any worker may move it


async def claims(stage: TemporalStage, run_id: str) -> list[str]:
    """Who took the run, each time that somebody did."""
    return [facts["owner"] for facts in await stage.facts(run_id, "run_claimed")]


class Slow:
    """A tool that pays, and then works until it is let go."""

    def __init__(self, bank: Bank) -> None:
        self.began, self.go_on = asyncio.Event(), asyncio.Event()

        @tool(external(attempt_timeout_s=60, deadline_s=60))
        async def slow(ctx: CallContext) -> Any:
            """Pay, then take long."""
            response = await ctx.http.post(f"{bank.receiver.url}/v1/credits", json={"account": "a", "cents": 1})
            self.began.set()
            await self.go_on.wait()
            return response.json()

        self.tool: Tool[Any] = slow


# -- one run at a time, whoever asks -----------------------------------------------------------------------------------


@on_one_store
async def test_workflow_replays_as_it_ran(open_temporal: OpenTemporal, bank: Bank) -> None:
    """Signals, timers and rounds decide alike when Temporal replays them elsewhere."""
    agents = [agent(tools=TOOLS, approvals=NEEDS, questions=True, timers=True)]
    turns = [calls(("wait", {"seconds": 0.2})), calls(CREDIT), calls(ASK), "ok"]
    stage = await open_temporal(*bank.tools, agents=agents, clerk=turns)
    run = await stage.run()
    run = await until(stage, run.id, "awaiting_approval")
    await stage.house.approve(run.waiting[0].id, by="bob")
    run = await until(stage, run.id, "awaiting_answer")
    await stage.runs.answer(run.id, run.waiting[0].id, "five", by="bob")
    assert await stage.workflow(run.id).result() == "succeeded"
    history = await stage.workflow(run.id).fetch_history()
    replayer = Replayer(workflows=[RunWorkflow], workflow_runner=workflow_runner())
    replayed = await replayer.replay_workflow(history)
    assert replayed.replay_failure is None
    assert len(history.events) > 20


@on_one_store
async def test_workflow_continues_as_new_and_loses_no_wake(open_temporal: OpenTemporal, bank: Bank) -> None:
    """However often it begins anew, each decision is heard, each call made once."""
    agents = [agent(tools=TOOLS, approvals=NEEDS)]
    asked = [calls(("credit", {"account": f"a{n}", "cents": n})) for n in range(1, 6)]
    stage = await open_temporal(*bank.tools, agents=agents, clerk=[*asked, "ok"], options={"rounds_most": 1})
    started = await stage.runs.start("clerk", "go", by="ada")
    for turn in range(1, 6):
        await until(stage, started.id, "awaiting_approval", key=f"{started.id}:{turn}.1")
        await stage.house.approve(f"{started.id}:{turn}.1", by="bob")
    assert (await until(stage, started.id, "succeeded")).output == "ok"
    assert bank.credits == [(f"a{n}", n) for n in range(1, 6)]
    assert await stage.workflow(started.id).result() == "succeeded"
    first = (await stage.workflow(started.id).fetch_history()).events[0]
    assert first.workflow_execution_started_event_attributes.continued_execution_run_id


@on_sqlite
async def test_timer_and_wake_together_drive_a_run_once(open_temporal: OpenTemporal) -> None:
    """Temporal's timer, and two processes that see the run is due, are one reason to go on and not three."""
    stage = await open_temporal(agents=[agent(timers=True)], clerk=[calls(WAIT), "ok"])
    run = await stage.run()
    await stage.after(3600)
    await until(stage, run.id, "succeeded")
    assert len(await claims(stage, run.id)) == 2


@on_one_store
async def test_wakes_do_not_move_a_run_that_stands_at_a_limit(open_temporal: OpenTemporal, bank: Bank) -> None:
    """Whoever signals the workflow, the run goes on when its limit is raised and not before."""
    agents = [agent(tools=TOOLS, limits=Limits(turns=1))]
    stage = await open_temporal(*bank.tools, agents=agents, clerk=[calls(CREDIT), "ok"])
    run = await stage.run()
    assert run.state == "limit_reached"
    before = await stage.events(run.id)
    for version in range(100, 103):
        await stage.workflow(run.id).signal("wake", version)
    async with asyncio.timeout(20):
        while await _steps_told(stage, run.id) < 2:  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0.05)
    await stage.runs.raise_limits(run.id, {"turns": 5}, by="bob")
    await until(stage, run.id, "succeeded")
    assert (await stage.events(run.id))[len(before)].kind == "limits_raised"


async def _steps_told(stage: TemporalStage, run_id: str) -> int:
    """How many activities of the run's workflow have told where it stands."""
    events = (await stage.workflow(run_id).fetch_history()).events
    return sum(event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED for event in events)


async def test_drivers_leave_each_other_s_runs_alone(open_temporal: OpenTemporal, bank: Bank) -> None:
    """Over one store each driver takes the runs that were started for it."""
    agents = [agent(tools=TOOLS)]
    stage = await open_temporal(*bank.tools, agents=agents, clerk=[calls(CREDIT), "ok"])
    local = LocalDriver(stage.all_runs[1])
    here = await stage.runs.start("clerk", "go", by="ada", driver="local")
    there = await stage.run()
    assert ((await stage.runs.get(here.id)).state, there.state) == ("queued", "succeeded")
    await local.settle()
    assert (await stage.runs.get(here.id)).state == "succeeded"
    await stage.close_workers()
    left = await stage.runs.start("clerk", "go", by="ada", driver="temporal")
    await local.settle()
    assert (await stage.runs.get(left.id)).state == "queued"
    assert len(bank.credits) == 2


async def test_run_waits_for_a_worker(open_temporal: OpenTemporal, bank: Bank, temporal_server: TemporalServer) -> None:
    """A run that was started while nobody works stands in the store until somebody does."""
    stage = await open_temporal(*bank.tools, agents=[agent(tools=TOOLS)], workers=0, clerk=[calls(CREDIT), "ok"])
    run = await stage.runs.start("clerk", "go", by="ada")
    assert (run.record.driver, run.state) == ("temporal", "queued")
    await stage.work(stage.all_runs[1], temporal_server.address)
    await until(stage, run.id, "succeeded")


@on_one_store
async def test_worker_leaves_agents_alone_that_it_does_not_know(
    open_temporal: OpenTemporal, bank: Bank, temporal_server: TemporalServer
) -> None:
    """Temporal gives a step to any worker of the queue; one without the agent's tools passes it on."""
    agents = [agent(tools=TOOLS), agent("teller", tools=TOOLS)]
    turns = [calls(CREDIT), "ok"]
    stage = await open_temporal(*bank.tools, agents=agents, workers=0, clerk=turns, teller=turns)
    for runs, name in zip(stage.all_runs, ("clerk", "teller"), strict=True):
        await stage.work(runs, temporal_server.address, agents=[name])
    started = {n: await stage.runs.start(("clerk", "teller")[n % 2], "go", by="ada") for n in range(2)}
    for n, run in started.items():
        await until(stage, run.id, "succeeded")
        assert await claims(stage, run.id) == [stage.all_runs[n % 2].owner_id]


@on_one_store
async def test_cancel_ends_a_model_request_at_once(open_temporal: OpenTemporal) -> None:
    """A run that is cancelled in another process is not driven on, however long its model would take."""
    asked, ended = asyncio.Event(), asyncio.Event()

    async def never(_request: ModelRequest) -> str:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    stage = await open_temporal(agents=[agent()], houses=3, clerk=never)
    run = await stage.runs.start("clerk", "go", by="ada")
    await asked.wait()
    await stage.all_runs[2].cancel(run.id, by="bob")
    async with asyncio.timeout(10):
        await ended.wait()
    assert await stage.workflow(run.id).result() == "cancelled"


@workflow.defn(name="tollhouse-run", sandboxed=False)
class OfAnotherRelease:
    """A workflow that took another way to where it is."""

    @workflow.run
    async def run(self, _order: dict[str, Any]) -> None:
        """Wait for long."""
        await workflow.sleep(3600)

    @workflow.signal
    def wake(self, _version: int) -> None:
        """Nothing follows."""


@pytest.mark.slow
@on_one_store
@pytest.mark.parametrize("order", [{"run_id": "run_1"}, {"what": "else"}])
async def test_workflow_of_another_release_strands_no_run(
    open_temporal: OpenTemporal, temporal_server: TemporalServer, order: dict[str, str]
) -> None:
    """A history that this release cannot replay, or not even read, ends, and the run gets a workflow anew."""
    stage = await open_temporal(agents=[agent()], workers=0, clerk=["ok"])
    run = await stage.runs.start("clerk", "go", by="ada")
    queue = f"tollhouse-{stage.runs.tenant}"
    async with Worker(stage.client, task_queue=queue, workflows=[OfAnotherRelease]):
        old = stage.workflow(run.id).id
        await stage.client.start_workflow("tollhouse-run", order, id=old, task_queue=queue)
        async with asyncio.timeout(30):
            while len((await stage.workflow(run.id).fetch_history()).events) < 5:  # noqa: ASYNC110 - the server tells nobody
                await asyncio.sleep(0.05)
    await stage.work(stage.runs, temporal_server.address)
    assert (await until(stage, run.id, "succeeded")).output == "ok"


# -- stopping ----------------------------------------------------------------------------------------------------------


@on_one_store
async def test_stop_lets_a_step_end_and_hands_the_run_over(
    open_temporal: OpenTemporal, bank: Bank, temporal_server: TemporalServer
) -> None:
    """Within its grace a worker finishes the step under way; another makes the next."""
    slow = Slow(bank)
    stage = await open_temporal(
        slow.tool, agents=[agent(tools=("slow",))], workers=1, clerk=[calls(("slow", {})), "ok"]
    )
    run = await stage.runs.start("clerk", "go", by="ada")
    await slow.began.wait()
    stopping = asyncio.create_task(stage.workers.pop().stop(grace_s=20))
    await stage.work(stage.all_runs[1], temporal_server.address)
    slow.go_on.set()
    await stopping
    await until(stage, run.id, "succeeded")
    assert len(bank.credits) == 1
    assert await claims(stage, run.id) == [each.owner_id for each in stage.all_runs]


@on_one_store
async def test_stop_ends_a_step_that_takes_longer_than_its_grace(
    open_temporal: OpenTemporal, temporal_server: TemporalServer, caplog: pytest.LogCaptureFixture
) -> None:
    """What is under way when the grace ends is handed over in its midst, and taken up by another worker at once."""
    asked: list[asyncio.Event] = [asyncio.Event(), asyncio.Event()]
    answers = iter(asked)

    async def hangs_once(_request: ModelRequest) -> str:
        now = next(answers)
        now.set()
        if now is asked[0]:
            await asyncio.Event().wait()
        return "ok"

    stage = await open_temporal(agents=[agent()], workers=1, clerk=hangs_once)
    run = await stage.runs.start("clerk", "go", by="ada")
    await asked[0].wait()
    async with asyncio.timeout(10):
        await stage.workers.pop().stop(grace_s=0.1)
    assert (await stage.runs.get(run.id)).state == "queued"
    await stage.work(stage.all_runs[1], temporal_server.address)
    assert (await until(stage, run.id, "succeeded")).output == "ok"
    assert "run_not_driven" not in caplog.text


# -- the server is away ------------------------------------------------------------------------------------------------


@on_one_store
@pytest.mark.parametrize("workers", [1, 2])
async def test_step_that_temporal_takes_for_lost_is_joined_and_not_repeated(
    open_temporal: OpenTemporal, workers: int
) -> None:
    """Temporal may ask again while the first one works: here that is joined, elsewhere it comes back later."""
    began, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_request: ModelRequest) -> str:
        began.set()
        await go_on.wait()
        return "ok"

    stage = await open_temporal(agents=[agent()], workers=workers, clerk=slow, options={"heartbeat_s": 2.0})
    run = await stage.runs.start("clerk", "go", by="ada")
    await began.wait()
    for attempt in range(1, 3):
        await _taken_for_lost(stage, run.id, attempt)
    go_on.set()
    await until(stage, run.id, "succeeded")
    assert await stage.workflow(run.id).result() == "succeeded"
    assert (len(stage.model.requests), len(await claims(stage, run.id))) == (1, 1)


async def _taken_for_lost(stage: TemporalStage, run_id: str, attempt: int) -> None:
    """Have Temporal believe that this attempt at the step failed; return once the next one is at work or told off."""
    handle = stage.workflow(run_id)
    step = stage.client.get_async_activity_handle(workflow_id=handle.id, run_id=None, activity_id="1")
    async with asyncio.timeout(30):
        while True:
            (pending,) = (await handle.describe()).raw_description.pending_activities
            if pending.attempt > attempt:
                return
            if pending.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED:
                with suppress(RPCError):
                    await step.fail(ApplicationError("lost"))
            await asyncio.sleep(0.05)


@on_one_store
async def test_server_that_freezes_disturbs_no_step_under_way(
    own_server: TemporalServer, open_temporal: OpenTemporal, bank: Bank
) -> None:
    """While nobody is there to ask, steps go on, and the worker says that it is not well."""
    slow = Slow(bank)
    stage = await open_temporal(
        slow.tool, agents=[agent(tools=("slow",))], clerk=[calls(("slow", {})), "ok"],
        server=own_server, options={"heartbeat_s": 1.0},
    )  # fmt: skip
    run = await stage.runs.start("clerk", "go", by="ada")
    await slow.began.wait()
    own_server.freeze()
    # The first answer may be on its way still.
    assert not (await stage.workers[0].is_well() and await stage.workers[0].is_well())
    await asyncio.sleep(1.5)  # longer than the heartbeat
    slow.go_on.set()
    await until(stage, run.id, "succeeded")
    own_server.go_on()
    assert await stage.workflow(run.id).result() == "succeeded"
    assert (len(bank.credits), len(await claims(stage, run.id))) == (1, 1)
    assert all([await each.is_well() for each in stage.workers])


@on_one_store
async def test_server_that_loses_everything_strands_no_run(
    own_server: TemporalServer, open_temporal: OpenTemporal, bank: Bank
) -> None:
    """The store knows every run; a workflow that is gone is begun anew when its run may go on."""
    slow = Slow(bank)
    agents = [agent(tools=TOOLS, approvals=NEEDS), agent("worker", tools=("slow",))]
    stage = await open_temporal(
        *bank.tools, slow.tool, agents=agents, clerk=[calls(CREDIT), "ok"], worker=[calls(("slow", {})), "ok"],
        server=own_server,
    )  # fmt: skip
    paused = await stage.run()
    driven = await stage.runs.start("worker", "go", by="ada")
    await slow.began.wait()
    own_server.stop()
    await stage.house.approve(paused.waiting[0].id, by="bob")
    queued = await stage.runs.start("clerk", "go", by="ada")
    slow.go_on.set()
    assert (await until(stage, driven.id, "succeeded")).output == "ok"  # needs nobody's help
    own_server.start()
    await until(stage, paused.id, "succeeded")
    await until(stage, queued.id, "awaiting_approval")
    assert len(bank.credits) == 2


@on_one_store
async def test_workflow_that_an_operator_ends_strands_no_run(open_temporal: OpenTemporal, bank: Bank) -> None:
    """Ending a workflow in Temporal cancels no run; that is said to the run, by name."""
    agents = [agent(tools=TOOLS, approvals=NEEDS)]
    stage = await open_temporal(*bank.tools, agents=agents, clerk=[calls(CREDIT), "ok"])
    run = await stage.run()
    await stage.workflow(run.id).terminate()
    await stage.house.approve(run.waiting[0].id, by="bob")
    await until(stage, run.id, "succeeded")
    assert await stage.workflow(run.id).result() == "succeeded"
    assert (await stage.workflow(run.id).describe()).status == WorkflowExecutionStatus.COMPLETED


@pytest.mark.slow
@on_one_store
async def test_stop_ends_while_the_server_is_frozen(
    own_server: TemporalServer, open_temporal: OpenTemporal, bank: Bank
) -> None:
    """A worker that cannot say goodbye still hands its runs over and ends."""
    slow = Slow(bank)
    stage = await open_temporal(
        slow.tool, agents=[agent(tools=("slow",))], workers=1, clerk=[calls(("slow", {})), "ok"], server=own_server
    )
    run = await stage.runs.start("clerk", "go", by="ada")
    await slow.began.wait()
    own_server.freeze()
    slow.go_on.set()
    async with asyncio.timeout(20):
        await stage.workers.pop().stop(grace_s=5)
    assert (await stage.runs.get(run.id)).state in ("queued", "succeeded")


@on_one_store
async def test_no_server_and_no_namespace_are_told(
    open_temporal: OpenTemporal, temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever starts a worker hears what is missing, before it takes anything."""
    stage = await open_temporal(agents=[agent()], workers=0, clerk=["ok"])
    with pytest.raises(DriverUnavailable, match=r"No Temporal server answers at 127\.0\.0\.1:1\."):
        await TemporalDriver.connect(stage.runs, "127.0.0.1:1")
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "elsewhere")
    with pytest.raises(DriverUnavailable, match="has no namespace elsewhere"):
        await TemporalDriver.connect(stage.runs, temporal_server.address)
