"""Errors over HTTP: every one is an ``application/problem+json`` document (RFC 9457) with the stable code.

One table says which status a code has. Clients branch on ``code``, never on ``detail``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tollhouse.api.json_text import write_json
from tollhouse.errors import (
    InvalidRequest,
    MethodNotAllowed,
    NotAuthenticated,
    StoreUnavailable,
    TollhouseError,
    UnknownRoute,
    UnsupportedMediaType,
)

PROBLEM_JSON = "application/problem+json"
TYPE_PREFIX = "urn:tollhouse:problem:"
RETRY_AFTER_S = 5
"""When it is worth asking again, where the store or the receiver was away."""

STATUS: Mapping[str, int] = {
    "error": 500,
    # what a call can end in, where it is no answer of its own (see api/answers.py)
    "call_in_doubt": 409,
    "call_held": 409,
    "call_refused": 403,
    "call_failed": 502,
    "call_not_sent": 503,
    "call_in_flight": 409,
    "call_conflict": 409,
    "call_contradicted": 409,
    "call_compensated": 409,
    "result_purged": 410,
    # mistakes in the request
    "invalid_arguments": 422,
    "invalid_key": 422,
    "invalid_setting": 422,
    "unknown_tool": 404,
    "unknown_call": 404,
    "ungated_call": 500,
    "contract_error": 500,
    # decisions
    "not_allowed": 409,
    "decision_conflict": 409,
    "not_entitled": 403,
    # the store
    "store_unavailable": 503,
    "store_full": 503,
    "store_read_only": 503,
    "store_locked": 503,
    "store_fenced": 503,
    "store_not_durable": 500,
    "store_schema": 503,
    "copy_refused": 409,
    "copy_differs": 500,
    "store_url_invalid": 500,
    "house_closed": 503,
    # runs
    "unknown_run": 404,
    "unknown_agent": 404,
    "unknown_question": 404,
    "run_conflict": 409,
    "thread_busy": 409,
    "run_not_allowed": 409,
    "run_purged": 410,
    "driver_unavailable": 503,
    "agent_file_invalid": 422,
    "proof_invalid": 422,
    "proof_unreadable": 422,
    "signing_key_unusable": 500,
    # the surface itself
    "not_authenticated": 401,
    "not_authorized": 403,
    "precondition_failed": 412,
    "request_too_large": 413,
    "invalid_request": 422,
    "unknown_route": 404,
    "method_not_allowed": 405,
    "unsupported_media_type": 415,
    "request_timed_out": 408,
    "wrong_host": 421,
    "invalid_cursor": 422,
    "extra_missing": 501,
}
"""The status of every code. Unlisted ones are 500; a test keeps the table whole."""


def status_of(error: TollhouseError) -> int:
    """The status that an error answers with."""
    return STATUS.get(error.code, 500)


def problem_document(error: TollhouseError, request_id: str | None) -> dict[str, Any]:
    """The problem as JSON: the members of RFC 9457, and those of every error of ours."""
    about = {name: value for name in ("field", "path", "line", "column") if (value := getattr(error, name, None))}
    return {
        "type": TYPE_PREFIX + error.code,
        "title": title_of(type(error)),
        "status": status_of(error),
        "detail": error.cause,
        "code": error.code,
        "remedy": error.remedy,
        "sent": error.sent,
        "key": error.key,
        **about,
        "request_id": request_id,
    }


def title_of(kind: type[TollhouseError]) -> str:
    """The sentence that says what this kind of error means, whatever the case at hand."""
    if kind is TollhouseError:
        return "The server met a defect of its own."
    return " ".join((kind.__doc__ or "").split("\n\n")[0].split())


def problem(error: TollhouseError, request_id: str | None, headers: Mapping[str, str] | None = None) -> Response:
    """The response that tells of an error."""
    given = dict(headers or {})
    if isinstance(error, NotAuthenticated):
        given.setdefault("WWW-Authenticate", 'Bearer realm="tollhouse"')
    if isinstance(error, StoreUnavailable) or error.code == "call_not_sent":
        given.setdefault("Retry-After", str(RETRY_AFTER_S))
    body = write_json(problem_document(error, request_id))
    return Response(body, status_of(error), given, PROBLEM_JSON)


def unexpected() -> TollhouseError:
    """What a defect answers with: nothing of the exception, and no claim that nothing was sent."""
    return TollhouseError(
        "The server failed at this request.",
        remedy="Read what is recorded under the key; the server's log has the reason under the request id.",
        sent="maybe",
    )


def request_id_of(request: Request) -> str | None:
    """The id that the guard gave this request."""
    given: str | None = request.scope.get("tollhouse.request_id")
    return given


async def on_error(request: Request, error: Exception) -> Response:
    """Handler for every :class:`TollhouseError`."""
    assert isinstance(error, TollhouseError)
    return problem(error, request_id_of(request))


async def on_validation(request: Request, error: Exception) -> Response:
    """Handler for what FastAPI finds wrong: says where and what, never repeats the value."""
    assert isinstance(error, RequestValidationError)
    return problem(invalid(error.errors()), request_id_of(request))


def invalid(errors: Any) -> InvalidRequest:
    """The first mistake as an error; the others follow once it is gone."""
    first = next(iter(errors))
    place = ".".join(str(part) for part in first.get("loc", ()))[:200]
    what = str(first.get("msg", "is invalid"))[:200]
    return InvalidRequest(f"{place or 'The request'}: {what}.", path=place or None)


async def on_http(request: Request, error: Exception) -> Response:
    """Handler for what routing and the framework raise: no such path, no such method, an unreadable body."""
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    match error.status_code:
        case 404:
            mistake: TollhouseError = UnknownRoute("Nothing is served at this path.")
        case 405:
            mistake = MethodNotAllowed(f"This path does not take {request.method}.")
            headers["Allow"] = ", ".join(_methods_at(request))
        case 415:
            mistake = UnsupportedMediaType("The body is not sent as JSON.")
        case status if status < 500:
            mistake = InvalidRequest("The request cannot be read.")
        case _:
            mistake = unexpected()
    return problem(mistake, request_id_of(request), headers)


def _methods_at(request: Request) -> list[str]:
    """Every method that some route takes at this path."""
    path, found = request.scope["path"], set[str]()
    for route in request.app.routes:
        pattern, methods = getattr(route, "path_regex", None), getattr(route, "methods", None)
        if pattern is not None and methods and pattern.match(path):
            found |= methods
    return sorted(found)
