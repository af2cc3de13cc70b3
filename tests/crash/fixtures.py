"""Workers for tests over real processes; they are ended whatever happens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tests.crash.process import Worker

Start = Callable[..., Awaitable[Worker]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts workers (see :meth:`Worker.start`); all are ended after the test."""
    started: list[Worker] = []

    async def start_one(*args: object, **kwargs: object) -> Worker:
        worker = await Worker.start(*args, **kwargs)  # type: ignore[arg-type]
        started.append(worker)
        return worker

    yield start_one
    for worker in started:
        await worker.end()
