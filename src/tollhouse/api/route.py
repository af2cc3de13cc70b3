"""The kind of route that every path of the API has: who asks comes first, then the body, then FastAPI.

``@operation`` declares what a path needs and how it may fail; a path without it cannot be made, so that none is open by
accident. The same declaration is what the OpenAPI document says.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Annotated, Any, NamedTuple, TypeVar

from fastapi import Depends
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from tollhouse.api.auth import Caller
from tollhouse.api.json_text import read_json
from tollhouse.errors import TollhouseError, UnsupportedMediaType
from tollhouse.house import Tollhouse
from tollhouse.house.access import Scope

F = TypeVar("F", bound=Callable[..., Any])
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class Operation(NamedTuple):
    """What is declared of a path. ``scope`` None: open to everybody. ``direct``: answers the plain request itself."""

    scope: Scope | None
    may_fail: tuple[type[TollhouseError], ...]
    direct: bool


def operation(scope: Scope | None, *may_fail: type[TollhouseError], direct: bool = False) -> Callable[[F], F]:
    """Declare what the path needs, and what it may answer with besides what any path may."""

    def declare(endpoint: F) -> F:
        vars(endpoint)["operation"] = Operation(scope, may_fail, direct)
        return endpoint

    return declare


def operation_of(endpoint: Callable[..., Any]) -> Operation:
    """What was declared. Raises :class:`TypeError` where nothing was."""
    declared = vars(endpoint).get("operation")
    if not isinstance(declared, Operation):
        raise TypeError(f"{endpoint!r} does not declare what it needs (@operation).")
    return declared


class StrictRequest(Request):
    """A request whose JSON is read strictly."""

    async def json(self) -> Any:
        """The body's value, read once. Raises :class:`InvalidRequest`."""
        if not hasattr(self, "_json"):
            self._json = read_json(await self.body())
        return self._json


class Route(APIRoute):
    """See the module's docstring."""

    def get_route_handler(self) -> Handler:
        declared, endpoint = operation_of(self.endpoint), self.endpoint
        answer: Callable[[Request], Awaitable[Response]] = endpoint if declared.direct else super().get_route_handler()

        async def handle(request: Request) -> Response:
            if declared.scope is not None:
                await authenticate(request, declared.scope)
            strict = StrictRequest(request.scope, request.receive, request._send)
            if not declared.direct and self.body_field is not None:
                await _take_body(strict)
            return await answer(strict)

        return handle


async def authenticate(request: Request, scope: Scope) -> None:
    """Note who asks. Raises :class:`NotAuthenticated` or :class:`NotAuthorized`."""
    caller: Caller = await request.app.state.access.caller(request.headers)
    request.scope["tollhouse.caller"] = caller
    caller.check(scope)


async def _take_body(request: StrictRequest) -> None:
    """Read the body before FastAPI does, whose errors of reading would hide ours."""
    if await request.body():
        check_is_json(request)
        await request.json()


def check_is_json(request: Request) -> None:
    """Raise :class:`UnsupportedMediaType` unless the body says that it is JSON, in UTF-8."""
    kind, _, rest = request.headers.get("content-type", "").partition(";")
    charset = rest.lower().replace('"', "").replace(" ", "")
    if kind.strip().lower() != "application/json" or ("charset=" in charset and "charset=utf-8" not in charset):
        raise UnsupportedMediaType("The body is not sent as JSON in UTF-8.")


def caller_of(request: Request) -> Caller:
    """Who makes this request."""
    caller: Caller = request.scope["tollhouse.caller"]
    return caller


def house_of(request: Request) -> Tollhouse:
    """The house that is served."""
    house: Tollhouse = request.app.state.house
    return house


By = Annotated[Caller, Depends(caller_of)]
House = Annotated[Tollhouse, Depends(house_of)]
