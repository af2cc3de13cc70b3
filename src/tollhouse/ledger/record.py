"""The record of a call: a plain value that every store keeps and every rule reads.

A :class:`CallRecord` holds all that the lifecycle needs (attempts of every round, settlements, approval), so each
rule is a pure function from one record to the next, and a store's only job is to replace version *n* by *n + 1*.
Times are integers of microseconds on the store's clock, named ``*_us``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from tollhouse.contract.terms import Terms
from tollhouse.ledger.value import value_type

Json = Mapping[str, Any]
T = TypeVar("T")


def replace(value: T, **fields: Any) -> T:
    """:func:`dataclasses.replace` for records, on the hot path: one dict copy instead of forty attribute writes.

    Records and attempts keep a ``__dict__`` for it (no slots). Raises TypeError for a field that does not exist.
    """
    kept = getattr(value, "__dict__", None)
    if kept is None:
        return dataclasses.replace(value, **fields)  # type: ignore[type-var]
    held = kept | fields
    if len(held) != len(kept):
        raise TypeError(f"{type(value).__name__} has no field among {sorted(set(fields) - set(kept))}")
    changed: T = object.__new__(type(value))
    object.__setattr__(changed, "__dict__", held)
    return changed


class State(StrEnum):
    """Where a call stands."""

    HELD = "held"
    READY = "ready"
    DEPARTED = "departed"
    ACCEPTED = "accepted"
    IN_DOUBT = "in_doubt"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REFUSED = "refused"
    COMPENSATED = "compensated"

    @property
    def sentence(self) -> str:
        """The state in words, for docs, CLI and console."""
        return _STATE_SENTENCES[self]


_STATE_SENTENCES = {
    State.HELD: "waits for people; nothing sent in this round",
    State.READY: "may go; nothing sent in this round",
    State.DEPARTED: "may have been sent; its owner will say",
    State.ACCEPTED: "long work under way at the receiver, under a reference",
    State.IN_DOUBT: "may have taken effect; nobody runs it again by itself",
    State.SUCCEEDED: "took effect, result recorded",
    State.FAILED: "known to have had no effect",
    State.REFUSED: "a gate or a person said no; nothing sent in this round",
    State.COMPENSATED: "took effect and was undone by its own ledgered call",
}

SETTLED = frozenset({State.SUCCEEDED, State.FAILED, State.REFUSED, State.COMPENSATED})
"""States that no clock and no worker leaves by itself."""


class AttemptOutcome(StrEnum):
    """How a sending ended, weakest first; :attr:`rank` orders them."""

    NOT_SENT = "not_sent"
    REJECTED = "rejected"
    UNKNOWN = "unknown"
    ACCEPTED = "accepted"
    HAPPENED = "happened"

    @property
    def rank(self) -> int:
        """Its place in the one order of outcomes, 1 (weakest) to 5."""
        return _RANKS[self]

    @property
    def sentence(self) -> str:
        """The outcome in words, for docs, CLI and console."""
        return _OUTCOME_SENTENCES[self]


_OUTCOME_SENTENCES = {
    AttemptOutcome.NOT_SENT: "proof that no byte left",
    AttemptOutcome.REJECTED: "the receiver says that it did nothing, and means it",
    AttemptOutcome.UNKNOWN: "anything else: an exception, a timeout, a broken body, a crash",
    AttemptOutcome.ACCEPTED: "long work confirmed under a reference",
    AttemptOutcome.HAPPENED: "a result came back",
}
_RANKS = {outcome: rank for rank, outcome in enumerate(AttemptOutcome, start=1)}

FINAL = frozenset({AttemptOutcome.NOT_SENT, AttemptOutcome.REJECTED, AttemptOutcome.HAPPENED})
"""Outcomes that nothing replaces; ``unknown`` and ``accepted`` are provisional."""


class Lost(StrEnum):
    """How we know that an attempt's owner is gone."""

    LEASE = "lease"  # its lease ended; the process may be frozen and wake
    DEAD = "dead"  # its process is proven not to exist any more


@value_type
class Stored:
    """A kept result: marked JSON text inline, or a blob by SHA-256, or only the problem that kept it out.

    Exactly one of ``text`` and ``blob`` is set, or neither when ``problem`` says why (``not_storable``, ``no_space``,
    ``purged``). ``problem`` may also stand beside a body (``not_as_declared``: kept as it came).
    """

    text: str | None = None
    blob: str | None = None
    size: int = 0
    problem: str | None = None
    detail: str | None = None


@dataclass(frozen=True)
class Attempt:
    """One sending of a call. ``outcome`` None: out, nothing heard. ``ended_at_us`` None: it may still be running."""

    id: str
    round: int
    number: int
    owner: str
    fence: int
    started_at_us: int
    send_by_us: int
    outcome: AttemptOutcome | None = None
    ended_at_us: int | None = None
    lost: Lost | None = None
    judged: AttemptOutcome | None = None
    reference: str | None = None
    error: Json | None = None
    late: bool = False
    late_result: Stored | None = None
    cost: str | None = None
    """What this sending cost, as a decimal number in the currency of the books; None: none declared, or not known."""

    @property
    def effective(self) -> AttemptOutcome | None:
        """The outcome that counts: a settlement stands in for the outcome it judged."""
        return self.judged or self.outcome

    @property
    def running(self) -> bool:
        """Whether its owner may still be at it."""
        return self.ended_at_us is None

    @property
    def unsettled(self) -> bool:
        """Whether it may have had an effect that nobody has judged yet."""
        return self.judged is None and self.outcome not in FINAL


@dataclass(frozen=True, slots=True)
class Settlement:
    """A statement about what happened. ``covers`` holds the attempts it knew of, with their outcomes at the time.

    ``kind``: ``evidence`` (settled a doubt), ``finding`` (recorded against a settled call), ``overturn``, ``uphold``.
    ``via``: ``hook``, ``person``, ``callback``. ``finding``: ``happened`` or ``did_not_happen`` (None for uphold).
    """

    id: str
    kind: str
    via: str
    finding: str | None
    by: str | None
    reason: str | None
    round: int
    at_us: int
    covers: Mapping[str, str | None]
    evidence: Any = None
    reference: str | None = None
    result: Stored | None = None


@dataclass(frozen=True, slots=True)
class Vote:
    """One person's yes, bound to the digest they were shown."""

    by: str
    at_us: int
    digest: str


@dataclass(frozen=True, slots=True)
class Approval:
    """What people were asked, and what they said. Bound to digest and contract version; consumed by one round."""

    reason: str
    quorum: int
    expires_at_us: int
    digest: str
    contract_version: str
    approvers: tuple[str, ...] | None = None
    votes: tuple[Vote, ...] = ()
    granted_at_us: int | None = None
    consumed_round: int | None = None
    covers_repeat: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """Attempt and deadline settings of this call, after tightening."""

    max_attempts: int
    attempt_timeout_s: float
    deadline_s: float


@dataclass(frozen=True)
class CallRecord:
    """One call, whole. Immutable: rules return the next one."""

    # who it is
    tenant: str
    key: str
    wire_key: str
    tool: str
    effect: str
    request_digest: str
    requested_by: str
    contract: str
    """The terms of its contract as JSON text, stored at insert; see :attr:`terms`."""
    limits: Limits
    # what runs (differs from the request after an edit)
    digest: str
    arguments: str
    # its life
    state: State
    created_at_us: int
    updated_at_us: int
    version: int = 1
    fence: int = 0
    round: int = 1
    attempts: tuple[Attempt, ...] = ()
    settlements: tuple[Settlement, ...] = ()
    approval: Approval | None = None
    contradicted: bool = False
    cancel_asked: bool = False
    departed_at_us: int | None = None
    """First departure of any round: a receiver's dedup window counts from here."""
    deadline_at_us: int | None = None
    """End of this round's ``deadline_s``, counted from its first departure."""
    due_at_us: int | None = None
    """When a worker should next look at it; None when only people or its owner can move it."""
    looks: int = 0
    """How often the reconcile hook was asked in this round: the exponent of its backoff."""
    # around it
    scope: str | None = None
    group: str | None = None
    repeat_of: str | None = None
    repeat_slot: str | None = None
    compensates: str | None = None
    compensated_by: str | None = None
    run_when_approved: bool = False
    # what came of it
    result: Stored | None = None
    error: Json | None = None
    # the head of its event chain
    head_seq: int = 0
    head_hash: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def terms(self) -> Terms:
        """The contract under which the call was made."""
        return Terms.loads(self.contract)

    @property
    def round_attempts(self) -> tuple[Attempt, ...]:
        """Attempts of the current round."""
        return tuple([a for a in self.attempts if a.round == self.round])

    @property
    def open_owners(self) -> str | None:
        """Owners of attempts that may still run, joined by spaces: what a sweeper looks for. None when none."""
        names = [a.owner for a in self.attempts if a.ended_at_us is None]
        return " ".join(dict.fromkeys(names)) if names else None

    def attempt(self, attempt_id: str) -> Attempt | None:
        """The attempt of that id, or None."""
        for attempt in self.attempts:
            if attempt.id == attempt_id:
                return attempt
        return None

    def with_attempt(self, changed: Attempt) -> CallRecord:
        """The record with one attempt replaced."""
        return replace(self, attempts=tuple([changed if a.id == changed.id else a for a in self.attempts]))
