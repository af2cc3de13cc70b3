"""``POST /v1/ag-ui``: the endpoint that AG-UI clients run an agent at, and answer its questions.

``threadId`` is the conversation, ``runId`` names the start, so that the same request again follows the same run. What
runs is what is recorded here: history, tools and arguments that a client sends along are never taken for it.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from ag_ui.core import BaseEvent, RunAgentInput, RunErrorEvent, RunStartedEvent, UserMessage
from fastapi import APIRouter, Body, Query
from starlette.requests import Request
from starlette.responses import Response

from tollhouse.api import models, run_models
from tollhouse.api.ag_ui import VERSION, Projection, encoded, note
from tollhouse.api.ag_ui_resume import Resumed, resume
from tollhouse.api.ag_ui_stream import fold, stream
from tollhouse.api.route import By, House, Route, operation
from tollhouse.api.streams import EVENT_STREAM, Emit, EventStream, runs_of
from tollhouse.errors import (
    HouseClosed,
    InvalidKey,
    InvalidRequest,
    NotAuthorized,
    StoreUnavailable,
    TollhouseError,
    UnknownAgent,
)
from tollhouse.house.access import Scope
from tollhouse.ledger.keys import check_key
from tollhouse.ledger.run_record import RunQuery
from tollhouse.models.port import UserMessage as Said
from tollhouse.runs.registry import PUBLISHED
from tollhouse.runs.service import Runs
from tollhouse.runs.starting import check_thread

router = APIRouter(route_class=Route, tags=["runs"])

START_PREFIX = "ag-ui:"
"""Before a ``runId``, in the key of the start that it names."""

EXAMPLE: dict[str, Any] = {
    "threadId": "order-7",
    "runId": "6f1d2c3b-4a59-4687-8695-8473a1b2c3d4",
    "messages": [{"id": "m1", "role": "user", "content": "Refund order 7."}],
    "tools": [],
    "context": [],
    "state": {},
}

EVENT_EXAMPLE = {
    "data": '{"type":"RUN_STARTED","threadId":"order-7","runId":"6f1d2c3b-4a59-4687-8695-8473a1b2c3d4"}',
}


@router.post(
    "/v1/ag-ui",
    operation_id="run_ag_ui",
    summary="Run an agent for an AG-UI client",
    response_model=None,
    responses={
        200: {
            "description": "AG-UI events, until the run ends or asks people something. A request that cannot be "
            "followed ends in `RUN_ERROR` with the stable code.",
            "content": {EVENT_STREAM: {"schema": run_models.EVENT_SCHEMA, "example": EVENT_EXAMPLE}},
        },
    },
)
@operation(Scope.RUNS_WRITE)
async def run_ag_ui(
    request: Request,
    house: House,
    by: By,
    body: Annotated[RunAgentInput, Body(openapi_examples={"start": {"summary": "Start a run", "value": EXAMPLE}})],
    agent: Annotated[
        models.Name | None,
        Query(description="Which agent runs. Left out: that of the thread, or the only one.", examples=["refunds"]),
    ] = None,
) -> Response:
    """Start a run on a thread, or answer what one asked, and follow it as AG-UI events.

    The last messages of the user are its input; everything before is on record here. `resume` answers interrupts by
    id; approvals need a key that may decide, of somebody else than the one who started the run.
    """
    wish = _Wish(body, agent, by.principal)
    if body.resume:
        by.check(Scope.CALLS_DECIDE if any("/" in entry.interrupt_id for entry in body.resume) else Scope.RUNS_WRITE)
    try:
        begun = await (resume(request, body, by.principal) if body.resume else _start(runs_of(request), wish))
    except (StoreUnavailable, HouseClosed, NotAuthorized):
        raise
    except TollhouseError as refused:
        mistake = refused
        return EventStream(request, lambda emit: _refuse(body, mistake, emit))
    return EventStream(request, lambda emit: _respond(request, body, begun, emit))


class _Wish(NamedTuple):
    """What a request asks for."""

    body: RunAgentInput
    agent: str | None
    by: str


async def _start(runs: Runs, wish: _Wish) -> Resumed:
    """The run that the request starts, or started before. Raises what :meth:`Runs.start` does."""
    body = wish.body
    said = _said(body)
    agent = wish.agent or await _agent_of(runs, body.thread_id)
    view = await runs.start(
        agent,
        said[-1],
        by=wish.by,
        key=_start_key(body.run_id),
        thread=body.thread_id,
        messages=tuple(Said(text) for text in said[:-1]),
    )
    return Resumed(view.record, 0)


def _start_key(run_id: str) -> str:
    try:
        return check_key(START_PREFIX + run_id)
    except InvalidKey:
        raise InvalidKey(
            "runId cannot name a start.", remedy="Send 1 to 194 letters, digits and . _ : @ -, such as a UUID."
        ) from None


async def _agent_of(runs: Runs, thread: str) -> str:
    """The agent that a request without a name means. Raises :class:`UnknownAgent` or :class:`InvalidSetting`."""
    check_thread(thread)
    before = await runs.list(RunQuery(thread=thread, limit=1))
    if before:
        return before[0].agent
    names = sorted({kept.name for kept in await runs.store.definitions(runs.tenant, PUBLISHED)})
    if len(names) != 1:
        raise UnknownAgent("The request names no agent.", remedy=f"Add ?agent=, one of: {', '.join(names) or 'none'}.")
    return names[0]


def _said(body: RunAgentInput) -> list[str]:
    """The user's messages since the agent last spoke, oldest first. Raises :class:`InvalidRequest`."""
    said: list[str] = []
    for message in reversed(body.messages):
        if message.role in ("assistant", "tool"):
            break
        if isinstance(message, UserMessage):
            said.insert(0, _text_of(message))
    if not said:
        raise InvalidRequest("The last message is not the user's.", path="messages", remedy="Add what the user says.")
    return said


def _text_of(message: UserMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    texts = [part.text for part in message.content if part.type == "text"]
    if len(texts) != len(message.content):
        raise InvalidRequest("A message has parts that are no text.", path="messages", remedy="Send text only.")
    return "\n\n".join(texts)


async def _refuse(body: RunAgentInput, mistake: TollhouseError, emit: Emit) -> None:
    """Say why the request cannot be followed, as the protocol wants it: within a run."""
    told = f"{mistake.cause} {mistake.remedy}"
    for event in (
        RunStartedEvent(thread_id=body.thread_id, run_id=body.run_id, protocol_version=VERSION),
        RunErrorEvent(message=told, code=mistake.code),
    ):
        await emit(encoded(event))


async def _respond(request: Request, body: RunAgentInput, begun: Resumed, emit: Emit) -> None:
    known = [message.model_dump(mode="json", by_alias=True) for message in body.messages]
    projection = Projection(begun.record, known=known, state=body.state)
    await fold(request, begun.record, projection, begun.place)
    for event in (*projection.begin(body.run_id), *_ignored(body)):
        await emit(encoded(event))
    await stream(request, begun.record, projection, begun.place, emit, numbered=False)


def _ignored(body: RunAgentInput) -> list[BaseEvent]:
    """What the client sent that is not used, said once, so that nobody relies on it."""
    roles = {message.role for message in body.messages}
    unused = {
        "tools": [tool.name for tool in body.tools or ()],
        "context": [each.description for each in body.context or ()],
        "messages": sorted(roles & {"system", "developer"}),
    }
    why = "The agent's own tools and instructions are used; a client's are not."
    return [note("ignored", {"what": what, "which": which, "why": why}) for what, which in unused.items() if which]
