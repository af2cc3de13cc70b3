"""The runs of a ledger as commands use them: to look, or for one decision. Nothing is driven here."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from tollhouse.cli.ledger import deciding, existing
from tollhouse.cli.run_text import Line
from tollhouse.cli.runtime import NoModel
from tollhouse.contract.tool import Tool
from tollhouse.house.running import open_runs
from tollhouse.ledger.keys import check_tenant
from tollhouse.runs.reader import RunReader
from tollhouse.stores import open_store

if TYPE_CHECKING:
    from tollhouse.runs.journal import JournalStore
    from tollhouse.runs.service import Runs


@contextlib.asynccontextmanager
async def reading_runs(store: str | None, tenant: str, file: str | None) -> AsyncIterator[RunReader]:
    """The runs of a ledger that exists, to look at; whether it is durable matters to writers only."""
    opened = await open_store(await existing(store, file), volatile=True)
    try:
        yield RunReader(cast("JournalStore", opened), check_tenant(tenant))
    finally:
        await opened.close()


@contextlib.asynccontextmanager
async def deciding_runs(
    store: str | None, tenant: str, file: str | None, tools: Sequence[Tool[Any]] = ()
) -> AsyncIterator[Runs]:
    """The runs of a ledger that exists, for a decision."""
    async with deciding(store, tenant, file=file, tools=tools) as house:
        yield await open_runs(house, {}, NoModel())


async def lines_of(runs: RunReader, run_id: str, after: int = 0) -> list[Line]:
    """The journal after ``after``, whole."""
    lines: list[Line] = []
    while page := await runs.events(run_id, lines[-1][0] if lines else after):
        lines += [(event.seq, event.at_us, event.kind, await runs.facts(event)) for event in page]
    return lines
