"""Houses for tests: opened over a real store of each kind, closed when the test ends.

`tests/conftest.py` makes the fixtures known. `Interfering` stands between a house and its real store, so that a test
can lose a commit, hold one back, count look-ups of the fence, or stop lease renewals.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.support.postgres import Databases
from tollhouse import RecordedCall, Tollhouse, Tool
from tollhouse.errors import StoreUnavailable
from tollhouse.house import opening
from tollhouse.ledger.store import LeaseConnection, Renewal, Write, Written
from tollhouse.stores import open_store

POSTGRES = pytest.param("postgres", marks=pytest.mark.postgres)

on_one_store = pytest.mark.parametrize("shared_store_url", ["sqlite"], indirect=True)
"""For tests of what no store has a part in."""

OpenHouse = Callable[..., Awaitable[Tollhouse]]
"""`await open_house(tool, ..., tenant="a", interfering=True)`: every further name is a setting of the house."""


@pytest.fixture(scope="session")
def shared_postgres_url(postgres_databases: Databases) -> Iterator[str]:
    """One database for all tests of a process: making one for each would take longer than the tests."""
    url = postgres_databases.take()
    yield url
    postgres_databases.give_back(url)


@pytest.fixture(params=["sqlite", POSTGRES])
def house_store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store, of each kind in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture(params=["sqlite", POSTGRES])
def shared_store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store, of each kind in turn, that knows nothing of this test's ``house_tenant``."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    url: str = request.getfixturevalue("shared_postgres_url")
    return url


@pytest.fixture
def house_tenant() -> str:
    """The tenant of this test alone."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
async def open_house(shared_store_url: str, house_tenant: str) -> AsyncIterator[OpenHouse]:
    """Opens houses over the test's store, without background services unless asked; closes them, the last first."""
    houses: list[Tollhouse] = []

    async def open_one(*tools: Tool[Any], **settings: Any) -> Tollhouse:
        house = await opened(shared_store_url, *tools, **{"tenant": house_tenant, **settings})
        houses.append(house)
        return house

    yield open_one
    for house in reversed(houses):
        await house.close()


async def opened(url: str, *tools: Tool[Any], interfering: bool = False, **settings: Any) -> Tollhouse:
    """A house with the settings that suit a test, which closes it itself."""
    usual: dict[str, Any] = {"background": False, "grace_s": 1.0, "store_wait_s": 10.0}
    if not interfering:
        return await Tollhouse.open(url, tools=tools, **{**usual, **settings})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opening, "open_store", _open_interfering)
        return await Tollhouse.open(url, tools=tools, **{**usual, **settings})


async def settled_down(house: Tollhouse, key: str) -> RecordedCall:
    """The call once none of its attempts runs any more."""
    return await until(house, key, lambda call: not any(attempt.running for attempt in call.attempts))


async def quiet(house: Tollhouse) -> None:
    """Return once the house has nothing left to do in the background."""
    while house._core.tasks:  # noqa: ASYNC110 - what is done tells nobody
        await asyncio.sleep(0.002)


async def until(house: Tollhouse, key: str, holds: Callable[[RecordedCall], bool]) -> RecordedCall:
    """The call once this holds of it."""
    while not holds(call := await house.get(key)):  # noqa: ASYNC110 - what moves it may be another process
        await asyncio.sleep(0.005)
    return call


def interfering(house: Tollhouse) -> Interfering:
    """The store of a house that was opened with ``interfering=True``."""
    store: Any = house.store
    assert isinstance(store, Interfering)
    return store


async def _open_interfering(url: str, **options: Any) -> Any:
    return Interfering(await open_store(url, **options))


class Interfering:
    """A real store whose commits can fail, before or after they were applied, and whose answers can be kept back."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._failures: list[tuple[Literal["before", "after"], StoreUnavailable] | None] = []
        self.lose_fences = False
        self.lose_renewals = False
        self.fences = 0
        """How often a fence was asked for."""
        self._go_on = asyncio.Event()
        self._hold_next = False
        self.held = asyncio.Event()
        """Set when an answer was held back."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def fail_next(
        self, when: Literal["before", "after"], times: int = 1, error: StoreUnavailable | None = None
    ) -> None:
        """Let the next writes raise: *before* nothing was applied, *after* all was and only the answer is lost."""
        self._failures += [(when, error or StoreUnavailable("The store is away."))] * times

    def fail_nth(self, n: int, when: Literal["before", "after"]) -> None:
        """Let ``n`` writes pass and the one after them raise."""
        self._failures = [None] * n
        self.fail_next(when)

    async def all_failed(self) -> None:
        """Return once every write that was to fail has failed."""
        while self._failures:  # noqa: ASYNC110 - a test waits here for moments
            await asyncio.sleep(0.002)

    def recover(self) -> None:
        """Fail no more."""
        self._failures.clear()

    def hold_next(self) -> None:
        """Let the next write be applied, and its answer wait until it is let go."""
        self._hold_next = True

    def let_go(self) -> None:
        """Give the answer that was held back."""
        self._go_on.set()

    async def write(self, *writes: Write) -> tuple[Written, ...]:
        when, error = (self._failures.pop(0) if self._failures else None) or (None, None)
        hold, self._hold_next = self._hold_next, False
        if when == "before" and error is not None:
            raise type(error)(error.cause)
        written: tuple[Written, ...] = await self._store.write(*writes)
        if when == "after" and error is not None:
            raise type(error)(error.cause)
        if hold:
            self.held.set()
            await self._go_on.wait()
        return written

    async def fence(self, tenant: str, key: str) -> Any:
        self.fences += 1
        if self.lose_fences:
            raise StoreUnavailable("The store is away.")
        return await self._store.fence(tenant, key)

    def lease_connection(self) -> LeaseConnection:
        return _Lease(self, self._store.lease_connection())


class _Lease:
    """A lease connection that stops renewing when it is told to."""

    def __init__(self, store: Interfering, inner: LeaseConnection) -> None:
        self._store, self._inner = store, inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def renew(self, tenant: str, owner_id: str, lease_s: float) -> Renewal:
        if self._store.lose_renewals:
            raise StoreUnavailable("The store is away.")
        return self._inner.renew(tenant, owner_id, lease_s)
