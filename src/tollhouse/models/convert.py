"""Our messages as the provider layer wants them, and its answers as ours. Nothing here sends anything.

``wire.py`` calls it. The history it writes is valid for every provider whatever was recorded: it begins and ends with
what somebody said to the model, every call has exactly one result right after it, under an id minted from its key.

This module imports the provider layer, which takes about a second; only ``wire.py`` may import it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic_ai.messages import (
    InstructionPart,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequestPart,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.messages import ModelRequest as Said
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.tools import ToolDefinition

from tollhouse.models.names import WireIds, WireNames
from tollhouse.models.port import (
    Ask,
    AssistantMessage,
    FinishReason,
    Json,
    Message,
    ModelRequest,
    ToolMessage,
    UserMessage,
)
from tollhouse.models.retry import Answer

ADAPTER = "pydantic-ai"
"""Marks the opaque JSON of an assistant message as ours to read."""

MINTED = "pyd_ai_"
"""How ids begin that the provider layer, or ours in its place, made up where the provider gave none."""

_OPENING = "(The conversation begins here.)"
_GO_ON = "(Go on.)"
_EMPTY = "(empty)"
_NO_RESULT = "No result was recorded for this call."
_MOST_RAW_CHARS = 2000

_KEPT_OF_RESPONSE = ("kind", "parts", "provider_name", "canonical_system", "model_name")


def names_for(request: ModelRequest) -> WireNames:
    """The names of the request's tools and of those that its history speaks of."""
    spoken = [ask.tool for message in request.messages if isinstance(message, AssistantMessage) for ask in message.asks]
    return WireNames([tool.name for tool in request.tools] + spoken)


def parameters_for(request: ModelRequest, names: WireNames, *, native_schema: bool) -> ModelRequestParameters:
    """Tools, instructions and the wanted form of the answer.

    ``native_schema``: the model takes a JSON Schema itself; otherwise it is told of it in the instructions.
    """
    schema = request.output_schema
    native = schema is not None and native_schema and schema.get("type") == "object"
    instructions = [request.instructions] if request.instructions.strip() else []
    if schema is not None and not native:
        instructions.append(_schema_in_words(schema))
    return ModelRequestParameters(
        function_tools=[
            ToolDefinition(
                name=names.wire(tool.name),
                parameters_json_schema=dict(tool.json_schema),
                description=tool.description or None,
            )
            for tool in request.tools
        ],
        output_mode="native" if native else "text",
        output_object=OutputObjectDefinition(dict(schema or {}), name="answer") if native else None,
        instruction_parts=[InstructionPart(text) for text in instructions],
    )


def _schema_in_words(schema: Json) -> str:
    text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    return f"Your final answer must be one JSON value and nothing else, without a code fence, valid for: {text}"


def history_for(request: ModelRequest, names: WireNames, origin: str) -> list[ModelMessage]:
    """The request's messages. ``origin``: the endpoint asked; only its own opaque parts go back to it."""
    writer = _Writer(names, origin)
    for message in request.messages:
        writer.write(message)
    return writer.finish()


class _Writer:
    """Writes the history from its beginning; what is said between two answers becomes one request."""

    def __init__(self, names: WireNames, origin: str) -> None:
        self._names, self._origin, self._ids = names, origin, WireIds()
        self._turns: list[ModelMessage] = []
        self._owed: list[tuple[Ask, str]] = []
        self._heard: dict[str, ToolMessage] = {}
        self._said: list[str] = []

    def write(self, message: Message) -> None:
        match message:
            case UserMessage():
                self._said.append(_worded(message.text))
            case ToolMessage():
                self._hear(message)
            case AssistantMessage():
                self._answer(message)

    def finish(self) -> list[ModelMessage]:
        self._close(_GO_ON)
        return self._turns

    def _hear(self, message: ToolMessage) -> None:
        """Keep the result for its call; one that no open call waits for is told in words, so that it is not lost."""
        if message.key not in self._heard and any(ask.key == message.key for ask, _id in self._owed):
            self._heard[message.key] = message
        else:
            self._said.append(f"Result of {message.tool}: {message.text}")

    def _answer(self, message: AssistantMessage) -> None:
        if not message.asks and not message.text.strip():
            return
        if self._said or self._owed or not self._turns:
            self._close(_OPENING)
        self._owed = [(ask, self._ids.mint(ask.key)) for ask in message.asks]
        calls = [
            ToolCallPart(self._names.wire(ask.tool), _arguments(ask), tool_call_id=call_id)
            for ask, call_id in self._owed
        ]
        self._turns.append(_restored(message, calls, self._origin) or _plain(message, calls))

    def _close(self, otherwise: str) -> None:
        """End the request that answers the last response: the results it is owed, then what was said."""
        parts: list[ModelRequestPart] = [self._result(ask, call_id) for ask, call_id in self._owed]
        parts += [UserPromptPart(text) for text in self._said]
        self._turns.append(Said(parts=parts or [UserPromptPart(otherwise)]))
        self._owed, self._heard, self._said = [], {}, []

    def _result(self, ask: Ask, call_id: str) -> ToolReturnPart:
        heard = self._heard.get(ask.key)
        return ToolReturnPart(
            self._names.wire(ask.tool),
            _worded(heard.text) if heard else _NO_RESULT,
            tool_call_id=call_id,
            outcome="failed" if heard is None or heard.failed else "success",
        )


def _worded(text: str) -> str:
    """The text; one without a word in it as such, since providers refuse a history with an empty text."""
    return text if text.strip() else _EMPTY


def _arguments(ask: Ask) -> dict[str, Any]:
    """The arguments as an object always: providers refuse a history with anything else in it."""
    if ask.arguments is not None:
        return dict(ask.arguments)
    return {"unreadable_arguments": (ask.raw or "")[:_MOST_RAW_CHARS]}


def _plain(message: AssistantMessage, calls: Sequence[ToolCallPart]) -> ModelResponse:
    text = [TextPart(message.text)] if message.text.strip() else []
    return ModelResponse(parts=[*text, *calls])


def _restored(message: AssistantMessage, calls: Sequence[ToolCallPart], origin: str) -> ModelResponse | None:
    """The response as this endpoint gave it, with our ids and arguments in its calls; None: not its, or not readable.

    Thoughts and signatures are checked by their provider alone and mean nothing to any other.
    """
    kept = message.provider
    if kept is None or kept.get("adapter") != ADAPTER or kept.get("origin") != origin:
        return None
    try:
        (response,) = ModelMessagesTypeAdapter.validate_python([kept["response"]])
    except (KeyError, ValueError):
        return None
    if not isinstance(response, ModelResponse) or len(response.tool_calls) != len(calls):
        return None
    ours = iter(calls)
    response.parts = [
        _with_ours(part, next(ours)) if isinstance(part, ToolCallPart) else part
        for part in response.parts
        if not isinstance(part, TextPart) or part.content.strip()
    ]
    return response


def _with_ours(part: ToolCallPart, ours: ToolCallPart) -> ToolCallPart:
    return replace(part, tool_name=ours.tool_name, args=ours.args, tool_call_id=ours.tool_call_id)


def answer_of(response: ModelResponse, names: WireNames, origin: str) -> Answer:
    """What the response says. Its asks have no keys yet; its text may be empty."""
    cut = response.finish_reason in ("length", "content_filter")
    calls = response.tool_calls
    asks = tuple(_ask_of(part, names, cut=cut and part is calls[-1]) for part in calls)
    refusal = (response.provider_details or {}).get("refusal")
    text = response.text or (refusal if isinstance(refusal, str) else "")
    return Answer(text, asks, _finish_reason(response, asks), _opaque(response, origin))


def _finish_reason(response: ModelResponse, asks: Sequence[Ask]) -> FinishReason:
    match response.finish_reason:
        case "length":
            return "length"
        case "content_filter":
            return "refused"
        case _:
            return "calls" if asks else "stop"


def _ask_of(part: ToolCallPart, names: WireNames, *, cut: bool) -> Ask:
    """``cut``: the answer may have ended while this call was written, so silence is not "no arguments"."""
    tool, provider_id = names.tool(part.tool_name), _id_of(part)
    if isinstance(part.args, Mapping):
        return Ask("", tool, dict(part.args), provider_id)
    raw = part.args or ""
    if not raw.strip() and not cut:
        return Ask("", tool, {}, provider_id)
    arguments = _object_in(raw)
    return Ask("", tool, arguments, provider_id, None if arguments is not None else raw)


def _id_of(part: ToolCallPart) -> str | None:
    """What the provider itself called it; None: it gave no id. A client may leave anything where an id should be."""
    given: object = part.tool_call_id
    return given if isinstance(given, str) and given and not given.startswith(MINTED) else None


def _object_in(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _opaque(response: ModelResponse, origin: str) -> Json | None:
    """What the endpoint wants back as it gave it; None where text and calls say everything."""
    if all(_says_everything(part) for part in response.parts):
        return None
    (whole,) = ModelMessagesTypeAdapter.dump_python([response], mode="json")
    return {"adapter": ADAPTER, "origin": origin, "response": {name: whole.get(name) for name in _KEPT_OF_RESPONSE}}


def _says_everything(part: object) -> bool:
    return isinstance(part, TextPart | ToolCallPart) and not part.provider_details
