"""HTTP/1.1 by hand on asyncio streams: read any request, and write replies well or in every broken manner.

A web framework would repair what the faults are there to break.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
from dataclasses import dataclass, field
from enum import Enum
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

HEAD_BYTES_MAX: Final = 64 * 1024
BODY_BYTES_MAX: Final = 64 * 1024 * 1024
# Windows declares the two fields of struct linger as shorts.
_LINGER_ZERO: Final = struct.pack("hh" if os.name == "nt" else "ii", 1, 0)


class BadRequest(Exception):
    """What arrived is no HTTP/1.1 request that this server reads; the connection cannot go on."""


class Manner(Enum):
    """How a reply is put on the wire."""

    WELL = "well"
    TRUNCATED_BODY = "truncated_body"
    TRUNCATED_CHUNKS = "truncated_chunks"
    SLOW_DRIP = "slow_drip"
    CLOSE_AFTER = "close_after"


@dataclass(frozen=True)
class Request:
    """One request as received. `complete` is False when the sender left before the body had ended."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    complete: bool = True

    @property
    def key(self) -> str | None:
        """The idempotency key as received; None when there was no header."""
        return self.headers.get("idempotency-key")

    @property
    def keep_alive(self) -> bool:
        """Whether the sender means to use the connection again."""
        return self.headers.get("connection", "").lower() != "close"


@dataclass(frozen=True)
class Reply:
    """What to answer, and in which manner; `pause_s` lies between two bytes of a slow drip."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    manner: Manner = Manner.WELL
    pause_s: float = 0.0

    @classmethod
    def json(cls, status: int, value: Any, **headers: str) -> Reply:
        """A reply with a JSON body; `_` in a header's name stands for `-`."""
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        return cls(status, json.dumps(value).encode(), named)


def hard_reset(writer: asyncio.StreamWriter) -> None:
    """Drop the connection at once with an RST; bytes still in our buffers are lost, as in a crash."""
    raw = writer.get_extra_info("socket")
    if raw is not None and raw.fileno() != -1:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
    writer.transport.abort()


async def read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
    """The next request of a connection; None when the sender closed between two. Raises BadRequest."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    except asyncio.LimitOverrunError as error:
        raise BadRequest("the head is too long") from error
    method, target, headers = _parse_head(head)
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    body, complete = await _read_body(reader, headers)
    url = urlsplit(target)
    query = dict(parse_qsl(url.query, keep_blank_values=True))
    return Request(method, unquote(url.path), query, headers, body, complete)


def _parse_head(head: bytes) -> tuple[str, str, dict[str, str]]:
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    try:
        method, target, version = first.split(" ")
        pairs = [line.split(":", 1) for line in lines]
        headers = {name.strip().lower(): value.strip() for name, value in pairs}
    except ValueError as error:
        raise BadRequest("the head is no HTTP") from error
    if not version.startswith("HTTP/1."):
        raise BadRequest("only HTTP/1.1 is spoken here")
    return method, target, headers


async def _read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> tuple[bytes, bool]:
    try:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return await _read_chunks(reader), True
        length = int(headers.get("content-length", "0"))
        if not 0 <= length <= BODY_BYTES_MAX:
            raise BadRequest("the body is too long")
        return await reader.readexactly(length), True
    except asyncio.IncompleteReadError as cut:
        return cut.partial, False
    except ConnectionError:
        return b"", False
    except (ValueError, asyncio.LimitOverrunError) as error:
        raise BadRequest("the body's length is no number") from error


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        if len(body) + size > BODY_BYTES_MAX:
            raise BadRequest("the body is too long")
        body += (await reader.readexactly(size + 2))[:size]
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass  # trailers carry nothing that this server reads
    return bytes(body)


async def write_reply(writer: asyncio.StreamWriter, reply: Reply) -> bool:
    """Put a reply on the wire; True when the connection may be used again.

    Raises ConnectionError when the receiver of the reply has gone.
    """
    half = reply.body[: len(reply.body) // 2]
    if reply.manner is Manner.TRUNCATED_CHUNKS:
        writer.write(_head(reply, "Transfer-Encoding: chunked"))
        writer.write(b"%x\r\n%b\r\n" % (len(half), half))
    else:
        writer.write(_head(reply, f"Content-Length: {len(reply.body)}"))
        if reply.manner is Manner.SLOW_DRIP:
            await _drip(writer, reply)
        else:
            writer.write(half if reply.manner is Manner.TRUNCATED_BODY else reply.body)
    await writer.drain()
    return reply.manner in (Manner.WELL, Manner.SLOW_DRIP)


async def _drip(writer: asyncio.StreamWriter, reply: Reply) -> None:
    for offset in range(len(reply.body)):
        writer.write(reply.body[offset : offset + 1])
        await writer.drain()
        await asyncio.sleep(reply.pause_s)


def _head(reply: Reply, framing: str) -> bytes:
    try:
        phrase = HTTPStatus(reply.status).phrase
    except ValueError:
        phrase = "Unnamed"
    headers = {"Content-Type": "application/json", **reply.headers}
    lines = [f"HTTP/1.1 {reply.status} {phrase}", *(f"{k}: {v}" for k, v in headers.items()), framing]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
