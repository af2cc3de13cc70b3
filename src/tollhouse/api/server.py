"""Serving the API: uvicorn over uvloop and httptools, bound to loopback unless callers must show a key.

Called by ``tollhouse serve``. Signals are its own affair: leaving the ``async with`` block stops the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tollhouse.errors import InvalidSetting

T = TypeVar("T")

log = logging.getLogger("tollhouse.api")

HEAD_MOST = 64 * 1024
"""Bytes that request line and headers may take together."""

HEAD_TIMEOUT_S = 20.0
"""How long a client may take over them."""

KEEP_ALIVE_S = 75
BACKLOG = 2048


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run the main coroutine on the loop that serves fastest: uvloop, where it is installed."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes that loop; None: the system's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


@contextlib.asynccontextmanager
async def serving(
    app: FastAPI, host: str = "127.0.0.1", port: int = 8080, *, grace_s: float = 10.0
) -> AsyncIterator[str]:
    """Serve while the block runs; yields the URL, with the port chosen for port 0.

    On leaving it takes no new requests, waits ``grace_s`` for those under way (streams are told by
    ``app.state.stopping``) and ends the rest; calls that they made go on in the house. Raises :class:`InvalidSetting`
    where the address cannot be listened on, or is beyond loopback while no key is asked for.
    """
    listener = _listener(app, host, port)
    config = uvicorn.Config(
        app,
        http=BoundedProtocol,
        ws="none",
        lifespan="off",
        loop="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, round(grace_s)),
    )
    server = Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await _started(server, task)
        if app.state.access.open:
            log.warning("access_open: no key is asked for, so the server is on loopback only")
        yield f"http://{_shown(host)}:{listener.getsockname()[1]}"
    finally:
        app.state.stopping.set()
        server.should_exit = True
        await task
        await app.state.health.close()


class Server(uvicorn.Server):
    """Uvicorn that leaves signals alone and says when it has started."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen."""
        await super().startup(sockets)
        self.up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the caller's."""
        yield


class BoundedProtocol(HttpToolsProtocol):
    """HTTP/1.1 whose head is bounded in size and in time; the guard bounds the body."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.access_log = False  # it would hold queries, whatever handlers somebody's logging has
        self._in_head, self._head_size = True, 0
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client came: it has to say what it wants."""
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Some bytes came."""
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._head_size = 0
        if not self._in_head:
            return
        self._head_size += len(data)
        if self._head_size > HEAD_MOST and not self.transport.is_closing():
            self.send_400_response("The head of the request is too large.")
        elif self._head_timer is None:
            self._await_head()

    def on_message_begin(self) -> None:
        """A request begins."""
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Its head is there."""
        self._in_head = False
        self._no_timer()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._no_timer()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._head_is_late)

    def _no_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()


async def _started(server: Server, task: asyncio.Task[None]) -> None:
    up = asyncio.create_task(server.up.wait())
    await asyncio.wait({up, task}, return_when=asyncio.FIRST_COMPLETED)
    up.cancel()
    if task.done():
        await task


def _listener(app: FastAPI, host: str, port: int) -> socket.socket:
    """A bound socket. What a name means is looked up once, so that what is judged is what is bound."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise InvalidSetting(f"{host!a} is no address to serve at ({error}).", remedy="Give HOST:PORT.") from None
    if app.state.access.open and not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback:
        raise InvalidSetting(
            f"{host} is not loopback, and no key is asked for: anybody there could do everything.",
            remedy="Make a key with `tollhouse keys create`, or serve at 127.0.0.1.",
        )
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise InvalidSetting(
            f"{host}:{port} cannot be listened on ({error.strerror or error}).",
            remedy="Stop what listens there, or give another place: --listen HOST:PORT; port 0: any that is free.",
        ) from None
    listener.setblocking(False)
    return listener


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
