"""Every store passes the public conformance suite: the model in memory, SQLite and PostgreSQL."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.postgres import Databases
from tollhouse.ledger.store import Store
from tollhouse.stores import open_store
from tollhouse.testing.conformance import RunStoreConformance, StoreConformance
from tollhouse.testing.memory_store import MemoryLedger, MemoryStore

Opener = Callable[[], Coroutine[Any, Any, Store]]


@pytest.fixture(scope="module")
def shared_database(postgres_databases: Databases) -> Iterator[str]:
    """URL of a database that all tests of this module share."""
    url = postgres_databases.take()
    yield url
    postgres_databases.give_back(url)


class TestMemory(StoreConformance):
    """The model that the others are compared with."""

    @pytest.fixture
    def open_store(self) -> Opener:
        """Handles on one ledger in memory."""
        ledger = MemoryLedger()

        async def opened() -> Store:
            return MemoryStore(ledger)

        return opened


class OnSQLite:
    """A file of its own for each test."""

    @pytest.fixture
    def open_store(self, tmp_path: Path) -> Opener:
        """Handles on one file."""
        return lambda: open_store(f"sqlite:///{tmp_path}/ledger.db")


class OnPostgreSQL:
    """A schema of its own for each test: making one is ten times faster than making a database."""

    @pytest.fixture
    def open_store(self, shared_database: str) -> Opener:
        """Handles on one schema."""
        url = f"{shared_database}?schema=s{uuid.uuid4().hex}"
        return lambda: open_store(url)


class TestSQLite(OnSQLite, StoreConformance):
    """Calls in SQLite."""


class TestSQLiteRuns(OnSQLite, RunStoreConformance):
    """Runs in SQLite."""


@pytest.mark.postgres
class TestPostgreSQL(OnPostgreSQL, StoreConformance):
    """Calls in PostgreSQL."""


@pytest.mark.postgres
class TestPostgreSQLRuns(OnPostgreSQL, RunStoreConformance):
    """Runs in PostgreSQL."""
