"""Fixtures of the tests that crash processes which drive runs; they are ended whatever happens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from tests.crash.runs.office import Office, office
from tests.crash.runs.process import Driver
from tests.support.temporal import TemporalServer
from tollhouse.testing.receiver import Receiver

Drive = Callable[..., Awaitable[Driver]]
MakeOffice = Callable[..., Office]

ON_TEMPORAL = pytest.mark.xdist_group("temporal")
"""Tests of one process, since each process that asks has a Temporal server of its own."""


@pytest.fixture(params=["local", pytest.param("temporal", marks=[pytest.mark.slow, ON_TEMPORAL])])
def temporal(request: pytest.FixtureRequest) -> str:
    """How runs are driven: in turn empty, for the local driver, and the address of a Temporal server."""
    if request.param == "local":
        return ""
    server: TemporalServer = request.getfixturevalue("temporal_server")
    return server.address


@pytest.fixture
async def drive() -> AsyncIterator[Drive]:
    """Starts processes that drive runs (see :meth:`Driver.drive`); all are ended after the test."""
    started: list[Driver] = []

    async def start(*args: Any, **kwargs: Any) -> Driver:
        driver = await Driver.drive(*args, **kwargs)
        started.append(driver)
        return driver

    yield start
    for driver in started:
        await driver.end()


@pytest.fixture
def make_office(shared_store_url: str, receiver: Receiver, house_tenant: str, temporal: str) -> MakeOffice:
    """Describes an office over the test's store and receiver; see :func:`office`. ``name``: one that shares nothing."""

    def make(*args: Any, name: str = "", **kwargs: Any) -> Office:
        sqlite = shared_store_url.startswith("sqlite:")
        url = shared_store_url + (f".{name}" if sqlite and name else "")
        tenant = house_tenant + (f"-{name}" if name else "")
        return office(url, receiver, tenant, *args, temporal=temporal, **kwargs)

    return make
