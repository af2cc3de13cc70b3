"""Deterministic simulation: many processes, one store, a bad network and people, all from one seed, checked by a model.

``simulate(seed)`` plays one history. ``python -m tollhouse.testing.simulation --seeds N`` plays many.
"""

from __future__ import annotations

from contextlib import nullcontext

from tollhouse.testing.mutants import mutant as broken_by
from tollhouse.testing.simulation.history import Report, play, simulated_machine
from tollhouse.testing.simulation.model import VERDICTS, Violation


def simulate(seed: int, mutant: str | None = None) -> Report:
    """Play one history, with one rule broken where a mutant is named. Raises KeyError for a mutant nobody knows."""
    with nullcontext() if mutant is None else broken_by(mutant), simulated_machine() as ear:
        return play(seed, ear)


__all__ = ["VERDICTS", "Report", "Violation", "simulate"]
