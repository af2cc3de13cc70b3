"""The OpenAPI document: FastAPI's, with the problems, the credential and the bodies that routes declare themselves."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from tollhouse import __version__
from tollhouse.api import models
from tollhouse.api.problems import PROBLEM_JSON, STATUS, problem_document, title_of
from tollhouse.api.route import operation_of
from tollhouse.errors import (
    InvalidRequest,
    NotAuthenticated,
    NotAuthorized,
    RequestTimedOut,
    RequestTooLarge,
    StoreUnavailable,
    TollhouseError,
    UnsupportedMediaType,
    WrongHost,
)

DESCRIPTION = """\
The gate for the tool calls of AI agents, over HTTP. Every effect passes the same gate as in the Python SDK: it is sent
at most once for each `Idempotency-Key`, and a call whose outcome nobody knows is *in doubt* until it is settled.

Errors are `application/problem+json` with a stable `code`. Lists have a `limit` and a `cursor`."""

TAGS = [
    {"name": "calls", "description": "Call tools, and look at what became of each call."},
    {"name": "decisions", "description": "What people decide about a call. `by` is always the credential's principal."},
    {"name": "tools", "description": "The tools that may be called, and what each promises."},
    {"name": "overview", "description": "What waits for people, and what was spent."},
    {
        "name": "runs",
        "description": "Start runs of agents, follow them, and answer what they ask. Absent without agents.",
    },
    {"name": "operations", "description": "For health checks and monitoring."},
]

DIRECT_MODELS: tuple[type[BaseModel], ...] = (models.NewCall, models.Problem)
"""Documents that no signature names, because their routes read or write them themselves."""

_ANY_PATH: tuple[type[TollhouseError], ...] = (WrongHost, StoreUnavailable)
_WITH_BODY: tuple[type[TollhouseError], ...] = (RequestTooLarge, RequestTimedOut, UnsupportedMediaType)
_WITH_KEY: tuple[type[TollhouseError], ...] = (NotAuthenticated, NotAuthorized)
_REF = "#/components/schemas/{model}"


def document(app: FastAPI) -> dict[str, Any]:
    """The document for the routes that the application has."""
    routes = [route for route in app.routes if isinstance(route, APIRoute)]
    made = get_openapi(
        title="Tollhouse",
        version=__version__,
        description=DESCRIPTION,
        tags=TAGS,
        routes=routes,
        openapi_version="3.1.0",
    )
    _, defined = models_json_schema([(model, "validation") for model in DIRECT_MODELS], ref_template=_REF)
    schemas = made.setdefault("components", {}).setdefault("schemas", {})
    schemas.update(defined.get("$defs", {}))
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    keys_asked = not app.state.access.open
    if keys_asked:
        made["components"]["securitySchemes"] = {
            "key": {"type": "http", "scheme": "bearer", "description": "A key made by `tollhouse keys create`."}
        }
    _link(made["paths"])
    for route in routes:
        if route.include_in_schema:
            for method in route.methods or ():
                _complete(made["paths"][route.path_format][method.lower()], route, schemas, keys_asked=keys_asked)
    return made


def _complete(described: dict[str, Any], route: APIRoute, schemas: dict[str, Any], *, keys_asked: bool) -> None:
    """Add to one operation what it may answer with, and what it needs."""
    declared = operation_of(route.endpoint)
    described["responses"].pop("422", None)
    _describe_answer(described["responses"].get("200", {}), schemas)
    for parameter in described.get("parameters", ()):
        _without_null(parameter["schema"])
    kinds = [*declared.may_fail, *_ANY_PATH]
    if "requestBody" in described:
        kinds += _WITH_BODY
    if "requestBody" in described or described.get("parameters"):
        kinds.append(InvalidRequest)
    if declared.scope is not None and keys_asked:
        kinds += _WITH_KEY
        described["security"] = [{"key": []}]
        described["x-scope"] = declared.scope.value
    for status in sorted({STATUS[kind.code] for kind in kinds}):
        found = list(dict.fromkeys(kind for kind in kinds if STATUS[kind.code] == status))
        described["responses"].setdefault(str(status), _problem_response(found))


def _describe_answer(answer: dict[str, Any], schemas: dict[str, Any]) -> None:
    """What an answer is, where its route says nothing: what its document is."""
    named = answer.get("content", {}).get("application/json", {}).get("schema", {}).get("$ref", "")
    described = schemas.get(named.rpartition("/")[2], {}).get("description")
    if described is not None and answer["description"] == "Successful Response":
        answer["description"] = described


def _without_null(schema: dict[str, Any]) -> None:
    """A parameter that may be left out is not one that may be null: there is no null in a path, query or header."""
    choices = [choice for choice in schema.get("anyOf", ()) if choice != {"type": "null"}]
    if len(choices) == 1:
        del schema["anyOf"]
        schema.update({**choices[0], **schema})


def _link(paths: dict[str, Any]) -> None:
    """From each answer about a call to what can be done with that call, and from the tools to calling one."""
    about_calls = [
        operation["operationId"]
        for path, operations in paths.items()
        if path.startswith("/v1/calls/{key}")
        for operation in operations.values()
    ]
    to_calls = {name: {"operationId": name, "parameters": {"key": "$response.body#/key"}} for name in about_calls}
    to_tool = {"operationId": "call_tool", "parameters": {"name": "$response.body#/tools/0/name"}}
    for status in ("200", "202"):
        paths["/v1/tools/{name}/calls"]["post"]["responses"][status]["links"] = to_calls
    paths["/v1/tools"]["get"]["responses"]["200"]["links"] = {"call_tool": to_tool}


def _problem_response(kinds: list[type[TollhouseError]]) -> dict[str, Any]:
    told = " ".join(f"`{kind.code}`: {title_of(kind)}" for kind in kinds)
    example = problem_document(kinds[0](title_of(kinds[0])), "6f1d2c3b4a59687786958473")
    content = {"schema": {"$ref": _REF.format(model="Problem")}, "example": example}
    return {"description": told, "content": {PROBLEM_JSON: content}}
