"""What a run asks of a model and what it gets back: plain values, the same for every provider.

The loop in ``runs`` speaks to :class:`Model` only. An adapter turns these into a provider's wire format and back,
sends each request once as an attempt, and counts what it cost. Values are plain JSON underneath (``as_json`` and
``message_of``), as a run's journal keeps them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal, Protocol

Json = Mapping[str, Any]
FinishReason = Literal["stop", "calls", "length", "refused"]
OnText = Callable[[str], Awaitable[None]]
"""Called with every piece of text as it streams in. What it raises ends the request.

Pieces are never taken back: once one was passed on, an answer that breaks off is not asked for again within the same
request, so that nobody hears its beginning twice. It fails, transiently, and the run asks again.
"""


@dataclass(frozen=True, slots=True)
class Ask:
    """One tool call that a model asks for.

    ``key``: the key it passes the gate under, minted by the run, and the id under which its answer goes back, so that
    ids a provider repeats or leaves out do no harm. ``provider_id``: what the provider called it, for the record only.
    ``arguments`` None: the provider sent no JSON object; ``raw`` then has its text.
    """

    key: str
    tool: str
    arguments: Json | None
    provider_id: str | None = None
    raw: str | None = None


@dataclass(frozen=True, slots=True)
class UserMessage:
    """What a person or the caller says."""

    text: str
    role: Literal["user"] = "user"


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """What the model said: text, and the calls it asked for.

    ``provider``: opaque JSON that only the adapter named in it reads, such as signatures that some providers want back.
    """

    text: str
    asks: tuple[Ask, ...] = ()
    provider: Json | None = None
    role: Literal["assistant"] = "assistant"


@dataclass(frozen=True, slots=True)
class ToolMessage:
    """What came of one call, as the model hears it. Every ask has exactly one, right after the message that asked."""

    key: str
    tool: str
    text: str
    failed: bool = False
    role: Literal["tool"] = "tool"


Message = UserMessage | AssistantMessage | ToolMessage


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a model sees it. ``json_schema``: of its arguments, an object."""

    name: str
    description: str
    json_schema: Json


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One question to a model. ``output_schema``: the JSON Schema its final answer must follow; None: free text.

    ``settings``: temperature, max_tokens and the like, provider-neutral names. ``key``: names the request in logs and
    lets a scripted model see where it is (``<run_id>:<turn>``). ``fallback``: models asked in order when ``model`` does
    not answer.
    """

    model: str
    instructions: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    output_schema: Json | None = None
    settings: Json = field(default_factory=dict)
    key: str = ""
    fallback: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestAttempt:
    """One sending of a model request, successful or not. Each is billed.

    ``cost``: US dollars; None: the price is unknown, which is not zero. ``error_code`` None: it was answered. Tokens
    None: the provider did not say.
    """

    model: str
    started_at: str
    took_s: float
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    cost: Decimal | None = None
    error_code: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ModelReply:
    """What a model answered, with every attempt it took. ``model``: who answered in the end.

    ``asks`` carry empty keys: the run mints them. ``finish_reason``: the provider's, normalised to ``stop``, ``calls``,
    ``length``, ``refused`` (the provider declined); never None, since a stream without one is an error.
    """

    text: str
    asks: tuple[Ask, ...]
    finish_reason: FinishReason
    model: str
    attempts: tuple[RequestAttempt, ...]
    provider: Json | None = None


class ModelFailed(Exception):
    """No model of the list answered. ``code``: a stable word; ``attempts``: what was sent and billed.

    ``transient``: the same request may succeed later, so a run may wait and ask again. ``retry_after_s``: how long the
    provider wants to be left alone; None: it did not say. ``cause`` is at most 300 characters and holds no secret.
    """

    def __init__(
        self,
        code: str,
        cause: str,
        *,
        transient: bool,
        attempts: tuple[RequestAttempt, ...] = (),
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(cause)
        self.code, self.cause, self.transient, self.attempts = code, cause, transient, attempts
        self.retry_after_s = retry_after_s


class Model(Protocol):
    """A way to ask models by name. One per process; safe for many requests at a time."""

    async def ask(self, request: ModelRequest, on_text: OnText | None = None) -> ModelReply:
        """Send the request, again only on transient errors and within bounds, then along the fallback list.

        Raises :class:`ModelFailed`. Cancelling stops the request; what it cost then is unknown.
        """
        ...

    async def close(self) -> None: ...


def message_as_json(message: Message) -> dict[str, Any]:
    """A message as the journal keeps it."""
    if isinstance(message, UserMessage):
        return {"role": "user", "text": message.text}
    if isinstance(message, ToolMessage):
        kept: dict[str, Any] = {"role": "tool", "key": message.key, "tool": message.tool, "text": message.text}
        return {**kept, "failed": True} if message.failed else kept
    return {
        "role": "assistant",
        "text": message.text,
        "asks": [ask_as_json(ask) for ask in message.asks],
        **({} if message.provider is None else {"provider": dict(message.provider)}),
    }


def ask_as_json(ask: Ask) -> dict[str, Any]:
    """An ask as the journal keeps it."""
    kept: dict[str, Any] = {"key": ask.key, "tool": ask.tool, "arguments": ask.arguments}
    if ask.provider_id is not None:
        kept["provider_id"] = ask.provider_id
    if ask.raw is not None:
        kept["raw"] = ask.raw
    return kept


def ask_of(kept: Json) -> Ask:
    """The ask that :func:`ask_as_json` wrote."""
    return Ask(kept["key"], kept["tool"], kept["arguments"], kept.get("provider_id"), kept.get("raw"))


def message_of(kept: Json) -> Message:
    """The message that :func:`message_as_json` wrote."""
    match kept["role"]:
        case "user":
            return UserMessage(kept["text"])
        case "tool":
            return ToolMessage(kept["key"], kept["tool"], kept["text"], kept.get("failed", False))
        case _:
            asks = tuple(ask_of(each) for each in kept["asks"])
            return AssistantMessage(kept["text"], asks, kept.get("provider"))


def attempt_as_json(attempt: RequestAttempt) -> dict[str, Any]:
    """An attempt as the journal keeps it; absent figures are null, never zero."""
    return {
        "model": attempt.model,
        "started_at": attempt.started_at,
        "took_s": round(attempt.took_s, 6),
        "input_tokens": attempt.input_tokens,
        "output_tokens": attempt.output_tokens,
        "cached_tokens": attempt.cached_tokens,
        "cost": None if attempt.cost is None else format(attempt.cost, "f"),
        "error_code": attempt.error_code,
        "error": attempt.error,
    }
