"""Runs for tests: agents with scripted models and real tools, driven in several ways over each kind of store.

A test that asks for `open_stage` runs once for each way in which a run may be driven, since none may make a difference:

- `driven`: by the local driver, as in production;
- `reread`: by the local driver, which holds nothing between two steps;
- `taken over`: by two houses in turn, where the process that made a step is lost, or hands over, right after it.

`on_sqlite` keeps a test to the store whose time a test can let pass; `driven_only` to the first way.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from tests.support.houses import POSTGRES
from tollhouse import CallContext, Tollhouse, Tool, external, happened, read, tool, unknown
from tollhouse.house.opening import open_house_over
from tollhouse.house.running import open_runs
from tollhouse.ledger.events import Event, first_break
from tollhouse.ledger.run_record import RunRecord, run_stream
from tollhouse.models.book import ModelBook
from tollhouse.models.port import (
    AssistantMessage,
    Message,
    Model,
    ModelReply,
    ModelRequest,
    OnText,
    ToolMessage,
    message_as_json,
)
from tollhouse.models.retry import Patience
from tollhouse.runs.agents import Agent
from tollhouse.runs.drivers.local import LocalDriver
from tollhouse.runs.journal import read as read_journal
from tollhouse.runs.service import Runs
from tollhouse.runs.subagents import agent_tools
from tollhouse.runs.view import RunView
from tollhouse.settings import settings_of
from tollhouse.stores import open_store
from tollhouse.testing.plugin import Clock
from tollhouse.testing.receiver import Receiver

WAYS = ("driven", "reread", "taken over")

on_sqlite = pytest.mark.parametrize("shared_store_url", ["sqlite"], indirect=True)
"""For tests that let time pass: a server keeps its own."""
driven_only = pytest.mark.parametrize("way", ["driven"], indirect=True)
"""For tests in which the driver itself, or what is under way in its process, plays a part."""

Script = Callable[[ModelRequest], Any] | list[Any]
OpenStage = Callable[..., Awaitable["Stage"]]
"""`await open_stage(tool, ..., clerk=[turn, ...], agents=[Agent(...)])`: the turns of each scripted model by name."""

__all__ = ["POSTGRES"]


def calls(*asked: tuple[str, Mapping[str, Any]], **more: Any) -> dict[str, Any]:
    """A turn of a script that asks for these calls side by side."""
    return {"call": [{"tool": name, "arguments": dict(arguments)} for name, arguments in asked], **more}


def agent(name: str = "clerk", **fields: Any) -> Agent:
    """An agent of that name whose model is the script of the same name."""
    return Agent(**{"name": name, "model": f"scripted:{name}", **fields})


class Watched:
    """A model that remembers what it was asked, and insists that every history is one that providers accept."""

    def __init__(self, inner: Model) -> None:
        self._inner = inner
        self.requests: list[ModelRequest] = []

    async def ask(self, request: ModelRequest, on_text: OnText | None = None) -> ModelReply:
        self.requests.append(request)
        assert_valid(request.messages)
        return await self._inner.ask(request, on_text)

    async def close(self) -> None:
        await self._inner.close()


def assert_valid(messages: Sequence[Message]) -> None:
    """Every ask is answered exactly once, right after the message that asked; nothing else is answered."""
    open_keys: list[str] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            assert message.key in open_keys, f"an answer to nothing: {message_as_json(message)}"
            open_keys.remove(message.key)
            continue
        assert not open_keys, f"asks without an answer: {open_keys}"
        if isinstance(message, AssistantMessage):
            open_keys = [ask.key for ask in message.asks]
            assert len(set(open_keys)) == len(open_keys), f"keys that repeat: {open_keys}"
    assert not open_keys, f"asks without an answer: {open_keys}"


@dataclass
class Stage:
    """Houses over one store with the same tools, agents and models; the first one is the test's own."""

    houses: list[Tollhouse]
    all_runs: list[Runs]
    model: Watched
    clock: Clock
    way: str
    drivers: list[LocalDriver] = field(default_factory=list)
    _turns: Any = field(default_factory=itertools.count)

    @property
    def house(self) -> Tollhouse:
        return self.houses[0]

    @property
    def runs(self) -> Runs:
        return self.all_runs[0]

    async def run(self, input: str = "go", agent: str = "clerk", **options: Any) -> RunView:
        """Start a run, and drive until nothing can be done now."""
        started = await self.runs.start(agent, input, **{"by": "ada", **options})
        return await self.settled(started.id)

    async def settled(self, run_id: str) -> RunView:
        """The run once nothing can be done now."""
        await self.settle()
        return await self.runs.get(run_id)

    async def settle(self) -> None:
        """Drive every run until nothing can be done now."""
        if self.way == "taken over":
            while await self._take_over_once():
                pass
            return
        await LocalDriver(self.runs).settle()

    async def after(self, seconds: float) -> None:
        """Let time pass, have the services look, and drive on."""
        self.clock.advance(seconds)
        await self.house.services.round()
        await self.settle()

    async def _take_over_once(self) -> bool:
        found = await self.runs.store.runs_to_take(self.runs.tenant, "local", 1000)
        for record in found:
            await self._step_and_go(record)
        return bool(found)

    async def _step_and_go(self, record: RunRecord) -> None:
        """Make one step in one house, which is lost or hands over right after it."""
        turn = next(self._turns)
        house, runs = self.houses[turn % 2], self.all_runs[turn % 2]
        if record.finished:
            await runs.tidy(record)
            return
        drive = await runs.claim(record)
        step = await drive.step()
        if step.kind != "continue":
            return
        if turn % 4 < 2:
            await lose(house)
        else:
            await drive.release()

    async def events(self, run_id: str) -> list[Event]:
        """The journal of a run, its chain intact."""
        events = await self.runs.store.events(self.runs.tenant, run_stream(run_id))
        record = (await self.runs.get(run_id)).record
        assert first_break(events) is None
        assert (events[-1].seq, events[-1].hash) == (record.head_seq, record.head_hash)
        return events

    async def facts(self, run_id: str, kind: str) -> list[dict[str, Any]]:
        """The facts of the events of that kind, bodies put back."""
        return [await self.runs.facts(event) for event in await self.events(run_id) if event.kind == kind]

    async def kinds(self, run_id: str) -> list[str]:
        """What happened, without who drove."""
        passed_over = ("run_claimed", "run_released")
        return [event.kind for event in await self.events(run_id) if event.kind not in passed_over]

    async def results(self, run_id: str) -> list[dict[str, Any]]:
        """What the model heard of each ask, in the order of the asks; each exactly once."""
        heard = [each for facts in await self.facts(run_id, "calls_settled") for each in facts["results"]]
        counted = Counter(each["key"] for each in heard)
        assert not [key for key, times in counted.items() if times > 1]
        return sorted(heard, key=lambda each: _place(each["key"]))

    async def conversation(self, run_id: str) -> tuple[Message, ...]:
        """The whole conversation as the next question would have it."""
        journal = await read_journal(self.runs.store, (await self.runs.get(run_id)).record)
        assert_valid(journal.conversation)
        return journal.conversation

    def heard(self, request: int = -1) -> str:
        """The last message of a request."""
        return self.model.requests[request].messages[-1].text


def _place(key: str) -> tuple[int, int]:
    turn, _, index = key.rpartition(":")[2].partition(".")
    return int(turn), int(index)


async def lose(house: Tollhouse) -> None:
    """Have everybody take this process for lost, as after a stop beyond its lease; it goes on under another name."""
    core = house._core
    owner = core.owner_id
    connection = core.store.lease_connection()
    try:
        connection.end(core.tenant, owner)
    finally:
        connection.close()
    house.renew_lease()
    await core.new_incarnation(owner)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    """How runs are driven in this test."""
    chosen: str = request.param
    return chosen


@pytest.fixture
async def open_stage(shared_store_url: str, house_tenant: str, way: str) -> AsyncIterator[OpenStage]:
    """Opens stages over the test's store and closes them, the last first."""
    opened: list[Stage] = []
    clock = Clock()

    async def open_one(
        *tools: Tool[Any], agents: Sequence[Agent] = (), houses: int = 2, settings: Mapping[str, Any] | None = None,
        **scripts: Script,
    ) -> Stage:  # fmt: skip
        model = Watched(ModelBook(scripts=scripts, patience=Patience(attempts=1)))
        known = {each.name: each for each in agents}
        stage = Stage([], [], model, clock, way)
        opened.append(stage)
        for number in range(houses if way != "reread" else 1):
            given = (*tools, *agent_tools(known.values(), partial(stage.all_runs.__getitem__, number)))
            house = await house_over(shared_store_url, clock, given, {"tenant": house_tenant, **(settings or {})})
            stage.houses.append(house)
            stage.all_runs.append(await open_runs(house, known, model))
            if way == "reread":
                stage.all_runs[-1].hold_nothing_between_steps()
        return stage

    yield open_one
    for stage in reversed(opened):
        for driver in stage.drivers:
            await driver.stop(0.1)
        for house in reversed(stage.houses):
            clock._houses.remove(house)
            await house.close()


async def house_over(url: str, clock: Clock, tools: Sequence[Tool[Any]], settings: Mapping[str, Any]) -> Tollhouse:
    """A house without services of its own; the clock lets time pass for it where the store is SQLite."""
    usual = {"background": False, "store_wait_s": 10.0, "grace_s": 1.0}
    wanted = settings_of({**usual, "tools": tuple(tools), **settings})
    sqlite = url.startswith("sqlite:")
    wall = clock.wall_us if sqlite else None
    local = {"local_us": clock.local_us} if sqlite else {}
    house = await open_house_over(lambda: open_store(url, wall=wall), wanted, **local)
    clock._houses.append(house)
    return house


class Bank:
    """Tools whose effects are counted in another process: money is credited, letters are sent, balances read."""

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver

        async def find_credit(call: Any) -> Any:
            found = receiver.effects("credits", key=call.wire_key)
            return happened({"id": found[0].id}, reference=str(found[0].id)) if found else unknown("nothing is seen")

        @tool(external())
        async def credit(account: str, cents: int, ctx: CallContext) -> dict[str, Any]:
            """Credit an account."""
            return await _post(ctx, receiver, "credits", {"account": account, "cents": cents})

        @tool(external())
        async def letter(to: str, text: str, ctx: CallContext) -> dict[str, Any]:
            """Send a letter."""
            return await _post(ctx, receiver, "letters", {"to": to, "text": text})

        @tool(read())
        async def balance(account: str) -> int:
            """What an account has."""
            amounts = [effect.body for effect in receiver.effects("credits")]
            return sum(each["cents"] for each in amounts if each["account"] == account)

        self.credit: Tool[Any] = credit
        self.letter: Tool[Any] = letter
        self.balance: Tool[Any] = balance
        self.find_credit = find_credit

    @property
    def tools(self) -> tuple[Tool[Any], ...]:
        return self.credit, self.letter, self.balance

    @property
    def credits(self) -> list[tuple[str, int]]:
        """Every credit that took effect: account and cents, in order."""
        return [(effect.body["account"], effect.body["cents"]) for effect in self.receiver.effects("credits")]

    @property
    def letters(self) -> int:
        """How many letters were sent."""
        return len(self.receiver.effects("letters"))


async def _post(ctx: CallContext, receiver: Receiver, collection: str, body: Mapping[str, Any]) -> dict[str, Any]:
    response = await ctx.http.post(f"{receiver.url}/v1/{collection}", json=dict(body))
    response.raise_for_status()
    answer: dict[str, Any] = response.json()
    return answer


@pytest.fixture
def bank(receiver: Receiver) -> Bank:
    """A bank whose book is in another process."""
    return Bank(receiver)
