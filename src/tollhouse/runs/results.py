"""What a model asked for and what it hears: keys for its calls, and answers that say the truth about each."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import Any

from tollhouse.ledger.record import replace
from tollhouse.models.port import AssistantMessage, ModelReply, ToolMessage, message_as_json, message_of
from tollhouse.runs.body import Spent, spent_as_json

_dump = partial(json.dumps, ensure_ascii=False, default=str)


@dataclass(frozen=True, slots=True)
class Result:
    """The answer to one ask. ``call_state`` None: it never became a call. ``code`` None: it succeeded.

    ``replayed``: it was recorded before. ``reused``: the key of another run's call that was answered from instead.
    ``spent``: what the child spent that the call started, and its children; None where it started none.
    """

    key: str
    tool: str
    text: str
    call_state: str | None = None
    failed: bool = False
    code: str | None = None
    replayed: bool = False
    reused: str | None = None
    spent: Spent | None = None

    @property
    def message(self) -> ToolMessage:
        """As the model hears it."""
        return ToolMessage(self.key, self.tool, self.text, self.failed)

    @property
    def as_json(self) -> dict[str, Any]:
        """As the journal keeps it."""
        kept: dict[str, Any] = {
            "key": self.key,
            "tool": self.tool,
            "call_state": self.call_state,
            "text": self.text,
            "failed": self.failed,
            "code": self.code,
            "replayed": self.replayed,
        }
        kept |= {} if self.reused is None else {"reused": self.reused}
        return kept if self.spent is None else {**kept, "spent": spent_as_json(self.spent)}


def asked(reply: ModelReply, run_id: str, turn: int) -> AssistantMessage:
    """The reply with a key for each call it asks for: ``<run_id>:<turn>.<index>``, whatever ids the provider gave."""
    asks = tuple(replace(ask, key=f"{run_id}:{turn}.{number}") for number, ask in enumerate(reply.asks, start=1))
    return AssistantMessage(reply.text, asks, reply.provider)


def readable(text: str) -> str:
    """The text with what is no character, such as half an emoji of an answer that was cut, shown as U+FFFD.

    No store and no provider takes the like.
    """
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def in_characters(reply: ModelReply) -> ModelReply:
    """The reply, all of it :func:`readable`. Arguments that are not so are none: another call was never asked for."""
    kept = message_as_json(AssistantMessage(reply.text, reply.asks, reply.provider))
    if _is_readable(kept):
        return reply
    for ask in kept["asks"]:
        if not _is_readable(ask["arguments"]):
            ask["raw"], ask["arguments"] = _dump(ask["arguments"]), None
    message = message_of(json.loads(readable(_dump(kept))))
    assert isinstance(message, AssistantMessage)
    return replace(reply, text=message.text, asks=message.asks, provider=message.provider)


def _is_readable(value: Any) -> bool:
    text = _dump(value)
    return readable(text) == text
