"""``ctx.http``: an HTTP client whose every request passes the last check and says what became of it.

The work is done in the transport, below redirects and authentication, so that nothing reaches the wire beside it.
A connection that could not be made is proof that no byte left; everything after the first byte is unknown until an
answer is whole; statuses that the contract names are rejections. There are no retries here: they have one owner.

``GET``, ``HEAD`` and ``OPTIONS`` are look-ups: they have no effect, so they carry no key, and neither their failure nor
their refusal says anything about a request that may have had one.

For users' own clients: :func:`guard` wraps the transport of an ``httpx`` or ``httpx2`` client in the same way, and
:func:`never_sent` classifies an exception of theirs. No client is imported before one is used.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, cast

from tollhouse.contract.answers import NotSent, Rejected
from tollhouse.contract.context import CallContext

if TYPE_CHECKING:
    import httpx2

C = TypeVar("C")
"""A client: ``httpx`` or ``httpx2``, sync or async."""

KEY_HEADER = "Idempotency-Key"
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_NEVER_SENT = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol"})
CONNECT_TIMEOUT_S = 10.0


class Send:
    """One request that may have an effect. ``response`` None: nothing was answered (yet)."""

    def __init__(self) -> None:
        self.response: Any = None

    @property
    def answered(self) -> bool:
        """Whether the whole answer was read, so that the tool could see what it says."""
        try:
            return self.response is not None and self.response.content is not None
        except Exception:  # each client has its own ResponseNotRead
            return False


class Sends:
    """The requests of one attempt that may have had an effect: what its ending is judged by."""

    def __init__(self) -> None:
        self._open: list[Send] = []
        self.elsewhere = False
        """The tool confirmed by itself: something may have left by a way that nobody watches."""
        self.streams: list[Any] = []
        """The bodies of answers, which hold connections until they are read or closed."""

    def begin(self, request: Any) -> Send | None:
        """Note that bytes are about to leave; None for a look-up."""
        if request.method in _SAFE_METHODS:
            return None
        self._open.append(send := Send())
        return send

    def had_none(self, send: Send | None) -> None:
        """Note that this request had no effect: it never left, or its receiver rejected it."""
        if send is not None:
            self._open.remove(send)

    def __bool__(self) -> bool:
        return bool(self._open)

    async def give_back(self) -> None:
        """Close what the tool left unread, after its attempt: the connections belong to all."""
        while self.streams:
            stream = self.streams.pop()
            with suppress(Exception):  # it is closed, as far as it can be
                if hasattr(stream, "aclose"):
                    await stream.aclose()
                else:
                    stream.close()  # the socket is let go, which waits for nobody

    def none_left(self) -> bool:
        """Whether a connection that could not be made proves that nothing of the whole attempt left."""
        return not self._open and not self.elsewhere

    def rejection_counts(self, answer: Any = None) -> bool:
        """Whether a rejection speaks for the whole attempt.

        It does where every other request that may have had an effect was answered in full; ``answer``, the response
        that says it, must belong to one that may have had an effect, unless there was none: the refusal of a look-up
        is no evidence.
        """
        others = [send for send in self._open if answer is None or send.response is not answer]
        if answer is not None and others and len(others) == len(self._open):
            return False
        if self.elsewhere and _answers_look_up(answer):
            return False
        return all(send.answered for send in others)


def _answers_look_up(response: Any) -> bool:
    try:
        return response.request.method in _SAFE_METHODS
    except Exception:  # no answer, no request, or a client's own complaint that it has none
        return False


class Sending(Protocol):
    """What a transport needs of the context of its attempt."""

    idempotency_key: str
    rejected_statuses: frozenset[int]
    timeout_s: float
    sends: Sends
    confirmed: bool

    @property
    def remaining_s(self) -> float: ...

    async def check(self) -> None: ...

    def check_sync(self) -> None: ...


class ConnectionNotMade(NotSent):
    """No connection could be made, so no byte left. ``retry`` may help once the receiver is reachable."""


def never_sent(error: BaseException) -> bool:
    """Whether an exception of ``httpx`` or ``httpx2`` proves that no byte of the request left."""
    module = type(error).__module__.split(".")[0]
    return module in ("httpx", "httpx2") and type(error).__name__ in _NEVER_SENT


class GuardedTransport:
    """An async transport that checks, adds the key and classifies. ``inner`` sends; it is not closed with this one."""

    def __init__(self, inner: Any, sending: Sending) -> None:
        self._inner, self._sending = inner, sending

    async def handle_async_request(self, request: Any) -> Any:
        sending = self._sending
        await sending.check()
        send = _begin(request, sending)
        try:
            response = await self._inner.handle_async_request(request)
        except Exception as error:
            raise _classified(error, send, sending) from error
        sending.sends.streams.append(response.stream)
        if _is_rejection(response, send, sending):
            await response.aclose()
            raise _rejection(response)
        return response

    async def aclose(self) -> None:
        """Leave the shared connections open: they outlive the attempt."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()


class GuardedSyncTransport:
    """:class:`GuardedTransport` for ``def`` tools."""

    def __init__(self, inner: Any, sending: Sending) -> None:
        self._inner, self._sending = inner, sending

    def handle_request(self, request: Any) -> Any:
        sending = self._sending
        sending.check_sync()
        send = _begin(request, sending)
        try:
            response = self._inner.handle_request(request)
        except Exception as error:
            raise _classified(error, send, sending) from error
        sending.sends.streams.append(response.stream)
        if _is_rejection(response, send, sending):
            response.close()
            raise _rejection(response)
        return response

    def close(self) -> None:
        """Leave the shared connections open: they outlive the attempt."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def guard(client: C, context: CallContext) -> C:
    """Send everything of ``client`` (an ``httpx`` or ``httpx2`` client of your own, sync or async) through the check.

    Returns the client, its transports wrapped: each request re-checks the fence, carries the idempotency key and
    raises :class:`NotSent` or :class:`Rejected` where that is proven. Use the client for one attempt only.
    """
    inside, sending = cast(Any, client), cast(Sending, context)
    wrap = GuardedTransport if hasattr(client, "aclose") else GuardedSyncTransport
    inside._transport = _closing(wrap(inside._transport, sending), inside._transport)
    inside._mounts = {
        pattern: None if inner is None else _closing(wrap(inner, sending), inner)
        for pattern, inner in inside._mounts.items()
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
    import httpx2

    guarded = cast("httpx2.AsyncBaseTransport", GuardedTransport(transport, sending))
    return httpx2.AsyncClient(transport=guarded, timeout=_times(sending), trust_env=False)


def client_sync(transport: httpx2.HTTPTransport, sending: Sending) -> httpx2.Client:
    """The client behind ``ctx.http_sync``."""
    import httpx2

    guarded = cast("httpx2.BaseTransport", GuardedSyncTransport(transport, sending))
    return httpx2.Client(transport=guarded, timeout=_times(sending), trust_env=False)


def shared_transport() -> httpx2.AsyncHTTPTransport:
    """The connections of a house, shared by all its attempts: making a TLS context costs tens of milliseconds."""
    import httpx2

    return httpx2.AsyncHTTPTransport(retries=0)


def shared_transport_sync() -> httpx2.HTTPTransport:
    """:func:`shared_transport` for ``def`` tools."""
    import httpx2

    return httpx2.HTTPTransport(retries=0)


def _times(sending: Sending) -> httpx2.Timeout:
    import httpx2

    return httpx2.Timeout(sending.timeout_s, connect=min(CONNECT_TIMEOUT_S, sending.timeout_s))


def _begin(request: Any, sending: Sending) -> Send | None:
    """The key on everything that may change something; finite times even where a user asked for none."""
    if request.method not in _SAFE_METHODS:
        sending.confirmed = True
        if KEY_HEADER not in request.headers:
            request.headers[KEY_HEADER] = sending.idempotency_key
    times = request.extensions.get("timeout") or {}
    bound = max(0.001, sending.remaining_s)
    names = ("connect", "read", "write", "pool")
    request.extensions = {
        **request.extensions,
        "timeout": {name: min(bound, t) if (t := times.get(name)) is not None else bound for name in names},
    }
    return sending.sends.begin(request)


def _classified(error: Exception, send: Send | None, sending: Sending) -> Exception:
    """The exception to raise: proof of nothing sent where there is any, otherwise the client's own."""
    if not never_sent(error):
        return error
    sending.sends.had_none(send)
    if not sending.sends.none_left():
        return error
    return ConnectionNotMade(f"{type(error).__name__}: no connection could be made.")


def _is_rejection(response: Any, send: Send | None, sending: Sending) -> bool:
    """Whether this answer says, by the contract's word, that the attempt had no effect."""
    if send is not None:
        send.response = response
    elif sending.sends.elsewhere:
        return False
    if response.status_code not in sending.rejected_statuses or not sending.sends.rejection_counts(response):
        return False
    sending.sends.had_none(send)
    return True


def _rejection(response: Any) -> Rejected:
    status = response.status_code
    return Rejected(f"The receiver answered {status}, which the contract names a rejection.", transient=status == 429)
