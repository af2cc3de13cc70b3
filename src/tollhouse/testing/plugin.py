"""The pytest plugin: a house over a real store for each test, time that can be let pass, and a faulty receiver.

Loaded by pytest through its entry point, in every project that has Tollhouse installed; so it imports nothing of
Tollhouse before a fixture is used. ``--tollhouse-postgres URL`` (or ``TOLLHOUSE_TEST_POSTGRES``) adds PostgreSQL.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tollhouse.contract.tool import Tool
    from tollhouse.house import Tollhouse
    from tollhouse.testing.receiver import Receiver

_POSTGRES = "TOLLHOUSE_TEST_POSTGRES"


class Clock:
    """Time for a house: it goes on by itself, and :meth:`advance` lets more of it pass at once."""

    def __init__(self) -> None:
        self._ahead_us = 0
        self._houses: list[Tollhouse] = []

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass for stores and houses; timers already running keep to real time.

        The houses keep their leases: what is advanced over is a time in which they lived.
        """
        self._ahead_us += round(seconds * 1_000_000)
        for house in self._houses:
            house.renew_lease()

    def local_us(self) -> int:
        """The clock of a process."""
        from tollhouse.ledger.clock import boot_us

        return boot_us() + self._ahead_us

    def wall_us(self) -> int:
        """The time of day that a store takes."""
        import time

        return time.time_ns() // 1000 + self._ahead_us


class HouseMaker:
    """The ``house`` fixture: ``async with house(tool, ...) as h`` opens a house over this test's empty store.

    ``url``: the store. ``clock``: lets time pass (SQLite; a server keeps its own). Services do not run by themselves:
    ``await h.services.round()`` runs one round, so that a test decides when. Settings are those of ``Tollhouse.open``.
    """

    def __init__(self, url: str) -> None:
        self.url, self.clock = url, Clock()

    def __call__(self, *tools: Tool[Any], **settings: Any) -> AbstractAsyncContextManager[Tollhouse]:
        return self._opened(tools, settings)

    @asynccontextmanager
    async def _opened(self, tools: tuple[Tool[Any], ...], settings: dict[str, Any]) -> AsyncIterator[Tollhouse]:
        from tollhouse.house.opening import open_house_over
        from tollhouse.settings import settings_of
        from tollhouse.stores import open_store

        wanted = settings_of({"background": False, "tools": tools, **settings})
        wall = self.clock.wall_us if self.url.startswith("sqlite:") else None
        house = await open_house_over(
            lambda: open_store(self.url, volatile=wanted.volatile, wall=wall), wanted, self.clock.local_us
        )
        self.clock._houses.append(house)
        try:
            yield house
        finally:
            self.clock._houses.remove(house)
            await house.close()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the one option of the plugin."""
    group = parser.getgroup("tollhouse")
    group.addoption(
        "--tollhouse-postgres",
        metavar="URL",
        default=os.environ.get(_POSTGRES),
        help="Run tests that use the `house` fixture over this PostgreSQL database too.",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that asks for a house once for each store."""
    if "house" in metafunc.fixturenames and "tollhouse_store" in metafunc.fixturenames:
        stores = ["sqlite"] + ["postgres"] * bool(metafunc.config.getoption("--tollhouse-postgres"))
        metafunc.parametrize("tollhouse_store", stores, indirect=True)


@pytest.fixture
def tollhouse_store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of this test's store: an empty SQLite file, or the PostgreSQL database given."""
    if getattr(request, "param", "sqlite") == "postgres":
        url: str = request.config.getoption("--tollhouse-postgres")
        return url
    return f"sqlite:///{tmp_path / 'tollhouse.db'}"


@pytest.fixture
def house(tollhouse_store: str) -> HouseMaker:
    """Opens houses over this test's store: ``async with house(tool) as h``."""
    return HouseMaker(tollhouse_store)


@pytest.fixture
def tollhouse_receiver(tmp_path: Path) -> Iterator[Receiver]:
    """A faulty receiver in a process of its own, with an empty book."""
    from tollhouse.testing.receiver import Receiver

    with Receiver.start(tmp_path / "tollhouse-book.jsonl") as receiver:
        yield receiver
