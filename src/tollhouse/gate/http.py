"""``ctx.http``: an HTTP client whose every request passes the last check and says what became of it.

The work is done in the transport, below redirects and authentication, so that nothing reaches the wire beside it.
A connection that could not be made is proof that no byte left; everything after the first byte is unknown until an
answer is whole; statuses that the contract names are rejections. There are no retries here: they have one owner.

For users' own clients: :func:`guard` wraps the transport of an ``httpx`` or ``httpx2`` client in the same way, and
:func:`never_sent` classifies an exception of theirs.
"""

from __future__ import annotations

from typing import Any, Protocol

import httpx2

from tollhouse.contract.answers import NotSent, Rejected

KEY_HEADER = "Idempotency-Key"
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_NEVER_SENT = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol"})
CONNECT_TIMEOUT_S = 10.0


class Sending(Protocol):
    """What a transport needs of the context of its attempt."""

    idempotency_key: str
    rejected_statuses: frozenset[int]
    timeout_s: float
    bytes_left: bool

    @property
    def remaining_s(self) -> float: ...

    async def confirm(self) -> None: ...

    def confirm_sync(self) -> None: ...


class ConnectionNotMade(NotSent):
    """No connection could be made, so no byte left. ``retry`` may help once the receiver is reachable."""


def never_sent(error: BaseException) -> bool:
    """Whether an exception of ``httpx`` or ``httpx2`` proves that no byte of the request left."""
    module = type(error).__module__.split(".")[0]
    return module in ("httpx", "httpx2") and type(error).__name__ in _NEVER_SENT


class GuardedTransport(httpx2.AsyncBaseTransport):
    """An async transport that checks, adds the key and classifies. ``inner`` sends; it is not closed with this one."""

    def __init__(self, inner: Any, sending: Sending) -> None:
        self._inner, self._sending = inner, sending

    async def handle_async_request(self, request: Any) -> Any:
        await self._sending.confirm()
        _prepare(request, self._sending)
        first = _begin(request, self._sending)
        try:
            response = await self._inner.handle_async_request(request)
        except Exception as error:
            raise _classified(error, first, self._sending) from error
        if response.status_code in self._sending.rejected_statuses:
            await response.aclose()
            raise _rejection(response)
        return response

    async def aclose(self) -> None:
        """Leave the shared connections open: they outlive the attempt."""


class GuardedSyncTransport(httpx2.BaseTransport):
    """:class:`GuardedTransport` for ``def`` tools."""

    def __init__(self, inner: Any, sending: Sending) -> None:
        self._inner, self._sending = inner, sending

    def handle_request(self, request: Any) -> Any:
        self._sending.confirm_sync()
        _prepare(request, self._sending)
        first = _begin(request, self._sending)
        try:
            response = self._inner.handle_request(request)
        except Exception as error:
            raise _classified(error, first, self._sending) from error
        if response.status_code in self._sending.rejected_statuses:
            response.close()
            raise _rejection(response)
        return response

    def close(self) -> None:
        """Leave the shared connections open: they outlive the attempt."""


def guard(client: Any, context: Sending) -> Any:
    """Send everything of ``client`` (an ``httpx`` or ``httpx2`` client of your own, sync or async) through the check.

    Returns the client, its transports wrapped: each request re-checks the fence, carries the idempotency key and
    raises :class:`NotSent` or :class:`Rejected` where that is proven. Use the client for one attempt only.
    """
    wrap = GuardedTransport if hasattr(client, "aclose") else GuardedSyncTransport
    client._transport = _closing(wrap(client._transport, context), client._transport)
    client._mounts = {
        pattern: None if inner is None else _closing(wrap(inner, context), inner)
        for pattern, inner in client._mounts.items()
    }
    return client


def _closing(wrapped: Any, inner: Any) -> Any:
    """A user's own transport is closed with the user's own client."""
    for name in ("aclose", "close"):
        if hasattr(wrapped, name) and hasattr(inner, name):
            setattr(wrapped, name, getattr(inner, name))
    return wrapped


def client(transport: httpx2.AsyncHTTPTransport, sending: Sending) -> httpx2.AsyncClient:
    """The client behind ``ctx.http``, over the house's shared connections."""
    return httpx2.AsyncClient(transport=GuardedTransport(transport, sending), timeout=_times(sending), trust_env=False)


def client_sync(transport: httpx2.HTTPTransport, sending: Sending) -> httpx2.Client:
    """The client behind ``ctx.http_sync``."""
    return httpx2.Client(transport=GuardedSyncTransport(transport, sending), timeout=_times(sending), trust_env=False)


def shared_transport() -> httpx2.AsyncHTTPTransport:
    """The connections of a house, shared by all its attempts: making a TLS context costs tens of milliseconds."""
    return httpx2.AsyncHTTPTransport(retries=0)


def shared_transport_sync() -> httpx2.HTTPTransport:
    """:func:`shared_transport` for ``def`` tools."""
    return httpx2.HTTPTransport(retries=0)


def _times(sending: Sending) -> httpx2.Timeout:
    return httpx2.Timeout(sending.timeout_s, connect=min(CONNECT_TIMEOUT_S, sending.timeout_s))


def _prepare(request: Any, sending: Sending) -> None:
    """The key on everything that may change something; finite times even where a user asked for none."""
    if request.method not in _SAFE_METHODS and KEY_HEADER not in request.headers:
        request.headers[KEY_HEADER] = sending.idempotency_key
    times = request.extensions.get("timeout") or {}
    bound = max(0.001, sending.remaining_s)
    names = ("connect", "read", "write", "pool")
    request.extensions = {
        **request.extensions,
        "timeout": {name: min(bound, t) if (t := times.get(name)) is not None else bound for name in names},
    }


def _begin(request: Any, sending: Sending) -> bool:
    """Note that bytes are about to leave; whether they are the first of this attempt that can have an effect."""
    first = not sending.bytes_left
    sending.bytes_left = sending.bytes_left or request.method not in _SAFE_METHODS
    return first


def _classified(error: Exception, first: bool, sending: Sending) -> Exception:
    """The exception to raise: proof of nothing sent where there is any, otherwise the client's own."""
    if not never_sent(error):
        return error
    sending.bytes_left = not first
    return ConnectionNotMade(f"{type(error).__name__}: no connection could be made.") if first else error


def _rejection(response: Any) -> Rejected:
    status = response.status_code
    return Rejected(f"The receiver answered {status}, which the contract names a rejection.", transient=status == 429)
