"""A provider of models that misbehaves in ways no well-made server can: bytes as a test writes them, one by one.

It listens in the test's own event loop. `provider.replies` are sent in order, the last one again and again;
`provider.requests` are what came.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Reply:
    """What is sent for one request, and whether the connection then stays open in silence instead of closing."""

    data: bytes
    then_silent: bool = False


@dataclass
class WildProvider:
    """The server, listening at `url`."""

    url: str = ""
    replies: list[Reply] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def bodies(self) -> list[Any]:
        """The JSON of each request."""
        return [request["body"] for request in self.requests]

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read one request, send the next reply, close or fall silent."""
        self._open.add(writer)
        try:
            self.requests.append(await _request_from(reader))
            self.asked.set()
            reply = self.replies[min(len(self.requests), len(self.replies)) - 1]
            writer.write(reply.data)
            await writer.drain()
            if reply.then_silent:
                await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._open.discard(writer)
            writer.close()


@asynccontextmanager
async def wild_provider(*replies: Reply) -> AsyncIterator[WildProvider]:
    """A provider that sends these replies."""
    provider = WildProvider(replies=list(replies))
    server = await asyncio.start_server(provider.answer, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    provider.url = f"http://{host}:{port}"
    try:
        yield provider
    finally:
        server.close()
        for writer in list(provider._open):
            writer.close()
        await server.wait_closed()


async def _request_from(reader: asyncio.StreamReader) -> dict[str, Any]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    first, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return {"path": first.split()[1], "headers": headers, "body": json.loads(body) if body else None}


def whole(status: int, body: Any, headers: Mapping[str, str] | None = None) -> Reply:
    """A complete answer; a body that is no text is sent as JSON."""
    text = body if isinstance(body, str) else json.dumps(body)
    kind = "text/html" if isinstance(body, str) else "application/json"
    lines = [f"HTTP/1.1 {status} Status", f"content-type: {kind}", f"content-length: {len(text.encode())}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return Reply(("\r\n".join([*lines, "connection: close"]) + "\r\n\r\n" + text).encode())


def stream(events: Iterable[Any], *, then_silent: bool = False, promised: int | None = None) -> Reply:
    """Server-sent events; a pair is a named event. ``promised``: a Content-Length that may be more than is sent."""
    text = "".join(_event(each) for each in events)
    length = "" if promised is None else f"content-length: {promised}\r\n"
    head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{length}connection: close\r\n\r\n"
    return Reply((head + text).encode(), then_silent)


def _event(given: Any) -> str:
    if isinstance(given, tuple):
        return f"event: {given[0]}\ndata: {json.dumps(given[1])}\n\n"
    return f"data: {given if isinstance(given, str) else json.dumps(given)}\n\n"


SILENCE = Reply(b"", then_silent=True)
"""Nothing at all, for ever."""

HANG_UP = Reply(b"")
"""The connection closed without a byte."""


# -- OpenAI's words ------------------------------------------------------------------------------------------------


def chunk(delta: Mapping[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    """One chunk of a chat stream."""
    choice = {"index": 0, "delta": dict(delta), "finish_reason": finish_reason}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o-mini", "choices": [choice]}


def usage_chunk(prompt: int, completion: int) -> dict[str, Any]:
    """The last chunk of a chat stream: what it cost."""
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {**chunk({}), "choices": [], "usage": usage}


def completion(message: Mapping[str, Any], finish_reason: str | None = "stop", **more: Any) -> dict[str, Any]:
    """A whole chat completion."""
    choice = {"index": 0, "message": {"role": "assistant", "content": None, **message}, "finish_reason": finish_reason}
    return {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-4o-mini",
        "choices": [choice],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
        **more,
    }


def call(name: str, arguments: str, **more: Any) -> dict[str, Any]:
    """A call within a message; without an id unless one is given."""
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


# -- Anthropic's words ---------------------------------------------------------------------------------------------


def message(*content: Mapping[str, Any], stop_reason: str | None = "end_turn") -> dict[str, Any]:
    """A whole message."""
    return {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "claude-haiku-4-5",
        "content": [dict(block) for block in content],
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 5},
    }


def message_events(
    *content: tuple[Mapping[str, Any], Mapping[str, Any]], stop_reason: str | None = "end_turn"
) -> list[tuple[str, Any]]:
    """A streamed message: each block as it starts, with one delta. ``stop_reason`` None: it ends without one."""
    events: list[dict[str, Any]] = [{"type": "message_start", "message": message(stop_reason=None)}]
    for index, (start, delta) in enumerate(content):
        events += [
            {"type": "content_block_start", "index": index, "content_block": dict(start)},
            {"type": "content_block_delta", "index": index, "delta": dict(delta)},
            {"type": "content_block_stop", "index": index},
        ]
    if stop_reason is not None:
        ended = {"stop_reason": stop_reason, "stop_sequence": None}
        events += [
            {"type": "message_delta", "delta": ended, "usage": {"output_tokens": 5}},
            {"type": "message_stop"},
        ]
    return [(event["type"], event) for event in events]
