"""The application: every route of the API over one house, behind the guard."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tollhouse.api import calls, decisions, openapi, operations, overview
from tollhouse.api.auth import Access, OpenAccess
from tollhouse.api.guard import BODY_MOST, BODY_TIMEOUT_S, CLIENT_GONE, LOOPBACK, Guard
from tollhouse.api.problems import on_error, on_http, on_validation, problem, request_id_of, unexpected
from tollhouse.api.route import Route, operation_of
from tollhouse.errors import TollhouseError
from tollhouse.house import Tollhouse
from tollhouse.operations.health import Health

_NO_TELEMETRY: Any = {"tracing": False, "metrics": False, "logs": False}
"""FastAPI's own would export what requests hold."""

ROUTERS: tuple[APIRouter, ...] = (calls.router, decisions.router, overview.router, operations.router)
"""The first is the one that must be found fastest."""


class API(FastAPI):
    """FastAPI with the guard around everything.

    ``state`` holds ``house``, ``access``, ``runs`` (or None), ``health``, and ``stopping``, an event that is set when
    the server is about to stop: streams end then.
    """

    guard: dict[str, Any]
    _described_open: bool | None = None

    def build_middleware_stack(self) -> ASGIApp:
        """The guard outermost, so that it sees errors of every layer."""
        return Guard(DirectLane(super().build_middleware_stack(), self), **self.guard)

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document, made once, and once more when keys begin to be asked for."""
        is_open = self.state.access.open
        if self.openapi_schema is None or self._described_open != is_open:
            self.openapi_schema, self._described_open = openapi.document(self), is_open
        return self.openapi_schema


class DirectLane:
    """Takes requests of direct routes straight to them, around what FastAPI does for declared parameters.

    Calls come by the thousand; the layers in between would cost as much as the gate. Errors reach the guard.
    """

    def __init__(self, app: ASGIApp, api: API) -> None:
        self._app = app
        direct = [route for route in api.routes if isinstance(route, Route) and operation_of(route.endpoint).direct]
        self._routes = [
            (route, route.methods or set(), route.path_regex.match, route.get_route_handler()) for route in direct
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            for route, methods, match, handle in self._routes:
                found = match(scope["path"]) if scope["method"] in methods else None
                if found is not None:
                    scope["path_params"], scope["route"] = found.groupdict(), route
                    response = await handle(Request(scope, receive, send))
                    await response(scope, receive, send)
                    return
        await self._app(scope, receive, send)


def create_app(
    house: Tollhouse,
    *,
    runs: Any = None,
    routers: Iterable[APIRouter] = (),
    access: Access | None = None,
    hosts: Collection[str] | None = None,
    origins: Collection[str] = (),
    probes: Mapping[str, operations.Probe] | None = None,
    body_most: int = BODY_MOST,
    body_timeout_s: float = BODY_TIMEOUT_S,
) -> FastAPI:
    """The API over an opened house, which it does not close.

    ``runs``: the facade of runs, as ``app.state.runs``, with its routes; ``routers``: further ones, made with
    ``APIRouter(route_class=Route)``. ``access`` None: open to everybody who reaches it, as the house's principal; see
    :func:`~tollhouse.api.auth.access_of`. ``hosts``: names it answers to; None: loopback's while it is open, else any.
    ``origins``: web pages that may use it from a browser, such as ``https://app.example``; by default none may.
    ``probes``: what `/readyz` asks besides store, lease and rounds, by name. ``body_most``: bytes of a body;
    ``body_timeout_s``: how long one may take to arrive.
    """
    app = API(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False, telemetry=_NO_TELEMETRY)
    access = access or OpenAccess(house.principal)
    if hosts is None and access.open:
        hosts = LOOPBACK
    app.guard = {"hosts": hosts, "origins": origins, "body_most": body_most, "body_timeout_s": body_timeout_s}
    app.state.house, app.state.access, app.state.runs = house, access, runs
    app.state.stopping = asyncio.Event()
    app.state.health, app.state.probes = Health(house, None, house.tenant), dict(probes or {})
    for router in (*ROUTERS, *_run_routers(runs), *routers):
        for route in router.routes:
            if not isinstance(route, Route):
                raise TypeError(f"{route!r} is no Route: make its router with route_class=Route.")
            app.router.routes.append(route)
    app.add_exception_handler(TollhouseError, on_error)
    app.add_exception_handler(RequestValidationError, on_validation)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(ClientDisconnect, _on_gone)
    app.add_exception_handler(Exception, _on_defect)
    return app


def _run_routers(runs: Any) -> tuple[APIRouter, ...]:
    if runs is None:
        return ()
    from tollhouse.api.run_routers import ROUTERS as FOR_RUNS

    return FOR_RUNS


async def _on_gone(_request: Request, _error: Exception) -> Response:
    """Nobody hears it."""
    return Response(status_code=CLIENT_GONE)


async def _on_defect(request: Request, _error: Exception) -> Response:
    """The guard logs it."""
    return problem(unexpected(), request_id_of(request))
