"""``ctx.http`` and guarded clients of a user's own, against a receiver that really misbehaves: each fault comes to the
right outcome, and no request is ever sent twice underneath."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import httpx
import httpx2
import pytest

from tests.support.houses import OpenHouse, interfering, on_one_store, quiet, settled_down
from tollhouse import (
    AttemptOutcome,
    CallContext,
    NotSent,
    Rejected,
    State,
    Tool,
    external,
    guard,
    never_sent,
    read,
    tool,
)
from tollhouse.errors import CallFailed, CallNotSent, InDoubt, TollhouseError
from tollhouse.gate import context as context_module
from tollhouse.testing.ports import free_port
from tollhouse.testing.receiver import Receiver

REJECTS = (409, 422)


def by_context(url: str) -> Tool[Any]:
    """A tool that uses ``ctx.http``."""

    @tool(external(rejects=REJECTS, attempt_timeout_s=2), name="credit")
    async def credit(ctx: CallContext) -> Any:
        response = await ctx.http.post(url, json={"cents": 5})
        response.raise_for_status()
        return response.json()

    return credit


def by_context_sync(url: str) -> Tool[Any]:
    """A ``def`` tool that uses ``ctx.http_sync``."""

    @tool(external(rejects=REJECTS, attempt_timeout_s=2), name="credit")
    def credit(ctx: CallContext) -> Any:
        response = ctx.http_sync.post(url, json={"cents": 5})
        response.raise_for_status()
        return response.json()

    return credit


def by_own(library: Any) -> Callable[[str], Tool[Any]]:
    """A tool with an async client of its own, guarded."""

    def make(url: str) -> Tool[Any]:
        @tool(external(rejects=REJECTS, attempt_timeout_s=2), name="credit")
        async def credit(ctx: CallContext) -> Any:
            async with guard(library.AsyncClient(timeout=None), ctx) as client:
                response = await client.post(url, json={"cents": 5})
            response.raise_for_status()
            return response.json()

        return credit

    return make


def by_own_sync(library: Any) -> Callable[[str], Tool[Any]]:
    """A ``def`` tool with a client of its own, guarded."""

    def make(url: str) -> Tool[Any]:
        @tool(external(rejects=REJECTS, attempt_timeout_s=2), name="credit")
        def credit(ctx: CallContext) -> Any:
            with guard(library.Client(timeout=None), ctx) as client:
                response = client.post(url, json={"cents": 5})
            response.raise_for_status()
            return response.json()

        return credit

    return make


CLIENTS: dict[str, Callable[[str], Tool[Any]]] = {
    "ctx.http": by_context,
    "ctx.http_sync": by_context_sync,
    "own httpx2": by_own(httpx2),
    "own httpx": by_own(httpx),
    "own httpx2, sync": by_own_sync(httpx2),
    "own httpx, sync": by_own_sync(httpx),
}
clients = pytest.mark.parametrize("make", CLIENTS.values(), ids=CLIENTS)

HAPPENED, UNKNOWN, REJECTED = AttemptOutcome.HAPPENED, AttemptOutcome.UNKNOWN, AttemptOutcome.REJECTED

FAULTS: list[tuple[str, dict[str, Any], AttemptOutcome, int]] = [
    ("delay_before_effect", {"seconds": 0.01}, HAPPENED, 1),
    ("delay_after_effect", {"seconds": 0.01}, HAPPENED, 1),
    ("close_before_effect", {}, UNKNOWN, 0),
    ("reset_before_effect", {}, UNKNOWN, 0),
    ("close_after_effect", {}, UNKNOWN, 1),
    ("reset_after_effect", {}, UNKNOWN, 1),
    ("close_after_reply", {}, HAPPENED, 1),
    ("truncated_body", {}, UNKNOWN, 1),
    ("truncated_chunks", {}, UNKNOWN, 1),
    ("slow_drip", {"seconds": 0.0001}, HAPPENED, 1),
    ("garbage", {}, UNKNOWN, 1),
    ("not_utf8", {}, UNKNOWN, 1),
    ("wrong_shape", {}, HAPPENED, 1),
    ("huge_body", {"size_bytes": 2_000_000}, HAPPENED, 1),
    ("error_after_effect", {"status": 500}, UNKNOWN, 1),
    ("error_after_effect", {"status": 502}, UNKNOWN, 1),
    ("error_before_effect", {"status": 401}, UNKNOWN, 0),
    ("error_before_effect", {"status": 409}, REJECTED, 0),
    ("error_before_effect", {"status": 422}, REJECTED, 0),
    ("rate_limited", {}, UNKNOWN, 0),
    ("redirect", {}, UNKNOWN, 0),
    ("redirect", {"status": 307}, UNKNOWN, 0),
]
STATES = {HAPPENED: State.SUCCEEDED, UNKNOWN: State.IN_DOUBT, REJECTED: State.FAILED}


# case C68
# case C70
@on_one_store
@clients
async def test_every_fault_of_a_receiver_comes_to_the_right_outcome(
    open_house: OpenHouse, receiver: Receiver, make: Callable[[str], Tool[Any]]
) -> None:
    """After bytes were sent only an answer, whole and good, is an effect, and only a status that the contract names is
    a rejection; everything else is unknown. One call is one request, with the key, whatever happens."""
    credit = make(f"{receiver.url}/v1/credits")
    house = await open_house(credit)
    for number, (fault, options, outcome, effects) in enumerate(FAULTS):
        receiver.fault(fault, collection="credits", **options)
        case = (fault, options)
        key = f"k{number}"
        raised: TollhouseError | None = None
        try:
            await house.call(credit, key=key)
        except TollhouseError as error:
            raised = error
        record = await house.get(key)
        assert [attempt.outcome for attempt in record.attempts] == [outcome], case
        assert record.state is STATES[outcome], case
        assert (raised is None) is (outcome is HAPPENED), case
        assert raised is None or raised.sent == ("maybe" if outcome is UNKNOWN else "yes"), case
        wire = record.idempotency_key
        assert len(receiver.requests(key=wire)) == 1, case
        assert len(receiver.effects(key=wire)) == effects, case
    assert len(receiver.requests()) == len(FAULTS)


@on_one_store
@clients
async def test_a_connection_that_cannot_be_made_is_proof_that_nothing_left(
    open_house: OpenHouse, receiver: Receiver, make: Callable[[str], Tool[Any]]
) -> None:
    """Refused, or a name that does not resolve, or no protocol at all: not sent, and the same key may go again."""
    for number, url in enumerate((f"http://127.0.0.1:{free_port()}/", "http://no-such-host.invalid/", "ftp://x/y")):
        credit = make(url)
        house = await open_house(credit)
        with pytest.raises(CallNotSent) as caught:
            await house.call(credit, key=f"k{number}")
        assert caught.value.sent == "no"
        record = await house.get(f"k{number}")
        assert (record.state, record.attempts[0].outcome) == (State.READY, AttemptOutcome.NOT_SENT)
    again = make(f"{receiver.url}/v1/credits")
    outcome = await (await open_house(again)).call(again, key="k0")
    assert (outcome.state, outcome.attempts) == (State.SUCCEEDED, 2)
    assert len(receiver.effects("credits")) == 1


# case C67
@on_one_store
async def test_a_409_after_our_own_timeout_is_no_rejection_of_the_first_request(
    open_house: OpenHouse, receiver: Receiver
) -> None:
    """A tool that asks again after its own timeout, and is told that there is such a thing already, was probably the
    one who made it: the call is in doubt, never failed."""

    @tool(external(rejects=REJECTS))
    async def publish(ctx: CallContext) -> None:
        try:
            response = await ctx.http.post(f"{receiver.url}/v1/posts", json={}, timeout=0.2)
        except httpx2.ReadTimeout:
            response = await ctx.http.post(f"{receiver.url}/v1/posts", json={})
        if own_word:
            raise Rejected("there is one already")
        response.raise_for_status()

    house = await open_house(publish)
    for own_word in (False, True):
        receiver.fault("hold_after_effect", collection="posts")
        receiver.fault("error_before_effect", collection="posts", status=409)
        with pytest.raises(InDoubt):
            await house.call(publish, key=f"k{own_word}")
        receiver.release()
    assert len(receiver.effects("posts")) == 2


@on_one_store
async def test_a_look_up_that_is_refused_says_nothing_about_the_effect(
    open_house: OpenHouse, receiver: Receiver
) -> None:
    """A 404 of a GET, named a rejection by the contract, counts only where nothing else was sent."""

    @tool(external(rejects=[404]))
    async def credit(send_first: bool, ctx: CallContext) -> None:
        if send_first:
            await ctx.http.post(f"{receiver.url}/v1/credits", json={})
        (await ctx.http.get(f"{receiver.url}/v1/accounts/none")).raise_for_status()

    house = await open_house(credit)
    with pytest.raises(InDoubt):
        await house.call(credit, {"send_first": True}, key="sent")
    with pytest.raises(CallFailed):
        await house.call(credit, {"send_first": False}, key="not-sent")
    assert [request.key for request in receiver.requests(method="GET")] == [None, None]


@on_one_store
async def test_a_rejection_counts_after_an_answer_that_was_read_whole(
    open_house: OpenHouse, receiver: Receiver
) -> None:
    """A tool that fetches a token by POST and is then refused was refused."""

    @tool(external(rejects=[422]))
    async def credit(ctx: CallContext) -> None:
        (await ctx.http.post(f"{receiver.url}/v1/tokens", json={})).raise_for_status()
        await ctx.http.post(f"{receiver.url}/v1/credits", json={})

    house = await open_house(credit)
    receiver.fault("error_before_effect", collection="credits", status=422)
    with pytest.raises(CallFailed):
        await house.call(credit, key="k")


@on_one_store
async def test_a_rejection_does_not_count_after_an_answer_that_broke_off(
    open_house: OpenHouse, receiver: Receiver
) -> None:
    """The first request took effect; that its answer could not be read makes the second one's refusal no evidence."""

    @tool(external(rejects=[422]))
    async def credit(ctx: CallContext) -> None:
        with pytest.raises(httpx2.RemoteProtocolError):
            await ctx.http.post(f"{receiver.url}/v1/credits", json={})
        await ctx.http.post(f"{receiver.url}/v1/credits", json={})
        raise Rejected("422")

    house = await open_house(credit)
    receiver.fault("truncated_body", collection="credits")
    receiver.fault("error_before_effect", collection="credits", status=422)
    with pytest.raises(InDoubt):
        await house.call(credit, key="k")
    assert len(receiver.effects("credits")) == 1


@on_one_store
async def test_of_parallel_requests_one_refused_connection_proves_nothing_about_the_other(
    open_house: OpenHouse, receiver: Receiver
) -> None:
    """Not sent is a word about the whole attempt."""
    receiver.fault("hold_before_effect", collection="credits")

    @tool(external())
    async def both(ctx: CallContext) -> None:
        other = asyncio.create_task(ctx.http.post(f"{receiver.url}/v1/credits", json={}))
        await receiver.await_for_requests(1, collection="credits")
        try:
            await ctx.http.post(f"http://127.0.0.1:{free_port()}/", json={})
        finally:
            other.cancel()

    house = await open_house(both)
    with pytest.raises(InDoubt):
        await house.call(both, key="k")


@on_one_store
async def test_a_look_up_before_the_effect_does_not_make_it_a_departure(
    open_house: OpenHouse, receiver: Receiver
) -> None:
    """A tool that departs at its check may read before: what goes wrong until then is not sent."""

    @tool(external(departs="at_confirm"))
    async def credit(ctx: CallContext) -> None:
        await ctx.http.get(f"{receiver.url}/v1/accounts")
        raise KeyError("account")

    house = await open_house(credit)
    with pytest.raises(CallNotSent):
        await house.call(credit, key="k")


@on_one_store
async def test_not_sent_is_not_believed_after_bytes_have_left(open_house: OpenHouse, receiver: Receiver) -> None:
    """What the wire shows outweighs what a tool claims."""

    @tool(external())
    async def credit(ctx: CallContext) -> None:
        await ctx.http.post(f"{receiver.url}/v1/credits", json={})
        raise NotSent("I think")

    house = await open_house(credit)
    with pytest.raises(InDoubt):
        await house.call(credit, key="k")


@clients
async def test_a_request_after_the_fence_moved_never_reaches_the_wire(
    open_house: OpenHouse, receiver: Receiver, make: Callable[[str], Tool[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check is in the client: a call that was cancelled elsewhere sends nothing."""
    monkeypatch.setattr(context_module, "COMMIT_IS_CHECK_US", -1)
    credit = make(f"{receiver.url}/v1/credits")
    ready, go = asyncio.Event(), threading.Event()
    inner = credit.fn

    @tool(external(rejects=REJECTS), name="credit")
    async def waiting(ctx: CallContext) -> Any:
        ready.set()
        await asyncio.to_thread(go.wait, 10)
        return await inner(ctx=ctx) if credit.is_async else await asyncio.to_thread(inner, ctx=ctx)

    house, other = await open_house(waiting), await open_house(waiting)
    call = asyncio.create_task(house.call(waiting, key="k"))
    await ready.wait()
    await other.cancel("k", by="ada")
    go.set()
    with pytest.raises(CallNotSent):
        await call
    assert receiver.requests() == []
    assert receiver.effects() == []


async def test_a_store_that_cannot_be_asked_means_no(
    open_house: OpenHouse, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unreachable is not permission."""
    monkeypatch.setattr(context_module, "COMMIT_IS_CHECK_US", -1)

    @tool(external())
    async def credit(ctx: CallContext) -> None:
        interfering(house).lose_fences = True
        await ctx.http.post(f"{receiver.url}/v1/credits", json={})

    house = await open_house(credit, interfering=True)
    with pytest.raises(CallNotSent):
        await house.call(credit, key="k")
    assert receiver.requests() == []


@on_one_store
async def test_a_kept_alive_connection_that_was_dropped_is_replaced_without_a_second_request(
    open_house: OpenHouse, receiver: Receiver
) -> None:
    """The house shares its connections between calls; one that the receiver closed in between is noticed before it is
    used, and a new one is made: one request, one effect."""
    credit = by_context(f"{receiver.url}/v1/credits")
    house = await open_house(credit)
    for number in range(3):
        receiver.fault("close_after_reply", collection="credits")
        await house.call(credit, key=f"k{number}")
        pool: Any = house._core._transport._pool  # type: ignore[union-attr]
        while not all(connection.has_expired() for connection in pool.connections):  # noqa: ASYNC110 - a FIN tells nobody
            await asyncio.sleep(0.002)
    await house.call(credit, key="kept-1")
    await house.call(credit, key="kept-2")
    connections = [request.connection for request in receiver.requests("credits")]
    assert len(connections) == 5
    assert len(set(connections[:4])) == 4
    assert connections[3] == connections[4]
    assert len(receiver.effects("credits")) == 5


@on_one_store
async def test_a_body_that_never_ends_is_bounded_by_time(open_house: OpenHouse, receiver: Receiver) -> None:
    """Its caller hears in doubt at the attempt's timeout; what comes whole later still settles."""
    receiver.fault("slow_drip", collection="credits", seconds=0.006)

    @tool(external(attempt_timeout_s=0.5))
    async def credit(ctx: CallContext) -> Any:
        return (await ctx.http.post(f"{receiver.url}/v1/credits", json={}, timeout=None)).json()

    house = await open_house(credit)
    with pytest.raises(InDoubt):
        await asyncio.wait_for(house.call(credit, key="k"), 2)
    assert (await settled_down(house, "k")).state is State.SUCCEEDED


@on_one_store
@clients
async def test_no_client_waits_for_ever_even_if_it_was_told_to(
    open_house: OpenHouse, receiver: Receiver, make: Callable[[str], Tool[Any]]
) -> None:
    """``timeout=None`` of a user's client is bounded by the attempt: a receiver that never answers ends it."""
    receiver.fault("hold_before_effect", collection="credits")
    credit = make(f"{receiver.url}/v1/credits")
    house = await open_house(credit)
    with pytest.raises(InDoubt):
        await house.call(credit, key="k", attempt_timeout_s=0.5)
    after = await asyncio.wait_for(settled_down(house, "k"), 2)
    assert after.state is State.IN_DOUBT
    assert after.error is not None


@on_one_store
async def test_a_redirect_is_followed_only_on_request_and_every_hop_is_checked(
    open_house: OpenHouse, receiver: Receiver
) -> None:
    """The tool decides; each hop passes the check and carries the key."""
    receiver.fault("redirect", collection="credits", status=307, location="/v1/elsewhere")

    @tool(external())
    async def credit(ctx: CallContext) -> int:
        return (await ctx.http.post(f"{receiver.url}/v1/credits", json={}, follow_redirects=True)).status_code

    house = await open_house(credit, interfering=True)
    outcome = await house.call(credit, key="k")
    assert outcome.value == 201
    assert [request.collection for request in receiver.requests()] == ["credits", "elsewhere"]
    assert {request.key for request in receiver.requests()} == {(await house.get("k")).idempotency_key}
    assert interfering(house).fences == 1


@on_one_store
async def test_a_read_sends_no_key_and_runs_again(open_house: OpenHouse, receiver: Receiver) -> None:
    """A read has no fence and no key; a broken connection makes it try anew."""
    receiver.fault("reset_before_effect", collection="accounts", method="GET", times=2)

    @tool(read())
    async def look(ctx: CallContext) -> int:
        response = await ctx.http.get(f"{receiver.url}/v1/accounts")
        return response.status_code

    house = await open_house(look, interfering=True)
    outcome = await house.call(look)
    assert (outcome.value, outcome.attempts) == (200, 3)
    assert [request.key for request in receiver.requests()] == [None] * 3
    assert interfering(house).fences == 0


@pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
def test_never_sent_tells_proof_from_doubt(library: Any) -> None:
    """Of both libraries' exceptions, only those of a connection that was never made are proof."""
    proofs = (library.ConnectError, library.ConnectTimeout, library.PoolTimeout, library.UnsupportedProtocol)
    doubts = (
        library.ReadError,
        library.ReadTimeout,
        library.WriteError,
        library.WriteTimeout,
        library.RemoteProtocolError,
        library.ProxyError,
    )
    assert all(never_sent(proof("")) for proof in proofs)
    assert not any(never_sent(doubt("")) for doubt in doubts)
    assert not never_sent(ConnectionRefusedError())


@pytest.mark.parametrize("effect", [external(), read()], ids=["effect", "read"])
async def test_an_answer_that_a_tool_leaves_unread_gives_its_connection_back(
    open_house: OpenHouse, receiver: Receiver, effect: Any
) -> None:
    """The connections of a house are shared and bounded: without this, a hundred such calls would be the last."""

    @tool(effect)
    async def begin_only(ctx: CallContext) -> int:
        request = ctx.http.build_request("POST", f"{receiver.url}/v1/credits", json={})
        return (await ctx.http.send(request, stream=True)).status_code

    @tool(effect)
    def begin_only_sync(ctx: CallContext) -> int:
        request = ctx.http_sync.build_request("POST", f"{receiver.url}/v1/credits", json={})
        return ctx.http_sync.send(request, stream=True).status_code

    house = await open_house(begin_only, begin_only_sync)
    for each in (begin_only, begin_only_sync):
        assert (await house.call(each, key=each.name)).value in (200, 201)
    await quiet(house)
    for transport in (house._core._transport, house._core._transport_sync):
        assert transport is not None
        pool: Any = transport._pool
        assert all(connection.is_idle() or connection.is_closed() for connection in pool.connections)
