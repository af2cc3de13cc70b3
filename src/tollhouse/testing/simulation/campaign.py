"""Many histories, over two processes of the machine: what they came to, and whether every mutant is noticed."""

from __future__ import annotations

import gc
import multiprocessing
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field

from tollhouse.testing.mutants import MUTANTS, VARIANTS
from tollhouse.testing.mutants import mutant as broken_by
from tollhouse.testing.simulation.history import play, simulated_machine
from tollhouse.testing.simulation.model import VERDICTS

CHUNK = 500
COLLECT_EVERY = 100
WORKERS = 2
SELF_CHECK_MOST = 2000
"""Each mutant must be caught within so many seeds."""


@dataclass(slots=True)
class Tally:
    """What a number of histories came to. ``failed``: seeds with a violation or a defect, in order."""

    seeds: int = 0
    calls: int = 0
    residual: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    defects: int = 0
    failed: list[int] = field(default_factory=list)
    scenes: Counter[str] = field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        """Count another tally in."""
        self.seeds += other.seeds
        self.calls += other.calls
        self.residual += other.residual
        self.verdicts += other.verdicts
        self.defects += other.defects
        self.failed += other.failed
        self.scenes += other.scenes


def play_range(seeds: range, mutant: str | None = None, *, until_caught: bool = False) -> Tally:
    """Play these seeds here, with one rule broken where a mutant is named. ``until_caught``: stop at a violation."""
    tally = Tally()
    with nullcontext() if mutant is None else broken_by(mutant), simulated_machine() as ear:
        for seed in seeds:
            report = play(seed, ear)
            tally.seeds += 1
            tally.calls += report.calls
            tally.residual += report.residual
            tally.scenes[report.scene] += 1
            tally.verdicts.update({violation.verdict for violation in report.violations})
            tally.defects += bool(report.defects)
            if not report.ok:
                tally.failed.append(seed)
            if until_caught and report.violations:
                break
            if tally.seeds % COLLECT_EVERY == 0:
                gc.collect()
    return tally


def _chunks(first: int, count: int) -> Iterator[range]:
    for start in range(first, first + count, CHUNK):
        yield range(start, min(start + CHUNK, first + count))


def _play_chunk(task: tuple[range, str | None]) -> Tally:
    return play_range(*task)


def play_many(first: int, count: int, mutant: str | None = None) -> Iterator[Tally]:
    """Play ``count`` seeds from ``first`` on in two processes; yields what each part came to as it is done."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(WORKERS) as pool:
        yield from pool.imap_unordered(_play_chunk, [(chunk, mutant) for chunk in _chunks(first, count)])


def seeds_needed(name: str, most: int = SELF_CHECK_MOST) -> int | None:
    """How many seeds from 0 on it takes until a verdict catches that mutant; None when ``most`` do not."""
    tally = play_range(range(most), name, until_caught=True)
    return tally.seeds if any(tally.verdicts[verdict] for verdict in VERDICTS) else None


def self_check(most: int = SELF_CHECK_MOST) -> dict[str, int | None]:
    """The seeds that each mutant takes, by name, variants included."""
    context = multiprocessing.get_context("spawn")
    names = [*MUTANTS, *VARIANTS]
    with context.Pool(WORKERS) as pool:
        found = pool.starmap(seeds_needed, [(name, most) for name in names], chunksize=1)
    return dict(zip(names, found, strict=True))
