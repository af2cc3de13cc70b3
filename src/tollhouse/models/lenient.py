"""Servers that answer almost as OpenAI does: calls without ids, or all calls of a stream under one number.

``wire.py`` asks every endpoint of OpenAI's kind through :class:`LenientOpenAIChatModel`. What is put right here would
otherwise lose calls: two that share a number run together into one that nobody asked for.

This module imports the provider layer; only ``wire.py`` may import it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass
from typing import Any

from openai.types import chat
from openai.types.chat import ChatCompletionChunk
from openai.types.chat.chat_completion_chunk import ChoiceDeltaToolCall, ChoiceDeltaToolCallFunction
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIStreamedResponse

from tollhouse.models.convert import MINTED


class LenientOpenAIChatModel(OpenAIChatModel):
    """Takes whole answers whose calls have no ids, and streams whose calls share a number."""

    def _validate_completion(self, response: chat.ChatCompletion) -> Any:
        for choice in response.choices or []:
            for number, call in enumerate(choice.message.tool_calls or []):
                call.id = getattr(call, "id", None) or f"{MINTED}{number}"
        return super()._validate_completion(response)

    @property
    def _streamed_response_cls(self) -> type[OpenAIStreamedResponse]:
        return _LenientStream


class _LenientStream(OpenAIStreamedResponse):
    """A stream whose calls have been told apart."""

    def _validate_response(self) -> AsyncIterable[ChatCompletionChunk]:
        return _told_apart(super()._validate_response())


async def _told_apart(chunks: AsyncIterable[ChatCompletionChunk]) -> AsyncIterator[ChatCompletionChunk]:
    calls = CallNumbers()
    async for chunk in chunks:
        for choice in chunk.choices or []:
            # Servers leave out what the client's types call certain.
            for call in getattr(choice.delta, "tool_calls", None) or []:
                calls.number(call)
        yield chunk


@dataclass(slots=True)
class _Call:
    number: int
    id: str | None
    name: str = ""
    arguments: str = ""

    def ends_before(self, name: str, call_id: str | None) -> bool:
        """Whether a delta with a name begins another call, rather than going on with this one.

        It does when its id is another, when this call's arguments are whole, or when they have begun and the name is
        another. Else a server repeats the name with every piece, or sends the name in pieces.
        """
        if call_id and self.id and call_id != self.id:
            return True
        return _is_whole(self.arguments) or (bool(self.arguments) and name != self.name)


class CallNumbers:
    """Numbers the calls of one stream by what they are, whatever numbers the server gave them."""

    def __init__(self) -> None:
        self._calls: dict[int | None, _Call] = {}
        self._count = 0

    def number(self, delta: ChoiceDeltaToolCall) -> None:
        """Give the delta the number of its call; a name that a server only repeats is taken away."""
        said = delta.function or ChoiceDeltaToolCallFunction()
        name = said.name or ""
        call = self._calls.get(delta.index)
        if call is None or (name and call.ends_before(name, delta.id)):
            call = self._calls[delta.index] = _Call(self._count, delta.id)
            self._count += 1
        elif name == call.name:
            said.name = None
        call.name += said.name or ""
        call.arguments += said.arguments or ""
        delta.index = call.number


def _is_whole(arguments: str) -> bool:
    try:
        json.loads(arguments)
    except (ValueError, RecursionError):
        return False
    return True
