"""Which ledger a command works on, and how it is opened: for reading, or as a house for decisions.

Commands that read or decide never create a ledger, so a mistyped path is told and leaves nothing behind. Reading takes
no lease and changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any, TypeVar

from tollhouse.cli.failures import UsageMistake
from tollhouse.cli.logs import logging_to_stderr
from tollhouse.cli.sources import url_of
from tollhouse.contract.tool import Tool
from tollhouse.errors import UnknownCall
from tollhouse.gate.view import RecordedCall, view
from tollhouse.house import Tollhouse
from tollhouse.ledger.keys import check_key, check_tenant
from tollhouse.ledger.store import Query, Store
from tollhouse.stores import check, open_store, without_password

T = TypeVar("T")

PAGE = 100


def run(work: Coroutine[Any, Any, T], *, level: int = logging.ERROR, as_json: bool = False) -> T:
    """Run the work of a command: log lines from ``level`` on go to stderr, and what users' code prints goes there too,
    so that stdout holds the answer only."""
    with logging_to_stderr(level, as_json=as_json), contextlib.redirect_stdout(sys.stderr):
        return asyncio.run(work)


async def existing(store: str | None, file: str | None = None) -> str:
    """The URL of a ledger that is there. Raises :class:`UsageMistake` where nothing was ever written to it."""
    url = url_of(store, file)
    report = await check(url)
    if report.version is None:
        raise UsageMistake(
            f"There is no ledger at {without_password(url)}.",
            remedy="Correct the URL; a ledger is made by `tollhouse serve` or `tollhouse db upgrade`, or when a house "
            "or a worker first opens it.",
        )
    return url


class Reader:
    """A ledger opened for reading, for one tenant. Results come as built-in types, whatever tools there are."""

    def __init__(self, store: Store, tenant: str) -> None:
        self._store, self._tenant = store, check_tenant(tenant)

    async def get(self, key: str) -> RecordedCall:
        """The call with its history. Raises :class:`UnknownCall`."""
        record = await self._store.get(self._tenant, check_key(key))
        if record is None:
            raise UnknownCall(f"No call is recorded under {key} for the tenant {self._tenant}.", key=key)
        return await view(record, self._store, None)

    async def find(self, query: Query, limit: int) -> tuple[list[RecordedCall], bool]:
        """At most ``limit`` calls, newest first, and whether there are more."""
        found: list[RecordedCall] = []
        page = await self._store.find(self._tenant, query)
        while page and len(found) <= limit:
            found += [await view(record, self._store, None, with_history=False) for record in page]
            query = _after(query, found[-1])
            page = await self._store.find(self._tenant, query) if len(page) == query.limit else []
        return found[:limit], len(found) > limit

    async def now_us(self) -> int:
        """The store's clock."""
        return await self._store.now_us()


def _after(query: Query, last: RecordedCall) -> Query:
    place = (last.raw.created_at_us, last.key)
    return Query(query.state, query.tool, query.scope, query.contradicted, query.limit, place)


@contextlib.asynccontextmanager
async def reading(store: str | None, tenant: str, file: str | None = None) -> AsyncIterator[Reader]:
    """A ledger that exists, opened for reading; whether it is durable matters to writers only."""
    opened = await open_store(await existing(store, file), volatile=True)
    try:
        yield Reader(opened, tenant)
    finally:
        await opened.close()


@contextlib.asynccontextmanager
async def deciding(
    store: str | None,
    tenant: str,
    *,
    file: str | None = None,
    tools: Sequence[Tool[Any]] = (),
    volatile: bool = False,
) -> AsyncIterator[Tollhouse]:
    """A house over a ledger that exists, without background work: for one decision."""
    url = await existing(store, file)
    async with Tollhouse.open(url, tools=tools, tenant=tenant, background=False, volatile=volatile) as house:
        yield house
