"""Runs over HTTP: start them, look at them, and make them do what people want of them.

Thin over :class:`~tollhouse.runs.service.Runs`. Who asks is always the principal of the credential.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Body, Header, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from tollhouse.api import models, run_models
from tollhouse.api.calls import KEY_PATTERN, Filter, idempotency_key, next_of
from tollhouse.api.decisions import IfMatch, versions_of
from tollhouse.api.json_text import JSONAnswer
from tollhouse.api.pages import Cursor, Limit, cursor_of, place_of
from tollhouse.api.route import By, House, Route, operation
from tollhouse.api.streams import RunId, runs_of
from tollhouse.errors import (
    InvalidCursor,
    InvalidKey,
    InvalidSetting,
    NotEntitled,
    PreconditionFailed,
    RunConflict,
    RunNotAllowed,
    RunPurged,
    ThreadBusy,
    UnknownAgent,
    UnknownQuestion,
    UnknownRun,
)
from tollhouse.gate.view import RecordedCall
from tollhouse.house.access import Scope
from tollhouse.house.as_json import call_as_json
from tollhouse.ledger.run_record import RunQuery
from tollhouse.runs.service import Runs
from tollhouse.runs.states import RunState
from tollhouse.runs.view import RunView, run_as_json

router = APIRouter(route_class=Route, tags=["runs"])

CALLS_COUNTED_MOST = 1000
"""Calls of a run whose states one request counts; of more it says none, since any number would be wrong."""
MAY_ASK = (
    RunState.AWAITING_ANSWER,
    RunState.AWAITING_APPROVAL,
    RunState.AWAITING_RECONCILIATION,
    RunState.RUNNING,
    RunState.QUEUED,
)
"""States in which a question can be answered: also while the answer to another one waits for a driver."""
LOOKED_AT_MOST = 500
"""Paused runs that one request looks at for questions; a cursor leads on."""

_START_KEY: dict[str, Any] = {
    "parameters": [
        {
            "name": "Idempotency-Key",
            "in": "header",
            "required": True,
            "description": "Names this start: the same request again with the same key answers with the run that it "
            "started.",
            "schema": {"type": "string", "pattern": KEY_PATTERN},
            "example": "order-7:refund",
        }
    ]
}
QuestionId = Annotated[
    str, Path(max_length=300, description="The id of the question.", examples=[f"{run_models.RUN_ID}:2.1"])
]
_ETAG = {"schema": {"type": "string"}, "description": "Its version, and what tells apart how its calls stand."}
_SHOWN: dict[int | str, dict[str, Any]] = {200: {"model": run_models.Run, "headers": {"ETag": _ETAG}}}
_STARTED: dict[int | str, dict[str, Any]] = {
    201: {"model": run_models.Run, "description": "It is started, and queued for a driver."},
    200: {"model": run_models.Run, "description": "This start is known: the run as it stands."},
}
_STARTS = (UnknownAgent, InvalidSetting, InvalidKey, RunConflict, ThreadBusy, NotEntitled)
_MOVES = (UnknownRun, RunNotAllowed, PreconditionFailed, NotEntitled)


# -- starting ------------------------------------------------------------------------------------------------------


@router.post(
    "/v1/runs",
    operation_id="start_run",
    summary="Start a run",
    response_model=None,
    responses=_STARTED,
    status_code=201,
    openapi_extra=_START_KEY,
)
@operation(Scope.RUNS_WRITE, *_STARTS)
async def start_run(request: Request, by: By, body: run_models.NewRun) -> Response:
    """Start a run of an agent. It goes on without its caller: follow it at `/v1/runs/{id}/events`."""
    view = await runs_of(request).start(
        body.agent,
        body.input,
        by=by.principal,
        key=_start_key(request),
        thread=body.thread,
        driver=body.driver,
        agent_version=body.agent_version,
        limits=None if body.limits is None else _wished(body.limits),
    )
    return _started(view)


@router.post(
    "/v1/runs/{run_id}/rerun",
    operation_id="rerun_run",
    summary="Run a run again",
    response_model=None,
    responses=_STARTED,
    status_code=201,
    openapi_extra=_START_KEY,
)
@operation(Scope.RUNS_WRITE, UnknownRun, RunNotAllowed, RunPurged, *_STARTS)
async def rerun(
    request: Request,
    by: By,
    run_id: RunId,
    body: Annotated[run_models.Rerun | None, Body()] = None,
) -> Response:
    """Start the same run once more, from its inputs in full. By default, effects that it had are held for people."""
    wished = body or run_models.Rerun()
    view = await runs_of(request).rerun(
        run_id, by=by.principal, key=_start_key(request), effects=wished.effects, agent_version=wished.agent_version
    )
    return _started(view)


@router.post(
    "/v1/runs/{run_id}/rehearse",
    operation_id="rehearse_run",
    summary="Rehearse a run",
    response_model=None,
    responses={200: {"model": run_models.RehearsalShown}},
)
@operation(Scope.RUNS_WRITE, UnknownRun, RunPurged, UnknownAgent, InvalidSetting)
async def rehearse(
    request: Request, run_id: RunId, body: Annotated[run_models.Rehearse | None, Body()] = None
) -> Response:
    """Have a model go through a recorded run again. Tools answer from the record: nothing leaves, nothing is kept."""
    wished = body or run_models.Rehearse()
    rehearsal = await runs_of(request).rehearse(
        run_id, agent_version=wished.agent_version, model=wished.model, compare_output=wished.compare_output
    )
    return JSONAnswer(rehearsal.as_json)


def _start_key(request: Request) -> str:
    key = idempotency_key(request)
    if key is None:
        raise InvalidKey(
            "The request has no Idempotency-Key.",
            remedy="Send a key that names this one start; the same request again with it starts nothing new.",
        )
    return key


def _wished(limits: run_models.LimitsWished) -> dict[str, Any]:
    return limits.model_dump(include=limits.model_fields_set)


def _started(view: RunView) -> Response:
    headers = {"Location": f"/v1/runs/{view.id}", "ETag": _etag(view)}
    return JSONAnswer(run_as_json(view), 200 if view.started_before else 201, headers)


# -- looking -------------------------------------------------------------------------------------------------------


@router.get(
    "/v1/runs",
    operation_id="list_runs",
    summary="List runs",
    response_model=None,
    responses={200: {"model": run_models.RunPage}},
)
@operation(Scope.RUNS_READ, InvalidCursor)
async def list_runs(
    request: Request,
    state: Annotated[run_models.RunState | None, Query(description="Only runs in this state.")] = None,
    agent: Filter = None,
    thread: Filter = None,
    parent: Annotated[models.Name | None, Query(description="Only runs that this run started.")] = None,
    source: Annotated[models.Name | None, Query(description="Only reruns of this run.")] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """Runs, newest first, page by page. Long outputs are with the run itself only."""
    runs = runs_of(request)
    about = ("runs", runs.tenant, state, agent, thread, parent, source)
    query = RunQuery(state, agent, thread, parent, source, limit + 1, place_of(cursor, *about))
    found = await runs.list(query)
    page = [run_as_json(view) for view in found[:limit]]
    return JSONAnswer({"runs": page, "next": _next(found, limit, *about)})


def _next(found: list[RunView], limit: int, *about: Any) -> str | None:
    if len(found) <= limit:
        return None
    last = found[limit - 1].record
    return cursor_of((last.created_at_us, last.id), *about)


@router.get(
    "/v1/runs/{run_id}",
    operation_id="get_run",
    summary="Look at a run",
    response_model=None,
    responses={**_SHOWN, 304: {"description": "It is still at the version that `If-None-Match` names."}},
)
@operation(Scope.RUNS_READ, UnknownRun)
async def get_run(
    request: Request,
    house: House,
    run_id: RunId,
    if_none_match: Annotated[str | None, Header(max_length=200, examples=['"3"'])] = None,
) -> Response:
    """One run: where it stands, what it waits for, what it spent, how many calls it made. The ETag begins with its
    version; calls that move without the run change the rest of it."""
    view = await runs_of(request).get(run_id)
    calls = await house.list(scope=run_id, limit=CALLS_COUNTED_MOST + 1)
    counted = Counter(call.state.value for call in calls) if len(calls) <= CALLS_COUNTED_MOST else None
    tag = _etag(view, calls)
    if if_none_match is not None and tag in (each.strip() for each in if_none_match.split(",")):
        return Response(status_code=304, headers={"ETag": tag})
    return JSONAnswer({**run_as_json(view), "calls": counted}, headers={"ETag": tag})


def _etag(view: RunView, calls: Sequence[RecordedCall] = ()) -> str:
    """The version of the run, and what tells apart how its calls stand: those move without it, as after its end."""
    moved = sum(call.version for call in calls)
    return f'"{view.version}.{moved}"' if moved else f'"{view.version}"'


def _shown(view: RunView) -> Response:
    return JSONAnswer(run_as_json(view), headers={"ETag": _etag(view)})


@router.get(
    "/v1/runs/{run_id}/calls",
    operation_id="list_run_calls",
    summary="List the calls of a run",
    response_model=None,
    responses={200: {"model": run_models.RunCallPage}},
)
@operation(Scope.RUNS_READ, UnknownRun, InvalidCursor)
async def list_run_calls(
    request: Request, house: House, run_id: RunId, limit: Limit = 100, cursor: Cursor = None
) -> Response:
    """What a run called, newest first."""
    await runs_of(request).get(run_id)
    about = ("run calls", house.tenant, run_id)
    found = await house.list(scope=run_id, limit=limit + 1, before=place_of(cursor, *about))
    page = [call_as_json(call) for call in found[:limit]]
    return JSONAnswer({"calls": page, "next": next_of(found, limit, *about)})


# -- people --------------------------------------------------------------------------------------------------------


def _verb(name: str, operation_id: str, summary: str, *more: type[Any]) -> Callable[[Any], Any]:
    """The route of one verb that answers with the run as it stands afterwards."""

    def register(endpoint: Any) -> Any:
        return router.post(
            f"/v1/runs/{{run_id}}/{name}",
            operation_id=operation_id,
            summary=summary,
            response_model=None,
            responses=_SHOWN,
        )(operation(Scope.RUNS_WRITE, *_MOVES, *more)(endpoint))

    return register


@_verb("cancel", "cancel_run", "Stop a run")
async def cancel(
    request: Request,
    by: By,
    run_id: RunId,
    body: Annotated[run_models.Cancelling | None, Body()] = None,
    if_match: IfMatch = None,
) -> Response:
    """Stop a run at once, with its children. What had left is named in its history; what had not is not sent."""
    reason, versions = (body and body.reason) or "", versions_of(if_match)
    return _shown(await runs_of(request).cancel(run_id, by=by.principal, reason=reason, versions=versions))


@_verb("limits", "raise_run_limits", "Raise the limits of a run", InvalidSetting)
async def raise_limits(
    request: Request, by: By, run_id: RunId, body: run_models.LimitsWished, if_match: IfMatch = None
) -> Response:
    """Let a run that stopped at a limit go on, under other limits."""
    limits, versions = _wished(body), versions_of(if_match)
    return _shown(await runs_of(request).raise_limits(run_id, limits, by=by.principal, versions=versions))


@_verb("questions/{question_id}/answer", "answer_question", "Answer a question", UnknownQuestion)
async def answer(
    request: Request,
    by: By,
    run_id: RunId,
    question_id: QuestionId,
    body: run_models.AnswerGiven,
    if_match: IfMatch = None,
) -> Response:
    """Answer a question of a run, which goes on by itself."""
    runs, versions = runs_of(request), versions_of(if_match)
    return _shown(await runs.answer(run_id, question_id, body.text, by=by.principal, versions=versions))


@router.get(
    "/v1/questions",
    operation_id="list_questions",
    summary="List open questions",
    response_model=None,
    responses={200: {"model": run_models.QuestionPage}},
)
@operation(Scope.RUNS_READ, InvalidCursor)
async def list_questions(request: Request, limit: Limit = 100, cursor: Cursor = None) -> Response:
    """What runs ask of people, of at most `limit` runs. A page may hold none: `next` leads on until it is null."""
    runs = runs_of(request)
    about = ("questions", runs.tenant)
    found = await _paused(runs, place_of(cursor, *about))
    looked = found[:LOOKED_AT_MOST]
    asking = [place for place, view in enumerate(looked) if _questions(view)]
    if len(asking) > limit:
        looked = looked[: asking[limit]]
    questions = [question for view in looked for question in _questions(view)]
    return JSONAnswer({"questions": questions, "next": _next(found, len(looked), *about)})


async def _paused(runs: Runs, before: tuple[int, str] | None) -> list[RunView]:
    """Runs that may ask something, newest first; at least one more than is looked at, where there are so many."""
    found: list[RunView] = []
    for state in MAY_ASK:
        found += await runs.list(RunQuery(state=state, limit=LOOKED_AT_MOST + 1, before=before))
    return sorted(found, key=lambda view: (view.record.created_at_us, view.id), reverse=True)


def _questions(view: RunView) -> list[dict[str, Any]]:
    waiting = run_as_json(view)["waiting"]
    about = {
        "run_id": view.id,
        "agent": view.agent,
        "thread": view.record.thread,
        "requested_by": view.record.requested_by,
    }
    return [
        {"id": each["id"], **about, "text": each["text"], "since": each["since"], "until": each["until"]}
        for each in waiting
        if each["kind"] == "answer"
    ]
