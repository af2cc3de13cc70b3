"""Fixtures of the tests that crash processes which drive runs; they are ended whatever happens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tests.crash.runs.office import Office, office
from tests.crash.runs.process import Driver
from tollhouse.testing.receiver import Receiver

Drive = Callable[..., Awaitable[Driver]]
MakeOffice = Callable[..., Office]


@pytest.fixture
async def drive() -> AsyncIterator[Drive]:
    """Starts processes that drive runs (see :meth:`Driver.drive`); all are ended after the test."""
    started: list[Driver] = []

    async def start(*args: object, **kwargs: object) -> Driver:
        driver = await Driver.drive(*args, **kwargs)  # type: ignore[arg-type]
        started.append(driver)
        return driver

    yield start
    for driver in started:
        await driver.end()


@pytest.fixture
def make_office(shared_store_url: str, receiver: Receiver, house_tenant: str) -> MakeOffice:
    """Describes an office over the test's store and receiver; see :func:`office`."""

    def make(*args: object, **kwargs: object) -> Office:
        return office(shared_store_url, receiver, house_tenant, *args, **kwargs)  # type: ignore[arg-type]

    return make
