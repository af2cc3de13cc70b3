"""Fixtures of the API's tests: real servers over real houses, and clients that speak real HTTP to them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from tests.api.shop import Shop
from tests.support.houses import OpenHouse
from tollhouse import Tollhouse
from tollhouse.api.app import create_app
from tollhouse.api.auth import KeyAccess
from tollhouse.api.server import serving
from tollhouse.house.access import KeyRing, Scope

EVERYTHING_BUT_ADMIN = tuple(scope for scope in Scope if scope is not Scope.ADMIN)


class Served:
    """A house that is served. ``client``: one that shows no key."""

    def __init__(self, house: Tollhouse, app: FastAPI, url: str, clients: AsyncExitStack) -> None:
        self.house, self.app, self.url, self._clients = house, app, url, clients
        self.keys = KeyRing(house.store, house.tenant)

    async def client(self, token: str | None = None) -> httpx.AsyncClient:
        """A client, closed when the test ends."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return await self._clients.enter_async_context(
            httpx.AsyncClient(base_url=self.url, headers=headers, timeout=30, trust_env=False)
        )

    async def of(self, principal: str, *scopes: str) -> httpx.AsyncClient:
        """A client of that principal, with a key of these scopes; without any: all but *admin*."""
        _, token = await self.keys.create(principal, scopes or EVERYTHING_BUT_ADMIN)
        return await self.client(token)


Serve = Callable[..., Awaitable[Served]]
"""``await serve(*tools)``; further names are options of the application, ``keys=True`` asks for keys."""


@pytest.fixture
def shop() -> Shop:
    """Tools over an empty book."""
    return Shop()


@pytest.fixture
def shared_store_url(request: pytest.FixtureRequest, tmp_path: Any) -> str:
    """SQLite, unless a test asks for both stores: what differs between them is not seen from here."""
    if getattr(request, "param", "sqlite") == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    url: str = request.getfixturevalue("shared_postgres_url")
    return url


@pytest.fixture
async def serve(open_house: OpenHouse) -> AsyncIterator[Serve]:
    """Serves houses until the test ends."""
    async with AsyncExitStack() as stack:

        async def one(
            *tools: Any, keys: bool = False, settings: dict[str, Any] | None = None, **options: Any
        ) -> Served:
            house = await open_house(*tools, **(settings or {}))
            app = create_app(house, access=KeyAccess(house) if keys else None, **options)
            url = await stack.enter_async_context(serving(app, port=0, grace_s=1.0))
            return Served(house, app, url, stack)

        yield one


@pytest.fixture
async def served(serve: Serve, shop: Shop) -> Served:
    """The shop, open to everybody on loopback."""
    return await serve(*shop.tools)


@pytest.fixture
async def client(served: Served) -> httpx.AsyncClient:
    """A client of the open shop."""
    return await served.client()


@pytest.fixture
async def guarded(serve: Serve, shop: Shop) -> Served:
    """The shop, where callers show a key."""
    return await serve(*shop.tools, keys=True)


async def called(
    client: httpx.AsyncClient, tool: str, arguments: dict[str, Any], key: str | None = None, **options: Any
) -> httpx.Response:
    """Call a tool."""
    headers = {} if key is None else {"Idempotency-Key": key}
    return await client.post(f"/v1/tools/{tool}/calls", json={"arguments": arguments, **options}, headers=headers)


def problem(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The problem document, which is whole and of that kind."""
    assert response.headers["content-type"] == "application/problem+json", response.text
    document: dict[str, Any] = response.json()
    assert (response.status_code, document["code"]) == (status, code), document
    assert document["type"] == f"urn:tollhouse:problem:{code}"
    assert document["status"] == status
    assert {"title", "detail", "remedy", "sent", "key"} <= set(document)
    assert document["request_id"] == response.headers["x-request-id"]
    return document
