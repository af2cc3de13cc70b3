"""Answers to the interrupts of an AG-UI run: each goes to the one call, question or limit that its id names.

An answer says yes or no, or a text. It carries no tool and no arguments: what runs is the stored call, and only with
the arguments that the id was made of. The same answer again changes nothing.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from ag_ui.core import ResumeEntry, RunAgentInput
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError
from starlette.requests import Request

from tollhouse.api import models
from tollhouse.api.ag_ui import ASKED, DIGEST_CHARACTERS, limit_id
from tollhouse.api.problems import invalid
from tollhouse.api.route import house_of
from tollhouse.api.streams import runs_of
from tollhouse.errors import InvalidRequest, PreconditionFailed, UnknownCall, UnknownQuestion
from tollhouse.gate.view import RecordedCall
from tollhouse.house import Tollhouse
from tollhouse.ledger.events import Event
from tollhouse.ledger.record import State
from tollhouse.ledger.run_record import RunRecord
from tollhouse.runs.service import Runs
from tollhouse.runs.states import RunEvent

DISMISSED = "The question was dismissed."
DECLINED = "The person declined to answer."

_ID = re.compile(
    r"(?P<run>run_[0-9a-z]{1,60}):"
    rf"(?:limit:(?P<limit>[0-9]{{1,15}})|(?P<ask>[0-9]{{1,9}}\.[0-9]{{1,9}})(?P<digest>/[0-9a-f]{{{DIGEST_CHARACTERS}}})?)"
)


class Resumed(NamedTuple):
    """The run that a request is about, and the place in its journal after which its events are the answer."""

    record: RunRecord
    place: int


class _Approval(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    approved: bool
    reason: models.OptionalReason | None = None


class _Answered(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    answer: str = Field(min_length=1)


class _Limits(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    limits: dict[str, JsonValue]


class _Entry(NamedTuple):
    """One answer: what it is about, and what it says. ``said`` None: the question was dismissed."""

    id: str
    run_id: str
    kind: str
    key: str
    digest: str
    said: _Approval | _Answered | _Limits | None


async def resume(request: Request, body: RunAgentInput, by: str) -> Resumed:
    """Give every answer to what it is about; durable on return. All are checked before the first is given.

    Raises :class:`InvalidRequest`, :class:`UnknownRun`, :class:`UnknownCall`, :class:`UnknownQuestion`,
    :class:`PreconditionFailed` for arguments that changed since, and what approving, denying and answering raise.
    """
    runs, house = runs_of(request), house_of(request)
    entries = [_entry(each) for each in body.resume or ()]
    if len({entry.run_id for entry in entries}) != 1:
        raise InvalidRequest("The answers are for several runs.", path="resume", remedy="Answer one run at a time.")
    record = (await runs.get(entries[0].run_id)).record
    if record.thread != body.thread_id:
        raise InvalidRequest("The interrupts are of another thread.", path="threadId")
    journal = await _journal(runs, record.id)
    asked = _asked(entries, journal)
    calls = {entry.id: await _call(house, entry) for entry in entries if entry.kind == "approval"}
    for entry in entries:
        match entry.kind:
            case "approval":
                await _decide(house, calls[entry.id], entry, by)
            case "answer":
                await _answer(runs, entry, journal, by)
            case _:
                await _raise_limits(runs, entry, journal, by)
    return Resumed(record, asked - 1)  # where votes are missing still, it is asked again


def _entry(given: ResumeEntry) -> _Entry:
    found = _ID.fullmatch(given.interrupt_id)
    if found is None:
        raise InvalidRequest(
            f"interruptId {given.interrupt_id[:80]!a} is no interrupt of a run.",
            path="resume.interruptId",
            remedy="Send the id of the interrupt whole, as RUN_FINISHED had it.",
        )
    kind = "limit" if found["limit"] else "approval" if found["digest"] else "answer"
    said = None if given.status == "cancelled" else _payload(kind, given.payload)
    key = "" if found["limit"] else f"{found['run']}:{found['ask']}"
    return _Entry(given.interrupt_id, found["run"], kind, key, (found["digest"] or "/")[1:], said)


def _payload(kind: str, payload: Any) -> Any:
    given = {"answer": payload} if kind == "answer" and isinstance(payload, str) else payload
    try:
        return _PAYLOADS[kind].model_validate(given)
    except ValidationError as error:
        mistakes = error.errors(include_url=False, include_input=False, include_context=False)
        for mistake in mistakes:
            mistake["loc"] = ("resume", "payload", *mistake["loc"])
        raise invalid(mistakes) from None


_PAYLOADS: dict[str, type[BaseModel]] = {"approval": _Approval, "answer": _Answered, "limit": _Limits}


async def _journal(runs: Runs, run_id: str) -> list[Event]:
    events: list[Event] = []
    while page := await runs.events(run_id, len(events)):
        events += page
    return events


def _asked(entries: list[_Entry], journal: list[Event]) -> int:
    """Where the run last asked any of this. Raises :class:`UnknownQuestion` for what it never asked."""
    last: dict[tuple[str, str], int] = {}
    for event in journal:
        if event.kind == RunEvent.LIMIT_REACHED:
            last["limit", limit_id(event.stream.removeprefix("run:"), event.seq)] = event.seq
        elif event.kind == RunEvent.WAITING:
            waiting = event.facts.get("waiting", ())  # none where it was erased
            last |= {(each["kind"], each["id"]): event.seq for each in waiting if each["kind"] in ASKED}
    for entry in entries:
        if (entry.kind, entry.key or entry.id) not in last:
            cut = ("approval", entry.key) in last
            hint = " The id lacks its end, which has the digest of what was asked." if cut else ""
            raise UnknownQuestion(f"The run {entry.run_id} never asked {entry.id}.{hint}")
    return max(last[entry.kind, entry.key or entry.id] for entry in entries)


# -- approvals ----------------------------------------------------------------------------------------------------


async def _call(house: Tollhouse, entry: _Entry) -> RecordedCall:
    """The stored call, if it is still the one that was shown."""
    call = await house.get(entry.key)
    if call.raw.scope != entry.run_id:
        raise UnknownCall(f"{entry.key} is no call of {entry.run_id}.", key=entry.key)
    if not call.digest.startswith(entry.digest):
        raise PreconditionFailed(
            f"The arguments of {entry.key} were changed since they were shown.",
            remedy="Look at the call, and answer the interrupt that shows them as they are now.",
            key=entry.key,
        )
    return call


async def _decide(house: Tollhouse, call: RecordedCall, entry: _Entry, by: str) -> None:
    said = entry.said
    approved = isinstance(said, _Approval) and said.approved
    reason = said.reason if isinstance(said, _Approval) else DISMISSED
    if call.state is not State.HELD and await _said_before(house, call, approved, by):
        return
    if approved:
        if call.approval is None or all(vote.by != by for vote in call.approval.votes):
            await house.approve(call.key, by=by, reason=reason, digest=call.digest)
    else:
        await house.deny(call.key, by=by, reason=reason or "Denied, without a reason.")


async def _said_before(house: Tollhouse, call: RecordedCall, approved: bool, by: str) -> bool:
    """Whether this person gave the same answer already."""
    if approved:
        return call.approval is not None and any(vote.by == by for vote in call.approval.votes)
    events = await house.store.events(house.tenant, f"call:{call.key}")
    return any(event.kind == "denied" and event.facts.get("by") == by for event in events)


# -- questions and limits -----------------------------------------------------------------------------------------


async def _answer(runs: Runs, entry: _Entry, journal: list[Event], by: str) -> None:
    text = entry.said.answer if isinstance(entry.said, _Answered) else DECLINED
    for event in journal:
        if event.kind == RunEvent.QUESTION_ANSWERED and event.facts.get("id") == entry.key:
            said = await runs.facts(event)
            if (said["text"], said["by"]) == (text, by):
                return
            raise UnknownQuestion(f"{entry.key} was answered already, by {said['by']}.")
    await runs.answer(entry.run_id, entry.key, text, by=by)


async def _raise_limits(runs: Runs, entry: _Entry, journal: list[Event], by: str) -> None:
    after = int(entry.id.rpartition(":")[2])
    if any(each.kind == RunEvent.LIMITS_RAISED and each.seq > after for each in journal):
        return
    if isinstance(entry.said, _Limits):
        await runs.raise_limits(entry.run_id, entry.said.limits, by=by)
    else:
        await runs.cancel(entry.run_id, by=by, reason=DISMISSED)
