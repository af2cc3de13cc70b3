"""What the tests of runs over HTTP share: models that say what a test wants, and readers of event streams."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx

from tests.api.conftest import Served
from tollhouse.models.port import Ask, AssistantMessage, ModelFailed, ModelReply, ModelRequest, OnText, RequestAttempt
from tollhouse.runs.drivers.local import LocalDriver
from tollhouse.runs.service import Runs
from tollhouse.runs.view import RunView

Said = str | Sequence[tuple[str, dict[str, Any]]]
"""A text, or the calls that a model asks for."""
Turn = Callable[[ModelRequest], Said | ModelReply | Awaitable[Said | ModelReply]]


class Says:
    """A model that takes its turns in order, by how often it has answered; the last one again and again.

    A turn is what it says, or a function of the request. A text is streamed word by word.
    """

    def __init__(self, *turns: Said | Turn) -> None:
        self._turns, self.requests = turns, list[ModelRequest]()

    async def ask(self, request: ModelRequest, on_text: OnText | None = None) -> ModelReply:
        """Answer with the turn that is next."""
        self.requests.append(request)
        answered = sum(isinstance(message, AssistantMessage) for message in request.messages)
        said: Any = self._turns[min(answered, len(self._turns) - 1)]
        if callable(said):
            said = said(request)
            said = await said if asyncio.iscoroutine(said) else said
        if isinstance(said, ModelReply):
            return said
        attempt = RequestAttempt("says", "2026-11-29T12:00:00Z", 0.0, 10, 5)
        if not isinstance(said, str):
            asks = tuple(Ask("", tool, arguments) for tool, arguments in said)
            return ModelReply("", asks, "calls", "says", (attempt,))
        for number, word in enumerate(said.split(" ")):
            if on_text is not None:
                await on_text(f" {word}" if number else word)
        return ModelReply(said, (), "stop", "says", (attempt,))

    async def close(self) -> None:
        """Nothing to close."""


class SaysHalf(Says):
    """A model that says the first half of its text, and the rest once ``go_on`` is set."""

    def __init__(self, first: str, rest: str, fails: ModelFailed | None = None) -> None:
        super().__init__(first + rest)
        self._first, self._fails, self.go_on = first, fails, asyncio.Event()

    async def ask(self, request: ModelRequest, on_text: OnText | None = None) -> ModelReply:
        """Say it; fail once in the middle of it, where it was told to."""
        assert on_text is not None
        await on_text(self._first)
        await self.go_on.wait()
        if (failure := self._fails) is not None:
            self._fails = None
            raise failure
        return await super().ask(request)


class RunServed(Served):
    """A house with runs that is served."""

    runs: Runs
    driver: LocalDriver

    async def started(
        self, client: httpx.AsyncClient, agent: str = "helper", input: str = "Do it.", **more: Any
    ) -> str:
        """Start a run; its id."""
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        response = await client.post("/v1/runs", json={"agent": agent, "input": input, **more}, headers=headers)
        assert response.status_code == 201, response.text
        run_id: str = response.json()["id"]
        return run_id

    async def until(self, run_id: str, *states: str) -> None:
        """Return once the run is in one of these states."""
        await self._once(run_id, lambda view: view.state in states)

    async def asks(self, run_id: str, *ids: str) -> None:
        """Return once the run has paused for all of these."""
        await self._once(
            run_id, lambda view: view.record.owner is None and {each.id for each in view.waiting} >= set(ids)
        )

    async def _once(self, run_id: str, holds: Callable[[RunView], bool]) -> None:
        async with asyncio.timeout(20):
            with self.runs.bus.subscribe(run_id) as hints:
                while not holds(await self.runs.get(run_id)):
                    with suppress(TimeoutError):
                        await asyncio.wait_for(hints.get(), 0.2)


class Heard(dict[str, Any]):
    """One server-sent event: `id`, `event` and `data` as they came; None where there was none."""

    @property
    def data(self) -> Any:
        """The data as JSON."""
        return json.loads(self["data"])


async def events_of(response: httpx.Response) -> AsyncIterator[Heard]:
    """The events of a stream, until it ends."""
    fields: dict[str, Any] = {}
    async for line in response.aiter_lines():
        if not line:
            if "data" in fields:
                yield Heard({"id": None, "event": None, **fields})
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")


@asynccontextmanager
async def following(
    client: httpx.AsyncClient, run_id: str, after: Any = None, **params: Any
) -> AsyncIterator[AsyncIterator[Heard]]:
    """A run's stream, as it comes."""
    headers = {} if after is None else {"Last-Event-ID": str(after)}
    async with client.stream("GET", f"/v1/runs/{run_id}/events", headers=headers, params=params) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"].startswith("text/event-stream")
        yield events_of(response)


async def heard(client: httpx.AsyncClient, run_id: str, after: Any = None, **params: Any) -> list[Heard]:
    """Everything that a run's stream has, until it ends."""
    async with following(client, run_id, after, **params) as events, asyncio.timeout(20):
        return [event async for event in events]


def numbers(events: list[Heard]) -> list[int]:
    """The ids of the journal's events among these."""
    return [int(event["id"]) for event in events if event["id"] is not None]
