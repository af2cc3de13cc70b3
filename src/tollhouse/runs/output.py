"""Whether a final answer is what the agent's file asks for: its schema, and a second look by a verifier."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from tollhouse.errors import ExtraMissing
from tollhouse.models.port import Model, ModelReply, ModelRequest, RequestAttempt, UserMessage
from tollhouse.runs.agents import Agent, Verifier

PROBLEM_CHARACTERS_MOST = 1000
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


def check_schema(agent: Agent, text: str) -> Verdict:
    """The answer as the agent's schema wants it. Without a schema, any text passes."""
    if agent.output_schema is None:
        return Verdict(text)
    try:
        output = json.loads(_bare(text))
    except ValueError as error:
        return Verdict(problem=f"Your answer is not JSON ({error}). Answer with JSON alone, as the schema says.")
    problems = _problems(agent.output_schema, output)
    if problems:
        return Verdict(problem=f"Your answer does not follow the schema: {problems} Correct it and answer again.")
    return Verdict(output)


def _bare(text: str) -> str:
    """Without the code fence that models put around JSON."""
    fenced = _FENCED.match(text)
    return fenced[1] if fenced else text


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
        said = json.loads(_bare(reply.text))
        passed, problem = bool(said["pass"]), str(said.get("problem") or "The verifier did not pass it.")
    except (ValueError, KeyError, TypeError, AttributeError):
        passed, problem = False, "The verifier gave no verdict."
    return Verdict(problem=None if passed else problem[:PROBLEM_CHARACTERS_MOST], attempts=reply.attempts)
