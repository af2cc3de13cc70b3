"""Whether a final answer is what the agent's file asks for: its schema, and a second look by a verifier."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from typing import Any

from tollhouse.errors import ExtraMissing
from tollhouse.models.port import Model, ModelReply, ModelRequest, RequestAttempt, UserMessage
from tollhouse.runs.agents import Agent, Verifier
from tollhouse.runs.results import readable

PROBLEM_CHARACTERS_MOST = 1000
CUT = "Your answer was cut off at its greatest length. Answer again, shorter."
DECLINED = "model_declined", "The model declined to answer."
"""Code and cause of a run that ends so."""

DEPTH_MOST = 100
"""Lists and mappings in one another."""
_FENCED = re.compile(r"\A\s*```[a-zA-Z]*\n(.*)\n```\s*\Z", re.DOTALL)

VERDICT_SCHEMA = {
    "type": "object",
    "properties": {"pass": {"type": "boolean"}, "problem": {"type": "string"}},
    "required": ["pass"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """``problem`` None: it passed, and ``output`` is the answer as it will be kept."""

    output: Any = None
    problem: str | None = None
    attempts: tuple[RequestAttempt, ...] = ()


def check_schema(agent: Agent, text: str, *, cut: bool = False) -> Verdict:
    """The answer as the agent's schema wants it. Without a schema, any text passes that was not ``cut`` off."""
    if cut:
        return Verdict(problem=CUT)
    if agent.output_schema is None:
        return Verdict(text)
    try:
        output = _json_in(text)
    except ValueError as error:
        return Verdict(problem=f"Your answer is not JSON ({error}). Answer with JSON alone, as the schema says.")
    problems = _problems(agent.output_schema, output)
    if problems:
        return Verdict(problem=f"Your answer does not follow the schema: {problems} Correct it and answer again.")
    return Verdict(output)


def _json_in(text: str) -> Any:
    """The JSON of an answer, without the code fence that models put around it.

    Raises :class:`ValueError` for what Python reads and JSON does not know, and for what is nested too deeply.
    """
    fenced = _FENCED.match(text)
    try:
        value = json.loads(fenced[1] if fenced else text, parse_constant=_no_number, parse_float=_finite)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    layer = [value]
    for _ in range(DEPTH_MOST):
        layer = [inner for each in layer for inner in _inside(each)]
    if layer:
        raise ValueError("nested too deeply")
    return json.loads(readable(json.dumps(value, ensure_ascii=False)))


def _inside(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _finite(text: str) -> float:
    number = float(text)
    return number if isfinite(number) else _no_number(text)


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no number")


def _problems(schema: Any, output: Any) -> str:
    try:
        import jsonschema_rs
    except ImportError:
        raise ExtraMissing("Checking an answer against a schema needs the extra `server`.") from None
    found = [
        f"{'/'.join(map(str, error.instance_path)) or 'it'}: {error.message}."
        for error in jsonschema_rs.validator_for(schema).iter_errors(output)
    ]
    return " ".join(found)[:PROBLEM_CHARACTERS_MOST]


async def verify(model: Model, verifier: Verifier, question: str, answer: str, key: str) -> Verdict:
    """Ask the verifier. An answer of its that cannot be read counts as a problem: nothing passes unseen.

    Raises :class:`ModelFailed`.
    """
    request = ModelRequest(
        model=verifier.model,
        instructions=f'{verifier.instructions}\n\nAnswer with JSON: {{"pass": true}} or '
        '{"pass": false, "problem": "what is wrong"}.',
        messages=(UserMessage(f"The task:\n{question}\n\nThe answer to check:\n{answer}"),),
        output_schema=VERDICT_SCHEMA,
        key=key,
    )
    reply = await model.ask(request)
    return _verdict(reply)


def _verdict(reply: ModelReply) -> Verdict:
    try:
        said = _json_in(reply.text)
        passed, problem = said["pass"] is True, str(said.get("problem") or "The verifier did not pass it.")
    except (ValueError, KeyError, TypeError, AttributeError):
        passed, problem = False, "The verifier gave no verdict."
    return Verdict(problem=None if passed else problem[:PROBLEM_CHARACTERS_MOST], attempts=reply.attempts)


def most_rejections(agent: Agent, check: str) -> tuple[int, str]:
    """How often ``check`` (schema or verifier) may reject an answer, and the code of a run that it rejects again."""
    if check == "verifier" and agent.verifier is not None:
        return agent.verifier.rounds, "output_rejected"
    return agent.output_repairs, "output_invalid"
