"""A whole ledger as rows: fencing it, copying it, marking it, taking purged calls out of it.

Asked by ``tollhouse.operations`` only, never by the gate: what is done here is done to a ledger, not to a call. The
logic is shared; an engine brings its connection and its statements.

A *fence* is a mark in ``meta`` with triggers on every table, made in one transaction. From its commit on the database
itself refuses every write, whichever release or shell attempts it, at no cost before; no lease is renewed any more. It
also raises the fence of every call that is out, so that whoever still checks before it sends is told no.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from tollhouse.errors import StoreSchema
from tollhouse.ledger.events import Event, event_row
from tollhouse.ledger.record import CallRecord
from tollhouse.ledger.rows import COLUMNS, mutable_values, record_of
from tollhouse.ledger.run_record import RUN_COLUMNS, RunRecord, run_changes, run_of, run_stream
from tollhouse.stores.common.migrations import SchemaReport

Row = tuple[Any, ...]

FENCE, RESTORED = "fence", "restored"
"""Names of marks in ``meta``."""

FENCED = "the ledger is fenced"
"""What the triggers of a fence say: the engines recognise their own refusal by it."""


def restored_at_us(mark: str | None) -> int | None:
    """The moment in the mark of a restored ledger."""
    return None if mark is None else int(json.loads(mark)["at_us"])


@dataclass(frozen=True, slots=True)
class Table:
    """A table with its columns; the first so many are its primary key, in which order it is copied."""

    name: str
    columns: tuple[str, ...]
    start: Row
    """A key before every key."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns of the primary key."""
        return self.columns[: len(self.start)]

    def key_of(self, row: Row) -> Row:
        """The primary key of a row."""
        return row[: len(self.start)]


ACCESS_KEYS = Table(
    "access_keys",
    (
        "tenant", "id", "secret_digest", "principal", "scopes", "created_at_us", "expires_at_us", "revoked_at_us",
    ),
    ("", ""),
)  # fmt: skip
BLOBS = Table("blobs", ("tenant", "digest", "data"), ("", ""))
CALLS = Table("calls", COLUMNS, ("", ""))
CONDEMNED = Table("condemned", ("tenant", "digest"), ("", ""))
DEFINITIONS = Table("definitions", ("tenant", "digest", "kind", "name", "created_at_us", "body"), ("", ""))
EVENTS = Table(
    "events",
    ("tenant", "stream", "seq", "at_us", "kind", "data", "salt", "payload_digest", "hash", "write_id"),
    ("", "", -1),
)
OWNERS = Table(
    "owners",
    (
        "tenant", "id", "host", "pid", "pid_started", "label", "lease_until_us", "started_at_us", "ended_at_us",
        "proven_dead",
    ),
    ("", ""),
)  # fmt: skip
RUNS = Table("runs", RUN_COLUMNS, ("", ""))
WAKES = Table("wakes", ("tenant", "run_id", "at_us"), ("", ""))
TABLES = (BLOBS, CONDEMNED, OWNERS, CALLS, EVENTS, RUNS, WAKES, DEFINITIONS, ACCESS_KEYS)
GUARDED = (BLOBS, OWNERS, CALLS, EVENTS, RUNS, WAKES, DEFINITIONS, ACCESS_KEYS)
"""Tables that a fence closes."""

BOOLEANS = frozenset({"contradicted", "cancel_asked", "proven_dead", "finished"})


@dataclass(frozen=True, slots=True)
class Signs:
    """What a health check asks of a ledger. ``oldest_doubt_us``: when the first call in doubt was asked for; None: no
    call is."""

    oldest_doubt_us: int | None
    contradicted: int
    live_owners: int
    restored: bool


class Statements(Protocol):
    """An engine's statements, as attributes or functions of a module. Parameters in the order named."""

    GET: str  # tenant, key
    OLDEST_DOUBT: str  # tenant
    CONTRADICTED: str  # tenant
    LIVE_OWNERS: str  # tenant, time
    MARKS: str
    PUT_MARK: str  # name, value
    DROP_MARK: str  # name
    LOCK: Sequence[str]
    END_OWNERS: str  # time
    RAISE_FENCES: str
    PURGEABLE: str  # tenant, created and key of the last one, created before, updated before, limit
    PURGE: str  # digest, arguments, mutable columns, tenant, key, expected version
    PURGEABLE_RUNS: str  # tenant, created and id of the last one, created before, updated before, limit
    PURGE_RUN: str  # mutable columns, tenant, id, expected version
    BODIES_OF_STREAM: str  # tenant, stream
    ERASE_EVENTS: str  # tenant, stream
    DROP_EVENTS: str  # tenant, stream
    CONDEMN: str  # tenant, digest
    LOCK_BLOBS: str
    WITH_BODIES: str  # tenant, last key, limit
    RUNS_WITH_BODIES: str  # tenant, last stream, last seq, limit
    PARDON: str  # tenant, digest
    DROP_CONDEMNED_BLOB: str  # tenant, digest

    def page(self, table: Table) -> str:
        """Rows after a key, in order, so many."""
        ...

    def last(self, table: Table) -> str:
        """The greatest key."""
        ...

    def count(self, table: Table) -> str:
        """How many rows."""
        ...

    def fence(self) -> Sequence[str]:
        """Make the triggers."""
        ...

    def lift(self) -> Sequence[str]:
        """Drop the triggers."""
        ...


class Engine(Protocol):
    """One connection that an engine opened for this. ``rows`` works in and outside of :meth:`transaction`."""

    url: str
    statements: Statements

    async def rows(self, statement: str, *values: Any) -> list[Row]: ...

    async def changed(self, statement: str, *values: Any) -> bool:
        """Run it; whether it changed any row."""
        ...

    async def fill(self, table: Table, rows: Sequence[Row]) -> None:
        """Insert rows; those whose key is taken are left as they stand."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[None]:
        """A write transaction, durable when it is left."""
        ...

    async def now_us(self) -> int:
        """The store's clock."""
        ...

    async def clock_at_least(self, at_us: int) -> None:
        """Let the store's clock never again say less; inside a transaction."""
        ...

    async def schema(self) -> SchemaReport: ...

    async def close(self) -> None: ...


class RawLedger:
    """See the module's docstring. Methods raise what the store raises; each write is one transaction."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._sql = engine, engine.statements
        self.url = engine.url

    async def close(self) -> None:
        """Close the connection."""
        await self._engine.close()

    async def require_latest(self) -> None:
        """Raise :class:`StoreSchema` unless every migration of this release is applied."""
        report = await self._engine.schema()
        if report.problem is not None or report.version != report.latest:
            found = "has no schema yet" if report.version is None else f"is at version {report.version}"
            raise StoreSchema(
                report.problem or f"The ledger at {self.url} {found}; this needs version {report.latest}.",
                remedy="Run `tollhouse db upgrade` on it first.",
            )

    async def now_us(self) -> int:
        """The store's clock."""
        return await self._engine.now_us()

    async def signs(self, tenant: str) -> Signs:
        """Asked of small indexes only, however many calls there are."""
        ((oldest_us,),) = await self._engine.rows(self._sql.OLDEST_DOUBT, tenant)
        ((contradicted,),) = await self._engine.rows(self._sql.CONTRADICTED, tenant)
        ((owners,),) = await self._engine.rows(self._sql.LIVE_OWNERS, tenant, await self.now_us())
        return Signs(oldest_us, contradicted, owners, RESTORED in await self.marks())

    # -- marks and fences --------------------------------------------------------------------------------

    async def marks(self) -> dict[str, str]:
        """Everything that the ledger says of itself, by name."""
        return dict(await self._engine.rows(self._sql.MARKS))

    async def put_mark(self, name: str, value: str, *, end_owners: bool = False) -> None:
        """Write a mark. ``end_owners``: and end every owner, so that no process departs before it has read it."""
        async with self._engine.transaction():
            await self._engine.rows(self._sql.PUT_MARK, name, value)
            if end_owners:
                await self._engine.rows(self._sql.END_OWNERS, await self.now_us())

    async def drop_mark(self, name: str, *, history: tuple[str, str] | None = None) -> None:
        """Take a mark away. ``history``: another to write in the same transaction."""
        async with self._engine.transaction():
            await self._engine.rows(self._sql.DROP_MARK, name)
            if history is not None:
                await self._engine.rows(self._sql.PUT_MARK, *history)

    async def fence(self, value: str) -> None:
        """Refuse every write from now on; durable on return. ``value``: the mark that says why."""
        async with self._engine.transaction():
            for statement in (*self._sql.LOCK, *self._sql.lift()):
                await self._engine.rows(statement)
            await self._engine.rows(self._sql.RAISE_FENCES)
            await self._engine.rows(self._sql.PUT_MARK, FENCE, value)
            for statement in self._sql.fence():
                await self._engine.rows(statement)

    async def lift(self) -> None:
        """Take the fence away."""
        async with self._engine.transaction():
            await self._lift()

    async def open(self, marks: Mapping[str, str], *, clock_at_least_us: int) -> None:
        """Take the fence away from a ledger that has arrived, with ``marks`` written and every owner ended, at once."""
        async with self._engine.transaction():
            await self._lift()
            for name, value in marks.items():
                await self._engine.rows(self._sql.PUT_MARK, name, value)
            await self._engine.clock_at_least(clock_at_least_us)
            await self._engine.rows(self._sql.END_OWNERS, await self.now_us())

    async def _lift(self) -> None:
        for statement in self._sql.lift():
            await self._engine.rows(statement)
        await self._engine.rows(self._sql.DROP_MARK, FENCE)

    # -- rows --------------------------------------------------------------------------------------------

    async def page(self, table: Table, after: Row, limit: int) -> list[Row]:
        """Rows after that key, in the order of keys, alike whatever the engine."""
        return await self._engine.rows(self._sql.page(table), *after, limit)

    async def last(self, table: Table) -> Row | None:
        """The greatest key; None for an empty table."""
        return next(iter(await self._engine.rows(self._sql.last(table))), None)

    async def count(self, table: Table) -> int:
        """How many rows the table has."""
        ((n,),) = await self._engine.rows(self._sql.count(table))
        return int(n)

    async def fill(self, table: Table, rows: Sequence[Row]) -> None:
        """Add rows to a fenced ledger. The fence is off inside the transaction only, where nobody else can write."""
        async with self._engine.transaction():
            for statement in (*self._sql.LOCK, *self._sql.lift()):
                await self._engine.rows(statement)
            await self._engine.fill(table, rows)
            for statement in self._sql.fence():
                await self._engine.rows(statement)

    # -- purging -----------------------------------------------------------------------------------------

    async def purgeable(self, tenant: str, after: tuple[int, str], before_us: int, limit: int) -> list[CallRecord]:
        """Calls settled and last updated before that time, oldest first, after a (``created_at_us``, key).

        Not those of a run that has not finished: it may read them when it goes on, however long it has waited.
        """
        rows = await self._engine.rows(self._sql.PURGEABLE, tenant, *after, before_us, before_us, limit)
        return [record_of(dict(zip(COLUMNS, row, strict=True))) for row in rows]

    async def purge(
        self,
        changes: Sequence[tuple[CallRecord, CallRecord, Sequence[Event]]],
        condemned: Mapping[str, Sequence[str]],
    ) -> list[str]:
        """Replace records, each at the version it was read at, and append events; the keys of those that had not moved.

        Where the new head is empty, the call's events go. ``condemned``: digests of the bodies that a call had, by key.
        """
        done: list[str] = []
        async with self._engine.transaction():
            if condemned:
                # Whoever is about to keep the same bytes finishes first, so that the later search sees their call.
                await self._engine.rows(self._sql.LOCK_BLOBS)
            for before, after, events in changes:
                where = (before.tenant, before.key, before.version)
                values = (after.digest, after.arguments, *mutable_values(after), *where)
                if not await self._engine.changed(self._sql.PURGE, *values):
                    continue
                done.append(before.key)
                if events:
                    await self._engine.fill(EVENTS, [(before.tenant, *event_row(event)) for event in events])
                if after.head_seq == 0:
                    await self._engine.rows(self._sql.DROP_EVENTS, before.tenant, f"call:{before.key}")
                for digest in condemned.get(before.key, ()):
                    await self._engine.rows(self._sql.CONDEMN, before.tenant, digest)
        return done

    async def purgeable_runs(self, tenant: str, after: tuple[int, str], before_us: int, limit: int) -> list[RunRecord]:
        """Runs that ended and were last changed before that time, oldest first, after a (``created_at_us``, id).

        Nothing is left to do about them or any of their calls, nobody is going on with their conversation, and their
        parents have heard of their ends.
        """
        rows = await self._engine.rows(self._sql.PURGEABLE_RUNS, tenant, *after, before_us, before_us, limit)
        return [run_of(row) for row in rows]

    async def data_with_bodies(self, tenant: str, run_id: str) -> list[str]:
        """The data of those events of a run that name bodies."""
        return [data for (data,) in await self._engine.rows(self._sql.BODIES_OF_STREAM, tenant, run_stream(run_id))]

    async def purge_run(
        self, before: RunRecord, after: RunRecord, events: Sequence[Event], condemned: Sequence[str]
    ) -> bool:
        """Erase the data of all events of a run, replace its row, and append events that say so; whether it was done:
        not where it moved, or somebody began to go on with its conversation. ``condemned``: the bodies that it had."""
        tenant, stream = before.tenant, run_stream(before.id)
        async with self._engine.transaction():
            if condemned:
                await self._engine.rows(self._sql.LOCK_BLOBS)  # as for calls
            values = (*run_changes(after), tenant, before.id, before.version)
            if not await self._engine.changed(self._sql.PURGE_RUN, *values):
                return False
            await self._engine.rows(self._sql.ERASE_EVENTS, tenant, stream)
            await self._engine.fill(EVENTS, [(tenant, *event_row(event)) for event in events])
            for digest in condemned:
                await self._engine.rows(self._sql.CONDEMN, tenant, digest)
        return True

    async def condemned(self) -> set[tuple[str, str]]:
        """Bodies that purged calls had, as (tenant, digest)."""
        return set(await self._engine.rows(self._sql.page(CONDEMNED), *CONDEMNED.start, 1_000_000))

    async def with_bodies(self, tenant: str, after: str, limit: int) -> list[tuple[str, str]]:
        """Key and body of calls that name bodies outside their row, in the order of keys."""
        return await self._engine.rows(self._sql.WITH_BODIES, tenant, after, limit)

    async def runs_with_bodies(self, tenant: str, after: tuple[str, int], limit: int) -> list[tuple[str, int, str]]:
        """Stream, ``seq`` and data of events of runs that name bodies, after a (stream, ``seq``), in order."""
        return await self._engine.rows(self._sql.RUNS_WITH_BODIES, tenant, *after, limit)

    async def get(self, tenant: str, key: str) -> CallRecord | None:
        """The call under that key."""
        row = next(iter(await self._engine.rows(self._sql.GET, tenant, key)), None)
        return None if row is None else record_of(dict(zip(COLUMNS, row, strict=True)))

    async def pardon(self, tenant: str, digest: str) -> None:
        """Another call has it: it stays."""
        async with self._engine.transaction():
            await self._engine.rows(self._sql.PARDON, tenant, digest)

    async def drop_blob(self, tenant: str, digest: str) -> bool:
        """Delete a body that is still condemned; whether it was."""
        async with self._engine.transaction():
            condemned = await self._engine.changed(self._sql.PARDON, tenant, digest)
            if condemned:
                await self._engine.rows(self._sql.DROP_CONDEMNED_BLOB, tenant, digest)
        return condemned
