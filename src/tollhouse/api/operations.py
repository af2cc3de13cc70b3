"""Health, readiness, metrics and the OpenAPI document itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from tollhouse.api import models
from tollhouse.api.json_text import JSONAnswer
from tollhouse.api.route import House, Route, operation
from tollhouse.house.access import Scope
from tollhouse.operations.health import METRICS_TYPE, PROBE_S, Health

router = APIRouter(route_class=Route, tags=["operations"])

Probe = Callable[[], Awaitable[bool]]
"""Asks one dependency whether it works. What raises, or takes longer than two seconds, does not."""


@router.get(
    "/healthz",
    operation_id="health",
    summary="Is the process alive",
    response_model=None,
    responses={200: {"model": models.Alive}, 503: {"model": models.Alive, "description": "It is about to stop."}},
)
@operation(None)
async def health(house: House) -> Response:
    """Whether the process answers at all. It says nothing of what the process needs: see `/readyz`."""
    if house.closed:
        return JSONAnswer({"status": "stopping"}, 503)
    return JSONAnswer({"status": "ok"})


@router.get(
    "/readyz",
    operation_id="readiness",
    summary="Can the process do its work",
    response_model=None,
    responses={
        200: {"model": models.Readiness},
        503: {"model": models.Readiness, "description": "Something that it needs does not work."},
    },
)
@operation(None)
async def readiness(request: Request) -> Response:
    """Whether each thing that the process needs works. Answers within two seconds and a little, whatever happens."""
    health: Health = request.app.state.health
    probes: dict[str, Probe] = request.app.state.probes
    own, *others = await asyncio.gather(_own(health), *(_asked(probe) for probe in probes.values()))
    checks = {**own, **dict(zip(probes, others, strict=True))}
    ready = all(check["ok"] for check in checks.values()) and not request.app.state.house.closed
    return JSONAnswer({"status": "ready" if ready else "not_ready", "checks": checks}, 200 if ready else 503)


async def _own(health: Health) -> dict[str, dict[str, Any]]:
    began = time.perf_counter()
    try:
        async with asyncio.timeout(PROBE_S):
            found = await health.checks()
    except Exception:
        found = {"store": False}
    ms = _ms_since(began)
    return {name: {"ok": ok, "ms": ms if name == "store" else 0.0} for name, ok in found.items()}


async def _asked(probe: Probe) -> dict[str, Any]:
    began = time.perf_counter()
    try:
        async with asyncio.timeout(PROBE_S):
            ok = bool(await probe())
    except Exception:
        ok = False
    return {"ok": ok, "ms": _ms_since(began)}


def _ms_since(began: float) -> float:
    return round((time.perf_counter() - began) * 1000, 1)


@router.get(
    "/metrics",
    operation_id="metrics",
    summary="Metrics for Prometheus",
    response_model=None,
    response_class=PlainTextResponse,
    responses={
        200: {
            "description": "Metrics in Prometheus' text format.",
            "content": {"text/plain": {"schema": {"type": "string"}, "example": 'tollhouse_calls{state="held"} 2\n'}},
        }
    },
)
@operation(Scope.CALLS_READ)
async def metrics(request: Request) -> Response:
    """Counts of calls by state, the oldest doubt, the lease, attempts under way, commits."""
    health: Health = request.app.state.health
    return Response(await health.metrics(), headers={"Content-Type": METRICS_TYPE})


@router.get("/openapi.json", include_in_schema=False)
@operation(None)
async def openapi(request: Request) -> Response:
    """The OpenAPI document."""
    return JSONAnswer(request.app.openapi(), headers={"Cache-Control": "no-cache"})


for _path, _endpoint in (("/healthz", health), ("/readyz", readiness), ("/metrics", metrics)):
    # Balancers probe with HEAD; the server sends no body then.
    router.add_api_route(_path, _endpoint, methods=["HEAD"], include_in_schema=False, response_model=None)
