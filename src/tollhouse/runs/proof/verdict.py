"""What verifying a bundle comes to, and the collector that every check tells what it finds."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Result(StrEnum):
    """``pass``: whole, and every call accounted for. ``incomplete``: whole, and something is still open. ``fail``: not
    whole, or something is missing."""

    PASS = "pass"  # noqa: S105 - a verdict
    INCOMPLETE = "incomplete"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong. ``record``: its name in the bundle; ``stream`` and ``seq``: its place in a chain."""

    record: str
    what: str
    stream: str | None = None
    seq: int | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """See :class:`Result`. The first of ``problems`` is the first in the order of the checks and of the bundle.

    ``open``: what is not settled yet. ``erased``: records whose payload was erased or purged, which breaks nothing.
    ``notes``: what a reader should know, such as that the key is only self-asserted. ``pinned``: the signature was
    checked against a key that was given, not against the one in the bundle.
    """

    result: Result
    about: dict[str, Any]
    key_id: str | None
    pinned: bool
    problems: tuple[Problem, ...] = ()
    open: tuple[Problem, ...] = ()
    erased: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def first(self) -> Problem | None:
        """The first thing that is wrong; None when nothing is."""
        return next(iter(self.problems), None)

    def as_json(self) -> dict[str, Any]:
        """The verdict as every surface shows it."""
        shown = asdict(self)
        return {
            "result": shown.pop("result").value,
            "first": None if self.first is None else asdict(self.first),
            **shown,
        }


class Findings:
    """What the checks find, in the order in which they look."""

    def __init__(self) -> None:
        self.problems: dict[Problem, None] = {}
        self.open: list[Problem] = []
        self.erased: dict[str, None] = {}
        self.notes: dict[str, None] = {}

    def problem(self, record: str, what: str, stream: str | None = None, seq: int | None = None) -> None:
        """Something is wrong; said once for a record and a reason."""
        self.problems[Problem(record, what, stream, seq)] = None

    def is_open(self, record: str, what: str) -> None:
        """Something is not settled yet."""
        self.open.append(Problem(record, what))

    def was_erased(self, record: str) -> None:
        """A payload is gone, as it may be."""
        self.erased[record] = None

    def note(self, text: str) -> None:
        """Something to know."""
        self.notes[text] = None

    @property
    def result(self) -> Result:
        """What all of it comes to."""
        if self.problems:
            return Result.FAIL
        return Result.INCOMPLETE if self.open else Result.PASS
