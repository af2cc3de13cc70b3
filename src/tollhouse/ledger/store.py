"""What a store must do: replace version *n* of a call by *n + 1*, durably, or say why not.

The gate, the doubt services and the house speak to this interface only; ``stores/`` implements it. A store knows no
rule of a call's life: it compares, swaps, appends events and keeps time. Everything is scoped by tenant.

Lost acknowledgements: when a connection dies between COMMIT and its reply, the store repeats the *same guarded write*
under the same ``write_id`` until it is applied or refused; it never decides by reading the row by key. A write that
finds its version gone looks for its ``write_id`` in the events to learn that it was applied before.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable

from tollhouse.ledger.events import Event
from tollhouse.ledger.record import CallRecord, State
from tollhouse.ledger.value import value_type


@dataclass(frozen=True, slots=True)
class RepeatCheck:
    """Checked inside commit 1: refuse the insert when a twin exists in the scope.

    A twin has the same tenant, scope, tool and ``digest``, another group (None is no group), and is unsettled or,
    with ``within_us``, was last updated no longer than that ago (refused calls are no twins once settled).
    Concurrent twins meet on ``CallRecord.repeat_slot``, which is unique per tenant while set.
    """

    scope: str
    tool: str
    digest: str
    group: str | None
    within_us: int | None


@dataclass(frozen=True, slots=True)
class Blob:
    """A body kept outside the row, by the SHA-256 (hexadecimal) of its bytes."""

    digest: str
    data: bytes


@value_type
class Write:
    """One guarded write. ``expected`` None: insert, the key must be free; else the version that is replaced.

    ``owner``: must be a live owner (registered, not ended) at commit, for departures; None: not checked.
    ``arguments_changed``: only then need ``arguments`` and ``digest`` be written by an update. ``made``: the column
    ``body`` of that very record, where it was made already; else the store makes it.
    """

    record: CallRecord
    expected: int | None
    events: tuple[Event, ...]
    write_id: str
    owner: str | None = None
    repeat: RepeatCheck | None = None
    blobs: tuple[Blob, ...] = ()
    arguments_changed: bool = False
    made: tuple[CallRecord, str] | None = None


class Refusal(StrEnum):
    """Why a write was not applied."""

    EXISTS = "exists"  # insert: the key is taken (``record`` has what stands there)
    STALE = "stale"  # update: the version moved on, or the row is gone (``record``)
    REPEAT = "repeat"  # insert: a twin stands (``record`` is the twin)
    OWNER = "owner"  # the owner is not live any more


@dataclass(frozen=True, slots=True)
class Written:
    """The answer to one write. ``refusal`` None: applied and durable, now or by an earlier try of the same write.

    ``stands``: the row where an earlier try was applied. That one may have been decided at another moment, with other
    times and salts than this try, so what follows must be built on what stands.
    """

    refusal: Refusal | None = None
    record: CallRecord | None = None
    stands: CallRecord | None = field(default=None, compare=False)

    @property
    def applied(self) -> bool:
        return self.refusal is None


@dataclass(frozen=True, slots=True)
class Fence:
    """What a sender reads just before bytes leave: its right to send is gone if ``fence`` moved or cancel was asked."""

    fence: int
    cancel_asked: bool


@dataclass(frozen=True, slots=True)
class Owner:
    """A process incarnation. ``host`` identifies machine and boot; with ``pid`` and ``pid_started`` it proves a death.

    ``ended_at_us`` None: not ended. An ended owner can never be renewed nor depart anything.
    """

    tenant: str
    id: str
    host: str
    pid: int
    pid_started: str
    label: str
    lease_until_us: int = 0
    started_at_us: int = 0
    ended_at_us: int | None = None
    proven_dead: bool = False


@dataclass(frozen=True, slots=True)
class Renewal:
    """The answer to a registration or renewal. ``alive`` False: the owner was ended; start a new incarnation.

    ``restored_at_us``: since when the ledger is marked as restored from a backup; None when it is not.
    """

    alive: bool
    now_us: int
    lease_until_us: int
    restored_at_us: int | None = None


class LeaseConnection(Protocol):
    """A connection of its own, used by the lease keeper's thread alone; synchronous."""

    def register(self, owner: Owner, lease_s: float) -> Renewal: ...

    def renew(self, tenant: str, owner_id: str, lease_s: float) -> Renewal: ...

    def end(self, tenant: str, owner_id: str) -> None:
        """End the owner at once (graceful close, nothing running)."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Query:
    """Which calls to list, newest first. None: not filtered.

    ``digest``: of the arguments as they stand; ``request_digest``: of those that were asked for, before people changed
    them.
    """

    state: State | None = None
    tool: str | None = None
    scope: str | None = None
    contradicted: bool | None = None
    limit: int = 100
    before: tuple[int, str] | None = None
    """(``created_at_us``, key) of the last row of the page before."""
    digest: str | None = None
    request_digest: str | None = None

    @property
    def columns(self) -> dict[str, str]:
        """The columns of text that are filtered, with the values that they must have."""
        names = ("state", "tool", "scope", "digest", "request_digest")
        return {name: str(value) for name in names if (value := getattr(self, name)) is not None}


@dataclass(slots=True)
class Counters:
    """What a store did since it was opened; the tests' and the bench's evidence for the commit budget."""

    commits: int = 0
    writes: int = 0
    batches: int = 0
    bisections: int = 0
    reconnects: int = 0
    extra: dict[str, int] = field(default_factory=dict)


@runtime_checkable
class Queueing(Protocol):
    """A store in which writes wait for each other; for health checks."""

    @property
    def waiting(self) -> int:
        """Writes that wait for their commit."""
        ...


class Store(Protocol):
    """An opened store. All methods raise :class:`~tollhouse.errors.StoreUnavailable` (or a subclass) when it is gone.

    Such an error never says what became of a write: the caller knows whether it had sent anything. Methods may be
    awaited from one event loop only; cancelling a caller never cancels a write that has begun.
    """

    url: str
    counters: Counters

    async def write(self, *writes: Write) -> tuple[Written, ...]:
        """Apply these writes in one transaction, all or none; durable on return.

        One item refused: none is applied, and every item carries its own answer (an item that would have been
        applied alone answers with refusal STALE and its current record). Many callers' writes share a commit
        underneath; one caller's refusal never disturbs another's.

        Raises :class:`ValueError` to its own caller for a row that the store's constraints forbid or that it cannot
        hold: a defect of the caller's code, which repeating does not mend.
        """
        ...

    async def get(self, tenant: str, key: str) -> CallRecord | None: ...

    async def fence(self, tenant: str, key: str) -> Fence | None: ...

    async def events(self, tenant: str, stream: str, after: int = 0, limit: int = 10_000) -> list[Event]: ...

    async def blob(self, tenant: str, digest: str) -> bytes | None: ...

    async def find(self, tenant: str, query: Query) -> list[CallRecord]: ...

    async def count(self, tenant: str) -> dict[State, int]:
        """How many calls stand in each state; states with none may be missing."""
        ...

    async def due(
        self, tenant: str, limit: int, *, tools: Collection[str] | None = None, states: Collection[State] | None = None
    ) -> list[CallRecord]:
        """Calls whose ``due_at_us`` has come on the store's clock, most overdue first; None: of any tool, any state."""
        ...

    async def end_expired_owners(self, tenant: str, *, by_us: int | None = None) -> list[Owner]:
        """End, in one durable step each, owners whose lease has ended on the store's clock; return all ended owners
        that still have open attempts. Nobody can renew them afterwards.

        ``by_us``: the judgement holds only until then on the store's clock; one that is carried out later, as after
        an outage in between, ends nobody. None: whenever it arrives.
        """
        ...

    async def orphans(self, tenant: str, owner_id: str, limit: int) -> list[CallRecord]:
        """Calls with an attempt of that owner that has not ended."""
        ...

    async def owner(self, tenant: str, owner_id: str) -> Owner | None: ...

    async def owner_is_dead(self, tenant: str, owner_id: str) -> None:
        """Record the proof that the owner's process does not exist any more, and end it."""
        ...

    async def now_us(self) -> int:
        """The store's clock, which never runs back as seen through this handle."""
        ...

    def lease_connection(self) -> LeaseConnection: ...

    def changed(self, tenant: str, key: str) -> None:
        """Hint that a call moved, sent to other processes where the store can; never relied upon."""
        ...

    async def close(self) -> None: ...
