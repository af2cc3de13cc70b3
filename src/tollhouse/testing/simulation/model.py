"""The independent model: what may be true of a history, written from the promise and not from the code.

It watches the store, the wire, the tools and the people, knows what truly happened, and gives the verdicts. *Unknown*
is always a legal thing to say; saying something false, or forgetting something, is not. It shares no function with
the rules: its fold, its idea of a contradiction and its idea of permission are its own.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tollhouse.ledger.record import Attempt, CallRecord
from tollhouse.ledger.store import Write
from tollhouse.testing.memory_store import MemoryLedger
from tollhouse.testing.simulation.receiver import Effect, Receiver

VERDICTS = ("repeated", "lost", "unexplained", "unfenced", "weakened", "stuck", "overspent", "silent")

FRESH_US = 100_000
"""For so long after its acknowledgement commit 1 stands for the look at the fence."""

CLOCK_ERROR_US = 100_000
"""How far a process's idea of the store's clock may be off."""

_RANK = {"not_sent": 1, "rejected": 2, "unknown": 3, "accepted": 4, "happened": 5}
_FINAL = ("not_sent", "rejected", "happened")
_FOLD = {0: "ready", 1: "ready", 2: "failed", 3: "in_doubt", 4: "accepted", 5: "succeeded"}
_STRENGTH = {"ready": 0, "failed": 1, "in_doubt": 2, "accepted": 3, "succeeded": 4, "compensated": 4}
_NOTHING_HAPPENED = ("failed", "refused", "ready", "held")
_SETTLED = ("succeeded", "failed", "refused", "compensated")
_OUTCOMES = ("outcome", "late_outcome")


@dataclass(frozen=True, slots=True)
class Violation:
    """A verdict with the call it is about and one sentence of evidence."""

    verdict: str
    key: str
    what: str


@dataclass(slots=True)
class Sent:
    """What the model knows of one attempt beyond the ledger."""

    process: str = ""
    acknowledged_us: int | None = None
    """When its process learnt that it had departed, on that process's clock."""
    asked: bool = False
    """Whether its last check had the store's word, and that was right to say yes."""
    in_time: bool = False
    """Whether its last check was before the end of its lease and its time."""
    forbidden: str | None = None
    """Why it should never have departed."""
    robbed: bool = False
    """Set aside although its owner's lease ran."""
    residual: bool = False
    truth: str | None = None
    """What its function came to."""
    departed_at: int = 0
    send_by_us: int = 0
    """The end of its right to send as it was written when it departed."""


@dataclass(slots=True)
class Known:
    """What the model knows of one call."""

    record: CallRecord | None = None
    cancelled_rounds: set[int] = field(default_factory=set)
    decisions: list[tuple[int, str]] = field(default_factory=list)
    """Attempts of which a person said or confirmed that they did nothing, with the moment."""
    spoken_of: set[str] = field(default_factory=set)
    """Attempts of which a person said anything."""
    grants: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    """Per approval: the round, and the amounts that its voters saw."""
    rounds_sent: set[int] = field(default_factory=set)


class Model:
    """See the module's docstring. One per history; ``violations`` fills up as it watches."""

    def __init__(self, ledger: MemoryLedger, note: Callable[[str, str], None]) -> None:
        self._ledger, self._note = ledger, note
        self.violations: list[Violation] = []
        self.calls: dict[str, Known] = defaultdict(Known)
        self.sent: dict[str, Sent] = defaultdict(Sent)
        self.residual = 0
        self.moment = 0
        """Counts what the store applied: the order of everything."""
        self.seen: dict[tuple[str, str], int] = {}
        """What each voter saw: the amount, by call and name."""
        self._reads: dict[tuple[str, str], tuple[int, bool]] = {}

    def blame(self, verdict: str, key: str, what: str) -> None:
        """One more violation, unless the same was seen before."""
        found = Violation(verdict, key, what)
        if found not in self.violations:
            self.violations.append(found)
            self._note("model", f"{verdict.upper()}: {key}: {what}")

    # -- the store ---------------------------------------------------------------------------------------------

    def wrote(self, process: str, writes: tuple[Write, ...]) -> None:
        """The store applied these writes."""
        for write in writes:
            self.moment += 1
            known = self.calls[write.record.key]
            before, after = known.record, write.record
            for event in write.events:
                self._event(process, known, before, after, event.kind, event.data)
            self._compare(process, before, after, {event.kind for event in write.events})
            self._note_decisions(known, before, after)
            known.record = after
            kinds = ", ".join(event.kind for event in write.events)
            self._note(process, f"wrote {after.key}: {kinds} -> {after.state.value}, fence {after.fence}")

    def _event(
        self, process: str, known: Known, before: CallRecord | None, after: CallRecord, kind: str, data: str
    ) -> None:
        if kind in ("departed", "resent"):
            self._departs(process, known, before, after, kind, json.loads(data)["attempt"])
        elif kind == "cancel_asked" or (kind == "wait_ended" and json.loads(data)["why"] == "cancel"):
            known.cancelled_rounds.add(after.round)
        elif kind == "approved" and after.approval is not None:
            voters = tuple(self.seen[after.key, vote.by] for vote in after.approval.votes)
            known.grants.append((after.round, voters))
        elif kind == "owner_lost":
            self._set_aside(process, after, json.loads(data))
        elif kind in _OUTCOMES:
            self._says(after, json.loads(data).get("attempt"))

    def _departs(
        self, process: str, known: Known, before: CallRecord | None, after: CallRecord, kind: str, attempt: str
    ) -> None:
        sent = self.sent[attempt]
        sent.process, sent.departed_at = process, self.moment
        sent.send_by_us = next(a.send_by_us for a in after.attempts if a.id == attempt)
        if before is None:
            return
        others = [a for a in after.attempts if a.round == after.round and a.id != attempt]
        if any(a.outcome != "not_sent" for a in others) and after.round in known.cancelled_rounds:
            sent.forbidden = "it was cancelled"
        if any(a.outcome == "happened" and not _decided(before, a) for a in before.attempts):
            sent.forbidden = "an attempt had happened"
        if before.contradicted:
            sent.forbidden = "a contradiction was open"

    def _set_aside(self, process: str, after: CallRecord, facts: dict[str, Any]) -> None:
        owner = self._ledger.owners.get((after.tenant, facts["owner"]))
        ended = owner is None or owner.ended_at_us is not None
        for attempt in facts["attempts"]:
            if not ended and self.sent[attempt].process != process:
                self.sent[attempt].robbed = True

    def _says(self, after: CallRecord, attempt_id: str) -> None:
        """An outcome was written first-hand: is it what the function truly came to?"""
        attempt = after.attempt(attempt_id)
        truth = self.sent[attempt_id].truth
        if attempt is None or attempt.outcome is None:
            self.blame("weakened", after.key, f"an outcome of {attempt_id} was written and is not there")
        elif truth is None and attempt.outcome not in ("not_sent", "unknown"):
            self.blame("weakened", after.key, f"{attempt_id} is said to be {attempt.outcome} before it ended")
        elif truth == "accepted" and attempt.outcome == "happened":
            return  # the receiver called back about it
        elif truth is not None and attempt.outcome != truth:
            self.blame("weakened", after.key, f"{attempt_id} came to {truth} and is written as {attempt.outcome}")

    def _compare(self, process: str, before: CallRecord | None, after: CallRecord, kinds: set[str]) -> None:
        if before is not None:
            self._nothing_vanished(before, after, kinds)
            self._state_kept(before, after, kinds)
        folded = _folded(after)
        if folded is not None and _STRENGTH.get(after.state, 9) < _STRENGTH[folded]:
            self.blame("weakened", after.key, f"{after.state} although its attempts amount to {folded}")
        if not after.contradicted and (why := _against_itself(after)):
            self.blame("silent", after.key, why)

    def _nothing_vanished(self, before: CallRecord, after: CallRecord, kinds: set[str]) -> None:
        for old in before.attempts:
            new = after.attempt(old.id)
            if new is None:
                self.blame("weakened", after.key, f"{old.id} vanished from the record")
            elif old.outcome in _FINAL and new.outcome != old.outcome:
                self.blame("weakened", after.key, f"{old.id} was {old.outcome} and became {new.outcome}")
            elif old.outcome == "accepted" and new.outcome == "unknown" and "deadline_passed" not in kinds:
                self.blame("weakened", after.key, f"{old.id} was accepted and became unknown")
        if after.settlements[: len(before.settlements)] != before.settlements:
            self.blame("silent", after.key, "a settlement vanished from the record")

    def _state_kept(self, before: CallRecord, after: CallRecord, kinds: set[str]) -> None:
        """No outcome moves what is settled."""
        if before.state in _SETTLED and after.state != before.state and kinds & set(_OUTCOMES):
            self.blame("weakened", after.key, f"an outcome moved it from {before.state} to {after.state}")

    def _note_decisions(self, known: Known, before: CallRecord | None, after: CallRecord) -> None:
        for settlement in after.settlements[len(before.settlements) if before is not None else 0 :]:
            if settlement.via == "person":
                known.spoken_of.update(settlement.covers)
            if settlement.via == "person" and settlement.finding != "happened":
                known.decisions += [(self.moment, attempt) for attempt in settlement.covers]

    def acknowledged(self, process: str, writes: tuple[Write, ...], local_us: int) -> None:
        """A process learnt that its writes were applied."""
        for write in writes:
            for attempt in write.record.attempts[-1:]:
                sent = self.sent[attempt.id]
                if sent.acknowledged_us is None and sent.process == process:
                    sent.acknowledged_us = local_us
                    self._reads.pop((process, write.record.key), None)

    def fence_read(self, process: str, key: str) -> None:
        """The store answers a last check: what ought the answer to be?"""
        record = self.calls[key].record
        if record is not None:
            self._reads[process, key] = (record.fence, record.cancel_asked)

    # -- the wire ----------------------------------------------------------------------------------------------

    def begins(self, process: str, key: str) -> None:
        """A last check begins: what was read for an earlier one does not count."""
        self._reads.pop((process, key), None)

    def passed(self, process: str, key: str, attempt_id: str, local_us: int) -> None:
        """The last check of an attempt said yes. Was that right?"""
        sent, record = self.sent[attempt_id], self.calls[key].record
        attempt = None if record is None else record.attempt(attempt_id)
        if attempt is None:
            return
        read = self._reads.get((process, key))
        fresh = sent.acknowledged_us is not None and local_us - sent.acknowledged_us <= FRESH_US
        sent.asked = (read == (attempt.fence, False)) if read is not None else fresh
        owner = self._ledger.owners.get((record.tenant, attempt.owner)) if record else None
        leased = owner is not None and owner.lease_until_us > self._ledger.clock_us() and owner.ended_at_us is None
        sent.in_time = leased and self._ledger.now_us() < sent.send_by_us + CLOCK_ERROR_US

    def sends(self, key: str, attempt_id: str, amount: int) -> None:
        """Bytes leave now."""
        sent, known = self.sent[attempt_id], self.calls[key]
        record = known.record
        attempt = None if record is None else record.attempt(attempt_id)
        if record is None or attempt is None:
            self.blame("lost", key, f"{attempt_id} sends and no row says that it departed")
            return
        if sent.forbidden is not None:
            self.blame("unfenced", key, f"{attempt_id} sends although {sent.forbidden}")
        gone = record.fence != attempt.fence or record.cancel_asked
        if sent.robbed or not sent.in_time or (gone and not sent.asked):
            self.blame("unfenced", key, f"{attempt_id} sends after its right to had ended")
        elif gone:
            sent.residual = True
            self.residual += 1
        self._spends(known, record, attempt, amount)

    def _spends(self, known: Known, record: CallRecord, attempt: Attempt, amount: int) -> None:
        if record.approval is None:
            return
        known.rounds_sent.add(attempt.round)
        granted = [amounts for round, amounts in known.grants if round == attempt.round]
        if not granted:
            self.blame("overspent", record.key, f"round {attempt.round} sends without an approval of its own")
        elif any(seen != amount for seen in granted[-1]):
            self.blame("overspent", record.key, f"{amount} is sent, {granted[-1]} was approved")

    def ended(self, attempt_id: str, truth: str) -> None:
        """A function came to its end."""
        self.sent[attempt_id].truth = truth

    # -- the end -----------------------------------------------------------------------------------------------

    def finish(self, receiver: Receiver, alive: set[str]) -> None:
        """Everything has arrived, nobody is frozen, the store is back and people have acted: what is the truth?"""
        by_key: dict[str, list[Effect]] = defaultdict(list)
        undone: dict[str, list[float]] = defaultdict(list)
        for effect in receiver.effects:
            key = self._key_of(effect)
            if effect.request.undoes is not None:
                undone[effect.request.undoes].append(effect.at_s)
            if key is None:
                self.blame("lost", effect.request.wire_key, f"{effect.request.attempt} took effect and has no row")
            else:
                by_key[key].append(effect)
        for key, known in self.calls.items():
            if known.record is not None:
                self._judge(known, known.record, by_key[key], undone[key], alive)

    def _key_of(self, effect: Effect) -> str | None:
        for key, known in self.calls.items():
            if known.record is not None and known.record.attempt(effect.request.attempt) is not None:
                return key
        return None

    def _judge(
        self, known: Known, record: CallRecord, effects: list[Effect], undone: list[float], alive: set[str]
    ) -> None:
        counted = [effect for effect in effects if not self.sent[effect.request.attempt].residual]
        self._no_repeat(known, record, counted)
        self._explained(known, record, effects, counted, undone)
        if record.state not in _SETTLED or record.contradicted:
            self.blame("stuck", record.key, f"{record.state}, contradicted: {record.contradicted}")
        for attempt in record.attempts:
            sent = self.sent[attempt.id]
            if sent.truth == "happened" and sent.process in alive and attempt.outcome != "happened":
                self.blame("weakened", record.key, f"{attempt.id} happened and is on record as {attempt.outcome}")

    def _no_repeat(self, known: Known, record: CallRecord, effects: list[Effect]) -> None:
        if record.tool == "natural":
            return
        ordered = sorted(effects, key=lambda effect: self.sent[effect.request.attempt].departed_at)
        for earlier, later in pairwise(ordered):
            departed = self.sent[later.request.attempt].departed_at
            if not any(moment < departed and about == earlier.request.attempt for moment, about in known.decisions):
                what = f"{later.request.attempt} took effect again after {earlier.request.attempt}"
                self.blame("repeated", record.key, what)

    def _explained(
        self, known: Known, record: CallRecord, effects: list[Effect], counted: list[Effect], undone: list[float]
    ) -> None:
        if record.contradicted:
            return
        decided = {attempt for _, attempt in known.decisions}
        if record.state in _NOTHING_HAPPENED:
            for effect in counted:
                if effect.request.attempt not in decided:
                    self.blame("unexplained", record.key, f"{record.state}, yet {effect.request.attempt} took effect")
        elif record.state == "compensated" and undone:
            for effect in counted:
                if effect.at_s > undone[0] and effect.request.attempt not in known.spoken_of:
                    what = f"undone, and {effect.request.attempt} took effect afterwards"
                    self.blame("unexplained", record.key, what)
        elif record.state == "succeeded" and not effects and not _said_by_people(record):
            self.blame("unexplained", record.key, "succeeded, and nothing took effect")


def _folded(record: CallRecord) -> str | None:
    """What the attempts of the current round amount to; None while one is out, and where nothing of it was sent."""
    outcomes = [a.judged or a.outcome for a in record.attempts if a.round == record.round]
    if None in outcomes or record.state in ("held", "refused"):
        return None
    return _FOLD[max((_RANK[outcome] for outcome in outcomes if outcome), default=0)]


def _decided(record: CallRecord, attempt: Attempt) -> bool:
    return any(
        s.kind in ("overturn", "uphold") and s.covers.get(attempt.id) == attempt.outcome for s in record.settlements
    )


def _against_itself(record: CallRecord) -> str | None:
    """Two statements on the record that cannot both be true, between which nobody has decided."""
    for attempt in record.attempts:
        if attempt.outcome != "happened" or _decided(record, attempt):
            continue
        if attempt.round < record.round or record.state in _NOTHING_HAPPENED:
            return f"{attempt.id} happened and the call is {record.state} in round {record.round}"
    return _of_two_minds(record)


def _of_two_minds(record: CallRecord) -> str | None:
    said: dict[int, str] = {}
    conflict = None
    for settlement in record.settlements:
        if settlement.kind in ("overturn", "uphold"):
            said, conflict = {}, None
        if settlement.finding is None:
            continue
        before = said.setdefault(settlement.round, settlement.finding)
        if before != settlement.finding:
            conflict = f"{before} and {settlement.finding} were both said of round {settlement.round}"
    return conflict


def _said_by_people(record: CallRecord) -> bool:
    return any(s.via == "person" and s.finding in ("happened", None) for s in record.settlements)
