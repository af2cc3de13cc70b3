"""Mutants: the rules of a call's life, each broken once, so that tests, simulation and drill can prove they notice.

``with mutant("send_before_commit_1"):`` replaces functions of the rules, the gate or the doubt services from outside,
in this process, until the block is left. Production code has no switch for any of them and imports nothing from here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from tollhouse.testing.mutants import sending, settling
from tollhouse.testing.mutants.patching import Patches


@dataclass(frozen=True, slots=True)
class Mutant:
    """One broken rule. ``depth``: steps of the shortest history that shows it, a measure of how deep to look."""

    name: str
    sentence: str
    depth: int
    apply: Callable[[Patches], None]


def _named(*mutants: tuple[Callable[[Patches], None], int]) -> dict[str, Mutant]:
    return {apply.__name__: Mutant(apply.__name__, apply.__doc__ or "", depth, apply) for apply, depth in mutants}


MUTANTS: Mapping[str, Mutant] = _named(
    (sending.send_before_commit_1, 2),
    (sending.sweep_ignores_lease, 2),
    (settling.settle_without_compare_and_set, 4),
    (sending.no_store_fence_at_check, 4),
    (settling.late_outcome_discarded, 4),
    (sending.resend_after_cancel, 4),
    (settling.approval_without_digest, 4),
    (settling.timeout_taken_as_failure, 5),
    (settling.approval_survives_its_round, 5),
    (settling.last_outcome_replaces_fold, 5),
    (settling.stale_owner_writes, 6),
    (settling.negative_evidence_without_silence, 7),
    (settling.compensation_without_silence, 7),
    (settling.retry_despite_happened, 8),
    (sending.key_minted_per_attempt, 9),
    (sending.reread_by_key_after_lost_ack, 9),
    (sending.send_by_beyond_window, 11),
    (settling.hook_compares_state_not_version, 15),
)
"""The eighteen, by name, shallowest first."""

VARIANTS: Mapping[str, Mutant] = _named(
    (sending.resend_without_dedup, 9),
)
"""Other ways to break a rule of the eighteen; :func:`mutant` knows them, too."""


@contextmanager
def mutant(name: str) -> Iterator[Mutant]:
    """Break one rule in this process while the block runs. Raises KeyError for a name that does not exist."""
    chosen = MUTANTS[name] if name in MUTANTS else VARIANTS[name]
    patches = Patches()
    try:
        chosen.apply(patches)
        yield chosen
    finally:
        patches.undo()


__all__ = ["MUTANTS", "VARIANTS", "Mutant", "mutant"]
