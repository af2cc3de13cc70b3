"""Streams of AG-UI events: of a whole run, for whoever watches it, or of what one request began or answered."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ag_ui.core import BaseEvent
from starlette.requests import Request

from tollhouse.api.ag_ui import ASKED, NOTHING_ASKED, Asked, Projection, encoded
from tollhouse.api.feeds import Line, line_of, patiently
from tollhouse.api.route import house_of
from tollhouse.api.streams import Emit, feeds_of, rest, runs_of
from tollhouse.ledger.record import CallRecord, State
from tollhouse.ledger.run_record import RunRecord
from tollhouse.runs.states import RunEvent, RunState


async def follow(request: Request, record: RunRecord, place: int, emit: Emit) -> None:
    """Send what comes after ``place``, until the run has ended: an AG-UI run for each stretch without questions."""
    projection = Projection(record)
    await fold(request, record, projection, place)
    await emit(b": open\n\n")
    await stream(request, record, projection, place, emit, numbered=True)


async def fold(request: Request, record: RunRecord, projection: Projection, place: int) -> None:
    """Bring a projection to a place without sending anything."""
    runs, after = runs_of(request), 0
    while after < place and (events := await patiently(partial(runs.events, record.id, after))):
        for event in events:
            if event.seq <= place:
                line = await patiently(partial(line_of, runs, event))
                projection.take(line, await patiently(partial(_asked, request, line)))
        after = events[-1].seq


async def stream(
    request: Request, record: RunRecord, projection: Projection, place: int, emit: Emit, *, numbered: bool
) -> None:
    """Send what comes after ``place``.

    ``numbered``: of the whole run, the same for everybody, with ids. Else for whoever began or answered it: until it
    asks what nobody has answered, or ends.
    """
    async with feeds_of(request).of(record) as feed:
        while not feed.closed:
            news = feed.news
            while lines := await feed.lines(place):
                for line in lines:
                    place = line.event.seq
                    ask = partial(_asked, request) if numbered else partial(_asked_still, request, record)
                    asked = await patiently(partial(ask, line))
                    await _send(projection.take(line, asked), emit, place if numbered else None)
                    if not numbered and projection.run_id is None:
                        return
            if feed.complete and place >= feed.head:
                return
            if place <= feed.head:
                await _send(projection.hear(feed.answer), emit)
            await rest(news, emit)


async def _send(made: Sequence[BaseEvent], emit: Emit, seq: int | None = None) -> None:
    """Send events; the last of a line carries its number."""
    if made:
        last = len(made) - 1
        await emit(b"".join(encoded(event, seq if number == last else None) for number, event in enumerate(made)))


async def _asked(request: Request, line: Line) -> Asked:
    """The digests of the arguments of the calls that the line says wait for approval, as they stand."""
    calls = await _held(request, line)
    return Asked({call.key: call.digest for call in calls}) if calls else NOTHING_ASKED


async def _asked_still(request: Request, record: RunRecord, line: Line) -> Asked:
    """The same, and whether all that the line asks is still open: whoever has answered is not asked again."""
    if line.event.kind not in (RunEvent.WAITING, RunEvent.LIMIT_REACHED):
        return NOTHING_ASKED
    calls, now = await _held(request, line), await runs_of(request).get(record.id)
    if line.event.kind == RunEvent.LIMIT_REACHED:  # whatever is written after it ends the question
        return Asked({}, is_open=now.record.head_seq == line.event.seq)
    answerable = {each.id for each in now.waiting}
    asked = {each["id"] for each in line.facts.get("waiting", ()) if each["kind"] in ASKED}
    is_held = all(call.state is State.HELD for call in calls)
    is_open = asked <= answerable and is_held and now.state is not RunState.LIMIT_REACHED
    return Asked({call.key: call.digest for call in calls}, is_open)


async def _held(request: Request, line: Line) -> list[CallRecord]:
    """The calls that the line says wait for approval."""
    if line.event.kind != RunEvent.WAITING:
        return []
    house = house_of(request)
    keys = [each["id"] for each in line.facts.get("waiting", ()) if each["kind"] == ASKED[0]]
    found = [await house.store.get(house.tenant, key) for key in keys]
    return [call for call in found if call is not None]
