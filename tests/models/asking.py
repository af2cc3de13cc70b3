"""Short words for requests and for what streams in."""

from __future__ import annotations

from typing import Any

from tollhouse.models.port import (
    Ask,
    AssistantMessage,
    Message,
    ModelRequest,
    ToolMessage,
    ToolSpec,
    UserMessage,
)

REFUND = ToolSpec(
    "refund",
    "Give money back.",
    {"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]},
)


def request(model: str, *messages: Message | str, **more: Any) -> ModelRequest:
    """A request with these messages; a text is what the user says. It speaks of one tool unless told otherwise."""
    said = tuple(UserMessage(each) if isinstance(each, str) else each for each in messages or ("Hello",))
    return ModelRequest(model, **{"instructions": "Be brief.", "messages": said, "tools": (REFUND,), **more})


def asked(key: str, amount: int, **more: Any) -> AssistantMessage:
    """The model asking for one refund under that key."""
    return AssistantMessage("", (Ask(key, "refund", {"amount": amount}, **more),))


def result(key: str, text: str, **more: Any) -> ToolMessage:
    """What came of it."""
    return ToolMessage(key, "refund", text, **more)


class Heard:
    """Keeps what streams in."""

    def __init__(self) -> None:
        self.pieces: list[str] = []

    async def __call__(self, piece: str) -> None:
        self.pieces.append(piece)

    @property
    def text(self) -> str:
        return "".join(self.pieces)
