"""What a run costs beyond its commits: two answers of a model that answers at once, and one write."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial

from tollhouse import Tollhouse
from tollhouse.bench.contest import Contestants
from tollhouse.bench.engines import Engine
from tollhouse.bench.job import SETTINGS, TOOLS, pay
from tollhouse.bench.measure import Work, p50_ms
from tollhouse.bench.plan import Plan
from tollhouse.house.running import open_runs
from tollhouse.models.port import Ask, AssistantMessage, ModelReply, ModelRequest, OnText
from tollhouse.runs.agents import Agent
from tollhouse.runs.drivers.local import LocalDriver
from tollhouse.runs.live import Moved
from tollhouse.runs.service import Runs
from tollhouse.runs.states import FINISHED, RunState

AGENT = Agent(name="payer", model="instant", tools=(pay.name,))


class InstantModel:
    """Asks for one payment, then says that it is done."""

    async def ask(self, request: ModelRequest, on_text: OnText | None = None) -> ModelReply:
        """Answer at once; which answer is read from the conversation."""
        if any(isinstance(message, AssistantMessage) for message in request.messages):
            return ModelReply("It is paid.", (), "stop", "instant", ())
        ask = Ask("", pay.name, {"account_id": "a1", "amount_cents": 5})
        return ModelReply("", (ask,), "calls", "instant", ())

    async def close(self) -> None:
        """Nothing to close."""


def whole_runs(runs: Runs) -> Work:
    """Runs from start to end, one after the other."""

    async def one() -> None:
        started = await runs.start(AGENT.name, "Pay a1.", by="bench")
        with runs.bus.subscribe(started.id) as lives:
            while True:
                live = await lives.get()
                if isinstance(live, Moved) and live.state in FINISHED:
                    assert live.state == RunState.SUCCEEDED, live
                    return

    return one


async def opened_runs(url: str, stack: AsyncExitStack) -> tuple[Tollhouse, Runs]:
    """A house with runs and a driver; ``stack`` closes them."""
    house = await stack.enter_async_context(Tollhouse.open(url, tools=TOOLS, **SETTINGS))
    runs = await open_runs(house, {AGENT.name: AGENT}, InstantModel())
    driver = LocalDriver(runs)
    driver.start()
    stack.push_async_callback(driver.stop)
    return house, runs


async def run_contestants(engine: Engine, plan: Plan, stack: AsyncExitStack) -> Contestants:
    """The time of a run with two model answers and one write."""
    _, runs = await opened_runs(engine.ledger(), stack)
    work = whole_runs(runs)
    await work()
    return {f"{engine.name}.run.p50": partial(p50_ms, work, plan.seconds)}


async def commits_per_run(engine: Engine, number: int) -> float:
    """Transactions of one run, as the store counts them."""
    async with AsyncExitStack() as stack:
        house, runs = await opened_runs(engine.ledger(), stack)
        work = whole_runs(runs)
        await work()
        before = house.store.counters.commits
        for _ in range(number):
            await work()
        return (house.store.counters.commits - before) / number
