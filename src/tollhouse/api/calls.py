"""Calling tools and looking at calls: ``POST /v1/tools/{name}/calls``, ``GET /v1/calls`` and what is below it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query
from pydantic import AfterValidator, TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from tollhouse.api import models
from tollhouse.api.answers import answer
from tollhouse.api.json_text import JSONAnswer, read_json
from tollhouse.api.pages import Cursor, Limit, cursor_of, place_of
from tollhouse.api.problems import invalid
from tollhouse.api.route import House, Route, caller_of, check_is_json, house_of, operation
from tollhouse.errors import (
    CallConflict,
    CallNotSent,
    Contradicted,
    InvalidArguments,
    InvalidCursor,
    InvalidKey,
    InvalidRequest,
    InvalidSetting,
    Refused,
    UnknownCall,
    UnknownTool,
)
from tollhouse.gate.view import RecordedCall
from tollhouse.house import Tollhouse
from tollhouse.house.access import Scope
from tollhouse.house.as_json import call_as_json, facts_as_json
from tollhouse.ledger.keys import check_key
from tollhouse.ledger.plain import moment

router = APIRouter(route_class=Route, tags=["calls"])

_NEW_CALL: TypeAdapter[models.NewCall] = TypeAdapter(models.NewCall)

KEY_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:@-]{0,199}$"
Key = Annotated[
    str,
    AfterValidator(check_key),
    Path(
        description="The key of the call.",
        examples=["order-7:refund"],
        json_schema_extra={"pattern": KEY_PATTERN},
    ),
]
ToolName = Annotated[str, Path(description="The name of the tool.", examples=["issue_credit"])]
Filter = Annotated[models.Name | None, Query()]


@router.post(
    "/v1/tools/{name}/calls",
    operation_id="call_tool",
    summary="Call a tool",
    response_model=None,
    responses={
        200: {"model": models.CallAnswer, "description": "The call is settled: it succeeded, failed or was refused."},
        202: {"model": models.CallAnswer, "description": "Not settled: held, in flight, accepted or in doubt."},
    },
    openapi_extra={
        "parameters": [
            {
                "name": "name",
                "in": "path",
                "required": True,
                "description": "The name of the tool.",
                "schema": {"type": "string"},
                "example": "issue_credit",
            },
            {
                "name": "Idempotency-Key",
                "in": "header",
                "required": False,
                "description": "The key of the call: which one intended use of the tool this is. Required unless the "
                "tool only reads. The same key with the same arguments again is answered from the record.",
                "schema": {"type": "string", "pattern": KEY_PATTERN},
                "example": "order-7:refund",
            },
        ],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/NewCall"}}},
        },
    },
)
@operation(
    Scope.CALLS_WRITE,
    UnknownTool,
    CallConflict,
    Contradicted,
    Refused,
    InvalidArguments,
    InvalidKey,
    InvalidSetting,
    CallNotSent,
    direct=True,
)
async def call_tool(request: Request) -> Response:
    """Pass one call through the gate.

    The tool runs once for each key, however often the request is sent: send it again with the same key whenever no
    answer came. The caller is the principal of the credential. A client that goes away ends its wait, not the call.
    """
    key = idempotency_key(request)
    new = await _new_call(request)
    house, caller = house_of(request), caller_of(request)
    call = house.call(
        request.path_params["name"],
        new.arguments,
        key=key,
        by=caller.principal,
        scope=new.scope,
        group=new.group,
        wait=new.wait,
        run_when_approved=new.run_when_approved,
        max_attempts=new.max_attempts,
        attempt_timeout_s=new.attempt_timeout_s,
        deadline_s=new.deadline_s,
    )
    try:
        return await answer(house, call)
    except InvalidKey as missing:
        if key is None:
            missing.remedy = "Send a key that names this one intended use as the header Idempotency-Key."
        raise


def idempotency_key(request: Request) -> str | None:
    """The key of the header, with or without the quotes of a structured field. None: there is no such header."""
    given = request.headers.getlist("idempotency-key")
    if not given:
        return None
    if len(given) > 1:
        raise InvalidKey("The request has several Idempotency-Key headers.", remedy="Send exactly one.")
    quoted = len(given[0]) > 1 and given[0][0] == given[0][-1] == '"'
    return check_key(given[0][1:-1] if quoted else given[0])


async def _new_call(request: Request) -> models.NewCall:
    body = await request.body()
    if not body:
        raise InvalidRequest("The body is missing.", remedy='Send {"arguments": {...}}, {} for none.')
    check_is_json(request)
    try:
        return _NEW_CALL.validate_python(read_json(body))
    except ValidationError as error:
        raise invalid(error.errors(include_url=False, include_input=False, include_context=False)) from None


@router.get(
    "/v1/calls",
    operation_id="list_calls",
    summary="List calls",
    response_model=None,
    responses={200: {"model": models.CallPage}},
)
@operation(Scope.CALLS_READ, InvalidCursor)
async def list_calls(
    house: House,
    state: Annotated[models.State | None, Query(description="Only calls in this state.")] = None,
    tool: Filter = None,
    scope: Filter = None,
    contradicted: Annotated[bool, Query(description="Only calls with a contradiction open.")] = False,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """Recorded calls, newest first, page by page."""
    about = ("calls", house.tenant, state, tool, scope, contradicted)
    before = place_of(cursor, *about)
    found = await house.list(
        state=state, tool=tool, scope=scope, contradicted=contradicted or None, limit=limit + 1, before=before
    )
    page = found[:limit]
    return JSONAnswer({"calls": [call_as_json(call) for call in page], "next": next_of(found, limit, *about)})


def next_of(found: list[RecordedCall], limit: int, *about: Any) -> str | None:
    """The cursor of the rest, where more were found than the page holds."""
    if len(found) <= limit:
        return None
    last = found[limit - 1]
    return cursor_of((last.raw.created_at_us, last.key), *about)


@router.get(
    "/v1/calls/{key}",
    operation_id="get_call",
    summary="Look at a call",
    response_model=None,
    responses={
        200: {"model": models.Call, "headers": {"ETag": {"schema": {"type": "string"}, "description": "Its version."}}},
        304: {"description": "It is still at the version that `If-None-Match` names."},
    },
)
@operation(Scope.CALLS_READ, UnknownCall, InvalidKey)
async def get_call(
    house: House,
    key: Key,
    history: Annotated[bool, Query(description="With its events.")] = False,
    if_none_match: Annotated[str | None, Header(alias="If-None-Match", max_length=200, examples=['"3"'])] = None,
) -> Response:
    """One call: its state, arguments, result, attempts, settlements and approval. The ETag is its version."""
    call = await house.get(key)
    if if_none_match is not None and etag_of(call) in (tag.strip() for tag in if_none_match.split(",")):
        return Response(status_code=304, headers={"ETag": etag_of(call)})
    return shown(call, history=history)


def etag_of(call: RecordedCall) -> str:
    """The version as an entity tag."""
    return f'"{call.version}"'


def shown(call: RecordedCall, *, history: bool = False) -> Response:
    """A call as an answer, with its version."""
    document = call_as_json(call)
    if not history:
        document.pop("history", None)
    return JSONAnswer(document, headers={"ETag": etag_of(call)})


@router.get(
    "/v1/calls/{key}/events",
    operation_id="list_call_events",
    summary="Read a call's history",
    response_model=None,
    responses={200: {"model": models.EventPage}},
)
@operation(Scope.CALLS_READ, UnknownCall, InvalidKey, InvalidCursor)
async def list_call_events(house: House, key: Key, limit: Limit = 100, cursor: Cursor = None) -> Response:
    """What happened to a call, oldest first: who asked, what gates said, what was sent, what came back."""
    about = ("events", house.tenant, key)
    after = place_of(cursor, *about)
    await _recorded(house, key)
    events = await house.store.events(house.tenant, f"call:{key}", 0 if after is None else after[0], limit + 1)
    lines = [
        {"seq": event.seq, "at": moment(event.at_us), "kind": event.kind, "facts": facts_as_json(event.facts)}
        for event in events[:limit]
    ]
    more = cursor_of((events[limit - 1].seq, ""), *about) if len(events) > limit else None
    return JSONAnswer({"events": lines, "next": more})


async def _recorded(house: Tollhouse, key: str) -> None:
    if await house.store.get(house.tenant, key) is None:
        raise UnknownCall(f"No call is recorded under {key}.", key=key)
