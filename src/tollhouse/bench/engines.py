"""The two engines as the bench needs them: empty ledgers, controls, full tables, and the server's own count."""

from __future__ import annotations

import asyncio
import os
import uuid
from pathlib import Path
from typing import Protocol

from tollhouse.bench.controls_postgres import GroupPostgres, RawPostgres
from tollhouse.bench.controls_sqlite import GroupSqlite, RawSqlite
from tollhouse.bench.fill import fill_postgres, fill_sqlite
from tollhouse.testing.postgres import PostgresServer, create_database, drop_database, run_sql

EXISTING_SERVER = "TOLLHOUSE_TEST_POSTGRES"


class Control(Protocol):
    """What two durable commits cost without a gate."""

    async def open(self) -> None: ...

    async def call(self) -> None: ...

    async def close(self) -> None: ...


class Engine(Protocol):
    """Where ledgers are made; closed when the run ends."""

    name: str

    def ledger(self) -> str:
        """The URL of an empty ledger."""
        ...

    def raw(self, callers: int) -> Control: ...

    def groups(self) -> dict[str, Control]:
        """The group-committed controls, by name; the better one counts."""
        ...

    async def fill(self, url: str, rows: int) -> None:
        """Copy the one settled call of the ledger until there are ``rows``, and let the engine take stock of them."""
        ...

    async def server_commits(self, url: str) -> int | None:
        """Transactions that the server counted in that database; None where no server counts."""
        ...

    def close(self) -> None: ...


class Sqlite:
    """Ledgers as files in one folder, on the disk that the folder is on."""

    name = "sqlite"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _file(self) -> Path:
        return self._folder / f"{uuid.uuid4().hex}.db"

    def ledger(self) -> str:
        return f"sqlite:///{self._file()}"

    def raw(self, callers: int) -> Control:
        return RawSqlite(self._file())

    def groups(self) -> dict[str, Control]:
        return {"group": GroupSqlite(self._file())}

    async def fill(self, url: str, rows: int) -> None:
        path = url.removeprefix("sqlite:///")
        await asyncio.to_thread(fill_sqlite, path, rows)

    async def server_commits(self, url: str) -> int | None:
        return None

    def close(self) -> None:
        """Nothing: the folder is its maker's."""


class Postgres:
    """Databases on a server of the bench's own, or on the one that ``TOLLHOUSE_TEST_POSTGRES`` names."""

    name = "postgres"

    def __init__(self) -> None:
        existing = os.environ.get(EXISTING_SERVER)
        self._server = None if existing else PostgresServer.create()
        self._admin_url = existing or self._own_url()
        self._databases: list[str] = []

    def _own_url(self) -> str:
        assert self._server is not None
        return self._server.url

    def ledger(self) -> str:
        name = f"tollhouse_bench_{uuid.uuid4().hex}"
        self._databases.append(name)
        return create_database(self._admin_url, name)

    def raw(self, callers: int) -> Control:
        return RawPostgres(self.ledger(), callers)

    def groups(self) -> dict[str, Control]:
        return {f"group{writers}": GroupPostgres(self.ledger(), writers) for writers in (1, 4)}

    async def fill(self, url: str, rows: int) -> None:
        await fill_postgres(url, rows)
        run_sql(self._admin_url, "CHECKPOINT")  # or its writes would fall into the first rounds

    async def server_commits(self, url: str) -> int | None:
        return await _xact_commit(self._admin_url, url.rpartition("/")[2])

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            return
        for name in self._databases:
            drop_database(self._admin_url, name)


async def _xact_commit(admin_url: str, database: str) -> int:
    """Asked from another database once the counted one is quiet: a session reports what it did when it ends."""
    import asyncpg

    connection = await asyncpg.connect(admin_url)
    try:
        seen = -1
        while True:
            await connection.execute("SELECT pg_stat_clear_snapshot()")
            count: int = await connection.fetchval(
                "SELECT xact_commit FROM pg_stat_database WHERE datname = $1", database
            )
            if count == seen:
                return count
            seen = count
            await asyncio.sleep(0.3)
    finally:
        await connection.close()


def engines(store: str, folder: Path) -> list[Engine]:
    """The engines of that choice: ``sqlite``, ``postgres`` or ``both``."""
    chosen: list[Engine] = []
    if store in ("sqlite", "both"):
        chosen.append(Sqlite(folder))
    if store in ("postgres", "both"):
        chosen.append(Postgres())
    return chosen
