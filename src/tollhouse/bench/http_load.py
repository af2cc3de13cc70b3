"""Callers over HTTP that cost next to nothing themselves, so that the server is what is measured: one connection each,
requests written by hand, answers read as far as their length."""

from __future__ import annotations

import asyncio
import itertools
import json
from contextlib import AsyncExitStack
from functools import partial
from urllib.parse import urlsplit

from tollhouse.bench.contest import Contestants
from tollhouse.bench.engines import Engine
from tollhouse.bench.job import pay
from tollhouse.bench.measure import Work, rate
from tollhouse.bench.plan import Plan
from tollhouse.bench.processes import process

_numbers = itertools.count(1)


class Connections:
    """Open connections to one server; a caller takes one for a request."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = str(parts.hostname), parts.port
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def call(self) -> None:
        """One payment under a key of its own. Raises RuntimeError for an answer that is not 200."""
        reader, writer = self._free.pop() if self._free else await asyncio.open_connection(self._host, self._port)
        writer.write(self._request(next(_numbers)))
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
        body = await reader.readexactly(length)
        if b" 200 " not in head.split(b"\r\n", 1)[0]:
            raise RuntimeError(f"the server answered {head[:100]!r} {body[:300]!r}")
        self._free.append((reader, writer))

    def _request(self, number: int) -> bytes:
        body = json.dumps({"arguments": {"account_id": "a1", "amount_cents": number}}).encode()
        return (
            f"POST /v1/tools/{pay.name}/calls HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n"
            f"Idempotency-Key: order-{number}:http\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode() + body

    async def close(self) -> None:
        """Close them all."""
        for _, writer in self._free:
            writer.close()


async def http_contestants(engine: Engine, plan: Plan, stack: AsyncExitStack) -> Contestants:
    """The bench's effect over HTTP, with 32 callers; the server is a process of its own."""
    _, said = await stack.enter_async_context(process("serve", engine.ledger()))
    connections = Connections(said["url"])
    stack.push_async_callback(connections.close)
    work: Work = connections.call
    await work()
    return {f"{engine.name}.http.rate_c32": partial(rate, work, 32, plan.seconds)}
