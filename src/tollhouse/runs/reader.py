"""Looking at runs: what every surface shows of them. Nothing is written, and no lease is taken.

``Runs`` builds on it; commands that only look use it alone.
"""

from __future__ import annotations

import builtins
from typing import Any

from tollhouse.errors import UnknownRun
from tollhouse.ledger.events import Event
from tollhouse.ledger.record import CallRecord, State
from tollhouse.ledger.run_record import RunQuery, RunRecord, run_stream
from tollhouse.ledger.store import Query
from tollhouse.runs.journal import JournalStore, facts_of, output_of
from tollhouse.runs.starting import NAME_CHARACTERS_MOST, is_text
from tollhouse.runs.states import RunState
from tollhouse.runs.view import RunView, view_of


class RunReader:
    """The runs of one tenant. Every method may raise :class:`StoreUnavailable`; with an id also :class:`UnknownRun`."""

    def __init__(self, store: JournalStore, tenant: str) -> None:
        self._store, self.tenant = store, tenant

    @property
    def store(self) -> JournalStore:
        """The store, for drivers and readings."""
        return self._store

    async def get(self, run_id: str) -> RunView:
        """The run as it stands."""
        return await self._seen(await self._record(run_id))

    async def list(self, query: RunQuery | None = None) -> list[RunView]:
        """Runs, newest first, one page of them; their outputs only where they are short."""
        return [view_of(record) for record in await self._store.find_runs(self.tenant, query or RunQuery())]

    async def count(self) -> dict[str, int]:
        """How many runs stand in each state."""
        counted = await self._store.count_runs(self.tenant)
        return {state.value: counted.get(state.value, 0) for state in RunState}

    async def events(self, run_id: str, after: int = 0, limit: int = 1000) -> builtins.list[Event]:
        """The journal after ``after``; their facts are read with :meth:`facts`."""
        return await self._store.events(self.tenant, run_stream(run_id), after, limit)

    async def facts(self, event: Event) -> dict[str, Any]:
        """The facts of an event, bodies put back."""
        return await facts_of(self._store, self.tenant, event)

    async def calls_under_way(self, run_id: str) -> builtins.list[CallRecord]:
        """Calls of the run that are out, or whose long work goes on at a receiver."""
        states = (State.DEPARTED, State.ACCEPTED)
        found = [await self._store.find(self.tenant, Query(state=state, scope=run_id)) for state in states]
        return [call for page in found for call in page]

    async def now_us(self) -> int:
        """The store's clock."""
        return await self._store.now_us()

    async def _record(self, run_id: str) -> RunRecord:
        record = await self._store.run(self.tenant, run_id) if is_text(run_id, NAME_CHARACTERS_MOST) else None
        if record is None:
            raise UnknownRun(f"No run is recorded under {run_id[:100]}.")
        return record

    async def _seen(self, record: RunRecord) -> RunView:
        view = view_of(record)
        return view if view.output is not None else view_of(record, await output_of(self._store, record))
