"""``/healthz`` and ``/metrics`` of a worker, by the standard library alone: the base install has no web framework.

Called by ``tollhouse worker --health``; the HTTP API asks the same :class:`Health` for its own. Every answer takes two
seconds at most, whatever the store does: what it did not say by then is left out and counts as ill. Serves GET and
HEAD, one request for each connection, and nothing secret; it is for a loopback address or a private network.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable
from typing import Any, NamedTuple, TypeVar

from tollhouse.errors import InvalidSetting, StoreUnavailable, TollhouseError
from tollhouse.house import Tollhouse
from tollhouse.house.vitals import Vitals, vitals_of
from tollhouse.ledger.record import State
from tollhouse.operations.metrics import exposition
from tollhouse.stores import RawLedger, Signs, open_raw

T = TypeVar("T")

PROBE_S = 2.0
"""How long a probe takes at most."""

ROUND_AGE_MOST_S = 60.0
"""A worker whose last round is older does not do its work."""

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_REQUEST_MOST = 8192


class Answer(NamedTuple):
    """What a path answers with."""

    status: str
    kind: str
    body: str


class Health:
    """Answers for one house. ``ledger``: a connection of its own, so that a probe never waits behind callers.

    None: it is opened when it is first asked for, and closed by :meth:`close`.
    """

    def __init__(self, house: Tollhouse, ledger: RawLedger | None, tenant: str) -> None:
        self._house, self._ledger, self._tenant = house, ledger, tenant
        self._one_at_a_time = asyncio.Lock()

    async def close(self) -> None:
        """Close the connection; the next probe opens another."""
        async with self._one_at_a_time:
            ledger, self._ledger = self._ledger, None
            if ledger is not None:
                await ledger.close()

    async def answer(self, path: str) -> Answer:
        """The answer to a GET of that path."""
        if path == "/healthz":
            return await self._healthz()
        if path == "/metrics":
            return await self._metrics()
        return Answer("404 Not Found", "text/plain", "There is /healthz and /metrics.\n")

    async def checks(self) -> dict[str, bool]:
        """What must hold, by name: the store answers, the lease runs, the background services make their rounds."""
        signs, vitals = await _within(self._signs()), vitals_of(self._house)
        return {"store": signs is not None, "lease": vitals.lease_left_s > 0, "rounds": _makes_rounds(vitals)}

    async def _healthz(self) -> Answer:
        checks = await self.checks()
        status = "ok" if all(checks.values()) else "failing"
        document = json.dumps({"status": status, "checks": checks}) + "\n"
        return Answer("200 OK" if status == "ok" else "503 Service Unavailable", "application/json", document)

    async def _metrics(self) -> Answer:
        return Answer("200 OK", METRICS_TYPE, await self.metrics())

    async def metrics(self) -> str:
        """The metrics of this process in Prometheus' text format."""
        found = await _within(self._from_store())
        counted, signs, now_us = (None, None, 0) if found is None else found
        return exposition(vitals_of(self._house), counted, signs, now_us)

    async def _from_store(self) -> tuple[dict[State, int], Signs, int]:
        signs, counted = await self._signs(), await self._house.count()
        return counted, signs, await self._house.store.now_us()

    async def _signs(self) -> Signs:
        async with self._one_at_a_time:
            if self._ledger is None:
                self._ledger = await open_raw(self._house.store.url, any_version=True)
            return await self._ledger.signs(self._tenant)


def _makes_rounds(vitals: Vitals) -> bool:
    return vitals.last_round_age_s is None or vitals.last_round_age_s < ROUND_AGE_MOST_S


async def _within(asked: Awaitable[T]) -> T | None:
    """What the store says within the time of a probe; None when it says nothing."""
    try:
        async with asyncio.timeout(PROBE_S * 0.9):
            return await asked
    except (TimeoutError, TollhouseError):
        return None


@contextlib.asynccontextmanager
async def serving(house: Tollhouse, url: str, tenant: str, place: str) -> AsyncIterator[str]:
    """Serve at ``host:port`` while the block runs; yields the address in use, with the port chosen for port 0.

    Raises :class:`InvalidSetting` for what is no address, :class:`StoreUnavailable` where it cannot be listened on.
    """
    host, port = address_of(place)
    ledger = await open_raw(url, any_version=True)
    try:
        health = Health(house, ledger, tenant)
        try:
            server = await asyncio.start_server(lambda r, w: _serve(health, r, w), host, port, limit=_REQUEST_MOST)
        except OSError as error:
            raise StoreUnavailable(
                f"{place} cannot be listened on ({error.strerror or error}).", remedy="Choose another address."
            ) from None
        async with server:
            name = server.sockets[0].getsockname()
            yield f"{host}:{name[1]}"
    finally:
        await ledger.close()


def address_of(place: str) -> tuple[str, int]:
    """Host and port of ``127.0.0.1:9100`` or ``[::1]:9100``. Raises :class:`InvalidSetting`."""
    host, separator, port = place.rpartition(":")
    if not separator or not host or not port.isdecimal() or int(port) > 65535:
        raise InvalidSetting(f"{place!r} is no address to serve at.", remedy="Give HOST:PORT, as in 127.0.0.1:9100.")
    return host.strip("[]"), int(port)


async def _serve(health: Health, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    # Whoever is slow, or gone, or speaks something else, is not waited for.
    with contextlib.suppress(OSError, TimeoutError, ValueError, EOFError, asyncio.LimitOverrunError):
        async with asyncio.timeout(2 * PROBE_S):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            method, path, *_ = head.split(" ", 2)
            answer = await health.answer(path.split("?")[0]) if method in ("GET", "HEAD") else _NOT_ALLOWED
            writer.write(_response(answer, with_body=method != "HEAD"))
            await writer.drain()
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


_NOT_ALLOWED = Answer("405 Method Not Allowed", "text/plain", "Only GET and HEAD.\n")


def _response(answer: Answer, *, with_body: bool) -> bytes:
    body = answer.body.encode()
    head: dict[str, Any] = {
        "Content-Type": answer.kind,
        "Content-Length": len(body),
        "Cache-Control": "no-store",
        "Connection": "close",
    }
    lines = [f"HTTP/1.1 {answer.status}", *(f"{name}: {value}" for name, value in head.items()), "", ""]
    return "\r\n".join(lines).encode() + (body if with_body else b"")
