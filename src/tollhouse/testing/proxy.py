"""A TCP proxy between a client and a server that loses, delays and cuts on demand.

Tests and the drill put it before PostgreSQL or an HTTP server. It runs on an event loop in a thread of its
own; every method may be called from any thread, also from another event loop, and has taken effect on return.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from enum import Enum
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import urlsplit, urlunsplit

from .pgwire import Matching, Session, Trap, Variant
from .ports import free_port
from .receiver.wire import hard_reset

_CHUNK_BYTES: Final = 64 * 1024
_PORTS_TRIED_MAX: Final = 5
_T = TypeVar("_T")


class Mode(Enum):
    """What becomes of bytes and of new connections."""

    FORWARD = "forward"
    HOLD = "hold"
    BLACK_HOLE = "black_hole"
    REFUSE = "refuse"


class Proxy:
    """Forwards 127.0.0.1:`port` to a target; a context manager that cuts everything on leaving."""

    def __init__(self, target_host: str, target_port: int) -> None:
        """Describe a proxy; entering it makes it listen on a free port, the same until it is left."""
        self.host = "127.0.0.1"
        self.port = 0
        self._target = (target_host, target_port)
        self._mode = Mode.FORWARD
        self._delays_ms = {"server": 0.0, "client": 0.0}
        self._traps: list[Trap] = []
        self._links: set[_Link] = set()
        self._server: asyncio.Server | None = None
        self._thread: threading.Thread | None = None

    def through(self, url: str) -> str:
        """The same URL with this proxy in place of the server."""
        parts = urlsplit(url)
        credentials, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{credentials}{at}{self.host}:{self.port}"))

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._links)

    def pass_through(self) -> None:
        """Forward again. Held bytes arrive now; connections that lost bytes are reset."""
        self._do(self._enter(Mode.FORWARD))

    def hold(self) -> None:
        """Keep bytes and closings back, in order, until `pass_through`: a delay without an end."""
        self._do(self._enter(Mode.HOLD))

    def black_hole(self) -> None:
        """Swallow bytes and closings both ways; a new connection is accepted and never answered."""
        self._do(self._enter(Mode.BLACK_HOLE))

    def refuse(self) -> None:
        """Refuse new connections until another mode is set; those that are open go on."""
        self._do(self._enter(Mode.REFUSE))

    def cut(self) -> int:
        """Reset every open connection on both sides; tells how many there were."""
        return self._do(self._cut_all(lambda _: True))

    def set_delay(self, *, to_server_ms: float = 0.0, to_client_ms: float = 0.0) -> None:
        """Delay each piece of data from now on; a piece whose sender has gone meanwhile still arrives."""
        self._delays_ms = {"server": to_server_ms, "client": to_client_ms}

    def lose_next_ack(
        self, matching: Matching = None, *, variant: Variant = "applied", skip: int = 0, then_away: bool = False
    ) -> Trap:
        """Cut the PostgreSQL connection that next executes a matching statement, so that nobody answers.

        `applied`: the server has carried the statement out (committed, unless inside BEGIN) and its answer
        is swallowed. `not_applied`: the statement never reaches it. Parsing and preparing is no executing.
        `matching` is a part of the text in any case, a pattern, a predicate on `Statement`, or None for any
        statement; the first `skip` that match pass. `then_away`: all connections are cut in that moment, and new
        ones refused from then on. Several traps may wait; each springs once.
        """
        trap = Trap(matching, variant, skip, then_away)
        self._do(self._set(trap))
        return trap

    def __enter__(self) -> Self:
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main(ready)), daemon=True)
        self._thread.start()
        ready.wait()
        self._do(self._listen_somewhere())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._thread is not None
        self.refuse()
        self.cut()
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()

    def _do(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # All that follows runs on the proxy's own loop.

    async def _main(self, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self._flowing = asyncio.Event()
        self._flowing.set()
        ready.set()
        await self._stopped.wait()

    async def _listen_somewhere(self) -> None:
        for tries_left in reversed(range(_PORTS_TRIED_MAX)):
            self.port = free_port(self.host)
            try:
                await self._listen()
            except OSError:
                if not tries_left:
                    raise
            else:
                return

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, self.host, self.port)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(self, reader, writer)
        self._links.add(link)
        try:
            await link.run()
        finally:
            self._links.discard(link)

    async def _enter(self, mode: Mode) -> None:
        self._mode = mode
        if mode is Mode.REFUSE:
            self._shut()
        elif self._server is None:
            await self._listen()
        if mode is Mode.HOLD:
            self._flowing.clear()
        else:
            self._flowing.set()
        if mode is not Mode.BLACK_HOLE:
            await self._cut_all(lambda link: link.lossy)

    def go_away(self) -> None:
        """Refuse and cut at once. For links only."""
        self._shut()
        for link in self._links:
            link.cut()

    def _shut(self) -> None:
        self._mode = Mode.REFUSE
        if self._server is not None:
            self._server.close()
        self._server = None

    async def _set(self, trap: Trap) -> None:
        self._traps.append(trap)

    async def _cut_all(self, chosen: Callable[[_Link], bool]) -> int:
        links = [link for link in self._links if chosen(link)]
        for link in links:
            link.cut()
        self._links.difference_update(links)
        await asyncio.sleep(0)  # aborted transports close their sockets on the loop's next turn
        return len(links)

    async def passes(self, towards: str) -> bool:
        """Wait as hold and delay demand; False when the piece is swallowed. For links only."""
        await self._flowing.wait()
        delay_ms = self._delays_ms[towards]
        if delay_ms:
            await asyncio.sleep(delay_ms / 1000)
            await self._flowing.wait()
        return not self.swallows

    @property
    def swallows(self) -> bool:
        """Whether it is a black hole."""
        return self._mode is Mode.BLACK_HOLE

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Reach the target. For links only."""
        return await asyncio.open_connection(*self._target)

    def session(self) -> Session:
        """A watch over one new connection. For links only."""
        return Session(self._traps)


class _Link:
    """One connection of a client, and the one to the server that belongs to it."""

    def __init__(self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.lossy = False
        self._proxy = proxy
        self._client = (reader, writer)
        self._writers = [writer]
        self._session = proxy.session()
        self._work = asyncio.ensure_future(self._join())

    async def run(self) -> None:
        """Forward until both sides have ended, or until cut."""
        try:
            await self._work
        except asyncio.CancelledError:
            pass  # cut
        except OSError:
            hard_reset(self._client[1])
        for writer in self._writers:
            writer.close()

    def cut(self) -> None:
        """Reset both sides; the server's first, so that it has let go when the client comes back."""
        for writer in reversed(self._writers):
            hard_reset(writer)
        self._work.cancel()

    async def _join(self) -> None:
        from_client, to_client = self._client
        if self._proxy.swallows:
            self.lossy = True
            await _never()
        from_server, to_server = await self._proxy.connect()
        self._writers.append(to_server)
        await asyncio.gather(
            self._pump(from_client, to_server, "server", self._session.from_client),
            self._pump(from_server, to_client, "client", self._session.from_server),
        )

    async def _pump(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        towards: str,
        watch: Callable[[bytes], None],
    ) -> None:
        while True:
            piece, reset = await _read(source)
            if not await self._proxy.passes(towards):
                self.lossy = True
            elif piece:
                watch(piece)
                if self._session.cut:
                    return self._spring()
                if not await self._flush():
                    return None  # the other side's end is told by the other pump
            else:
                return _end(sink, reset=reset)
            if not piece:
                await _never()  # the closing was swallowed

    def _spring(self) -> None:
        if self._session.then_away:
            self._proxy.go_away()
        self.cut()
        self._session.spring()

    async def _flush(self) -> bool:
        """Send what the session lets through; False when nobody takes it."""
        to_client, to_server = self._writers
        for box, writer in ((self._session.to_server, to_server), (self._session.to_client, to_client)):
            data = bytes(box)
            box.clear()
            if data:
                try:
                    writer.write(data)
                    await writer.drain()
                except (ConnectionError, RuntimeError):  # the latter where an end was passed on there already
                    return False
        return True


async def _read(source: asyncio.StreamReader) -> tuple[bytes, bool]:
    """The next piece, empty at the end, and whether that end was a reset."""
    try:
        return await source.read(_CHUNK_BYTES), False
    except ConnectionError:
        return b"", True


def _end(sink: asyncio.StreamWriter, *, reset: bool) -> None:
    """Pass an end on: a reset as a reset, unless that would lose bytes which are still to be sent."""
    if reset and not sink.transport.get_write_buffer_size():
        hard_reset(sink)
    elif sink.can_write_eof() and not sink.is_closing():
        sink.write_eof()


async def _never() -> None:
    await asyncio.Event().wait()
