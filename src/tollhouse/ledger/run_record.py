"""The record of a run, and what a store must do with it. The rules that move a run are in ``runs``.

A run is a row with a state, a version and the head of its stream of events, exactly as a call is: whoever moves it
replaces version *n* by *n + 1* and appends what happened in the same commit. Times are integers of microseconds on the
store's clock, named ``*_us``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from tollhouse.ledger.events import Event
from tollhouse.ledger.store import Blob
from tollhouse.ledger.value import value_type


def run_stream(run_id: str) -> str:
    """The stream of a run's events."""
    return f"run:{run_id}"


@value_type
class RunRecord:
    """One run. ``body`` is JSON that only ``runs`` reads (limits, what was spent, what it waits for, its end).

    ``owner``: the process that drives it now; None when nobody does. ``due_at_us``: when a driver shall look at it, of
    itself; None: not before something wakes it. ``start_key``: the caller's key for this start, unique per tenant;
    ``start_digest`` tells a repeat of the same start from another one. ``thread``: the conversation it belongs to, one
    unfinished run at a time. ``parent_key``: the call whose effect this run is. ``source_run_id``: what it reruns or
    rehearses. ``attempt_no``: 1, and one more with every rerun of the same origin. ``driver``: who may drive it.
    """

    tenant: str
    id: str
    agent: str
    agent_version: str
    driver: str
    state: str
    version: int
    owner: str | None
    start_key: str | None
    start_digest: str
    thread: str | None
    parent_run_id: str | None
    parent_key: str | None
    source_run_id: str | None
    attempt_no: int
    requested_by: str
    created_at_us: int
    updated_at_us: int
    due_at_us: int | None
    finished: bool
    head_seq: int
    head_hash: str
    body: str


@value_type
class RunWrite:
    """One guarded write. ``expected`` None: insert; else the version that is replaced.

    ``owner``: must be a live owner at commit; None: not checked. ``write_id`` names the decision, so that a repeat of
    the same write after a lost acknowledgement is recognised by its events. ``blobs``: every body that its events
    name, also one that was kept before: a purge of calls spares what is brought again.
    """

    record: RunRecord
    expected: int | None
    events: tuple[Event, ...]
    write_id: str
    owner: str | None = None
    blobs: tuple[Blob, ...] = ()


class RunRefusal(StrEnum):
    """Why a write of a run was not applied."""

    EXISTS = "exists"  # insert: its id or its start key is taken (``record`` has the run that stands there)
    BUSY = "busy"  # insert: its thread has an unfinished run (``record``)
    STALE = "stale"  # update: the version moved on (``record``)
    OWNER = "owner"  # the owner is not live any more (``record``)


@dataclass(frozen=True, slots=True)
class RunWritten:
    """The answer to one write. ``refusal`` None: applied and durable, now or by an earlier try of the same write.

    ``stands``: the row where an earlier try was applied; see :class:`~tollhouse.ledger.store.Written`.
    """

    refusal: RunRefusal | None = None
    record: RunRecord | None = None
    stands: RunRecord | None = field(default=None, compare=False)

    @property
    def applied(self) -> bool:
        return self.refusal is None


@dataclass(frozen=True, slots=True)
class RunQuery:
    """Which runs to list, newest first. None: not filtered.

    ``before``: (``created_at_us``, id) of the last run seen.
    """

    state: str | None = None
    agent: str | None = None
    thread: str | None = None
    parent_run_id: str | None = None
    source_run_id: str | None = None
    limit: int = 100
    before: tuple[int, str] | None = None

    @property
    def filters(self) -> dict[str, str]:
        """The columns that are filtered, with the values that they must have."""
        names = ("state", "agent", "thread", "parent_run_id", "source_run_id")
        return {name: str(value) for name in names if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, slots=True)
class Definition:
    """Something immutable that runs refer to by the SHA-256 of its text: an agent's version, a catalogue of tools."""

    tenant: str
    digest: str
    kind: str
    name: str
    created_at_us: int
    body: str


@dataclass(frozen=True, slots=True)
class AccessKey:
    """A credential for the HTTP API: only a digest of its secret is kept. Times None: never."""

    tenant: str
    id: str
    secret_digest: str
    principal: str
    scopes: tuple[str, ...]
    created_at_us: int
    expires_at_us: int | None = None
    revoked_at_us: int | None = None


class RunStore(Protocol):
    """The part of an opened store that runs need; both engines implement it.

    All methods raise :class:`~tollhouse.errors.StoreUnavailable` (or a subclass) when the store is gone. Everything is
    scoped by tenant.
    """

    async def write_run(self, write: RunWrite) -> RunWritten:
        """Apply one write, with its events and bodies, in one transaction; durable on return."""
        ...

    async def run(self, tenant: str, run_id: str) -> RunRecord | None: ...

    async def run_of_start(self, tenant: str, start_key: str) -> RunRecord | None:
        """The run that was started under that key."""
        ...

    async def find_runs(self, tenant: str, query: RunQuery) -> list[RunRecord]: ...

    async def count_runs(self, tenant: str) -> dict[str, int]:
        """How many runs stand in each state; states with none may be missing."""
        ...

    async def runs_to_take(
        self, tenant: str, driver: str, limit: int, *, agents: Collection[str] | None = None
    ) -> list[RunRecord]:
        """Runs that nobody drives and somebody should, those that have waited longest for it first.

        They are due (on the store's clock), or woken by a call that moved, or their owner has ended. A wake does not
        count for a run that is finished or stopped at a limit. ``agents`` None: of any agent. Costs no more however
        many runs are paused.
        """
        ...

    async def runs_owned(self, tenant: str, owner_id: str, limit: int) -> list[RunRecord]:
        """The runs that this process incarnation drives."""
        ...

    async def forget_wakes(self, tenant: str, run_id: str) -> None:
        """Take note of the calls that moved. Only after the run was claimed, and before its calls are read."""
        ...

    async def wake(self, tenant: str, run_id: str) -> None:
        """Have a driver look at the run soon, as the move of one of its calls does. Durable on return."""
        ...

    async def keep_definition(self, definition: Definition) -> None:
        """Keep it for ever; the same digest again changes nothing. Durable on return."""
        ...

    async def definition(self, tenant: str, digest: str) -> Definition | None: ...

    async def definitions(self, tenant: str, kind: str, name: str | None = None) -> list[Definition]:
        """Newest first."""
        ...

    async def keep_access_key(self, key: AccessKey) -> None:
        """Insert it, or replace what stands under its id. Durable on return."""
        ...

    async def access_key(self, tenant: str, key_id: str) -> AccessKey | None: ...

    async def access_keys(self, tenant: str) -> list[AccessKey]:
        """Newest first, expired and revoked ones included."""
        ...


RUN_COLUMNS: tuple[str, ...] = tuple(RunRecord.__dataclass_fields__)
RUN_MUTABLE = (
    "state", "version", "owner", "updated_at_us", "due_at_us", "finished", "head_seq", "head_hash", "body",
)  # fmt: skip
"""What an update writes; every other column is as it was inserted."""


def run_row(record: RunRecord) -> tuple[Any, ...]:
    """The columns of a run in the order of :data:`RUN_COLUMNS`."""
    return tuple(getattr(record, name) for name in RUN_COLUMNS)


def run_changes(record: RunRecord) -> tuple[Any, ...]:
    """Values for :data:`RUN_MUTABLE`, in order."""
    return tuple(getattr(record, name) for name in RUN_MUTABLE)


def run_of(row: Iterable[Any]) -> RunRecord:
    """The run in a row with :data:`RUN_COLUMNS`."""
    values = dict(zip(RUN_COLUMNS, row, strict=True))
    return RunRecord(**values | {"finished": bool(values["finished"])})
