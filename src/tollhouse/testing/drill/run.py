"""The run: chapters of seeds on fresh ledgers, their facts brought together and judged; then the mutants."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tollhouse.gate.view import HistoryLine
from tollhouse.ledger.store import Store
from tollhouse.stores import open_store
from tollhouse.testing.drill.checker import VERDICTS, Judgement, judge
from tollhouse.testing.drill.directed import DIRECTED, plot_of
from tollhouse.testing.drill.evidence import Arrival, Case, Happening
from tollhouse.testing.drill.people import SETTLED, bring_to_end
from tollhouse.testing.drill.plots import Plot
from tollhouse.testing.drill.stage import Stage, Tally, boot_offset_us
from tollhouse.testing.drill.stores import Ledger, Stores
from tollhouse.testing.drill.story import story
from tollhouse.testing.drill.tools import ATTEMPT_HEADER, DELAY_MOST_S
from tollhouse.testing.mutants import MUTANTS
from tollhouse.testing.receiver import Effect, Receiver, SeenRequest
from tollhouse.testing.receiver.book import Book

CHAPTER = 1000
"""Seeds on one ledger."""
AT_ONCE = 300
"""Calls in hand at a time: most of a call's time it waits (for a lease to end, for silence)."""
PLOT_MOST_S = 700.0
"""No plot takes that long, however busy the machine."""
MUTANT_SEEDS = 24
"""Within so many seeds of its directed plot a mutant must be noticed."""
MUTANTS_AT_ONCE = 4
TOLD_MOST = 5
"""Failed calls that are told in full."""

Progress = Callable[[str], None]


@dataclass(slots=True)
class Result:
    """What a run came to.

    ``mutants``: seeds needed by name, None where it was missed; empty where none were tried. ``noticed_by``: the
    verdicts that said so. ``killed_seeds``: calls that a killed process left behind. ``events``: lines of history.
    ``unfinished``: seeds whose plot hung, a defect of the drill itself.
    """

    store: str
    seeds: int = 0
    seconds: float = 0.0
    tally: Tally = field(default_factory=Tally)
    residual: int = 0
    verdicts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(VERDICTS, 0))
    failed: list[Judgement] = field(default_factory=list)
    mutants: dict[str, int | None] = field(default_factory=dict)
    noticed_by: dict[str, list[str]] = field(default_factory=dict)
    killed_seeds: int = 0
    events: Counter[str] = field(default_factory=Counter)
    unfinished: list[int] = field(default_factory=list)

    @property
    def self_check(self) -> bool | None:
        """Whether all eighteen mutants were noticed; None where they were not all tried."""
        if set(self.mutants) != set(MUTANTS):
            return None
        return all(needed is not None for needed in self.mutants.values())

    @property
    def passed(self) -> bool:
        """No violation, no seed unfinished, and no mutant missed of those that were tried."""
        return not self.failed and not self.unfinished and None not in self.mutants.values()

    def as_json(self) -> dict[str, Any]:
        """The run as one object."""
        return {
            "store": self.store,
            "seeds": self.seeds,
            "kills": self.tally.kills,
            "stops": self.tally.stops,
            "outages": self.tally.outages,
            "lost_acks": self.tally.lost_acks,
            "clock_steps": self.tally.clock_steps,
            "killed_seeds": self.killed_seeds,
            **self.verdicts,
            "residual": self.residual,
            "mutants": self.mutants,
            "noticed_by": self.noticed_by,
            "self_check": self.self_check,
            "events": dict(self.events.most_common()),
            "seed_failed": sorted({judgement.case.seed for judgement in self.failed} | set(self.unfinished)),
            "unfinished": self.unfinished,
            "passed": self.passed,
            "seconds": round(self.seconds, 1),
        }

    def take(self, judgements: list[Judgement], tally: Tally) -> None:
        """Count a chapter in."""
        self.tally.add(tally)
        for judgement in judgements:
            self.residual += judgement.residual
            self.events.update(line.kind for line in judgement.case.history)
            self.killed_seeds += any(a.lost == "dead" for a in getattr(judgement.case.record, "attempts", ()))
            for verdict in judgement.found:
                self.verdicts[verdict] += 1
            if judgement.failed:
                self.failed.append(judgement)


async def drill(
    kind: str,
    seeds: int,
    first: int = 0,
    *,
    mutants: bool = True,
    only: str | None = None,
    progress: Progress = lambda _line: None,
) -> Result:
    """Play ``seeds`` seeds from ``first`` on over a store of that kind, then the mutants. ``only``: one mutant.

    Raises :class:`~tollhouse.testing.postgres.PostgresUnavailable` where there is no server to start.
    """
    began, result = time.monotonic(), Result(kind)
    with tempfile.TemporaryDirectory(prefix="tollhouse-drill-") as folder:
        async with Stores(kind, Path(folder)) as stores:
            for number, start in enumerate(range(first, first + seeds, CHAPTER)):
                chapter = range(start, min(start + CHAPTER, first + seeds))
                judgements, tally, unfinished = await _chapter(stores, Path(folder) / f"chapter-{number}", chapter)
                for failed in [each for each in judgements if each.failed][: max(0, TOLD_MOST - len(result.failed))]:
                    for line in story(failed):
                        progress(line)
                result.take(judgements, tally)
                result.unfinished += unfinished
                result.seeds += len(chapter)
                progress(_said(result, time.monotonic() - began))
            names = [only] if only else list(MUTANTS) if mutants else []
            for name, (needed, verdicts) in (await _mutants(stores, Path(folder), names, first, progress)).items():
                result.mutants[name], result.noticed_by[name] = needed, verdicts
    result.seconds = time.monotonic() - began
    return result


def _said(result: Result, seconds: float) -> str:
    found = ", ".join(f"{name} {count}" for name, count in result.verdicts.items() if count) or "no violation"
    return f"{result.seeds} seeds in {seconds:.0f} s, {result.tally.kills} kills: {found}, residual {result.residual}"


# -- chapters ---------------------------------------------------------------------------------------------


async def _chapter(stores: Stores, folder: Path, seeds: range) -> tuple[list[Judgement], Tally, list[int]]:
    rng = random.Random(f"chapter {seeds.start}")
    await asyncio.to_thread(folder.mkdir)
    async with stores.ledger(shadow_clock=rng.random() < 0.5) as ledger:
        with Receiver.start(folder / "book.jsonl") as receiver:
            stage = Stage(ledger, receiver, folder)
            async with stage.open():
                misfortune = asyncio.get_running_loop().create_task(_misfortunes(stage, rng))
                await _play(stage, [(seed, None) for seed in seeds])
                misfortune.cancel()
                await asyncio.gather(misfortune, return_exceptions=True)
                await _finish(stage)
            stage.tally.outages += ledger.outages
            stage.tally.lost_acks += ledger.lost_acks
            return [judge(case) for case in await facts(stage)], stage.tally, stage.unfinished


async def _play(stage: Stage, seeds: list[tuple[int, Plot | None]]) -> None:
    room = asyncio.Semaphore(AT_ONCE)

    async def one(seed: int, plot: Plot | None) -> None:
        async with room:
            rng = random.Random(f"seed {seed}")
            chosen = plot_of(rng)
            try:
                async with asyncio.timeout(PLOT_MOST_S):
                    await (plot or chosen)(stage, seed, rng)
            except TimeoutError:
                stage.unfinished.append(seed)

    async with asyncio.TaskGroup() as group:
        for seed, plot in seeds:
            group.create_task(one(seed, plot))


async def _misfortunes(stage: Stage, rng: random.Random) -> None:
    """What strikes everybody, in the middle of a chapter: the server dies, or time runs back."""
    await asyncio.sleep(3.0 + 3.0 * rng.random())
    await stage.ledger.kill()
    await asyncio.sleep(2.0)
    await stage.ledger.step_clock_back()
    for worker in stage.crew.workers[: 1 + rng.randrange(6)]:
        worker.tell(wall_back_s=20.0)
    stage.tally.clock_steps += 1


async def _finish(stage: Stage) -> None:
    """Let everything arrive, be written and be settled; then end all processes."""
    await asyncio.sleep(DELAY_MOST_S + 0.3)
    for lanes in (stage.harsh, stage.lossy):
        await asyncio.gather(*(lane.close() for lane in lanes))
    left = [key for key, watch in stage.watches() if watch.state not in SETTLED or watch.contradicted or watch.running]
    ended = await asyncio.gather(*(bring_to_end(stage, key) for key in left))
    for key, settled in zip(left, ended, strict=True):
        stage.state(key).case.settled = settled
    await stage.close()


# -- facts ------------------------------------------------------------------------------------------------


async def facts(stage: Stage) -> list[Case]:
    """The files of all calls that the ledger, the book or a witness knows, complete."""
    book = Book.replay(stage.receiver.book)
    for effect in book.effects:
        stage.state(str(effect.reference)).case.effects.append(_happening(effect, book))
    offset_us = boot_offset_us()
    for request in book.requests:
        if request.method == "POST" and isinstance(request.body, dict):
            key = str(request.body.get("reference"))
            stage.state(key).case.requests.append(_arrival(request, offset_us))
    async with _reading(stage.ledger) as store:
        for case in stage.cases():
            await _read(store, case, offset_us)
    for case in stage.cases():
        case.undoing = [effect.sequence for effect in stage.state(f"{case.key}:compensate").case.effects]
    return [case for case in stage.cases() if case.record is not None or case.effects or case.seed >= 0]


def _happening(effect: Effect, book: Book) -> Happening:
    undone = effect.id in book.jobs and book.jobs[effect.id].status == "cancelled"
    return Happening(effect.sequence, effect.key, str(effect.body.get("attempt", "")), undone)


def _arrival(request: SeenRequest, offset_us: int) -> Arrival:
    attempt = request.headers.get(ATTEMPT_HEADER, "")
    return Arrival(request.sequence, request.key, attempt, request.body["amount"], request.at_us + offset_us)


@asynccontextmanager
async def _reading(ledger: Ledger) -> AsyncIterator[Store]:
    store = await open_store(ledger.url)
    try:
        yield store
    finally:
        await store.close()


async def _read(store: Store, case: Case, offset_us: int) -> None:
    case.record = await store.get("default", case.key)
    case.skew_us = offset_us
    if case.record is not None:
        events = await store.events("default", f"call:{case.key}")
        case.history = tuple(HistoryLine(e.seq, e.at_us, e.kind, e.facts) for e in events)


# -- mutants ----------------------------------------------------------------------------------------------


Noticed = tuple[int | None, list[str]]


async def _mutants(
    stores: Stores, folder: Path, names: list[str], first: int, progress: Progress
) -> dict[str, Noticed]:
    room = asyncio.Semaphore(MUTANTS_AT_ONCE)

    async def one(name: str) -> tuple[str, Noticed]:
        async with room:
            needed, verdicts = await _mutant(stores, folder / f"mutant-{name}", name, first)
        what = "missed" if needed is None else f"noticed at seed {needed} of its plot ({', '.join(verdicts)})"
        progress(f"{name}: {what}")
        return name, (needed, verdicts)

    return dict(await asyncio.gather(*(one(name) for name in names)))


async def _mutant(stores: Stores, folder: Path, name: str, first: int) -> Noticed:
    """How many seeds of its plot it takes to notice that this rule is broken; None for more than the bound."""
    tried = 0
    for count in (3, MUTANT_SEEDS - 3):
        judgements = await _broken(stores, folder / str(tried), name, range(first + tried, first + tried + count))
        bad = {j.case.seed: list(j.found) for j in judgements if j.failed and j.case.seed >= 0}
        if bad:
            return min(bad) - first + 1, bad[min(bad)]
        tried += count
    return None, []


async def _broken(stores: Stores, folder: Path, name: str, seeds: range) -> list[Judgement]:
    await asyncio.to_thread(folder.mkdir, parents=True)
    async with stores.ledger() as ledger:
        with Receiver.start(folder / "book.jsonl") as receiver:
            stage = Stage(ledger, receiver, folder, broken=name)
            async with stage.open():
                await _play(stage, [(seed, DIRECTED[name]) for seed in seeds])
                await _finish(stage)
            return [judge(case) for case in await facts(stage)]
