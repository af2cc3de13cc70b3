"""Agents over HTTP: which there are, and which versions each has had."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Path
from starlette.requests import Request
from starlette.responses import Response

from tollhouse.api import models, run_models
from tollhouse.api.json_text import JSONAnswer
from tollhouse.api.route import Route, operation
from tollhouse.api.streams import runs_of
from tollhouse.errors import UnknownAgent
from tollhouse.house.access import Scope
from tollhouse.ledger.plain import moment
from tollhouse.ledger.run_record import Definition
from tollhouse.runs.agents import AGENT
from tollhouse.runs.registry import PUBLISHED, agent_version
from tollhouse.runs.service import Runs

router = APIRouter(route_class=Route, tags=["runs"])

AgentName = Annotated[models.Name, Path(description="The name of the agent.", examples=["refunds"])]


@router.get(
    "/v1/agents",
    operation_id="list_agents",
    summary="List agents",
    response_model=None,
    responses={200: {"model": run_models.AgentList}},
)
@operation(Scope.RUNS_READ)
async def list_agents(request: Request) -> Response:
    """The newest version of every agent."""
    runs = runs_of(request)
    newest: dict[str, Definition] = {}
    for kept in await runs.store.definitions(runs.tenant, PUBLISHED):
        newest.setdefault(kept.name, kept)
    return JSONAnswer({"agents": [await _shown(runs, newest[name]) for name in sorted(newest)]})


@router.get(
    "/v1/agents/{name}",
    operation_id="get_agent",
    summary="Look at an agent",
    response_model=None,
    responses={200: {"model": run_models.AgentVersions}},
)
@operation(Scope.RUNS_READ, UnknownAgent)
async def get_agent(request: Request, name: AgentName) -> Response:
    """One agent, with every version that was published, newest first. A run names the version it ran."""
    runs = runs_of(request)
    published = await runs.store.definitions(runs.tenant, PUBLISHED, name)
    if not published:
        raise UnknownAgent(f"There is no agent {name[:100]!a}.", remedy="GET /v1/agents lists those that there are.")
    kept = await runs.store.definitions(runs.tenant, AGENT, name)
    versions = [
        {"version": each.digest, "first_published_at": moment(each.created_at_us), "agent": json.loads(each.body)}
        for each in kept
    ]
    return JSONAnswer({"name": name, "newest": await _shown(runs, published[0]), "versions": versions})


async def _shown(runs: Runs, published: Definition) -> dict[str, Any]:
    agent = await agent_version(runs.store, runs.tenant, published.name, json.loads(published.body)["version"])
    document = json.loads(agent.text)
    return {**document, "version": agent.version, "published_at": moment(published.created_at_us)}
