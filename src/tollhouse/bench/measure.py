"""How things are measured: rounds of all contestants in turn, so that a noisy machine disturbs each alike."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

Work = Callable[[], Awaitable[object]]
"""One unit of work; awaited over and over."""


@dataclass(slots=True)
class Series:
    """Figures of one contestant, one for each round."""

    figures: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The middle figure; 0 when nothing was measured."""
        return statistics.median(self.figures) if self.figures else 0.0

    @property
    def spread(self) -> tuple[float, float]:
        """The first and third quartile."""
        if len(self.figures) < 2:
            return (self.median, self.median)
        first, _, third = statistics.quantiles(self.figures, n=4, method="inclusive")
        return (first, third)


async def p50_ms(work: Work, seconds: float) -> float:
    """The median time of one unit, one caller, in milliseconds."""
    times: list[float] = []
    until = time.perf_counter() + seconds
    while (began := time.perf_counter()) < until:
        await work()
        times.append((time.perf_counter() - began) * 1000)
    return statistics.median(times)


async def rate(work: Work, callers: int, seconds: float) -> float:
    """Units per second with ``callers`` at work at the same time."""
    done = 0
    until = time.perf_counter() + seconds

    async def caller() -> None:
        nonlocal done
        while time.perf_counter() < until:
            await work()
            done += 1

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    return done / (time.perf_counter() - began)


async def rounds(
    contestants: Mapping[str, Callable[[], Awaitable[float]]], number: int, series: dict[str, Series]
) -> None:
    """Let every contestant run once a round, ``number`` rounds, in turn; figures are added to ``series``."""
    for _ in range(number):
        for name, contestant in contestants.items():
            series.setdefault(name, Series()).figures.append(await contestant())


def ratio(one: Series, other: Series) -> float:
    """The median of the ratios round by round: both figures of a round met the same weather."""
    pairs = [a / b for a, b in zip(one.figures, other.figures, strict=True) if b]
    return statistics.median(pairs) if pairs else 0.0
