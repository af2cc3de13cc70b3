"""What a run offers its model beside tools: asking a person, and waiting. Neither leaves the house.

So neither is a call, but both are asks like any other: they have a key, they wait as siblings of calls do, and each
gets its answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from tollhouse.models.port import Ask, ToolSpec
from tollhouse.runs.agents import Agent
from tollhouse.runs.body import Waiting
from tollhouse.runs.results import Result

ASK_PERSON = "ask_person"
WAIT = "wait"
NAMES = frozenset({ASK_PERSON, WAIT})

WAIT_S_MOST = 366 * 86_400
QUESTION_CHARACTERS_MOST = 10_000
_US = 1_000_000

_SPECS = {
    ASK_PERSON: ToolSpec(
        ASK_PERSON,
        "Ask a person a question and wait for the answer. Use it when only a person can know or decide.",
        {
            "type": "object",
            "properties": {"question": {"type": "string", "minLength": 1, "maxLength": QUESTION_CHARACTERS_MOST}},
            "required": ["question"],
            "additionalProperties": False,
        },
    ),
    WAIT: ToolSpec(
        WAIT,
        "Wait for a number of seconds, minutes or days given in seconds, before going on.",
        {
            "type": "object",
            "properties": {"seconds": {"type": "number", "exclusiveMinimum": 0, "maximum": WAIT_S_MOST}},
            "required": ["seconds"],
            "additionalProperties": False,
        },
    ),
}


def offered(agent: Agent) -> tuple[ToolSpec, ...]:
    """Those of them that the agent may use."""
    allowed = ((ASK_PERSON, agent.questions), (WAIT, agent.timers))
    return tuple(_SPECS[name] for name, is_allowed in allowed if is_allowed)


def settle(ask: Ask, agent: Agent, answers: Mapping[str, Any], known: Waiting | None, now_us: int) -> Result | Waiting:
    """The answer to such an ask, or what it waits for. ``known``: what it was found to wait for before."""
    if ask.tool not in {spec.name for spec in offered(agent)}:
        return Result(ask.key, ask.tool, f"This agent has no {ask.tool}.", failed=True, code="tool_not_allowed")
    return _question(ask, agent, answers, known, now_us) if ask.tool == ASK_PERSON else _wait(ask, known, now_us)


def _question(
    ask: Ask, agent: Agent, answers: Mapping[str, Any], known: Waiting | None, now_us: int
) -> Result | Waiting:
    if ask.key in answers:
        return _answered(ask, answers)
    text = (ask.arguments or {}).get("question")
    if not isinstance(text, str) or not 1 <= len(text) <= QUESTION_CHARACTERS_MOST:
        return _wrong(ask, f"`question` must be 1 to {QUESTION_CHARACTERS_MOST:,} characters of text.")
    until_us = now_us + round(agent.question_expires_s * _US)
    waiting = known or Waiting("answer", ask.key, now_us, until_us, text)
    if waiting.until_us is not None and now_us >= waiting.until_us:
        return Result(ask.key, ask.tool, "Nobody answered in time.", failed=True, code="question_expired")
    return waiting


def after_all(result: Result, answers: Mapping[str, Any]) -> Result:
    """The same, unless a person answered in the very moment in which the question expired."""
    return _answered(result, answers) if result.key in answers else result


def _answered(asked: Ask | Result, answers: Mapping[str, Any]) -> Result:
    return Result(asked.key, asked.tool, answers[asked.key]["text"])


def _wait(ask: Ask, known: Waiting | None, now_us: int) -> Result | Waiting:
    seconds = (ask.arguments or {}).get("seconds")
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 < seconds <= WAIT_S_MOST:
        return _wrong(ask, f"`seconds` must be a number above 0, {WAIT_S_MOST:,} at most.")
    until_us = now_us + round(seconds * _US)
    waiting = known or Waiting("time", ask.key, now_us, until_us, f"waits until {_moment(until_us)}")
    if waiting.until_us is not None and now_us >= waiting.until_us:
        return Result(ask.key, ask.tool, f"It is {_moment(now_us)} now.")
    return waiting


def _wrong(ask: Ask, cause: str) -> Result:
    return Result(ask.key, ask.tool, cause, failed=True, code="invalid_arguments")


def _moment(at_us: int) -> str:
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at_us)
    return at.isoformat(timespec="seconds").replace("+00:00", "Z")
