"""What the demo hands back: the verdict, each scenario's end, and the ledger beside the receiver's book."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tollhouse import RecordedCall, State
from tollhouse.demo.verdict import LedgerLine, Verdict, judge
from tollhouse.testing.receiver import Effect, SeenRequest


@dataclass(frozen=True)
class Scenario:
    """One part of the story, and how it must end: the call's state, and its effects at the receiver."""

    name: str
    key: str
    state: State
    effects: int


@dataclass(frozen=True)
class Row:
    """A key on both sides. ``line`` None: the ledger knows nothing of it. ``requests``: how often it was asked for."""

    key: str
    line: LedgerLine | None
    entries: tuple[Effect, ...]
    requests: int


@dataclass(frozen=True)
class Place:
    """Where a run's records are. ``tenant``: whose calls they are in that store.

    ``ours``: the ledger is in our folder; else the user named the store, in a URL that may hold a password.
    """

    folder: Path
    store: str
    tenant: str
    ours: bool

    @property
    def book(self) -> Path:
        """The receiver's book, a file of JSON lines."""
        return self.folder / "book.jsonl"

    @property
    def log(self) -> Path:
        """What the processes logged."""
        return self.folder / "workers.log"

    def as_json(self) -> dict[str, str | None]:
        """The paths. ``store`` is None where the user named it."""
        return {
            "store": self.store if self.ours else None,
            "tenant": self.tenant,
            "book": str(self.book),
            "log": str(self.log),
        }


@dataclass(frozen=True)
class Report:
    """The end of a run. ``problem`` None: the story went on to its end. ``kept`` None: its records were removed."""

    verdict: Verdict
    rows: Sequence[Row]
    scenarios: Sequence[Scenario]
    kills: int
    seconds: float
    problem: str | None = None
    kept: Place | None = None

    @property
    def reasons(self) -> list[str]:
        """Why it failed, in words; empty when every promise was kept and seen to be kept.

        What stopped the story and what the verdict found; where it came to its end, the scenarios that ended otherwise.
        """
        if self.problem:
            return [self.problem, *self.verdict.findings]
        surprises = [said for scenario in self.scenarios if (said := self._surprise(scenario))]
        return [*self.verdict.findings, *surprises]

    @property
    def passed(self) -> bool:
        """Whether every promise was kept and seen to be kept."""
        return not self.reasons

    def as_json(self) -> dict[str, Any]:
        """One plain object, for ``--json``."""
        return {
            "passed": self.passed,
            **asdict(self.verdict),
            "kills": self.kills,
            "seconds": round(self.seconds, 1),
            "scenarios": [self._ended(scenario) for scenario in self.scenarios],
            "reasons": self.reasons,
            "kept": self.kept.as_json() if self.kept else None,
        }

    def _ended(self, scenario: Scenario) -> dict[str, Any]:
        row = self._row(scenario.key)
        line = row.line if row else None
        return {
            "name": scenario.name,
            "key": scenario.key,
            "state": line.state.value if line else None,
            "effects": len(row.entries) if row else 0,
            "settled_by": line.settled_by if line else None,
        }

    def _surprise(self, scenario: Scenario) -> str | None:
        ended = self._ended(scenario)
        if (ended["state"], ended["effects"]) == (scenario.state.value, scenario.effects):
            return None
        return (
            f"{scenario.key} ended as {ended['state']} (effects: {ended['effects']}), "
            f"not as {scenario.state.value} (effects: {scenario.effects})."
        )

    def _row(self, key: str) -> Row | None:
        return next((row for row in self.rows if row.key == key), None)


def compare(
    scenarios: Sequence[Scenario],
    calls: Iterable[RecordedCall],
    effects: Sequence[Effect],
    requests: Sequence[SeenRequest],
) -> tuple[Verdict, list[Row]]:
    """The verdict and the rows it rests on: calls as the scenarios go, other calls, then effects without a call."""
    lines = {line.wire_key: line for line in map(_line, calls)}
    told = {scenario.key: number for number, scenario in enumerate(scenarios)}
    known = sorted(lines, key=lambda wire_key: told.get(lines[wire_key].key, len(told)))
    stray = dict.fromkeys(effect.key or "" for effect in effects if effect.key not in lines)
    rows = [_row(wire_key, lines.get(wire_key), effects, requests) for wire_key in (*known, *stray)]
    return judge(lines.values(), effects), rows


def _row(wire_key: str, line: LedgerLine | None, effects: Sequence[Effect], requests: Sequence[SeenRequest]) -> Row:
    return Row(
        key=line.key if line else wire_key,
        line=line,
        entries=tuple(effect for effect in effects if (effect.key or "") == wire_key),
        requests=sum(seen.method == "POST" and (seen.key or "") == wire_key for seen in requests),
    )


def _line(call: RecordedCall) -> LedgerLine:
    return LedgerLine(
        key=call.key,
        wire_key=call.idempotency_key,
        state=call.state,
        sendings=len(call.attempts),
        doubted=any(line.facts.get("state") == State.IN_DOUBT.value for line in call.history),
        settled_by=settled_by(call),
    )


def settled_by(call: RecordedCall) -> str:
    """Who or what ended it: its reply, a resend, a hook or a person by name, the gate that refused, a compensation."""
    record = call.raw
    if record.compensated_by is not None:
        return "compensation"
    if call.state is State.REFUSED:
        return next((gate for line in call.history for gate in _denying(line.facts)), "a person")
    decided = [each for each in record.settlements if each.round == record.round and each.kind != "uphold"]
    if decided:
        return decided[-1].by or "evidence"
    return "a resend" if len(record.round_attempts) > 1 else "its reply"


def _denying(facts: Mapping[str, Any]) -> list[str]:
    return [gate for gate, said in (facts.get("gates") or {}).items() if said.startswith("deny")]
