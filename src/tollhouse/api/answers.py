"""What a call answers with: 200 where it is settled, 202 where it is not yet, a problem where there is no call.

A call that failed or was refused is settled, so its answer is 200 with that state and the error beside it: a client
that sends the same key again gets the same answer, whatever it was.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any
from urllib.parse import quote

from starlette.responses import Response

from tollhouse.api.json_text import JSONAnswer
from tollhouse.errors import (
    CallFailed,
    CallInFlight,
    CallNotSent,
    Compensated,
    Held,
    InDoubt,
    Refused,
    ResultPurged,
    TollhouseError,
)
from tollhouse.gate.outcome import Outcome
from tollhouse.house import Tollhouse
from tollhouse.house.as_json import outcome_as_json
from tollhouse.ledger.record import SETTLED, State

REPLAYED = "Idempotent-Replayed"

_WAITS: tuple[tuple[type[TollhouseError], State, int], ...] = (
    (Held, State.HELD, 15),
    (CallInFlight, State.DEPARTED, 1),
    (InDoubt, State.IN_DOUBT, 5),
)
"""Errors that mean "not settled yet": the state, and after how many seconds it is worth looking again."""

_ACCEPTED_AGAIN_S = 5


async def answer(house: Tollhouse, call: Awaitable[Outcome[Any]]) -> Response:
    """Await the call and say what became of it. Errors that are no answer about a call are raised on."""
    try:
        outcome = await call
    except TollhouseError as error:
        return await _answer_of(house, error)
    shown = {**outcome_as_json(outcome), "error": None}
    if outcome.state is State.ACCEPTED:
        return _waiting(shown, _ACCEPTED_AGAIN_S)
    return JSONAnswer(shown, headers={REPLAYED: "true"} if outcome.replayed else None)


async def _answer_of(house: Tollhouse, error: TollhouseError) -> Response:
    for kind, state, again_s in _WAITS:
        if isinstance(error, kind) and error.key is not None:
            return _waiting(_shown(error, state), again_s)
    if (state_now := await _settled_as(house, error)) is None:
        raise error
    shown = _shown(error, state_now)
    if isinstance(error, ResultPurged):
        shown["result_problem"] = "purged"
    return JSONAnswer(shown, headers={REPLAYED: "true"} if error.replayed else None)


async def _settled_as(house: Tollhouse, error: TollhouseError) -> State | None:
    """The settled state that the error tells of. None: it tells of none, as a denial that nothing recorded."""
    if isinstance(error, Compensated):
        return State.COMPENSATED
    if isinstance(error, ResultPurged):
        return State.SUCCEEDED
    if not isinstance(error, Refused | CallFailed) or isinstance(error, CallNotSent) or error.key is None:
        return None
    record = await house.store.get(house.tenant, error.key)
    return record.state if record is not None and record.state in SETTLED else None


def _shown(error: TollhouseError, state: State) -> dict[str, Any]:
    return {
        "key": error.key,
        "state": state.value,
        "result": None,
        "result_problem": None,
        "result_detail": None,
        "replayed": error.replayed,
        "attempts": None,
        "reference": None,
        "error": {"code": error.code, "cause": error.cause, "remedy": error.remedy, "sent": error.sent},
    }


def _waiting(shown: dict[str, Any], again_s: int) -> Response:
    headers = {"Location": call_path(shown["key"]), "Retry-After": str(again_s)}
    return JSONAnswer(shown, 202, headers)


def call_path(key: str) -> str:
    """Where a call can be looked at."""
    return f"/v1/calls/{quote(key, safe=':@')}"
