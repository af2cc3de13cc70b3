"""What a house in the test's own process tells, to wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tollhouse import Tollhouse


class Heard:
    """Pass it as ``on_event``; then wait for what it is to hear."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self._news = asyncio.Event()

    def __call__(self, kind: str, facts: Mapping[str, Any]) -> None:
        self.events.append((kind, dict(facts)))
        self._news.set()

    def of(self, kind: str, **facts: Any) -> list[dict[str, Any]]:
        """The facts of all events of that kind that have these facts."""
        return [told for name, told in self.events if name == kind and facts.items() <= told.items()]

    async def until(self, kind: str, count: int = 1, *, timeout_s: float = 20.0, **facts: Any) -> dict[str, Any]:
        """The last of ``count`` such events, once there are so many. Raises TimeoutError, saying what was heard."""
        try:
            async with asyncio.timeout(timeout_s):
                while len(self.of(kind, **facts)) < count:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise TimeoutError(f"no {kind} with {facts} among {self.events[-20:]}") from None
        return self.of(kind, **facts)[count - 1]


async def kinds(house: Tollhouse, key: str, *, looks: bool = False) -> list[str]:
    """The kinds of a call's history, in order; without look-ups that settled nothing, which come as they come."""
    return [line.kind for line in (await house.get(key)).history if looks or line.kind != "looked_up"]


async def eventually(holds: Callable[[], Awaitable[bool]], *, timeout_s: float = 20.0) -> None:
    """Wait for what nobody tells of. Raises TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while not await holds():  # noqa: ASYNC110 (there is no event to wait for)
            await asyncio.sleep(0.02)
