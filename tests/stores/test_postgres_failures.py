"""What can happen to a server, and what a caller hears of it: a stable code, a remedy, never a raw database error."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from urllib.parse import urlsplit, urlunsplit

import pytest

from tests.stores.postgres_ledger import TENANT, departure, effect, looking, opened
from tollhouse.errors import (
    HouseClosed,
    StoreFull,
    StoreLocked,
    StoreNotDurable,
    StoreReadOnly,
    StoreUnavailable,
    StoreURLInvalid,
    TollhouseError,
)
from tollhouse.ledger.record import State
from tollhouse.ledger.store import Counters, Written
from tollhouse.stores import open_store
from tollhouse.stores.postgres import open_raw
from tollhouse.stores.postgres.faults import FAILURES
from tollhouse.stores.postgres.link import Link
from tollhouse.stores.postgres.statements import meta
from tollhouse.stores.postgres.target import parse
from tollhouse.testing.postgres import PostgresServer

pytestmark = pytest.mark.postgres

APPLIED = (Written(),)


# -- servers that go and come ----------------------------------------------------------------------------------------


async def cut(link: Link, url: str) -> None:
    """The server ends the link's session, and the link has noticed."""
    ((pid,),) = await link.fetch("SELECT pg_backend_pid()")
    async with looking(url) as behind:
        await behind.execute("SELECT pg_terminate_backend($1)", pid)
    async with asyncio.timeout(30):
        while link.is_open:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def marks(url: str) -> list[str]:
    """The marks that were really left."""
    async with looking(url) as behind:
        return [row["name"] for row in await behind.fetch("SELECT name FROM meta WHERE name LIKE 'mark_%'")]


async def test_a_transaction_ends_with_its_connection(postgres_url: str) -> None:
    """What would come next commits by itself on another connection, without what came before, so it is not sent."""
    async with opened(postgres_url):
        link = Link(parse(postgres_url), Counters(), limit_s=10.0, volatile=True)
        with pytest.raises(FAILURES):
            async with link.transaction():
                await link.fetch(meta.PUT, "mark_1", "")
                await cut(link, postgres_url)
                await link.fetch(meta.PUT, "mark_2", "")
        with pytest.raises(FAILURES):
            async with link.transaction():
                await link.fetch(meta.PUT, "mark_3", "")
                await cut(link, postgres_url)
        assert await marks(postgres_url) == []
        async with link.transaction():
            await link.fetch(meta.PUT, "mark_4", "")
        assert await marks(postgres_url) == ["mark_4"]
        await link.close()


async def test_an_operation_on_the_whole_ledger_ends_with_its_connection(postgres_url: str) -> None:
    """All or nothing of it: half a fence, or owners ended without the mark that says why, would go unnoticed."""
    async with opened(postgres_url):
        engine = open_raw(postgres_url)
        with pytest.raises(StoreUnavailable):
            async with engine.transaction():
                await engine.rows(meta.PUT, "mark_1", "")
                await cut(engine._link, postgres_url)
                await engine.rows(meta.PUT, "mark_2", "")
        with pytest.raises(StoreUnavailable):
            async with engine.transaction():
                await engine.rows(meta.PUT, "mark_3", "")
                await cut(engine._link, postgres_url)
        assert await marks(postgres_url) == []
        await engine.close()


@pytest.mark.parametrize("how", ["fast", "immediate", "kill"])
async def test_a_restart_under_load_loses_and_doubles_nothing(private_postgres: PostgresServer, how: str) -> None:
    """Stopped, crashed or killed in the middle of many callers' writes: all of them end applied, once."""
    async with opened(private_postgres.url, patience_s=60.0) as store:
        halfway = asyncio.Event()
        done = 0

        async def one(number: int) -> None:
            nonlocal done
            for write in effect(f"call-{number}"):
                assert await store.write(write) == APPLIED
            done += 1
            if done == 100:
                halfway.set()

        async def restart() -> None:
            await halfway.wait()
            if how == "kill":
                await asyncio.to_thread(private_postgres.kill)
                await asyncio.to_thread(private_postgres.start)
            else:
                await asyncio.to_thread(private_postgres.restart, how)

        restarting = asyncio.ensure_future(restart())
        for start in range(0, 400, 32):
            await asyncio.gather(*(one(number) for number in range(start, min(start + 32, 400))))
        await restarting
        assert store.counters.reconnects > 0
        assert await store.count(TENANT) == {State.SUCCEEDED: 400}
    async with looking(private_postgres.url) as connection:
        histories = await connection.fetch("SELECT count(*) AS lines FROM events GROUP BY stream")
        assert [row["lines"] for row in histories] == [2] * 400


async def test_connections_ended_by_an_administrator_are_made_again(postgres_url: str) -> None:
    """A write, a reading and a check go on as if nothing had happened."""
    async with opened(postgres_url) as store, looking(postgres_url) as admin:
        await store.write(departure("first"))
        await store.get(TENANT, "first")
        await store.fence(TENANT, "first")
        ended = await admin.fetch(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        assert len(ended) == 3
        assert await store.write(departure("second")) == APPLIED
        assert await store.get(TENANT, "first") is not None
        assert await store.fence(TENANT, "first") is not None
        assert store.counters.reconnects == 3


async def test_a_server_that_is_gone_is_unavailable(private_postgres: PostgresServer) -> None:
    """Nobody listens any more: writes and readings end with the patience, the check before a send within its own."""
    async with opened(private_postgres.url, patience_s=1.5) as store:
        await store.write(departure("call"))
        private_postgres.stop()
        for attempt in (store.write(departure("next")), store.get(TENANT, "call"), store.fence(TENANT, "call")):
            with pytest.raises(StoreUnavailable, match="cannot be reached"):
                await attempt
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            await open_store(private_postgres.url)


# -- servers that refuse ---------------------------------------------------------------------------------------------

RAISED = {
    "53100": (StoreFull, "no room left"),
    "25006": (StoreReadOnly, "read-only"),
    "55P03": (StoreLocked, "locked"),
    "40001": (StoreLocked, "colliding"),
    "40P01": (StoreLocked, "deadlocks"),
    "42501": (StoreUnavailable, "forbids"),
    "XX000": (StoreUnavailable, "failed"),
}


@pytest.mark.parametrize("state", RAISED)
async def test_every_failure_of_the_server_has_a_code_of_ours(postgres_url: str, state: str) -> None:
    """Whatever the server raises in a write: an error with code and remedy, and the store works on afterwards."""
    kind, words = RAISED[state]
    async with opened(postgres_url, patience_s=1.5) as store, looking(postgres_url) as behind:
        await behind.execute(
            "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN RAISE 'on purpose' USING ERRCODE = '{state}'; END $$;"
            " CREATE TRIGGER fail BEFORE INSERT ON calls FOR EACH ROW EXECUTE FUNCTION fail()"
        )
        with pytest.raises(kind, match=words) as caught:
            await store.write(departure("call"))
        assert type(caught.value) is kind
        assert caught.value.remedy
        await behind.execute("DROP TRIGGER fail ON calls")
        assert await store.write(departure("call")) == APPLIED


async def test_a_passing_collision_is_only_repeated(postgres_url: str) -> None:
    """Serialization failures and deadlocks are no caller's affair."""
    async with opened(postgres_url) as store, looking(postgres_url) as behind:
        await behind.execute(
            "CREATE SEQUENCE tries; CREATE FUNCTION collide() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN IF nextval('tries') < 4 THEN RAISE 'on purpose' USING ERRCODE = '40001'; END IF;"
            " RETURN NEW; END $$;"
            " CREATE TRIGGER collide BEFORE INSERT ON calls FOR EACH ROW EXECUTE FUNCTION collide()"
        )
        assert await store.write(departure("call")) == APPLIED


async def test_a_row_locked_for_too_long_is_said_to_be_locked(postgres_url: str) -> None:
    """Somebody sits on the row: the write waits as long as the store is patient, then says so."""
    async with opened(postgres_url, patience_s=1.5) as store, looking(postgres_url) as behind:
        departed, happened = effect("call")
        await store.write(departed)
        async with behind.transaction():
            await behind.execute("SELECT FROM calls WHERE key = 'call' FOR UPDATE")
            with pytest.raises(StoreLocked):
                await store.write(happened)
        assert await store.write(happened) == APPLIED


async def test_a_database_made_read_only_refuses_writes(postgres_url: str) -> None:
    """Readings go on; a write hears that the store cannot be written."""
    async with opened(postgres_url) as store, looking(postgres_url) as admin:
        await store.write(departure("call"))
    async with looking(postgres_url) as admin:
        name = urlsplit(postgres_url).path[1:]
        await admin.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    async with opened(postgres_url, register=False) as store:
        assert await store.get(TENANT, "call") is not None
        with pytest.raises(StoreReadOnly, match="read-only"):
            await store.write(departure("next"))


async def test_a_replica_is_read_only(private_postgres: PostgresServer) -> None:
    """A server in recovery is refused at opening."""
    async with opened(private_postgres.url):
        pass
    private_postgres.stop()
    data = private_postgres.folder / "data"
    (data / "standby.signal").touch()
    if os.geteuid() == 0:
        owner = data.stat()
        os.chown(data / "standby.signal", owner.st_uid, owner.st_gid)
    private_postgres.start()
    with pytest.raises(StoreReadOnly, match="replica"):
        await open_store(private_postgres.url)


async def test_a_server_with_no_connection_left_says_so(private_postgres: PostgresServer) -> None:
    """The remedy names the setting; the same key may go again."""
    async with looking(private_postgres.url) as admin:
        await admin.execute("CREATE ROLE few LOGIN CONNECTION LIMIT 1")
        await admin.execute("GRANT ALL ON DATABASE postgres TO few; GRANT ALL ON SCHEMA public TO few")
        url = private_postgres.url.replace("postgres@", "few@", 1)
        async with opened(url, register=False, patience_s=1.5) as store:
            await store.write(departure("read-nothing-of-it", owner_id=""))
            with pytest.raises(StoreUnavailable, match="no connection left") as caught:
                await store.get(TENANT, "call")
            assert "max_connections" in caught.value.remedy


async def test_opening_says_what_is_wrong_with_the_address(private_postgres: PostgresServer) -> None:
    """Unknown database, unknown role, wrong password, nobody there: each its own sentence, and no password in any."""
    async with looking(private_postgres.url) as admin:
        await admin.execute("CREATE ROLE guarded LOGIN PASSWORD 'right'")
    (private_postgres.folder / "data" / "pg_hba.conf").write_text(
        "host all guarded 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n"
    )
    private_postgres.restart()
    parts = urlsplit(private_postgres.url)
    host = f"127.0.0.1:{private_postgres.port}"
    wrong = {
        urlunsplit(parts._replace(path="/nowhere")): "no such database",
        f"postgresql://nobody-known@{host}/postgres": "does not let this role in",
        f"postgresql://guarded:sesame@{host}/postgres": "refuses the password",
        "postgresql://guarded:sesame@127.0.0.1:1/postgres": "cannot be reached",
    }
    for url, words in wrong.items():
        with pytest.raises(StoreUnavailable, match=words) as caught:
            await open_store(url)
        assert "sesame" not in str(caught.value)
        assert caught.value.remedy


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:sesame@host:port/db",
        "postgresql://u:sesame@[::1/db",
        "postgresql://u:sesame@host/db?sslmode=perhaps",
        "postgresql://u:sesame@host/db?schema=1;drop",
        "postgresql://u:sesame@host/db?connect_timeout=soon",
    ],
)
async def test_an_address_that_cannot_be_read_is_the_users_mistake(url: str) -> None:
    """Refused as an invalid URL, without quoting its password."""
    with pytest.raises(StoreURLInvalid) as caught:
        await open_store(url)
    assert "sesame" not in f"{caught.value} {caught.value.__cause__} {caught.value.__context__}"


async def test_the_url_that_is_shown_has_no_password(postgres_url: str) -> None:
    """`store.url` goes into logs and errors."""
    with_password = postgres_url.replace("postgres@", "postgres:sesame@", 1)
    async with opened(f"{with_password}?application_name=mine", register=False) as store:
        assert "sesame" not in store.url
        assert "postgres:***@" in store.url


# -- servers that could forget ---------------------------------------------------------------------------------------


async def test_a_server_without_fsync_is_refused() -> None:
    """It could forget a departure after a power cut; `volatile` accepts that."""
    with PostgresServer.create({"fsync": "off"}) as server:
        with pytest.raises(StoreNotDurable, match="fsync=off"):
            await open_store(server.url)
        async with opened(server.url, volatile=True) as store:
            assert await store.write(departure("call")) == APPLIED


async def test_a_database_that_commits_asynchronously_is_refused(postgres_url: str) -> None:
    """Set for the database, not the server: every connection is asked, those made later too."""
    name = urlsplit(postgres_url).path[1:]
    async with opened(postgres_url, patience_s=1.5) as store, looking(postgres_url) as admin:
        await admin.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = off')
        with pytest.raises(StoreUnavailable, match="synchronous_commit=off"):
            await store.write(departure("call"))
        with pytest.raises(StoreNotDurable, match="synchronous_commit=off"):
            await open_store(postgres_url)
        async with opened(postgres_url, volatile=True, register=False) as second:
            assert await second.write(departure("call")) == APPLIED


async def test_tables_that_a_crash_would_empty_are_refused(postgres_url: str) -> None:
    """An unlogged table is lost in a crash though fsync is on."""
    async with opened(postgres_url), looking(postgres_url) as admin:
        await admin.execute("ALTER TABLE events SET UNLOGGED")
        with pytest.raises(StoreNotDurable, match="events"):
            await open_store(postgres_url)


# -- handles ---------------------------------------------------------------------------------------------------------


async def test_a_closed_store_says_so(postgres_url: str) -> None:
    """Closing lets running writes end, is harmless twice, and ends the handle."""
    async with opened(postgres_url) as store:
        writing = asyncio.ensure_future(store.write(departure("call")))
        await asyncio.sleep(0)
        await store.close()
        await store.close()
        assert await writing == APPLIED
        for attempt in (store.write(departure("next")), store.get(TENANT, "call")):
            with pytest.raises(HouseClosed):
                await attempt


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
async def test_a_handle_does_not_cross_a_fork(postgres_url: str) -> None:
    """A child process is refused before it touches the parent's connections, which go on."""
    async with opened(postgres_url) as store:
        await store.write(departure("call"))
        leases = store.lease_connection()
        await asyncio.to_thread(leases.renew, TENANT, "own_a", 60.0)
        heard = multiprocessing.get_context("fork").SimpleQueue()

        def child() -> None:
            for attempt in (
                lambda: asyncio.run(_write_in_child()),
                lambda: leases.renew(TENANT, "own_a", 60.0),
                store.lease_connection,
            ):
                try:
                    attempt()
                    heard.put("went through")
                except TollhouseError as error:
                    heard.put(error.code)

        async def _write_in_child() -> None:
            await store.write(departure("from-child"))

        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        await asyncio.to_thread(process.join)
        assert [heard.get() for _ in range(3)] == ["house_closed"] * 3
        assert await store.write(departure("next")) == APPLIED
        await asyncio.to_thread(leases.renew, TENANT, "own_a", 60.0)
        await asyncio.to_thread(leases.close)
