"""The budget of durable commits: two for an effect, one for a read, counted by the store and, where it can, the server.

What opening, connecting and closing commit is taken out by counting a house with one call as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tollhouse import Tollhouse
from tollhouse.bench.engines import Engine
from tollhouse.bench.job import SETTINGS, TOOLS, effects, reads
from tollhouse.bench.measure import Work


@dataclass(frozen=True)
class Commits:
    """Commits per effect and per read. ``server``: the same by the server's count, None where there is none."""

    effect: float
    read: float
    server: tuple[float, float] | None


async def commits(engine: Engine, calls: int) -> Commits:
    """Count the commits of ``calls`` effects and as many reads, one after the other."""
    effect, effect_by_server = await _commits_each(engine, effects, calls)
    read, read_by_server = await _commits_each(engine, reads, calls)
    known = effect_by_server is not None and read_by_server is not None
    return Commits(effect, read, (effect_by_server or 0.0, read_by_server or 0.0) if known else None)


async def _commits_each(engine: Engine, kind: Callable[[Tollhouse], Work], calls: int) -> tuple[float, float | None]:
    """By the store's count and by the server's."""
    first, first_by_server = await _counted(engine, kind, 1)
    all_of_them, all_by_server = await _counted(engine, kind, 1 + calls)
    if first_by_server is None or all_by_server is None:
        return (all_of_them - first) / calls, None
    return (all_of_them - first) / calls, (all_by_server - first_by_server) / calls


async def _counted(engine: Engine, kind: Callable[[Tollhouse], Work], calls: int) -> tuple[int, int | None]:
    url = engine.ledger()
    async with Tollhouse.open(url, tools=TOOLS, **SETTINGS) as house:
        work = kind(house)
        for _ in range(calls):
            await work()
        committed = house.store.counters.commits
    return committed, await engine.server_commits(url)
