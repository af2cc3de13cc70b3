"""What the checker judges: plain facts about one call, from the receiver's book, the ledger and the witnesses.

Built by the stage, made up by hand in tests. Times named ``*_us`` without another word are on the machine's own clock
(:func:`~tollhouse.ledger.clock.boot_us`), the same for all processes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tollhouse.gate.view import HistoryLine
from tollhouse.ledger.record import CallRecord


@dataclass(frozen=True, slots=True)
class Check:
    """A last check that passed. ``began_us``: before it looked at anything. ``lease_until_us``: as its owner knew."""

    attempt: str
    began_us: int
    at_us: int
    lease_until_us: int = 0


@dataclass(frozen=True, slots=True)
class Ack:
    """A write that was acknowledged to its process, so it was durable by then. ``kinds``: of its events."""

    version: int
    state: str
    fence: int
    kinds: tuple[str, ...]
    at_us: int


@dataclass(frozen=True, slots=True)
class Decided:
    """What a person asked for, and whether the house agreed. ``shown``: the digest of the arguments they saw."""

    verb: str
    by: str
    accepted: bool
    asked_us: int
    at_us: int
    finding: str | None = None
    shown: str | None = None


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request as the receiver saw it. ``attempt`` empty: the sender did not say."""

    sequence: int
    wire_key: str | None
    attempt: str
    amount: int
    at_us: int


@dataclass(frozen=True, slots=True)
class Happening:
    """An effect in the receiver's book. ``attempt`` empty: the receiver recognises keys, so the body names none."""

    sequence: int
    wire_key: str | None
    attempt: str
    undone: bool = False
    """Long work that was cancelled: it had no effect in the end."""


@dataclass(slots=True)
class Case:
    """One call. ``record`` None: the ledger has none. ``undoing``: sequences of the effects that took it back.

    ``returned``: attempts whose function came back in a process that lived to the end. ``settled``: whether people
    brought it to an end. ``skew_us``: what to add to the store's time to get the machine's own.
    """

    key: str
    seed: int
    plot: str
    record: CallRecord | None = None
    history: tuple[HistoryLine, ...] = ()
    effects: list[Happening] = field(default_factory=list)
    requests: list[Arrival] = field(default_factory=list)
    undoing: list[int] = field(default_factory=list)
    decisions: list[Decided] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    acks: list[Ack] = field(default_factory=list)
    returned: set[str] = field(default_factory=set)
    settled: bool = True
    skew_us: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
