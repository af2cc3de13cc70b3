"""PostgreSQL for tests: one server for the whole run, an empty database for each test that asks.

The server comes from the test dependencies, or from TOLLHOUSE_TEST_POSTGRES, the URL of a database from which
others may be created and dropped. `tests/conftest.py` makes the fixtures known.
"""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tollhouse.testing.postgres import PostgresServer, create_database, drop_database

EXISTING_SERVER = "TOLLHOUSE_TEST_POSTGRES"


class Databases:
    """Empty databases on one server; the next is made, and the last dropped, while a test runs."""

    def __init__(self, server_url: str) -> None:
        self._server_url = server_url
        self._worker = ThreadPoolExecutor(1)
        self._dropped: list[Future[None]] = []
        self._next = self._worker.submit(self._create)

    def take(self) -> str:
        """The URL of a database that nobody has used."""
        url = self._next.result()
        self._next = self._worker.submit(self._create)
        return url

    def give_back(self, url: str) -> None:
        """Have the database dropped."""
        name = urlsplit(url).path[1:]
        self._dropped.append(self._worker.submit(drop_database, self._server_url, name))

    def close(self) -> None:
        """Drop what is left. Raises what went wrong with any drop."""
        self.give_back(self._next.result())
        self._worker.shutdown()
        for dropped in self._dropped:
            dropped.result()

    def _create(self) -> str:
        return create_database(self._server_url, f"tollhouse_test_{uuid.uuid4().hex}")


@pytest.fixture(scope="session")
def postgres_server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of the administrator's database of the server that the whole run shares."""
    if existing := os.environ.get(EXISTING_SERVER):
        yield existing
        return
    folder = tmp_path_factory.getbasetemp()
    shared = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    server = shared_server(shared)
    yield server.url
    server.release()


@pytest.fixture(scope="session")
def postgres_databases(postgres_server_url: str) -> Iterator[Databases]:
    """Where this process takes its databases from."""
    databases = Databases(postgres_server_url)
    yield databases
    databases.close()


@pytest.fixture
def postgres_url(postgres_databases: Databases) -> Iterator[str]:
    """URL of a new, empty database."""
    url = postgres_databases.take()
    yield url
    postgres_databases.give_back(url)


@pytest.fixture
def private_postgres() -> Iterator[PostgresServer]:
    """A server of the test's own, to be stopped, restarted and killed; always from the test dependencies."""
    with PostgresServer.create() as server:
        yield server


def shared_server(folder: Path) -> PostgresServer:
    """The server noted in `folder`, or a new one if it has gone; the first process to come starts it."""
    note = folder / "postgres.json"
    with (folder / "postgres.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            where = json.loads(note.read_text())
            return PostgresServer(Path(where["folder"]), where["port"])
        except OSError:
            server = PostgresServer.create()
            note.write_text(json.dumps({"folder": str(server.folder), "port": server.port}))
            return server
