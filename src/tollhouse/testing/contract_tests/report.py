"""What a run of the contract tests found, and how it reads."""

from __future__ import annotations

from dataclasses import dataclass

from tollhouse.testing.contract_tests.breaches import Breach


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """One scenario as it went. ``state``: where the call stood; ``sends`` and ``effects``: what the receiver saw."""

    name: str
    sentence: str
    state: str
    attempts: int
    sends: int
    effects: int
    breaches: tuple[Breach, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """All scenarios of one tool. ``passed`` when no promise was broken."""

    tool: str
    guarantee: str
    results: tuple[ScenarioResult, ...]

    @property
    def passed(self) -> bool:
        return not self.breaches

    @property
    def breaches(self) -> tuple[Breach, ...]:
        """Every broken promise, in the order it was found."""
        return tuple(breach for result in self.results for breach in result.breaches)

    @property
    def codes(self) -> set[str]:
        """The codes of the broken promises."""
        return {breach.code for breach in self.breaches}

    def __str__(self) -> str:
        head = f"{self.tool}: {self.guarantee}"
        width = max(len(result.name) for result in self.results)
        rows = [
            f"  {'FAIL' if r.breaches else 'ok':4}  {r.name:{width}}  {r.state:9}"
            f"  {r.attempts} attempt(s), {r.sends} send(s), {r.effects} effect(s)"
            for r in self.results
        ]
        told = [
            f"\n{b.code} (in {b.scenario}): {b.sentence}\n  seen: {b.seen}\n  remedy: {b.remedy}" for b in self.breaches
        ]
        return "\n".join([head, *rows, *told])
