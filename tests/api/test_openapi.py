"""The OpenAPI document: whole, stable, with examples; and every code has its status."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.api.conftest import Served
from tollhouse import errors
from tollhouse.api import decisions, problems
from tollhouse.api.app import ROUTERS, create_app
from tollhouse.api.models import Problem
from tollhouse.api.problems import STATUS, problem_document, status_of
from tollhouse.api.route import Route, operation_of
from tollhouse.cli.decisions import COMMANDS
from tollhouse.errors import TollhouseError
from tollhouse.house.access import Scope
from tools import http_reference

OPERATIONS = {
    "call_tool", "list_calls", "get_call", "list_call_events", "resolve_call", "reconcile_call", "compensate_call",
    "approve_call", "deny_call", "edit_call", "retry_call", "cancel_call", "overturn_call", "uphold_call", "list_tools",
    "get_tool", "list_approvals", "list_costs", "health", "readiness", "metrics",
}  # fmt: skip
"""Names that clients are generated from: they stay."""


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """The whole document, runs included."""
    return http_reference.document()


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every operation by its path."""
    for path, methods in document["paths"].items():
        for method, says in methods.items():
            yield f"{method} {path}", says


def every_error() -> list[type[TollhouseError]]:
    """Every error that there is, wherever it is defined beside the command line's own."""
    return [one for one in vars(errors).values() if inspect.isclass(one) and issubclass(one, TollhouseError)]


def test_every_code_has_its_status_and_no_status_is_left_over() -> None:
    """One table; a new error without a line would be a 500."""
    codes = {error.code for error in every_error()}
    assert set(STATUS) == codes
    assert {code for code, status in STATUS.items() if not 400 <= status < 600} == set()


def test_every_error_makes_a_whole_problem() -> None:
    """With the members that the document describes, and the words of the error."""
    for kind in every_error():
        needed: dict[type[Any], dict[str, Any]] = {
            errors.ContractError: {"field": "x"}, errors.AgentFileInvalid: {"file": "tollhouse.yaml"}
        }  # fmt: skip
        error = kind("What happened.", **needed.get(kind, {}))
        made = problem_document(error, "id")
        Problem.model_validate(made, strict=True)
        assert (made["detail"], made["remedy"], made["sent"]) == ("What happened.", error.remedy, error.sent)
        assert made["status"] == status_of(error)
        assert made["title"], kind


def test_operation_ids_stay(document: dict[str, Any]) -> None:
    """And are given once."""
    found = [says["operationId"] for _, says in operations(document)]
    assert set(found) >= OPERATIONS
    assert len(found) == len(set(found))


def test_every_operation_is_told_of(document: dict[str, Any]) -> None:
    """Summary, description, a group that is described, answers that are described, and problems as problems."""
    groups = {tag["name"] for tag in document["tags"]}
    for path, says in operations(document):
        assert says["summary"], path
        assert says["description"], path
        assert set(says["tags"]) <= groups, path
        for status, answer in says["responses"].items():
            assert answer["description"] != "Successful Response", (path, status)
            kinds = set(answer.get("content", {}))
            if status.startswith(("4", "5")) and path not in ("get /healthz", "get /readyz"):
                assert kinds == {"application/problem+json"}, (path, status)
        assert "421" in says["responses"], path


def test_every_body_and_answer_has_an_example(document: dict[str, Any]) -> None:
    """A reader sees at once what one looks like; that of a list may be one of its members."""
    for path, says in operations(document):
        if says["operationId"] not in OPERATIONS:  # runs have tests of their own
            continue
        bodies = [says["requestBody"]] if "requestBody" in says else []
        for part in (*bodies, *says["responses"].values()):
            for media, content in part.get("content", {}).items():
                if media != "application/json":
                    continue
                whole = http_reference.resolved(content["schema"], document)
                lists = [of["items"] for of in whole.get("properties", {}).values() if of.get("type") == "array"]
                shown = [http_reference.example(each, document) for each in (content["schema"], *lists)]
                assert any(shown), path


def test_every_path_needs_a_scope_but_those_for_health() -> None:
    """A path that is open to everybody is listed here."""
    routes = [route for router in ROUTERS for route in router.routes if isinstance(route, Route)]
    is_open = {route.path for route in routes if operation_of(route.endpoint).scope is None}
    assert is_open == {"/healthz", "/readyz", "/openapi.json"}
    assert {operation_of(route.endpoint).scope for route in routes} - {None} <= set(Scope)


def test_route_that_declares_nothing_cannot_be_made() -> None:
    """So that no path is open by accident."""

    async def endpoint() -> None:
        """Answer nobody."""

    with pytest.raises(TypeError, match="does not declare"):
        Route("/open", endpoint)


def test_every_verb_of_the_command_line_has_its_path() -> None:
    """The decisions are the same, by the same names."""
    verbs = {str(route.path).rpartition("/")[2] for route in decisions.router.routes if isinstance(route, Route)}
    assert verbs == {command.__name__ for command in COMMANDS}


async def test_document_is_published_and_says_whether_keys_are_asked_for(served: Served, guarded: Served) -> None:
    """For everybody; a server that asks for no key describes none."""
    open_document = (await (await served.client()).get("/openapi.json")).json()
    assert "securitySchemes" not in open_document["components"]
    assert not any("security" in says for _, says in operations(open_document))
    described = (await (await guarded.client()).get("/openapi.json")).json()
    assert described["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    needs = {path: says.get("security") for path, says in operations(described)}
    assert needs["get /v1/calls"] == [{"key": []}]
    assert needs["get /healthz"] is None
    assert described["openapi"].startswith("3.1")


def test_framework_errors_never_leave_as_they_are() -> None:
    """Each kind has its handler: routing, validation, our own, and defects."""
    app = create_app(_nobody())
    handled = set(app.exception_handlers)
    assert {TollhouseError, Exception} <= handled
    assert problems.on_http in app.exception_handlers.values()
    assert problems.on_validation in app.exception_handlers.values()


def _nobody() -> Any:
    """A house that is never asked."""

    class Nobody:
        tenant = principal = "nobody"

    return Nobody()


async def test_examples_of_parameters_and_bodies_are_taken(served: Served) -> None:
    """What the document shows for calling a tool is what the server takes, but for the tool's name."""
    document = (await (await served.client()).get("/openapi.json")).json()
    body = document["components"]["schemas"]["NewCall"]["examples"][0]
    headers = {"Idempotency-Key": "order-7:refund"}
    client: httpx.AsyncClient = await served.client()
    answer = await client.post("/v1/tools/credit/calls", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
