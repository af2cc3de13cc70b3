"""The PostgreSQL engine of ``stores.common.raw``: one connection of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, cast

from tollhouse.ledger.store import Counters
from tollhouse.stores.common.migrations import SchemaReport
from tollhouse.stores.common.raw import Row, Statements, Table
from tollhouse.stores.postgres import migrate
from tollhouse.stores.postgres.faults import FAILURES, Unfit, error_of
from tollhouse.stores.postgres.link import Link
from tollhouse.stores.postgres.rows import columns
from tollhouse.stores.postgres.statements import meta, raw
from tollhouse.stores.postgres.target import Target

_STATEMENT_S = 600.0
"""How long one statement may take: a fence waits for every write under way."""


class PostgresEngine:
    """See the module's docstring. Used by one task at a time; a connection that is lost ends the work in hand."""

    def __init__(self, target: Target) -> None:
        self.url = target.url
        self.statements = cast(Statements, raw)
        self._link = Link(target, Counters(), limit_s=_STATEMENT_S, volatile=True)

    async def rows(self, statement: str, *values: Any) -> list[Row]:
        with self._our_errors():
            try:
                return [tuple(row) for row in await self._link.fetch(statement, *values)]
            except asyncio.CancelledError:
                self._link.drop()  # what it would say next is not for whoever asks next
                raise

    async def changed(self, statement: str, *values: Any) -> bool:
        return bool(await self.rows(statement, *values))

    async def fill(self, table: Table, rows: Sequence[Row]) -> None:
        await self.rows(raw.fill(table), *columns(rows, len(table.columns)))

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        with self._our_errors():
            async with self._link.transaction():
                try:
                    yield
                except BaseException:
                    self._link.drop()
                    raise

    async def now_us(self) -> int:
        ((now_us,),) = await self.rows(meta.NOW)
        return int(now_us)

    async def clock_at_least(self, at_us: int) -> None:
        if at_us > await self.now_us():
            await self.rows(raw.RAISE_CLOCK, at_us)

    async def schema(self) -> SchemaReport:
        with self._our_errors():
            return migrate.SCHEMA.report(*await migrate.versions(self._link))

    async def close(self) -> None:
        await self._link.close()

    @contextlib.contextmanager
    def _our_errors(self) -> Iterator[None]:
        try:
            yield
        except Unfit as error:
            raise error.error from error.__cause__
        except FAILURES as error:
            raise error_of(error, self.url) from error
