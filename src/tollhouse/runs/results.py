"""What a model asked for and what it hears: keys for its calls, and answers that say the truth about each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tollhouse.ledger.record import replace
from tollhouse.models.port import AssistantMessage, ModelReply, ToolMessage


@dataclass(frozen=True, slots=True)
class Result:
    """The answer to one ask. ``call_state`` None: it never became a call. ``code`` None: it succeeded.

    ``replayed``: it was recorded before. ``reused``: the key of another run's call that was answered from instead.
    """

    key: str
    tool: str
    text: str
    call_state: str | None = None
    failed: bool = False
    code: str | None = None
    replayed: bool = False
    reused: str | None = None

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
        return kept if self.reused is None else {**kept, "reused": self.reused}


def asked(reply: ModelReply, run_id: str, turn: int) -> AssistantMessage:
    """The reply with a key for each call it asks for: ``<run_id>:<turn>.<index>``, whatever ids the provider gave."""
    asks = tuple(replace(ask, key=f"{run_id}:{turn}.{number}") for number, ask in enumerate(reply.asks, start=1))
    return AssistantMessage(reply.text, asks, reply.provider)
