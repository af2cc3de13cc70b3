"""A house with runs and a driver, local or of Temporal, opened alike in the processes that crash and in the test's own.

The model follows a plan, and like a model it asks once more for what it heard did not work. Before it answers it sends
its question to the receiver, so that another process counts the requests, and can hold them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeAlias

import httpx2

from tests.crash.worker import load
from tollhouse import Tollhouse
from tollhouse.house.running import open_runs
from tollhouse.models.book import ModelBook
from tollhouse.models.port import AssistantMessage, ModelFailed, ModelRequest, ToolMessage
from tollhouse.models.retry import Patience
from tollhouse.runs.agents import Agent, agent_of
from tollhouse.runs.drivers.local import LocalDriver
from tollhouse.runs.service import Runs
from tollhouse.runs.subagents import agent_tools
from tollhouse.testing.crashpoints import Crash, Crashes, CrashingModel, crashing_house
from tollhouse.testing.receiver import Receiver

if TYPE_CHECKING:
    from tollhouse.runs.drivers.temporal import TemporalDriver

Asked = tuple[str, Mapping[str, Any]]
Plan = Sequence[Sequence[Asked]]
"""The calls of each answer, side by side; after the last of them the model is done."""

CREDIT: Asked = ("credit", {"account": "a1", "cents": 2500})
TOOLS = {"tests.crash.tools:credits": {"hooks": True}}
"""The factories of an office's tools, with their options; a receiver's URL comes by itself."""
ANSWERED_S = 30.0
LEASE_S = 5.0
"""Long, since a killed process is known to be gone without it; tests that stop one have it shorter."""
EVERY_S = 0.1
"""How often drivers look at their store."""
HEARTBEAT_S = 1.0
"""How long Temporal waits for a worker of which it hears nothing."""

AnyDriver: TypeAlias = "LocalDriver | TemporalDriver"


@dataclass(frozen=True)
class Office:
    """What an office is made from, wherever it is opened. ``agents``: an agent and its plan, by name.

    ``temporal``: the address of the server through which its runs are driven; empty: they are driven locally.
    """

    store: str
    receiver: str
    tenant: str
    agents: Mapping[str, tuple[Agent, Plan]]
    tools: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: TOOLS)
    settings: Mapping[str, Any] = field(default_factory=dict)
    temporal: str = ""

    def as_json(self) -> dict[str, Any]:
        """For another process."""
        agents = {name: (agent.text, plan) for name, (agent, plan) in self.agents.items()}
        return {**{each.name: getattr(self, each.name) for each in fields(self)}, "agents": agents}

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Office:
        """What :meth:`as_json` made."""
        agents = {name: (agent_of(text), plan) for name, (text, plan) in told["agents"].items()}
        return cls(**{**told, "agents": agents})


@dataclass(frozen=True)
class Opened:
    """An open office. ``driver`` None: it drives nothing."""

    house: Tollhouse
    runs: Runs
    driver: AnyDriver | None
    crashes: Crashes

    async def lay_out(self, **crash: Any) -> None:
        """Have a misfortune from now on; see :class:`Crash`."""
        self.crashes.lay_out(Crash(**crash))


@asynccontextmanager
async def opened(
    office: Office,
    crashes: Crashes | None = None,
    *,
    drives: bool = True,
    on_event: Callable[..., None] | None = None,
    grace_s: float = 10.0,
) -> AsyncIterator[Opened]:
    """Open the office; at the end, hand over what is under way within its grace."""
    crashes = crashes or Crashes()
    holder: list[Runs] = []
    agents = {name: agent for name, (agent, _) in office.agents.items()}
    tools = [
        each
        for name, options in office.tools.items()
        for each in load(name)(url=office.receiver, reach=crashes.reach, **options)
    ]
    scripts: dict[str, Any] = {name: Planned(office.receiver, plan) for name, (_, plan) in office.agents.items()}
    book = ModelBook(scripts=scripts, patience=Patience(attempts=1))
    settings = {"lease_s": LEASE_S, "tenant": office.tenant, "grace_s": grace_s, **office.settings}
    offered = [*tools, *agent_tools(agents.values(), lambda: holder[0])]
    async with crashing_house(office.store, crashes, tools=offered, on_event=on_event, **settings) as house:
        holder.append(await open_runs(house, agents, CrashingModel(book, crashes)))
        holder[0].driver = "temporal" if office.temporal else "local"
        driver = await _started(office, holder[0]) if drives else None
        try:
            yield Opened(house, holder[0], driver, crashes)
        finally:
            if driver is not None:
                await driver.stop(grace_s)


async def _started(office: Office, runs: Runs) -> AnyDriver:
    """The office's kind of driver, at work."""
    driver: AnyDriver = LocalDriver(runs, every_s=EVERY_S)
    if office.temporal:
        from tollhouse.runs.drivers.temporal import TemporalDriver  # the other processes start without it

        driver = await TemporalDriver.connect(runs, office.temporal, every_s=EVERY_S, heartbeat_s=HEARTBEAT_S)
    driver.start()
    return driver


class Planned:
    """A model that works through its plan, and asks again for what failed."""

    def __init__(self, receiver: str, plan: Plan) -> None:
        self._receiver, self._plan = receiver, plan

    async def __call__(self, request: ModelRequest) -> Any:
        async with httpx2.AsyncClient(trust_env=False, timeout=ANSWERED_S) as client:
            headers, body = {"Idempotency-Key": request.key}, {"reference": request.key}
            told = await client.post(f"{self._receiver}/v1/questions", json=body, headers=headers)
        if told.status_code == 400:
            raise ModelFailed("model_refused_request", "It answered 400.", transient=False)
        if told.is_error:
            raise ModelFailed("model_server_error", f"It answered {told.status_code}.", transient=True)
        asked = self._next(request)
        return [{"tool": tool, "arguments": arguments} for tool, arguments in asked] or "done"

    def _next(self, request: ModelRequest) -> Sequence[Asked]:
        """What is still to be asked for, as the conversation has it."""
        place, again = 0, list[Asked]()
        answers = {each.key: each for each in request.messages if isinstance(each, ToolMessage)}
        for message in request.messages:
            if isinstance(message, AssistantMessage) and message.asks:
                again = [(ask.tool, ask.arguments or {}) for ask in message.asks if answers[ask.key].failed]
                place += not again
        return again or (self._plan[place] if place < len(self._plan) else ())


def office(store: str, receiver: Receiver, tenant: str, plan: Plan = ((CREDIT,),), **more: Any) -> Office:
    """An office with one agent, the clerk. ``more``: of the office (``tools``, ``settings``, …) or of the agent."""
    own = {name: more.pop(name) for name in ("tools", "settings", "temporal") if name in more}
    names = sorted({tool for asked in plan for tool, _ in asked} - {"ask_person", "wait"})
    clerk = Agent(**{"name": "clerk", "model": "scripted:clerk", "tools": tuple(names), "questions": True, **more})
    return Office(store, receiver.url, tenant, {"clerk": (clerk, plan)}, **own)


def credit_of(account: str) -> Plan:
    """A plan of one credit to that account."""
    return ((("credit", {"account": account, "cents": 2500}),),)


def effects_of(receiver: Receiver, account: str) -> tuple[int, int]:
    """How many credits that account had, and how many requests for one came."""
    effects = [each for each in receiver.effects("credits") if each.body["account"] == account]
    requests = [each for each in receiver.requests("credits", method="POST") if each.body["account"] == account]
    return len(effects), len(requests)


def questions(receiver: Receiver, run_id: str) -> Counter[int]:
    """How often the model was asked for each turn of the run."""
    asked = [str(each.body["reference"]) for each in receiver.requests("questions")]
    return Counter(int(key.rpartition(":")[2]) for key in asked if key.startswith(f"{run_id}:"))
