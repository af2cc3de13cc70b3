"""Two processes over one store, anything in any order: starts, steps, drops, people, cancels, time.

Whatever is drawn, in the end every run has ended, each effect happened once, each ask has one answer, every chain holds
and what was spent is counted once.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from tests.support.runs import Stage, Watched, agent, calls, house_over, lose
from tollhouse import CallContext, Rejected, Tool, external, happened, read, tool, unknown, write
from tollhouse.errors import TollhouseError
from tollhouse.house.running import open_runs
from tollhouse.ledger.run_record import RunRecord
from tollhouse.models.book import ModelBook
from tollhouse.models.port import ModelRequest
from tollhouse.models.retry import Patience
from tollhouse.runs.advance import Drive, Lost
from tollhouse.runs.agents import AgentApproval, Limits
from tollhouse.runs.subagents import agent_tools
from tollhouse.testing.plugin import Clock

Action = tuple[str, int]
ACTIONS = ("start", "claim", "step", "drop", "lose", "approve", "deny", "answer", "cancel", "time", "rerun", "resolve")
MOST_ENDINGS = 200


class Effects:
    """Tools whose effects are counted here; one of them may lose its answer."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        done = self.done

        async def find(call: Any) -> Any:
            return happened("found") if done[call.key] else unknown("nothing seen")

        @tool(external(), reconcile=find)
        async def pay(n: int, ctx: CallContext) -> str:
            """Pay; every third answer is lost."""
            await ctx.confirm()
            done[ctx.key] += 1
            if n % 3 == 0:
                raise ConnectionError("the answer was lost")
            return f"paid {n}"

        @tool(write())
        async def note_down(n: int, ctx: CallContext) -> int:
            """Write something down; some of it is refused."""
            if n % 4 == 1:
                raise Rejected("no")
            done[ctx.key] += 1
            return n

        @tool(read())
        async def look(n: int) -> int:
            """Look."""
            return n

        self.tools: tuple[Tool[Any], ...] = (pay, note_down, look)


def model(request: ModelRequest) -> Any:
    """Asks for something else each turn, by what the run was asked, and then ends."""
    seed, turn = len(request.messages[0].text), int(request.key.split(":")[1])
    n = seed * 10 + turn
    if turn > 2 + seed % 2:
        return "done"
    options: Sequence[tuple[str, dict[str, Any]]] = [
        ("pay", {"n": n}), ("note_down", {"n": n}), ("look", {"n": n}), ("ask_person", {"question": "?"}),
        ("wait", {"seconds": 50}), ("agent_helper", {"input": "x" * (n % 5 + 1)}), ("nothing", {}),
    ]  # fmt: skip
    return calls(*Random(n + 3000).choices(options, k=1 + n % 3))["call"]


TOOLS = ("pay", "note_down", "look")
AGENTS = {
    "clerk": agent(tools=TOOLS, agents=("helper",), questions=True, timers=True, question_expires_s=500.0,
                   approvals={"note_down": AgentApproval(expires_s=300.0)}, limits=Limits(turns=50)),
    "helper": agent("helper", tools=TOOLS, on_in_doubt="tell_model"),
}  # fmt: skip


class World:
    """One drawing of it."""

    def __init__(self, stage: Stage, effects: Effects) -> None:
        self.stage, self.effects = stage, effects
        self.drives: list[Drive] = []
        self.seen: list[RunRecord] = []

    async def act(self, action: Action) -> None:
        """Do it; what is refused by name is fine, in whatever state it comes."""
        name, number = action
        note(f"{name} {number}")
        doing: Callable[[int], Any] = getattr(self, name)
        try:
            await doing(number)
        except (Lost, TollhouseError) as refused:
            note(f"  refused: {type(refused).__name__}")

    def runs(self, number: int) -> Any:
        return self.stage.all_runs[number % 2]

    async def some(self, number: int) -> Any:
        listed = await self.stage.runs.list()
        return listed[number % len(listed)] if listed else None

    async def start(self, number: int) -> None:
        await self.runs(number).start("clerk", "x" * (number % 6 + 1), by="ada", key=f"k{number % 8}")

    async def rerun(self, number: int) -> None:
        if run := await self.some(number):
            effects = ("hold", "reuse")[number % 2]
            await self.runs(number).rerun(run.id, by="ada", effects=effects, key=f"r{run.id[-8:]}")

    async def claim(self, number: int) -> None:
        runs = self.runs(number)
        self.seen += await runs.store.runs_to_take(runs.tenant, "local", 5)
        if self.seen:  # what was seen may be long past
            record = self.seen.pop(number % len(self.seen))
            if record.finished:
                await runs.tidy(record)
            else:
                self.drives.append(await runs.claim(record))

    async def step(self, number: int) -> None:
        if not self.drives:
            return
        drive = self.drives.pop(number % len(self.drives))
        if (await drive.step()).kind == "continue":
            self.drives.append(drive)

    async def drop(self, number: int) -> None:
        """A step is cut off somewhere in its middle, and nobody of this process drives the run any more."""
        if not self.drives:
            return
        drive = self.drives.pop(number % len(self.drives))
        task = asyncio.create_task(drive.step())
        for _ in range(number % 12):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def lose(self, number: int) -> None:
        await lose(self.stage.houses[number % 2])

    async def approve(self, number: int) -> None:
        await self._decide(number, lambda house, key: house.approve(key, by="bob"))

    async def deny(self, number: int) -> None:
        await self._decide(number, lambda house, key: house.deny(key, by="bob", reason="no"))

    async def _decide(self, number: int, decide: Callable[[Any, str], Any]) -> None:
        house = self.stage.houses[number % 2]
        if held := await house.list(state="held"):
            await decide(house, held[number % len(held)].key)

    async def resolve(self, number: int) -> None:
        house = self.stage.houses[number % 2]
        if doubts := await house.list(state="in_doubt"):
            key = doubts[number % len(doubts)].key
            await house.reconcile(key)

    async def answer(self, number: int) -> None:
        if run := await self.some(number):
            for waiting in [each for each in run.waiting if each.kind == "answer"][:1]:
                await self.runs(number).answer(run.id, waiting.id, f"answer {number}", by="bob")

    async def cancel(self, number: int) -> None:
        if number % 3 == 0 and (run := await self.some(number)):
            await self.runs(number).cancel(run.id, by="bob")

    async def time(self, number: int) -> None:
        self.stage.clock.advance(number % 200 + 1)
        await self.stage.houses[number % 2].services.round()

    async def end(self) -> None:
        """Let everything go on to its end: both processes are lost, people decide, time passes."""
        self.drives.clear()
        for number in range(2):
            await lose(self.stage.houses[number])
        for number in range(MOST_ENDINGS):
            await self.stage.settle()
            if all(run.record.finished for run in await self.stage.runs.list()):
                return
            for action in ("approve", "answer", "resolve", "time"):
                await self.act((action, number * 7 + 60))
        raise AssertionError([run.record for run in await self.stage.runs.list() if not run.record.finished])


@given(st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 1000)), min_size=5, max_size=60))
@settings(
    max_examples=25, deadline=None, suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
)  # fmt: skip
def test_every_interleaving_ends_well(actions: list[Action]) -> None:
    """See the module's docstring."""
    asyncio.run(_play(actions))


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 1000)), min_size=20, max_size=150))
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_long_interleaving_ends_well(actions: list[Action]) -> None:
    """The same, longer and more often."""
    asyncio.run(_play(actions))


async def _play(actions: list[Action]) -> None:
    clock, effects, stage = Clock(), Effects(), None
    watched = Watched(ModelBook(scripts={"clerk": model, "helper": model}, patience=Patience(attempts=1)))
    stage = Stage([], [], watched, clock, "taken over")
    with tempfile.TemporaryDirectory() as folder:
        try:
            for number in range(2):
                given_tools = (*effects.tools, *agent_tools(AGENTS.values(), lambda at=number: stage.all_runs[at]))  # type: ignore[misc]
                house = await house_over(f"sqlite:///{Path(folder) / 'l.db'}", clock, given_tools, {"tenant": "t"})
                stage.houses.append(house)
                stage.all_runs.append(await open_runs(house, AGENTS, watched))
            world = World(stage, effects)
            for action in actions:
                await world.act(action)
            await world.end()
            await _check(world)
        finally:
            for house in stage.houses:
                await house.close()


async def _check(world: World) -> None:
    stage = world.stage
    assert all(times == 1 for times in world.effects.done.values()), world.effects.done
    for run in await stage.runs.list():
        await stage.events(run.id)
        await stage.conversation(run.id)
        results = await stage.results(run.id)
        if run.state == "succeeded":
            asked = [ask for facts in await stage.facts(run.id, "model_answered") for ask in facts["message"]["asks"]]
            assert [each["key"] for each in results] == [ask["key"] for ask in asked]
        attempts = [
            attempt
            for kind in ("model_answered", "model_failed", "output_verified")
            for facts in await stage.facts(run.id, kind)
            for attempt in facts["attempts"]
        ]
        assert sum(Decimal(attempt["cost"]) for attempt in attempts) == run.spent.cost
        assert run.spent.turns == len(await stage.facts(run.id, "model_answered"))
        assert len(await stage.facts(run.id, "run_tidied")) <= 1
        assert len(await stage.facts(run.id, "run_started")) == 1
