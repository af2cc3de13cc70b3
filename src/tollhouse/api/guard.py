"""What stands before every request: its id, the host it is meant for, the bounds of its body; and behind every answer.

A layer of plain ASGI around the whole application, so that it holds for paths that do not exist, too. Errors that reach
it become problem documents; a defect is logged without its message, which might repeat what a caller sent.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import re
import time
import traceback
from collections.abc import Collection
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tollhouse.api.problems import problem, unexpected
from tollhouse.errors import HouseClosed, RequestTimedOut, RequestTooLarge, TollhouseError, WrongHost

log = logging.getLogger("tollhouse.api")

BODY_MOST = 1024 * 1024
BODY_TIMEOUT_S = 30.0
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

CLIENT_GONE = 499
"""For the log alone: the client went away before its request was whole, so nobody hears an answer."""

_DRAIN_MOST, _DRAIN_S = 64 * 1024 * 1024, 5.0
_PROCESS, _numbers = os.urandom(8).hex(), itertools.count(1)
"""Request ids are counted: asking the system for random ones would cost more than the rest of the guard."""

_AFTERWARDS = "Send the request again with the same key once the server is back; that is safe."
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::\d{1,5})?")
_ALWAYS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


_TO_PAGES = (
    (b"vary", b"Origin"),
    (b"access-control-expose-headers", b"ETag, Location, Retry-After, Idempotent-Replayed, X-Request-Id"),
)
_PREFLIGHT = (
    (b"access-control-allow-methods", b"GET, POST"),
    (
        b"access-control-allow-headers",
        b"Authorization, Content-Type, Idempotency-Key, If-Match, If-None-Match, Last-Event-ID, X-Request-Id",
    ),
    (b"access-control-max-age", b"600"),
)


class Guard:
    """See the module's docstring. ``hosts`` None: any; names without port. ``body_most`` in bytes."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Collection[str] | None,
        origins: Collection[str] = (),
        body_most: int = BODY_MOST,
        body_timeout_s: float = BODY_TIMEOUT_S,
    ) -> None:
        self._app, self._body_most, self._body_timeout_s = app, body_most, body_timeout_s
        self._hosts = None if hosts is None else frozenset(host.lower() for host in hosts)
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = Exchange(scope, send)
        try:
            headers = Headers(scope=scope)
            self._check_origin(headers, exchange)
            if exchange.origin is not None and _is_preflight(scope, headers):
                await exchange.send_preflight()
                return
            body = Body(receive, headers, self._body_most, self._body_timeout_s)
            await body.check_announced()
            await self._app(scope, body.receive, exchange.send)
        except TollhouseError as error:
            await exchange.tell(error, receive)
        except ClientDisconnect:
            exchange.status = exchange.status or CLIENT_GONE
        except asyncio.CancelledError:  # the server stops; what the request began goes on in the house
            await exchange.tell(HouseClosed("The server is stopping.", remedy=_AFTERWARDS, sent="maybe"), receive)
        except Exception as error:
            exchange.log_defect(error)
            await exchange.tell(unexpected(), receive)
        exchange.log_end()

    def _check_origin(self, headers: Headers, exchange: Exchange) -> None:
        """No name that leads here by rebinding, and no page of somebody else's, may use what this server trusts."""
        host = headers.get("host", "")
        found = _HOST.fullmatch(host)
        if found is None or (self._hosts is not None and found[1].strip("[]").lower() not in self._hosts):
            raise WrongHost("This server does not answer to the host that the request names.")
        origin = headers.get("origin")
        if origin in self._origins:
            exchange.origin = origin
        elif origin is not None and origin.partition("://")[2].lower() != host.lower():
            raise WrongHost("This server answers to no web page of another origin.")


class Body:
    """A request's body on its way in: no larger and no slower than allowed."""

    def __init__(self, receive: Receive, headers: Headers, most: int, timeout_s: float) -> None:
        self._receive, self._headers, self._most = receive, headers, most
        self._timeout_s, self._until = timeout_s, 0.0
        self._size, self._whole = 0, False

    async def check_announced(self) -> None:
        """Raise :class:`RequestTooLarge` for a body that says so itself, without keeping any of it."""
        announced = self._headers.get("content-length", "0")
        if len(announced) > 15 or (announced.isdecimal() and int(announced) > self._most):
            raise await self._too_large()

    async def receive(self) -> Message:
        """The next message; raises :class:`RequestTooLarge` or :class:`RequestTimedOut`."""
        if self._whole:  # what follows is the news that the client went away
            return await self._receive()
        loop = asyncio.get_running_loop()
        self._until = self._until or loop.time() + self._timeout_s
        try:
            async with asyncio.timeout_at(self._until):
                message = await self._receive()
        except TimeoutError:
            raise RequestTimedOut(f"The body did not arrive within {self._timeout_s:g} s.") from None
        self._size += len(message.get("body", b""))
        self._whole = not message.get("more_body", False)
        if self._size > self._most:
            raise await self._too_large()
        return message

    async def _too_large(self) -> RequestTooLarge:
        """The error, once the rest was taken in and thrown away: a client that still sends hears no answer."""
        if not self._whole and self._headers.get("expect", "").lower() != "100-continue":
            await self._drain()
        return RequestTooLarge(f"The body is larger than the {self._most:,} bytes that this server takes.")

    async def _drain(self) -> None:
        taken = 0
        try:
            async with asyncio.timeout(_DRAIN_S):
                while taken < _DRAIN_MOST:
                    message = await self._receive()
                    taken += len(message.get("body", b""))
                    if message["type"] != "http.request" or not message.get("more_body", False):
                        return
        except TimeoutError:
            return


class Exchange:
    """One request and its answer on its way out."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope, self._send = scope, send
        self._began = time.perf_counter()
        self.status: int | None = None
        self.origin: str | None = None
        """The origin of a web page that may read the answer; None: there is none, or it needs no permission."""
        self.id = _request_id(scope)
        scope["tollhouse.request_id"] = self.id

    async def send(self, message: Message) -> None:
        """Pass it on, with the headers that every answer has."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers: list[tuple[bytes, bytes]] = list(message.get("headers", ()))
            if not any(name == b"cache-control" for name, _ in headers):
                headers.append((b"cache-control", b"no-store"))
            message["headers"] = [*headers, *_ALWAYS, *self._shared(), (b"x-request-id", self.id.encode())]
        await self._send(message)

    def _shared(self) -> tuple[tuple[bytes, bytes], ...]:
        """What lets the browser show the answer to a page that may see it."""
        if self.origin is None:
            return ()
        return (b"access-control-allow-origin", self.origin.encode("latin-1")), *_TO_PAGES

    async def send_preflight(self) -> None:
        """Tell a browser that its page may send what it wants to."""
        await self.send({"type": "http.response.start", "status": 204, "headers": list(_PREFLIGHT)})
        await self.send({"type": "http.response.body", "body": b""})

    async def tell(self, error: TollhouseError, receive: Receive) -> None:
        """Answer with the error, unless an answer has begun."""
        if self.status is not None:
            return
        response = problem(error, self.id)
        if isinstance(error, RequestTooLarge | RequestTimedOut):
            MutableHeaders(raw=response.raw_headers)["connection"] = "close"
        await response(self._scope, receive, self.send)

    def log_defect(self, error: Exception) -> None:
        """Where it was raised, and its type: the message might hold arguments."""
        frames = traceback.extract_tb(error.__traceback__)
        where = " < ".join(f"{frame.name} ({frame.filename}:{frame.lineno})" for frame in reversed(frames[-12:]))
        facts: dict[str, Any] = {"request_id": self.id, "error_type": type(error).__name__, "where": where}
        log.error("request_failed %s", facts, extra={"tollhouse": facts})

    def log_end(self) -> None:
        """One line for each request: the route, never the query, the headers or a body."""
        if not log.isEnabledFor(logging.INFO):
            return
        route = self._scope.get("route")
        facts = {
            "request_id": self.id,
            "method": self._scope["method"],
            "route": getattr(route, "path", "none"),
            "status": self.status,
            "ms": round((time.perf_counter() - self._began) * 1000, 1),
        }
        log.info("request %s", facts, extra={"tollhouse": facts})


def _is_preflight(scope: Scope, headers: Headers) -> bool:
    return scope["method"] == "OPTIONS" and "access-control-request-method" in headers


def _request_id(scope: Scope) -> str:
    """The client's own id where it gave a fit one, so that its logs and ours can be joined."""
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            text = value.decode("latin-1")
            if _REQUEST_ID.fullmatch(text):
                return str(text)
    return f"{_PROCESS}-{next(_numbers):x}"
