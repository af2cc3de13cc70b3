"""The proxy loses, delays and cuts exactly what it is told to, and nothing else."""

from __future__ import annotations

import asyncio
import re
import struct
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import asyncpg
import httpx
import pytest

from tollhouse.testing.pgwire import Loss, Session, Statement, Trap
from tollhouse.testing.proxy import Proxy
from tollhouse.testing.receiver import Receiver

INSERT = "INSERT INTO calls (key) VALUES ($1)"
LOST = (asyncpg.ConnectionDoesNotExistError, asyncpg.InterfaceError, ConnectionError)


def to_server(url: str) -> Proxy:
    """A proxy before the server of a URL."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return Proxy(parts.hostname, parts.port)


# HTTP


@pytest.fixture
def web(receiver: Receiver) -> Iterator[Proxy]:
    """A proxy before the receiver."""
    with to_server(receiver.url) as proxy:
        yield proxy


def send(proxy: Proxy, receiver: Receiver, *, timeout_s: float = 10.0) -> int:
    """Ask for a credit through the proxy, on a new connection; the status of the answer."""
    return httpx.post(proxy.through(receiver.url) + "/v1/credits", json={}, timeout=timeout_s).status_code


def test_proxy_forwards_both_ways(web: Proxy, receiver: Receiver) -> None:
    """Without orders it is not noticed, whatever the size."""
    receiver.fault("huge_body", size_bytes=3_000_000)
    with httpx.Client(base_url=web.through(receiver.url)) as client:
        big = client.post("/v1/credits", json={"filler": "x" * 3_000_000})
        assert len(big.content) == 3_000_000
        assert client.post("/v1/credits", json={}).status_code == 201
        assert web.connections == 1
    assert [request.complete for request in receiver.requests()] == [True, True]


def test_proxy_passes_a_reset_on_as_a_reset(web: Proxy, receiver: Receiver) -> None:
    """The client sees through the proxy what it would see without."""
    receiver.fault("reset_after_effect")
    receiver.fault("close_after_effect")
    with pytest.raises(httpx.ReadError):
        send(web, receiver)
    with pytest.raises(httpx.RemoteProtocolError):
        send(web, receiver)
    assert len(receiver.effects()) == 2


def test_proxy_before_a_dead_server_resets(receiver: Receiver, web: Proxy) -> None:
    """A connection that leads nowhere ends; the next one after the server's return works."""
    receiver.kill()
    with pytest.raises(httpx.TransportError):
        send(web, receiver)
    receiver.restart()
    assert send(web, receiver) == 201


def test_refusing_turns_new_connections_away_and_keeps_open_ones(web: Proxy, receiver: Receiver) -> None:
    """A connection refused is proof that nothing was sent; the port comes back as the same."""
    port = web.port
    with httpx.Client(base_url=web.through(receiver.url)) as client:
        assert client.post("/v1/credits", json={}).status_code == 201
        web.refuse()
        with pytest.raises(httpx.ConnectError):
            send(web, receiver)
        assert client.post("/v1/credits", json={}).status_code == 201
    web.pass_through()
    assert web.port == port
    assert send(web, receiver) == 201


def test_cut_resets_every_open_connection(web: Proxy, receiver: Receiver) -> None:
    """The caller of a request under way learns nothing; the request goes on at the server."""
    receiver.fault("hold_before_effect")
    with httpx.Client(base_url=web.through(receiver.url)) as client:
        cutter = threading.Thread(target=lambda: (receiver.wait_for_requests(1), web.cut()))
        cutter.start()
        with pytest.raises(httpx.ReadError):
            client.post("/v1/credits", json={})
        cutter.join()
    assert web.connections == 0
    assert web.cut() == 0
    receiver.release()
    assert len(receiver.wait_for_effects(1)) == 1


def test_black_hole_swallows_what_is_sent(web: Proxy, receiver: Receiver) -> None:
    """Neither an open nor a new connection gets an answer, and nothing sent meanwhile ever arrives."""
    with httpx.Client(base_url=web.through(receiver.url), timeout=0.2) as client:
        client.post("/v1/credits", json={})
        web.black_hole()
        with pytest.raises(httpx.ReadTimeout):
            client.post("/v1/credits", json={})
        with pytest.raises(httpx.ReadTimeout):
            send(web, receiver, timeout_s=0.2)
    web.pass_through()
    assert send(web, receiver) == 201
    assert len(receiver.requests()) == 2
    assert web.connections <= 1, "connections that lost bytes are gone"


async def test_black_hole_hides_that_a_client_left(web: Proxy, receiver: Receiver) -> None:
    """A reply swallowed on its way leaves the client waiting; healed, it sees a reset, not a late answer."""
    receiver.fault("hold_after_effect")
    async with httpx.AsyncClient(base_url=web.through(receiver.url)) as client:
        reply = asyncio.create_task(client.post("/v1/credits", json={}))
        await receiver.await_for_effects(1)
        web.black_hole()
        receiver.release()
        done, _ = await asyncio.wait([reply], timeout=0.2)
        assert not done
        web.pass_through()
        with pytest.raises(httpx.ReadError):
            await reply


def test_held_request_arrives_after_its_sender_gave_up(web: Proxy, receiver: Receiver) -> None:
    """What the network holds back arrives later, in whole, though nobody waits for it."""
    web.hold()
    with pytest.raises(httpx.ReadTimeout):
        send(web, receiver, timeout_s=0.1)
    assert receiver.requests() == []
    web.pass_through()
    assert receiver.wait_for_effects(1)[0].body == {}


def test_delayed_request_arrives_after_its_sender_gave_up(web: Proxy, receiver: Receiver) -> None:
    """A delay towards the server moves the effect, not only the answer."""
    web.set_delay(to_server_ms=400)
    with pytest.raises(httpx.ReadTimeout):
        send(web, receiver, timeout_s=0.1)
    assert receiver.requests() == []
    assert len(receiver.wait_for_effects(1)) == 1


def test_delayed_reply_leaves_the_effect_in_time(web: Proxy, receiver: Receiver) -> None:
    """A delay towards the client moves the answer only."""
    web.set_delay(to_client_ms=400)
    with pytest.raises(httpx.ReadTimeout):
        send(web, receiver, timeout_s=0.1)
    assert len(receiver.effects()) == 1
    web.set_delay()
    assert send(web, receiver) == 201


async def test_short_first_words_of_other_protocols_pass() -> None:
    """A proxy before neither HTTP nor PostgreSQL waits for no start-up packet."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read(100))
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1")
    async with server:
        with Proxy(*server.sockets[0].getsockname()) as proxy:
            reader, writer = await asyncio.open_connection(proxy.host, proxy.port)
            writer.write(b"HI\n")
            assert await reader.read() == b"HI\n"
            writer.close()


# PostgreSQL


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    """The data in pieces of that size, as a network may cut it."""
    for offset in range(0, len(data), size):
        yield data[offset : offset + size]


def message(kind: bytes, payload: bytes) -> bytes:
    """One message of PostgreSQL's protocol."""
    return kind + struct.pack("!I", len(payload) + 4) + payload


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
def test_messages_are_recognised_however_they_are_cut(size: int) -> None:
    """The answer to the watched statement is withheld in whole, the one before it is let through in whole."""
    encryption = struct.pack("!II", 8, 80877103)
    start = struct.pack("!II", 17, 3 << 16) + b"user\0me\0\0"
    harmless, watched = message(b"Q", b"SELECT 1\0"), message(b"Q", b"INSERT\0")
    ready = message(b"Z", b"I")
    first, second = message(b"C", b"SELECT 1\0") + ready, message(b"C", b"INSERT 0 1\0") + ready
    trap = Trap("insert", "applied")
    session = Session([trap])
    for piece in pieces(encryption + start + harmless + watched, size):
        session.from_client(piece)
    assert session.to_server == start + harmless + watched
    for piece in pieces(ready + first + second, size):
        assert not session.cut
        session.from_server(piece)
    assert session.cut
    assert session.to_client == b"N" + ready + first
    session.spring()
    assert trap.wait(0) == Loss(Statement("INSERT"), "applied", ("INSERT 0 1",), "I")


pg = pytest.mark.postgres
# In quotes, since only the type checker knows the class as generic.
Ledger: TypeAlias = "tuple[Proxy, asyncpg.Connection[Any]]"


@pytest.fixture
async def direct(postgres_url: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    """A connection beside the proxy, to see what is really there."""
    connection = await asyncpg.connect(postgres_url)
    await connection.execute("CREATE TABLE calls (key text PRIMARY KEY)")
    await connection.execute("CREATE TABLE events (key text)")
    yield connection
    await connection.close()


@pytest.fixture
async def ledger(postgres_url: str, direct: asyncpg.Connection[Any]) -> AsyncIterator[Ledger]:
    """A proxy before the database, and a connection through it."""
    with to_server(postgres_url) as proxy:
        connection = await asyncpg.connect(proxy.through(postgres_url))
        yield proxy, connection
        connection.terminate()


async def keys(connection: asyncpg.Connection[Any]) -> list[str]:
    """What the table of calls holds."""
    return [row["key"] for row in await connection.fetch("SELECT key FROM calls ORDER BY key")]


@pg
async def test_statements_pass_unchanged(ledger: Ledger) -> None:
    """Simple, prepared, large and failing statements, COPY, cursors and transactions work through it."""
    _, connection = ledger
    await connection.executemany(INSERT, [(f"k{n}",) for n in range(500)])
    await connection.copy_records_to_table("calls", records=[("copied",)])
    with pytest.raises(asyncpg.UniqueViolationError):
        await connection.execute(INSERT, "k1")
    async with connection.transaction():
        assert len([row async for row in connection.cursor("SELECT key FROM calls", prefetch=50)]) == 501
    assert await connection.fetchval("SELECT repeat($1, 1000000)", "x") == "x" * 1_000_000


@pg
@pytest.mark.parametrize(("variant", "left"), [("applied", ["k1", "k2"]), ("not_applied", ["k1"])])
@pytest.mark.parametrize("prepared_before", [True, False])
async def test_lost_acknowledgement_hides_whether_it_was_applied(
    ledger: Ledger, direct: asyncpg.Connection[Any], variant: Any, left: list[str], prepared_before: bool
) -> None:
    """The client sees the same broken connection; the server has the row, or never heard of it."""
    proxy, connection = ledger
    first = INSERT if prepared_before else "INSERT INTO calls (key) VALUES (lower($1))"
    await connection.execute(first, "k1")
    trap = proxy.lose_next_ack("into CALLS", variant=variant)
    with pytest.raises(LOST):
        await connection.execute(INSERT, "k2")
    loss = trap.wait()
    assert loss.statement == Statement(INSERT, (b"k2",))
    assert (loss.tags, loss.status) == ((("INSERT 0 1",), "I") if variant == "applied" else ((), None))
    assert await keys(direct) == left


@pg
@pytest.mark.parametrize(("variant", "left"), [("applied", ["k1"]), ("not_applied", [])])
async def test_acknowledgement_of_a_commit_can_be_lost(
    ledger: Ledger, direct: asyncpg.Connection[Any], variant: Any, left: list[str]
) -> None:
    """In an explicit transaction it is COMMIT whose answer matters."""
    proxy, connection = ledger
    trap = proxy.lose_next_ack(re.compile("^commit", re.IGNORECASE), variant=variant)
    with pytest.raises(LOST):
        async with connection.transaction():
            await connection.execute(INSERT, "k1")
    assert trap.wait().statement.text.startswith("COMMIT")
    assert await keys(direct) == left


@pg
async def test_statement_inside_a_transaction_is_rolled_back_with_it(
    ledger: Ledger, direct: asyncpg.Connection[Any]
) -> None:
    """Carried out is not committed: the loss says that a transaction was open."""
    proxy, connection = ledger
    trap = proxy.lose_next_ack("calls")
    with pytest.raises(LOST):
        async with connection.transaction():
            await connection.execute(INSERT, "k1")
    assert trap.wait().status == "T"
    assert await keys(direct) == []


@pg
async def test_statement_without_parameters_is_watched_too(ledger: Ledger, direct: asyncpg.Connection[Any]) -> None:
    """The simple protocol carries the text itself."""
    proxy, connection = ledger
    trap = proxy.lose_next_ack()
    with pytest.raises(LOST):
        await connection.execute("INSERT INTO calls VALUES ('a'); INSERT INTO calls VALUES ('b')")
    assert trap.wait().tags == ("INSERT 0 1", "INSERT 0 1")
    assert await keys(direct) == ["a", "b"]


@pg
async def test_trap_chooses_by_count_text_and_parameters(ledger: Ledger, direct: asyncpg.Connection[Any]) -> None:
    """What does not match passes, and so do the first that do, as many as told."""
    proxy, connection = ledger
    trap = proxy.lose_next_ack(lambda statement: statement.parameters == (b"here",), skip=1)
    await connection.execute("INSERT INTO events VALUES ($1)", "here")
    await connection.execute(INSERT, "there")
    assert not trap.sprung
    with pytest.raises(LOST):
        await connection.execute(INSERT, "here")
    assert trap.wait().statement.text == INSERT
    assert await keys(direct) == ["here", "there"]


@pg
async def test_preparing_is_not_executing(ledger: Ledger) -> None:
    """A trap waits for the statement to run."""
    proxy, connection = ledger
    trap = proxy.lose_next_ack("calls")
    await connection.prepare(INSERT)
    assert not trap.sprung
    with pytest.raises(TimeoutError):
        trap.wait(0.01)


@pg
@pytest.mark.parametrize(("variant", "left"), [("applied", 3), ("not_applied", 0)])
async def test_batch_is_lost_as_one(ledger: Ledger, direct: asyncpg.Connection[Any], variant: Any, left: int) -> None:
    """Several executions before one Sync commit together, or not at all."""
    proxy, connection = ledger
    proxy.lose_next_ack("calls", variant=variant, skip=1)
    with pytest.raises(LOST):
        await connection.executemany(INSERT, [("a",), ("b",), ("c",)])
    assert len(await keys(direct)) == left


@pg
async def test_lost_answer_may_be_an_error(ledger: Ledger, direct: asyncpg.Connection[Any]) -> None:
    """The client cannot know, the test can: the loss carries the SQLSTATE."""
    proxy, connection = ledger
    await connection.execute(INSERT, "k1")
    trap = proxy.lose_next_ack("calls")
    with pytest.raises(LOST):
        await connection.execute(INSERT, "k1")
    loss = trap.wait()
    assert (loss.error, loss.tags) == ("23505", ())
    assert await keys(direct) == ["k1"]


@pg
async def test_copy_is_applied_though_its_answer_is_lost(ledger: Ledger, direct: asyncpg.Connection[Any]) -> None:
    """The client is let send its rows before the answer is swallowed."""
    proxy, connection = ledger
    await connection.copy_records_to_table("events", records=[("k0",)])
    trap = proxy.lose_next_ack("copy")
    with pytest.raises(LOST):
        await connection.copy_records_to_table("calls", records=[("k1",), ("k2",)])
    assert trap.wait().tags == ("COPY 2",)
    assert await keys(direct) == ["k1", "k2"]


@pg
async def test_each_trap_springs_once_and_on_one_connection(postgres_url: str, ledger: Ledger) -> None:
    """Others go on, and the repetition on a new connection is answered."""
    proxy, connection = ledger
    other = await asyncpg.connect(proxy.through(postgres_url))
    proxy.lose_next_ack("calls")
    with pytest.raises(LOST):
        await connection.execute(INSERT, "k1")
    assert await other.execute(INSERT, "k2") == "INSERT 0 1"
    await other.close()
    fresh = await asyncpg.connect(proxy.through(postgres_url))
    assert await fresh.execute(INSERT + " ON CONFLICT DO NOTHING", "k1") == "INSERT 0 0"
    await fresh.close()


@pg
async def test_server_may_be_away_after_a_lost_answer(postgres_url: str, ledger: Ledger) -> None:
    """Whoever would repeat the statement at once cannot, by no connection, until that is allowed again."""
    proxy, connection = ledger
    other = await asyncpg.connect(proxy.through(postgres_url))
    proxy.lose_next_ack("calls", then_away=True)
    with pytest.raises(LOST):
        await connection.execute(INSERT, "k1")
    with pytest.raises(LOST):
        await other.execute(INSERT, "k2")
    with pytest.raises(ConnectionError):
        await asyncpg.connect(proxy.through(postgres_url))
    proxy.pass_through()
    await (await asyncpg.connect(proxy.through(postgres_url))).close()


@pg
async def test_pool_recovers_through_the_proxy(postgres_url: str, direct: asyncpg.Connection[Any]) -> None:
    """A pool replaces what was cut."""
    with to_server(postgres_url) as proxy:
        async with asyncpg.create_pool(proxy.through(postgres_url), min_size=1, max_size=1) as pool:
            proxy.cut()
            with pytest.raises(LOST):
                await pool.execute(INSERT, "k1")
            await pool.execute(INSERT, "k2")
    assert await keys(direct) == ["k2"]


@pg
async def test_cancel_request_reaches_the_server(ledger: Ledger) -> None:
    """A client's cancel comes on a connection of its own, outside the protocol that is watched."""
    _, connection = ledger
    with pytest.raises(TimeoutError):
        await connection.execute("SELECT pg_sleep(60)", timeout=0.1)
    assert await connection.fetchval("SELECT 1") == 1


@pg
async def test_client_that_asks_for_encryption_is_told_to_go_on_in_plain(
    postgres_url: str, direct: asyncpg.Connection[Any]
) -> None:
    """What cannot be read cannot be watched; a client that insists is turned away."""
    with to_server(postgres_url) as proxy:
        connection = await asyncpg.connect(proxy.through(postgres_url), ssl="prefer")
        proxy.lose_next_ack("calls", variant="not_applied")
        with pytest.raises(LOST):
            await connection.execute(INSERT, "k1")
        with pytest.raises(ConnectionError, match="rejected SSL"):
            await asyncpg.connect(proxy.through(postgres_url), ssl="require")
    assert await keys(direct) == []
