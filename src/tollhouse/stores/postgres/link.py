"""Connections that come back: each is made when first needed, vetted, and made anew after it was lost.

The writer, the readers and the lease keeper hold :class:`Link` objects and never see the driver's connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import asyncpg

from tollhouse.errors import StoreNotDurable, StoreReadOnly, StoreSchema, StoreURLInvalid, TollhouseError
from tollhouse.ledger.store import Counters
from tollhouse.stores.postgres.faults import FAILURES, Unfit, error_of, fault_of, more_telling
from tollhouse.stores.postgres.statements import meta
from tollhouse.stores.postgres.target import Target

T = TypeVar("T")

OLDEST_SERVER = 15
"""The oldest PostgreSQL on which the store's plans were looked at."""

_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 0.5
_CLOSE_S = 1.0


class Link:
    """One connection of the store, used by one task at a time.

    ``limit_s``: how long a statement may take. The server ends it a little earlier by itself, so that what was given up
    here does not go on there. ``volatile``: also speak to a server that could forget what it confirmed.
    """

    def __init__(self, target: Target, counters: Counters, *, limit_s: float, volatile: bool) -> None:
        self.target = target
        self._counters = counters
        self._limit_s = limit_s
        self._volatile = volatile
        self._texts: dict[str, str] = {}
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None
        self._was_open = False
        self._in_transaction = False

    @property
    def is_open(self) -> bool:
        """Whether it has a connection that is not known to be lost."""
        return self._connection is not None and not self._connection.is_closed()

    async def fetch(self, statement: str, *values: Any, within_s: float | None = None) -> list[asyncpg.Record]:
        """Run a statement and return its rows. Raises one of :data:`~.faults.FAILURES`.

        ``within_s``: less time than usual, if the caller has no more; it bounds connecting as well.
        """
        limit_s = self._limit_s if within_s is None else min(within_s, self._limit_s)
        connection = self._connection
        if connection is None or connection.is_closed():
            connection = await self._connect(limit_s)
        text = self._texts.get(statement)
        if text is None:
            text = self._texts[statement] = self.target.text(statement)
        return await connection.fetch(text, *values, timeout=limit_s)

    async def script(self, text: str, within_s: float | None = None) -> None:
        """Run statements without values: BEGIN and its like, migrations. Raises as :meth:`fetch` does."""
        limit_s = self._limit_s if within_s is None else min(within_s, self._limit_s)
        connection = self._connection
        if connection is None or connection.is_closed():
            connection = await self._connect(limit_s)
        await connection.execute(text, timeout=limit_s)

    @contextlib.asynccontextmanager
    async def transaction(self, within_s: float | None = None) -> AsyncIterator[None]:
        """BEGIN and COMMIT around what is fetched inside; ROLLBACK when it raises and the connection still works."""
        await self.script("BEGIN", within_s)
        self._in_transaction = True
        try:
            try:
                yield
            except BaseException as raw:
                if not isinstance(raw, Exception):
                    self.drop()  # cancelled: its next user must not go on inside it
                elif self.is_open and (not isinstance(raw, FAILURES) or fault_of(raw).keeps):
                    await self.script("ROLLBACK", within_s)
                raise
            await self.script("COMMIT", within_s)
        finally:
            self._in_transaction = False

    def drop(self) -> None:
        """Let the connection go at once; the next statement makes another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    async def close(self) -> None:
        """Say goodbye to the server, briefly."""
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                await connection.close(timeout=_CLOSE_S)
            except FAILURES:
                connection.terminate()

    async def _connect(self, within_s: float) -> asyncpg.Connection[asyncpg.Record]:
        target = self.target
        if self._in_transaction:
            # On another connection the rest would commit by itself, without what came before.
            raise asyncpg.ConnectionDoesNotExistError("the connection was lost inside a transaction")
        try:
            connection = await asyncpg.connect(
                target.dsn,
                timeout=min(within_s, target.connect_timeout_s),
                statement_cache_size=100 if target.statement_cache else 0,
                max_cached_statement_lifetime=0,
                server_settings=session_settings(target, self._limit_s) if target.statement_cache else None,
            )
        except ValueError:
            # The driver quotes the URL, password and all.
            cause = "The store's URL cannot be read as a PostgreSQL URL."
            raise Unfit(StoreURLInvalid(cause)) from None
        try:
            await self._vet(connection)
        except BaseException:
            connection.terminate()
            raise
        self._counters.reconnects += self._was_open
        self._was_open = True
        self._connection = connection
        return connection

    async def _vet(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        """Asked on every connection: the server that comes back, or another of its name, may be set otherwise."""
        if connection.get_server_version().major < OLDEST_SERVER:
            raise Unfit(_too_old(connection.get_server_version().major))
        row = await connection.fetchrow(meta.FITNESS, timeout=self._limit_s)
        assert row is not None
        if row["in_recovery"]:
            raise Unfit(StoreReadOnly(f"The ledger at {self.target.url} is a replica and cannot be written."))
        if row["encoding"] != "UTF8":
            raise Unfit(_wrong_encoding(row["encoding"]))
        for setting in () if self._volatile else ("fsync", "synchronous_commit"):
            if row[setting] == "off":
                raise Unfit(_not_durable(f"runs with {setting}=off"))


def session_settings(target: Target, limit_s: float) -> dict[str, str]:
    """The settings of a session; behind a pooler in transaction mode they would reach somebody else's."""
    settings = {
        "statement_timeout": f"{limit_s * 900:.0f}ms",
        "lock_timeout": f"{limit_s * 600:.0f}ms",
        "idle_in_transaction_session_timeout": f"{limit_s * 2000:.0f}ms",
        # A guarded update that waited for another must look at the row again, not fail.
        "default_transaction_isolation": "read committed",
        # Plans are kept. One made while a table was empty would read it from end to end when it is full.
        "enable_seqscan": "off",
        # Left to itself the server plans updates of several rows anew each time, which takes longer than they do.
        "plan_cache_mode": "force_generic_plan",
        "jit": "off",
    }
    if "application_name=" not in target.dsn:
        settings["application_name"] = "tollhouse"
    return settings


def _too_old(major: int) -> TollhouseError:
    return StoreSchema(
        f"The server is PostgreSQL {major}, and the ledger needs {OLDEST_SERVER} or later.",
        remedy="Use a newer server.",
    )


def _wrong_encoding(encoding: str) -> TollhouseError:
    return StoreSchema(
        f"The database has the encoding {encoding}, which cannot keep every character.",
        remedy="Create the database with ENCODING 'UTF8'.",
    )


def _not_durable(what: str) -> TollhouseError:
    return StoreNotDurable(f"The PostgreSQL server {what}, so it could forget a departure after a power cut.")


class Backoff:
    """The waits between tries, doubling with jitter, until ``deadline`` on the loop's clock."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self._pause_s = _FIRST_PAUSE_S

    @property
    def left_s(self) -> float:
        """What is left of the time."""
        return self.deadline - asyncio.get_running_loop().time()

    async def pause(self) -> bool:
        """Wait before the next try. False, at once, when no time would be left for it."""
        pause_s = self._pause_s * random.uniform(0.5, 1.0)
        if self.left_s <= pause_s:
            return False
        await asyncio.sleep(pause_s)
        self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)
        return True


async def patiently(link: Link, step: Callable[[float], Awaitable[T]], patience_s: float) -> T:
    """Run ``step`` with the time that is left, again while that may help and time is left.

    ``step`` is safe to repeat. Raises a :class:`~tollhouse.errors.StoreUnavailable` or another error of the store.
    """
    backoff = Backoff(asyncio.get_running_loop().time() + patience_s)
    why: Exception | None = None
    while True:
        try:
            return await step(backoff.left_s)
        except FAILURES as raw:
            fault, why = fault_of(raw), more_telling(why, raw)
            if not fault.keeps:
                link.drop()
            if not fault.repeat or not await backoff.pause():
                error = error_of(why, link.target.url)
                raise error from error.__cause__
        except BaseException:
            # Cancelled in the middle of an answer: what the connection would say next is not for its next user.
            link.drop()
            raise


class Pool:
    """A few links for short readings, handed out last in, first out, so that a quiet store keeps one connection."""

    def __init__(self, links: list[Link]) -> None:
        self._size = len(links)
        self._free = list(links)
        self._vacancies = asyncio.Semaphore(len(links))

    async def run(self, step: Callable[[Link, float], Awaitable[T]], patience_s: float) -> T:
        """Run ``step`` on a link; see :func:`patiently`. Waiting for a link counts."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience_s
        async with self._vacancies:
            link = self._free.pop()
            try:
                return await patiently(link, lambda left_s: step(link, left_s), deadline - loop.time())
            finally:
                self._free.append(link)

    async def close(self) -> None:
        """Let readings that have begun come to their end, then close the connections."""
        for _ in range(self._size):
            await self._vacancies.acquire()
        for link in self._free:
            await link.close()
