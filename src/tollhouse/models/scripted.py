"""Models that follow a script, for demos and tests: no key, no network, the same answer each time.

``book.py`` makes them for names like ``scripted:refunds``. A script is a list of turns or a Python function. Which turn
comes next is read from the request, never from memory, so a run that continues in another process goes on where it was.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from tollhouse.models.failures import CODES, Failure, failure
from tollhouse.models.port import (
    Ask,
    AssistantMessage,
    Json,
    ModelFailed,
    ModelReply,
    ModelRequest,
    OnText,
    RequestAttempt,
)
from tollhouse.models.retry import Answer, Sent
from tollhouse.models.script import Turn
from tollhouse.models.script_text import NoSuchValue, as_text, fill, values_of

Said = ModelReply | str | Sequence[Ask | Json]
ScriptFunction = Callable[[ModelRequest], Said | Awaitable[Said]]
"""Answers a request: a reply, a text, or the calls it asks for, as asks or as ``{"tool": ..., "arguments": ...}``."""

_TURN_IN_KEY = re.compile(r":([1-9][0-9]{0,8})\Z")
_WORDS = re.compile(r"\S+\s*|\s+")
_MOST_COUNTED = 1000
"""Requests whose failures are counted; the oldest are forgotten, and fail anew."""


@dataclass(slots=True)
class ScriptedModel:
    """A model that answers from its turns, as ``retry.py`` asks it."""

    name: str
    turns: tuple[Turn, ...]
    _failed: OrderedDict[tuple[str, int], int] = field(default_factory=OrderedDict, init=False)

    async def send(self, request: ModelRequest, on_text: OnText | None) -> Sent:
        """Answer with the request's turn; see :class:`~tollhouse.models.retry.Sender`."""
        place = self._place(request)
        if place is None:
            return _sent(self.name, failure("model_refused_request", "The script has no turn for this request."))
        turn, started = self.turns[place], time.monotonic()
        await asyncio.sleep(turn.wait_s)
        outcome = self._outcome(turn, place, request)
        if isinstance(outcome, Answer) and on_text is not None:
            await _speak(_pieces(turn, values_of(request.messages)) or _WORDS.findall(outcome.text), on_text)
        return _sent(self.name, outcome, turn, time.monotonic() - started)

    def _place(self, request: ModelRequest) -> int | None:
        """Which turn it is: one whose ``when`` is met, or else the one in the request's place among the others."""
        last = request.messages[-1].text.casefold() if request.messages else ""
        for place, turn in enumerate(self.turns):
            if turn.when is not None and turn.when.casefold() in last:
                return place
        others = [place for place, turn in enumerate(self.turns) if turn.when is None]
        at = _turn_of(request) - 1
        return others[at] if at < len(others) else None

    def _outcome(self, turn: Turn, place: int, request: ModelRequest) -> Answer | Failure:
        if turn.fail is not None and self._still_fails(turn, (request.key, place)):
            return failure(turn.fail, f"The script fails here: {CODES[turn.fail][1]}")
        try:
            return _answer(turn, values_of(request.messages))
        except NoSuchValue as missing:
            return failure("model_refused_request", f"The script names {missing}, which is not there.")

    def _still_fails(self, turn: Turn, which: tuple[str, int]) -> bool:
        if turn.times is None:
            return True
        before = self._failed.get(which, 0)
        self._failed[which] = before + 1
        if len(self._failed) > _MOST_COUNTED:
            self._failed.popitem(last=False)
        return before < turn.times


@dataclass(frozen=True, slots=True)
class FunctionModel:
    """A model that answers by a Python function, as ``retry.py`` asks it.

    :class:`~tollhouse.models.port.ModelFailed` that the function raises is this sending's failure; all else is raised.
    """

    name: str
    function: ScriptFunction

    async def send(self, request: ModelRequest, on_text: OnText | None) -> Sent:
        """Answer with what the function says; see :class:`~tollhouse.models.retry.Sender`."""
        started = time.monotonic()
        try:
            said = self.function(request)
            answer = _answer_of(await said if inspect.isawaitable(said) else said)
        except ModelFailed as failed:
            told = failure(failed.code, failed.cause, transient=failed.transient, retry_after_s=failed.retry_after_s)
            return _sent(self.name, told, took_s=time.monotonic() - started)
        if on_text is not None:
            await _speak(_WORDS.findall(answer.text), on_text)
        return _sent(self.name, answer, took_s=time.monotonic() - started)


def _turn_of(request: ModelRequest) -> int:
    """The run's turn, from 1: as the request's key has it, or else by the answers in its history."""
    named = _TURN_IN_KEY.search(request.key)
    if named:
        return int(named[1])
    return 1 + sum(isinstance(message, AssistantMessage) for message in request.messages)


def _answer(turn: Turn, values: Mapping[str, Any]) -> Answer:
    asks = tuple(_ask_of(fill(call, values)) for call in turn.call)
    text = "".join(_pieces(turn, values)) or as_text(fill(turn.say, values))
    return Answer(text, asks, "calls" if asks else "stop")


def _pieces(turn: Turn, values: Mapping[str, Any]) -> list[str]:
    return [as_text(fill(piece, values)) for piece in turn.stream]


def _answer_of(said: Said) -> Answer:
    if isinstance(said, ModelReply):
        return Answer(said.text, said.asks, said.finish_reason, said.provider)
    if isinstance(said, str):
        return Answer(said, (), "stop")
    asks = tuple(each if isinstance(each, Ask) else _ask_of(each) for each in said)
    return Answer("", asks, "calls" if asks else "stop")


def _ask_of(call: Json) -> Ask:
    """Arguments that are no mapping stand for what a model wrote that is no JSON object."""
    tool, arguments = as_text(call["tool"]), call.get("arguments", {})
    if not isinstance(arguments, Mapping):
        return Ask("", tool, None, raw=as_text(arguments))
    return Ask("", tool, arguments)


async def _speak(pieces: Sequence[str], on_text: OnText) -> None:
    for piece in pieces:
        if piece:
            await on_text(piece)


def _sent(name: str, outcome: Answer | Failure, turn: Turn | None = None, took_s: float = 0.0) -> Sent:
    """The sending as it is recorded: what the script says it cost, and nothing otherwise."""
    tokens, cost = (turn.tokens, turn.cost) if turn else ((0, 0), Decimal(0))
    failed = outcome if isinstance(outcome, Failure) else None
    started_at = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    attempt = RequestAttempt(
        name,
        started_at,
        took_s,
        *tokens,
        0,
        cost,
        failed.code if failed else None,
        failed.cause if failed else None,
    )
    return Sent(attempt, outcome)
