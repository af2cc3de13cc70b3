"""Fixtures for tests over real processes: each store in turn, and workers that are ended whatever happens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tests.crash.process import Worker

Start = Callable[..., Awaitable[Worker]]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a new, empty ledger, in each store in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    url: str = request.getfixturevalue("postgres_url")
    return url


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
