"""What a run found: figures with their spread, ratios with their bars, and what stands beside them."""

from __future__ import annotations

import os
import platform
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tollhouse import __version__
from tollhouse.bench.commits import Commits
from tollhouse.bench.measure import Series, ratio
from tollhouse.bench.plan import Plan, size_name


class Bar(NamedTuple):
    """A figure's bar: at most, or at least, that much."""

    name: str
    at_most: bool
    limit: float

    def met(self, figure: float) -> bool:
        """Whether the figure holds it."""
        return figure <= self.limit if self.at_most else figure >= self.limit

    def __str__(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {self.limit:g}"


BARS = (
    Bar("postgres.p50_c1_over_raw", True, 1.35),
    Bar("sqlite.p50_c1_over_raw", True, 1.6),
    Bar("postgres.rate_c32_over_raw", False, 1.5),
    Bar("postgres.rate_c32_over_group", False, 0.5),
    Bar("sqlite.rate_c32_over_group", False, 0.35),
    Bar("postgres.p50_1e6_over_1e4", True, 1.2),
    Bar("sqlite.p50_1e6_over_1e4", True, 1.2),
    Bar("postgres.rate_c32_over_dbos", False, 25),
    Bar("postgres.rate_c32_over_langgraph", False, 25),
    Bar("postgres.rate_c1_over_dbos", False, 6),
    Bar("postgres.rate_c1_over_langgraph", False, 6),
    Bar("postgres.run_p50_over_commits", True, 2.5),
    Bar("postgres.http_rate_c32_over_inprocess", False, 0.4),
)
"""The bars of ratios; see ``docs/reference/benchmarks.md`` for what each means."""

PYTHON_BAR = Bar("python_us_per_call", True, 130)
RECOVERY_BAR = Bar("recovery_s", True, 10)
RUN_BARS = {
    "commits_per_run": Bar("commits_per_run", True, 8),
    "kill_to_continued_s": Bar("kill_to_continued_s", True, 15),
    "serve_ready_s": Bar("serve_ready_s", True, 3),
    "streams_p99_lag_s": Bar("streams_p99_lag_s", True, 1),
    "streams_lost": Bar("streams_lost", True, 0),
}
"""The bars of figures about runs."""

EFFECT_BAR, READ_BAR = Bar("commits per effect", True, 2), Bar("commits per read", True, 1)


@dataclass
class Report:
    """Filled by the run. ``commits``, ``recovery_s`` and ``open_s`` by engine."""

    plan: Plan
    series: dict[str, Series] = field(default_factory=dict)
    commits: dict[str, Commits] = field(default_factory=dict)
    recovery_s: dict[str, float] = field(default_factory=dict)
    open_s: dict[str, float] = field(default_factory=dict)
    commits_per_run: dict[str, float] = field(default_factory=dict)
    kill_to_continued_s: dict[str, float] = field(default_factory=dict)
    serve_ready_s: float | None = None
    streams: dict[str, Any] | None = None
    python_us_per_call: float = 0.0
    import_s: float = 0.0
    took_s: float = 0.0

    @property
    def ratios(self) -> dict[str, float | None]:
        """Every ratio of :data:`BARS`; None for what this run did not measure."""
        found = {bar.name: self._ratio(bar.name) for bar in BARS}
        if (name := size_name(self.plan.rows)) != "1e6":
            for engine in ("postgres", "sqlite"):
                found[f"{engine}.p50_{name}_over_1e4"] = self._over(f"{engine}.p50_{name}", f"{engine}.p50_1e4")
        return found

    def _ratio(self, name: str) -> float | None:
        engine, _, what = name.partition(".")
        figure, _, base = what.partition("_over_")
        if base == "commits":
            return self._run_over_commits(engine)
        if base == "inprocess":
            return self._over(f"{engine}.http.rate_c32", f"{engine}.rate_c32")
        if base == "raw":
            return self._over(f"{engine}.{figure}", f"{engine}.raw.{figure}")
        if base == "group":
            return self._over(f"{engine}.{figure}", self._best_group(engine, figure))
        if base == "1e4":
            return self._over(f"{engine}.{figure}", f"{engine}.p50_1e4")
        return self._over(f"{engine}.{figure}", f"peers.{base}.{figure}")

    def _run_over_commits(self, engine: str) -> float | None:
        """A run's time over that of its commits, each half of what the control with two takes."""
        over_raw = self._over(f"{engine}.run.p50", f"{engine}.raw.p50_c1")
        commits = self.commits_per_run.get(engine)
        return None if over_raw is None or not commits else 2 * over_raw / commits

    @property
    def runs(self) -> dict[str, float]:
        """The figures about runs that have a bar and are no ratio."""
        found = {f"{name}.commits_per_run": figure for name, figure in self.commits_per_run.items()}
        found |= {f"{name}.kill_to_continued_s": figure for name, figure in self.kill_to_continued_s.items()}
        if self.serve_ready_s is not None:
            found["serve_ready_s"] = self.serve_ready_s
        if self.streams is not None:
            found |= {f"streams_{name}": self.streams[name] for name in ("lost", "p99_lag_s")}
        return found

    def _best_group(self, engine: str, figure: str) -> str:
        """The control with the most writers may not be the fastest: the better one is the base."""
        groups = [name for name in self.series if name.startswith(f"{engine}.group") and name.endswith(figure)]
        return max(groups, key=lambda name: self.series[name].median, default="")

    def _over(self, name: str, base: str) -> float | None:
        if name not in self.series or base not in self.series:
            return None
        return ratio(self.series[name], self.series[base])

    def as_json(self) -> dict[str, Any]:
        """One object; see the reference for its keys."""
        return {
            "ratios": {name: _rounded(figure) for name, figure in self.ratios.items()},
            "bars": {bar.name: {"bar": str(bar), "met": met} for bar, met in self.verdicts()},
            "commits": {name: _commits_json(found) for name, found in self.commits.items()},
            "python_us_per_call": round(self.python_us_per_call, 1),
            "recovery_s": {name: round(seconds, 2) for name, seconds in self.recovery_s.items()},
            "import_s": round(self.import_s, 4),
            "open_s": {name: round(seconds, 4) for name, seconds in self.open_s.items()},
            "runs": {
                **{name: round(figure, 3) for name, figure in self.runs.items()},
                **({} if self.streams is None else {"streams": self.streams}),
            },
            "figures": {name: _series_json(series) for name, series in self.series.items()},
            "orphans": self.plan.orphans,
            "quick": self.plan.quick,
            "machine": machine(),
            "took_s": round(self.took_s, 1),
        }

    def verdicts(self) -> list[tuple[Bar, bool]]:
        """Every bar that this run measured, and whether it was met."""
        found = [(bar, bar.met(figure)) for bar in BARS if (figure := self.ratios[bar.name]) is not None]
        found.append((PYTHON_BAR, PYTHON_BAR.met(self.python_us_per_call)))
        for name, seconds in self.recovery_s.items():
            found.append((RECOVERY_BAR._replace(name=f"{name}.recovery_s"), RECOVERY_BAR.met(seconds)))
        for name, counted in self.commits.items():
            found.append((EFFECT_BAR._replace(name=f"{name}.commits.effect"), EFFECT_BAR.met(counted.effect)))
            found.append((READ_BAR._replace(name=f"{name}.commits.read"), READ_BAR.met(counted.read)))
        for name, figure in self.runs.items():
            bar = RUN_BARS[name.rpartition(".")[2]]._replace(name=name)
            found.append((bar, bar.met(figure)))
        return found


def machine() -> dict[str, Any]:
    """What the figures were measured on; absolute ones mean nothing elsewhere."""
    return {
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "platform": platform.platform(terse=True),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "tollhouse": __version__,
    }


def _rounded(figure: float | None) -> float | None:
    return None if figure is None else round(figure, 3)


def _series_json(series: Series) -> Mapping[str, float]:
    first, third = series.spread
    return {"median": round(series.median, 3), "p25": round(first, 3), "p75": round(third, 3)}


def _commits_json(counted: Commits) -> dict[str, Any]:
    server = None if counted.server is None else {"effect": counted.server[0], "read": counted.server[1]}
    return {"effect": counted.effect, "read": counted.read, "server": server}
