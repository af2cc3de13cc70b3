"""The stores of the drill: a fresh ledger for each chapter, and what can go wrong with it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from tollhouse.testing.pgwire import Statement, Trap, Variant
from tollhouse.testing.postgres import PostgresServer, create_database, drop_database, run_sql
from tollhouse.testing.proxy import Proxy

STORES = ("sqlite", "postgres")


class Ledger:
    """One ledger. ``url`` is where workers open it; ``lossy_url`` leads through the proxy (equal where there is none).

    ``outages``: how often it was away.
    """

    def __init__(self, url: str, lossy_url: str | None = None) -> None:
        self.url, self.lossy_url = url, lossy_url or url
        self.outages = 0

    @property
    def lost_acks(self) -> int:
        """How many acknowledgements were lost on the wire."""
        return 0

    @property
    def has_server(self) -> bool:
        """Whether it is a server's, which can be killed, and whose acknowledgements can be lost on the wire."""
        return False

    def lose_ack(self, key: str, *, applied: bool, skip: int) -> None:
        """Lose the acknowledgement of the write about that call, after ``skip`` of them."""

    async def kill(self) -> None:
        """Kill the server and start it again."""

    async def step_clock_back(self) -> None:
        """Set the server's time of day back for this ledger."""


class PostgresLedger(Ledger):
    """A database on a server of the drill's own, behind a proxy."""

    def __init__(self, server: PostgresServer, proxy: Proxy, url: str) -> None:
        super().__init__(url, proxy.through(url))
        self._server, self._proxy = server, proxy
        self._traps: list[Trap] = []

    @property
    def lost_acks(self) -> int:
        return sum(trap.sprung for trap in self._traps)

    @property
    def has_server(self) -> bool:
        return True

    def lose_ack(self, key: str, *, applied: bool, skip: int) -> None:
        variant: Variant = "applied" if applied else "not_applied"
        self._traps.append(self._proxy.lose_next_ack(_about(key), variant=variant, skip=skip))

    async def kill(self) -> None:
        self.outages += 1
        await asyncio.to_thread(self._server.kill)
        await asyncio.to_thread(self._server.start)

    async def step_clock_back(self) -> None:
        await asyncio.to_thread(run_sql, self.url, _STEP_BACK)


def _about(key: str) -> Callable[[Statement], bool]:
    """Whether a statement writes about that call: one of its parameters is the key or a list that holds it."""
    needle = key.encode()

    def takes(statement: Statement) -> bool:
        writes = any(word in statement.text.upper() for word in ("INSERT", "UPDATE"))
        return writes and any(needle in (value or b"") for value in statement.parameters)

    return takes


_STEP_BACK = "UPDATE drill.step SET by_s = by_s + 20"
_SHADOW_CLOCK = (
    "CREATE SCHEMA drill; CREATE TABLE drill.step (by_s double precision); INSERT INTO drill.step VALUES (0); "
    "CREATE FUNCTION drill.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS "
    "'SELECT pg_catalog.clock_timestamp() - make_interval(secs => by_s) FROM drill.step'; "
    'ALTER DATABASE "{name}" SET search_path = public, drill, pg_catalog'
)
"""Named after ``pg_catalog`` only where a search path says so: then the ledger's own clock function is the drill's."""


class Stores:
    """Where chapters get their ledgers from. An async context manager that ends the server."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._kind, self._folder = kind, folder
        self._server: PostgresServer | None = None
        self._number = 0

    async def __aenter__(self) -> Stores:
        if self._kind == "postgres":
            self._server = await asyncio.to_thread(PostgresServer.create)
        return self

    async def __aexit__(self, *_exc: object) -> None:
        if self._server is not None:
            await asyncio.to_thread(self._server.close)

    @asynccontextmanager
    async def ledger(self, *, shadow_clock: bool = False) -> AsyncIterator[Ledger]:
        """A fresh, empty ledger."""
        self._number += 1
        name = f"drill_{self._number}"
        if self._server is None:
            yield Ledger(f"sqlite:///{self._folder / name}.db")
            return
        server = self._server
        url = await asyncio.to_thread(create_database, server.url, name)
        if shadow_clock:
            await asyncio.to_thread(run_sql, url, _SHADOW_CLOCK.format(name=name))
        with Proxy("127.0.0.1", server.port) as proxy:
            yield PostgresLedger(server, proxy, url)
        with contextlib.suppress(Exception):  # a server that was killed just now; its data goes with it
            await asyncio.to_thread(drop_database, server.url, name)
