"""Lists of recorded calls, read page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator
from typing import Any

from tollhouse.gate.core import Core
from tollhouse.gate.view import RecordedCall, view
from tollhouse.ledger.record import CallRecord, replace
from tollhouse.ledger.store import Query


class Listing:
    """The answer of :meth:`Tollhouse.list`: ``await`` it for a list, or iterate with ``async for``, page by page."""

    def __init__(self, core: Core, query: Query, limit: int | None) -> None:
        self._core, self._query, self._limit = core, query, limit

    def __await__(self) -> Generator[Any, None, list[RecordedCall]]:
        return self._all().__await__()

    async def _all(self) -> list[RecordedCall]:
        return [call async for call in self]

    async def __aiter__(self) -> AsyncIterator[RecordedCall]:
        query, given = self._query, 0
        while True:
            page = await self._core.store.find(self._core.tenant, query)
            for record in page:
                if self._limit is not None and given >= self._limit:
                    return
                given += 1
                yield await seen(self._core, record, with_history=False)
            if len(page) < query.limit:
                return
            query = replace(query, before=(page[-1].created_at_us, page[-1].key))


async def seen(core: Core, record: CallRecord, *, with_history: bool) -> RecordedCall:
    """The record as people see it, its result in the declared type where the tool is here."""
    tool = core.tools.get(record.tool)
    adapter = tool.schema.result if tool is not None else None
    return await view(record, core.store, adapter, with_history=with_history)
