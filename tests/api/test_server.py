"""The server itself: where it listens, how it stops, and what becomes of requests then."""

from __future__ import annotations

import asyncio
import socket

import httpx
import pytest

from tests.api.conftest import called, problem
from tests.api.shop import Shop
from tests.support.houses import OpenHouse, until
from tollhouse import State
from tollhouse.api.app import create_app
from tollhouse.api.server import loop_factory, run, serving
from tollhouse.errors import InvalidSetting


async def test_address_in_use_is_told(open_house: OpenHouse, shop: Shop) -> None:
    """With the address, and no traceback of the server's."""
    house = await open_house(*shop.tools)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InvalidSetting, match=rf"127\.0\.0\.1:{port}"):
            async with serving(create_app(house), "127.0.0.1", port):
                pass


@pytest.mark.parametrize("host", ["no.such.host.invalid", "300.1.1.1", "a" * 300])
async def test_name_that_means_no_address_is_told(open_house: OpenHouse, shop: Shop, host: str) -> None:
    """Before anything is served."""
    with pytest.raises(InvalidSetting):
        async with serving(create_app(await open_house(*shop.tools)), host, 0):
            pass


async def test_stopping_server_lets_a_request_finish(open_house: OpenHouse, shop: Shop) -> None:
    """What is under way has the grace time, and gets its answer."""
    house = await open_house(*shop.tools)
    async with httpx.AsyncClient(timeout=30, trust_env=False) as client:
        async with serving(create_app(house), port=0, grace_s=20) as url:
            client.base_url = httpx.URL(url)
            call = asyncio.create_task(called(client, "slow", {"item": "x"}, "k"))
            await shop.began.wait()
            asyncio.get_running_loop().call_later(0.2, shop.go_on.set)
        assert (await call).json()["result"] == "done"


async def test_request_beyond_the_grace_time_hears_that_it_may_have_left(open_house: OpenHouse, shop: Shop) -> None:
    """The wait ends with a problem, the call goes on in the house, and its key replays it."""
    house = await open_house(*shop.tools)
    app = create_app(house)
    async with httpx.AsyncClient(timeout=30, trust_env=False) as client:
        async with serving(app, port=0, grace_s=0) as url:
            client.base_url = httpx.URL(url)
            call = asyncio.create_task(called(client, "slow", {"item": "x"}, "k"))
            await shop.began.wait()
        assert problem(await call, 503, "house_closed")["sent"] == "maybe"
    assert app.state.stopping.is_set(), "streams are told that it is over"
    shop.go_on.set()
    assert (await until(house, "k", lambda call: call.state is State.SUCCEEDED)).result == "done"


def test_fast_loop_is_used() -> None:
    """The main coroutine runs on uvloop where it is installed, as it is here."""

    async def which() -> str:
        return type(asyncio.get_running_loop()).__module__

    assert run(which()).startswith("uvloop")
    assert loop_factory() is not None
