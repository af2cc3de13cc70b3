"""``GET /v1/runs/{id}/events``: a run's journal as server-sent events, what is stored first and then what comes.

The ``id`` of an event is its ``seq``, so ``Last-Event-ID`` is the place after which a reader goes on. Nothing is lost
or sent twice where stored and live meet, since both are the journal, read by number.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Path, Query
from fastapi.responses import Response
from pydantic import AfterValidator
from starlette.requests import Request
from starlette.types import Message, Receive, Send
from starlette.types import Scope as ASGIScope

from tollhouse.api import run_models
from tollhouse.api.feeds import Answer, Feeds
from tollhouse.api.json_text import write_json
from tollhouse.api.route import Route, authenticate, operation, operation_of
from tollhouse.errors import InvalidCursor, RunPurged, StoreUnavailable, TollhouseError, UnknownRun
from tollhouse.house.access import Scope
from tollhouse.ledger.run_record import RunRecord
from tollhouse.runs.body import body_of
from tollhouse.runs.journal import check_not_purged
from tollhouse.runs.service import Runs

router = APIRouter(route_class=Route, tags=["runs"])

EVENT_STREAM = "text/event-stream"
HEARTBEAT_S = 15.0
"""After so long without news a comment is sent, so that nobody on the way takes the connection for dead."""
RECONNECT_MS = 2000
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
CURSOR_PATTERN = r"^((run_[0-9a-z]{1,60}/)?[0-9]{1,15})?$"
_CURSOR = re.compile(r"(?:(?P<run>run_[0-9a-z]{1,60})/)?(?P<seq>[0-9]{1,15})")
_HEARTBEAT = b": nothing new\n\n"


def _may_be_a_run(name: str) -> str:
    """The name, where a store can be asked for it. Raises :class:`UnknownRun`."""
    if not (name.isascii() and name.isprintable()):
        raise UnknownRun("No run has such an id.")
    return name


RunId = Annotated[
    str,
    AfterValidator(_may_be_a_run),
    Path(description="The id of the run.", examples=["run_06fg0c8t3s7kx9q2m4n5p6r7v8"]),
]
Format = Annotated[
    Literal["events", "ag-ui"],
    Query(description="`events`: the journal as it is; `ag-ui`: as events of the AG-UI protocol."),
]
LastEventId = Annotated[
    str | None,
    Header(
        max_length=100,
        description="Go on after this `seq`: the `id` of the last event that was received.",
        examples=["7"],
        json_schema_extra={"pattern": CURSOR_PATTERN},
    ),
]
After = Annotated[
    str | None,
    Query(
        max_length=100,
        description="The same as `Last-Event-ID`, which goes before it.",
        examples=["7"],
        json_schema_extra={"pattern": CURSOR_PATTERN},
    ),
]

Emit = Callable[[bytes], Awaitable[None]]


@router.get(
    "/v1/runs/{run_id}/events",
    operation_id="stream_run",
    summary="Follow a run",
    response_model=None,
    responses={
        200: {
            "description": "Server-sent events: `id` is the `seq`, `event` the kind, `data` the event as JSON. "
            "Pieces of a model's answer come as `event: text`, without an id. The stream ends with the run.",
            "content": {EVENT_STREAM: {"schema": run_models.EVENT_SCHEMA, "example": run_models.EVENT_EXAMPLE}},
        },
        204: {"description": "The run has ended, and everything was received: do not reconnect."},
    },
)
@operation(Scope.RUNS_READ, UnknownRun, RunPurged, InvalidCursor)
async def stream_run(
    request: Request,
    run_id: RunId,
    format: Format = "events",
    last_event_id: LastEventId = None,
    after: After = None,
) -> Response:
    """What happened to a run since the place named, then what happens, until it ends.

    Reconnect with the last `id` as `Last-Event-ID`. A place beyond the end, or of another run, is refused.
    """
    runs = runs_of(request)
    record = (await runs.get(run_id)).record
    place = place_in(record, last_event_id or after)
    is_purged = body_of(record).purged_at_us is not None
    last = record.head_seq - is_purged  # whoever has all but the note of the purge misses nothing
    if record.finished and record.due_at_us is None and place >= last:
        return Response(status_code=204)
    check_not_purged(record)
    if format == "ag-ui":
        from tollhouse.api.ag_ui_stream import follow as follow_as_ag_ui

        return EventStream(request, lambda emit: follow_as_ag_ui(request, record, place, emit))
    return EventStream(request, lambda emit: _follow(request, record, place, emit))


def runs_of(request: Request) -> Runs:
    """The runs that are served."""
    runs: Runs = request.app.state.runs
    return runs


def feeds_of(request: Request) -> Feeds:
    """The followers of this server."""
    state = request.app.state
    if not hasattr(state, "feeds"):
        state.feeds = Feeds(state.runs, state.stopping)
    feeds: Feeds = state.feeds
    return feeds


def place_in(record: RunRecord, cursor: str | None) -> int:
    """The number after which a reader goes on. Raises :class:`InvalidCursor` for one that is not of this run."""
    if not cursor:
        return 0
    found = _CURSOR.fullmatch(cursor.strip())
    if found is None:
        raise InvalidCursor("Last-Event-ID is not the id of an event.", remedy="Send the `id` as it was received.")
    if found["run"] is not None and found["run"] != record.id:
        raise InvalidCursor("Last-Event-ID is of another run.", remedy="Send the last `id` that this run's stream had.")
    if int(found["seq"]) > record.head_seq:
        raise InvalidCursor(
            f"Last-Event-ID is beyond the end: {record.id} has {record.head_seq} events.",
            remedy="Begin without Last-Event-ID, and tell apart what is known by `seq`.",
        )
    return int(found["seq"])


class _NotWelcome(Exception):
    """The caller's key does not open this any more."""


class EventStream(Response):
    """A response that ``write`` makes as it goes, until the client goes away or its key opens this no more."""

    media_type = EVENT_STREAM

    def __init__(self, request: Request, write: Callable[[Emit], Awaitable[None]]) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._write, self._request = write, request
        self._asked_s = time.monotonic()

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        """Send it."""

        async def emit(piece: bytes) -> None:
            await self._check_welcome()
            await send({"type": "http.response.body", "body": piece, "more_body": True})

        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        work = asyncio.ensure_future(self._write(emit))
        gone = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (work, gone):
                task.cancel()
            ended = await asyncio.gather(work, gone, return_exceptions=True)
        if isinstance(ended[0], Exception) and not isinstance(ended[0], _NotWelcome):
            raise ended[0]
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _check_welcome(self) -> None:
        """Ask again, every now and then, who reads: streams live longer than some keys, however much they have to say.

        Raises :class:`_NotWelcome`.
        """
        if time.monotonic() - self._asked_s < HEARTBEAT_S:
            return
        self._asked_s = time.monotonic()
        declared = operation_of(self._request.scope["route"].endpoint)
        try:
            await authenticate(self._request, declared.scope or Scope.RUNS_READ)
        except StoreUnavailable:
            return
        except TollhouseError:
            raise _NotWelcome from None


async def _gone(receive: Receive) -> None:
    message: Message = {"type": ""}
    while message["type"] != "http.disconnect":
        message = await receive()


async def _follow(request: Request, record: RunRecord, place: int, emit: Emit) -> None:
    """Send everything after ``place``, until the run has ended, the server stops, or the key is not valid any more."""
    heard = Answer(0, 0, "")
    await emit(f"retry: {RECONNECT_MS}\n\n".encode())
    async with feeds_of(request).of(record) as feed:
        while not feed.closed:
            news = feed.news
            while (joined := await feed.joined(place)).sent:
                await emit(joined.sent)
                place = joined.last
            if feed.complete and place >= feed.head:
                return
            if place <= feed.head:
                heard = await _speak(feed.answer, heard, emit)
            await rest(news, emit)


async def rest(news: asyncio.Event, emit: Emit) -> None:
    """Wait for news, with heartbeats."""
    while True:
        try:
            async with asyncio.timeout(HEARTBEAT_S):
                await news.wait()
            return
        except TimeoutError:
            await emit(_HEARTBEAT)


async def _speak(answer: Answer, heard: Answer, emit: Emit) -> Answer:
    """Send what came to the model's answer since."""
    at = len(heard.text) if heard.number == answer.number else 0
    if len(answer.text) > at:
        piece: dict[str, Any] = {"turn": answer.turn, "at": at, "text": answer.text[at:]}
        await emit(b"event: text\ndata: " + write_json(piece) + b"\n\n")
    return answer
