"""What a run measures and for how long: the whole bench in five minutes, or a quick look in one."""

from __future__ import annotations

from dataclasses import dataclass

CALLERS = (8, 32, 64)
"""Numbers of callers whose rate is measured, beside the one whose time is."""

FEW_ROWS = 10_000


@dataclass(frozen=True)
class Plan:
    """``store``: ``sqlite``, ``postgres`` or ``both``. ``runs``: agents' runs and the server too.

    ``rows``: the larger of the two tables of the growth figures.
    """

    store: str = "both"
    quick: bool = False
    peers: bool = False
    runs: bool = False
    rows: int = 1_000_000

    @property
    def rounds(self) -> int:
        """How often each contestant has its turn."""
        return 3 if self.quick else 7

    @property
    def seconds(self) -> float:
        """How long one turn takes."""
        return 0.25 if self.quick else 0.7

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of the tables of the growth figures; a quick run has no time to fill them."""
        return () if self.quick else (FEW_ROWS, self.rows)

    @property
    def python_calls(self) -> int:
        """Calls of one try at the interpreter's share."""
        return 1_000 if self.quick else 4_000

    @property
    def counted_calls(self) -> int:
        """Effects, and reads, whose commits are counted."""
        return 50 if self.quick else 200

    @property
    def orphans(self) -> int:
        """Calls of the lost owner."""
        return 1_000 if self.quick else 10_000

    @property
    def starts(self) -> int:
        """Fresh interpreters, and openings of a house."""
        return 3 if self.quick else 9


def size_name(rows: int) -> str:
    """``1e4`` and so on, as the figures are named."""
    return f"1e{len(str(rows)) - 1}"
