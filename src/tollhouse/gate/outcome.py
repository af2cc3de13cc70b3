"""What a caller gets back, and what a recorded call answers when it is called again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter

from tollhouse.errors import (
    CallConflict,
    CallFailed,
    CallNotSent,
    Compensated,
    Contradicted,
    Held,
    InDoubt,
    Refused,
    Sent,
    TollhouseError,
)
from tollhouse.gate.results import rebuild
from tollhouse.ledger.record import SETTLED, AttemptOutcome, CallRecord, State
from tollhouse.ledger.store import Store

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Outcome(Generic[R]):
    """What came of a call. ``replayed``: it was recorded before, nothing was sent or billed now.

    ``attempts``: how many sendings it took, those proven not sent included. ``reference``: the receiver's id where one
    is known. ``problem`` None: the value is what the tool returned; else ``not_as_declared`` (the value is not what the
    tool's type says), ``not_storable`` or ``no_space`` (the value could not be kept; the effect stands). ``edited``: a
    person had it run with other arguments than were asked for.
    """

    state: State
    value: R
    key: str
    replayed: bool = False
    attempts: int = 1
    reference: str | None = None
    problem: str | None = None
    problem_detail: str | None = None
    edited: bool = False


def check_same_call(record: CallRecord, tool_name: str, request_digest: str) -> None:
    """Raise :class:`CallConflict` unless the key was used for this tool with these arguments."""
    if record.tool != tool_name:
        raise CallConflict(f"The key {record.key} belongs to a call of {record.tool}.", key=record.key)
    if record.request_digest != request_digest:
        raise CallConflict(f"The key {record.key} belongs to a call with other arguments.", key=record.key)


async def outcome_of(
    record: CallRecord, store: Store, adapter: TypeAdapter[Any] | None, *, replayed: bool
) -> Outcome[Any]:
    """The outcome of a call that succeeded or was accepted; otherwise raises what its state means."""
    if record.contradicted or record.state not in (State.SUCCEEDED, State.ACCEPTED):
        error = error_of(record)
        error.replayed = replayed
        raise error
    value = await rebuild(record, store, adapter)
    return made(record, value, replayed=replayed)


def made(record: CallRecord, value: Any, *, replayed: bool) -> Outcome[Any]:
    """The outcome with a value that is at hand."""
    stored = record.result
    return Outcome(
        state=record.state,
        value=value,
        key=record.key,
        replayed=replayed,
        attempts=len(record.attempts),
        reference=_reference(record),
        problem=stored.problem if stored else None,
        problem_detail=stored.detail if stored else None,
        edited=record.digest != record.request_digest,
    )


def error_of(record: CallRecord, cause: BaseException | None = None) -> TollhouseError:
    """The error that a call in this state answers with; ``cause`` is the tool's own exception where it is at hand."""
    error = _error_of(record)
    error.__cause__ = cause
    return error


def _error_of(record: CallRecord) -> TollhouseError:
    key, sent = record.key, sent_of(record)
    if record.contradicted:
        return Contradicted(f"The records about {key} contradict each other.", key=key)
    why = _why(record)
    match record.state:
        case State.HELD:
            return Held(f"{key} waits for people{_because(record)}.", key=key, sent=sent)
        case State.REFUSED:
            return Refused(f"{key} was refused: {why}", key=key, sent=sent)
        case State.FAILED:
            return CallFailed(f"{key} failed: {why}", key=key, sent=sent)
        case State.COMPENSATED:
            return Compensated(f"{key} took effect and was undone by {record.compensated_by}.", key=key)
        case State.READY if sent != "no":  # a read that was abandoned, or a call before its next round
            return CallFailed(f"{key} may go again: {why}", key=key, sent=sent, remedy=CallNotSent.default_remedy)
        case State.READY:
            return CallNotSent(f"{key} was not sent: {why}", key=key, sent=sent)
        case _:
            return InDoubt(f"The outcome of {key} is unknown: {why}", key=key)


def sent_of(record: CallRecord) -> Sent:
    """Whether anything of this call left: the strongest word of all its attempts."""
    outcomes = [a.outcome for a in record.attempts]
    if any(outcome not in (AttemptOutcome.NOT_SENT, AttemptOutcome.UNKNOWN, None) for outcome in outcomes):
        return "yes"
    doubted = any(outcome in (AttemptOutcome.UNKNOWN, None) for outcome in outcomes)
    return "maybe" if doubted and record.state not in SETTLED else "yes" if doubted else "no"


def _because(record: CallRecord) -> str:
    if record.repeat_of is not None:
        return f": it repeats {record.repeat_of}"
    return f": {record.approval.reason}" if record.approval is not None else ""


def _why(record: CallRecord) -> str:
    error = record.error
    if error is None:
        return "its owner was lost before it could say." if record.state is State.IN_DOUBT else "no reason recorded."
    text = f"{error['type']}: {error['message']}" if error.get("type") else str(error.get("message"))
    return text if text.endswith(".") else f"{text}."


def _reference(record: CallRecord) -> str | None:
    for settlement in reversed(record.settlements):
        if settlement.reference:
            return settlement.reference
    return next((a.reference for a in reversed(record.attempts) if a.reference), None)
