"""Does the ledger tell the truth? The receiver's book, which knows nothing of the ledger, judges it key by key.

Pure, so that tests can show it a book with a duplicate or a loss and see that it is noticed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from tollhouse.ledger.record import State
from tollhouse.testing.receiver import Effect

_TOOK_EFFECT = frozenset({State.SUCCEEDED, State.COMPENSATED})
_NO_EFFECT = frozenset({State.HELD, State.READY, State.REFUSED, State.FAILED})
_OPEN = frozenset({State.DEPARTED, State.ACCEPTED, State.IN_DOUBT})


@dataclass(frozen=True)
class LedgerLine:
    """A call as the ledger has it. ``sendings``: how many attempts departed; ``doubted``: it was in doubt once."""

    key: str
    wire_key: str
    state: State
    sendings: int
    doubted: bool = False
    settled_by: str = ""


@dataclass(frozen=True)
class Verdict:
    """The counts. ``in_doubt`` is how many calls are unsettled now, ``doubts_seen`` how many were at some time.

    ``duplicates``: effects beyond the first of each key; in the demo nobody permits a second, so none is explained.
    ``lost``: effects of which the ledger has no departure. ``disagreements``: settled calls whose state the book
    denies (*succeeded* without an effect, *failed* with one).
    """

    calls: int
    effects: int
    duplicates: int
    lost: int
    in_doubt: int
    doubts_seen: int
    disagreements: int

    @property
    def findings(self) -> list[str]:
        """What is wrong, in words; empty when no effect was doubled or lost, no doubt is left, and both sides agree."""
        found = (
            (self.duplicates, "Effects under a key that had one already"),
            (self.lost, "Effects of which the ledger has no departure"),
            (self.in_doubt, "Calls that are not settled"),
            (self.disagreements, "Calls that are settled as the book denies"),
        )
        return [f"{what}: {number}." for number, what in found if number]


def judge(ledger: Iterable[LedgerLine], book: Iterable[Effect]) -> Verdict:
    """Compare a ledger with a receiver's book."""
    lines = list(ledger)
    effects = Counter(effect.key for effect in book)
    departed = {line.wire_key for line in lines if line.sendings}
    return Verdict(
        calls=len(lines),
        effects=effects.total(),
        duplicates=sum(count - 1 for count in effects.values()),
        lost=sum(count for key, count in effects.items() if key not in departed),
        in_doubt=sum(line.state in _OPEN for line in lines),
        doubts_seen=sum(line.doubted for line in lines),
        disagreements=sum(_disagree(line.state, effects[line.wire_key]) for line in lines),
    )


def _disagree(state: State, effects: int) -> bool:
    return (state in _TOOK_EFFECT and not effects) or (state in _NO_EFFECT and effects > 0)
