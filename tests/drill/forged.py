"""Forged evidence: a call as a drill would find it, built line by line, for tests of the judge."""

from __future__ import annotations

from typing import Any

from tollhouse.contract.terms import ApprovalTerms, Dedup, Effect, RepeatTerms, Terms
from tollhouse.gate.view import HistoryLine
from tollhouse.ledger.record import (
    Attempt,
    AttemptOutcome,
    CallRecord,
    Limits,
    Settlement,
    State,
)
from tollhouse.testing.drill.evidence import Ack, Arrival, Case, Check, Decided, Happening

KEY, WIRE_KEY = "s7", "default:s7"
MS = 1000


def terms(*, dedup: str = "none", approval: bool = False) -> Terms:
    """A contract; only what the judge looks at differs."""
    return Terms(
        tool="credit",
        effect=Effect.EXTERNAL,
        version="v1",
        dedup=Dedup(dedup, 1.0 if dedup == "by_key" else None),  # type: ignore[arg-type]
        max_attempts=3,
        attempt_timeout_s=6.0,
        deadline_s=60.0,
        absent_after_s=3.0,
        departs="at_confirm",
        accepts=False,
        job_deadline_s=60.0,
        resend_margin_s=1.0,
        approval=ApprovalTerms() if approval else None,
        on_repeat=RepeatTerms(),
        has_reconcile=True,
        compensate=None,
        guarantee="",
    )


class Forger:
    """One call, told step by step; ``case()`` is what the judge gets. Times are milliseconds of one clock."""

    def __init__(self, *, dedup: str = "none", approval: bool = False) -> None:
        self._terms = terms(dedup=dedup, approval=approval)
        self._lines: list[HistoryLine] = []
        self._attempts: dict[str, dict[str, Any]] = {}
        self._settlements: list[Settlement] = []
        self._case = Case(KEY, 7, "forged")
        self._sequence, self._round, self._fence = 0, 1, 0
        self._state = State.READY
        self.contradicted = False

    def line(self, kind: str, at_ms: int = 0, **facts: Any) -> None:
        """A line of history, and the acknowledgement of its write."""
        self._state = State(facts.get("state", self._state))
        told = {"state": self._state.value, **facts}
        self._lines.append(HistoryLine(len(self._lines) + 1, at_ms * MS, kind, told))
        ack = Ack(len(self._lines), self._state.value, self._fence, (kind,), at_ms * MS)
        self._case.acks.append(ack)

    def sent(self, attempt: str, at_ms: int = 0, *, kind: str = "departed", send_by_ms: int = 60_000) -> None:
        """It departs with this attempt."""
        self._fence += 1
        owner, send_by_us = "own", send_by_ms * MS
        self._attempts[attempt] = {"round": self._round, "fence": self._fence, "send_by_us": send_by_us}
        facts = {"attempt": attempt, "round": self._round, "owner": owner, "send_by_us": send_by_us}
        self.line(kind, at_ms, state="departed", **facts)

    def ended(self, attempt: str, outcome: str, state: str, at_ms: int = 100, *, kind: str = "outcome") -> None:
        """An attempt ends."""
        self._attempts[attempt] |= {"outcome": AttemptOutcome(outcome), "ended_at_us": at_ms * MS}
        self.line(kind, at_ms, attempt=attempt, outcome=outcome, state=state)

    def set_aside(self, attempt: str, at_ms: int, *, proof: str = "dead") -> None:
        """Its owner is taken for lost."""
        self._fence += 1
        self._attempts[attempt] |= {"outcome": AttemptOutcome.UNKNOWN, "ended_at_us": at_ms * MS}
        self.line("owner_lost", at_ms, state="in_doubt", attempts=[attempt], proof=proof)

    def settled(self, finding: str, at_ms: int = 1000, *, via: str = "person", by: str = "ada") -> None:
        """Evidence settles it."""
        self._fence += 1
        covers = {name: facts.get("outcome") for name, facts in self._attempts.items()}
        self._settlements.append(Settlement("dec", "evidence", via, finding, by, "so", self._round, at_ms * MS, covers))
        self.line("settled", at_ms, state="succeeded" if finding == "happened" else "failed", via=via, finding=finding)

    def retried(self, at_ms: int = 2000) -> None:
        """A named person begins a new round."""
        self._fence += 1
        self._round += 1
        self.line("retried", at_ms, state="ready", by="ada", round=self._round)

    def request(self, attempt: str, at_ms: int, *, amount: int = 100, wire_key: str = WIRE_KEY) -> None:
        """A request arrives."""
        self._sequence += 1
        self._case.requests.append(Arrival(self._sequence, wire_key, attempt, amount, at_ms * MS))

    def effect(self, attempt: str, *, wire_key: str = WIRE_KEY) -> int:
        """It takes effect."""
        self._sequence += 1
        self._case.effects.append(Happening(self._sequence, wire_key, attempt))
        return self._sequence

    def checked(self, attempt: str, at_ms: int, *, lease_until_ms: int = 0) -> None:
        """A last check passes."""
        self._case.checks.append(Check(attempt, at_ms * MS, at_ms * MS, lease_until_ms * MS))

    def sends(self, attempt: str, at_ms: int = 10) -> None:
        """Check, request and effect, well in time."""
        self.checked(attempt, at_ms)
        self.request(attempt, at_ms + 1)
        self.effect(attempt)

    def decided(self, verb: str, by: str, at_ms: int, **facts: Any) -> None:
        """A person was told that their decision stands."""
        self._case.decisions.append(Decided(verb, by, True, at_ms * MS, at_ms * MS + 1, **facts))

    def undone(self, sequence: int) -> None:
        """Something took the effect back."""
        self._case.undoing.append(sequence)

    def came_back(self, attempt: str) -> None:
        """Its function returned in a process that lived."""
        self._case.returned.add(attempt)

    def case(self, *, row: bool = True, settled: bool = True, state: str | None = None) -> Case:
        """The evidence."""
        self._case.history, self._case.settled = tuple(self._lines), settled
        self._case.record = self._record(state) if row else None
        return self._case

    def _record(self, state: str | None) -> CallRecord:
        attempts = tuple(
            Attempt(name, facts["round"], number, "own", facts["fence"], 0, facts["send_by_us"],
                    facts.get("outcome"), facts.get("ended_at_us"))
            for number, (name, facts) in enumerate(self._attempts.items(), start=1)
        )  # fmt: skip
        return CallRecord(
            tenant="default",
            key=KEY,
            wire_key=WIRE_KEY,
            tool="credit",
            effect="external",
            request_digest="d1",
            requested_by="local",
            contract=self._terms.dumps(),
            limits=Limits(3, 6.0, 60.0),
            digest="d1",
            arguments="{}",
            state=State(state) if state else self._state,
            created_at_us=0,
            updated_at_us=0,
            fence=self._fence,
            round=self._round,
            attempts=attempts,
            settlements=tuple(self._settlements),
            contradicted=self.contradicted,
        )
