"""The judge: eight verdicts about one call, from what the receiver and the witnesses saw and what the ledger says.

Written from the promise, not from the code: nothing here calls a rule of the ledger. Pure, so that tests can show it a
forged book and see each verdict come for its own reason. An effect is *unknown* to nobody here, the book is the truth;
*in doubt* is a legal thing for the ledger to say.

**Residual**: a request that passed its last check while it might still be sent, and reached the receiver after that had
ended: after the fence had moved by right, or after its ``send_by``. The effects of such requests are not counted as
*repeated* or *unexplained*; they are counted as residual. A check that *began* after the fence had moved and passed all
the same is never residual but *unfenced*, and its effects count in full.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tollhouse.gate.view import HistoryLine
from tollhouse.testing.drill.evidence import Ack, Arrival, Case, Happening

VERDICTS = ("repeated", "lost", "unexplained", "unfenced", "weakened", "stuck", "overspent", "silent")
RANK = {"not_sent": 1, "rejected": 2, "unknown": 3, "accepted": 4, "happened": 5}
FINAL = frozenset({"not_sent", "rejected", "happened"})
SETTLED = frozenset({"succeeded", "failed", "refused", "compensated"})
TOOK_EFFECT = frozenset({"succeeded", "compensated"})
SENDINGS = frozenset({"departed", "resent"})
BY_OUTCOME = frozenset({"outcome", "late_outcome", "wait_ended", "owner_lost", "resent", "deadline_passed"})
"""Events that only the fold may answer: none of them leads out of a settled state."""
COMMIT_IS_CHECK_US = 100_000


@dataclass(slots=True)
class Judgement:
    """What was found about one call: a sentence for each violation, and the number of residual sends."""

    case: Case
    found: dict[str, list[str]] = field(default_factory=dict)
    residual: int = 0

    @property
    def failed(self) -> bool:
        """Whether any verdict applies."""
        return bool(self.found)


def judge(case: Case) -> Judgement:
    """Judge one call."""
    residual = _residual(case)
    counted = [e for e in _effective(case) if _request_of(case, e) not in residual]
    reports = {
        "repeated": _repeated(case, counted),
        "lost": _lost(case),
        "unexplained": _unexplained(case, counted),
        "unfenced": _unfenced(case),
        "weakened": _weakened(case),
        "stuck": _stuck(case),
        "overspent": _overspent(case),
        "silent": _silent(case),
    }
    found = {name: told for name, report in reports.items() if (told := list(report))}
    return Judgement(case, found, len(residual))


# -- effects ----------------------------------------------------------------------------------------------


def _effective(case: Case) -> list[Happening]:
    return [effect for effect in case.effects if not effect.undone]


def _request_of(case: Case, effect: Happening) -> int | None:
    """The request that had this effect: its attempt's, else the first under its key."""
    for request in case.requests:
        same = request.attempt == effect.attempt if effect.attempt else request.wire_key == effect.wire_key
        if same and request.sequence < effect.sequence:
            return request.sequence
    return None


def _repeated(case: Case, effects: list[Happening]) -> Iterator[str]:
    """A second effect without recorded evidence or decision that permitted it."""
    permitted = 1 + _permissions(case)
    if len(effects) > permitted:
        yield f"{len(effects)} effects, {permitted} permitted"


def _permissions(case: Case) -> int:
    """How many further effects the history allows: new rounds by a named person, and harmless repeats."""
    walk, permitted = _Walk(case), 0
    natural = case.record is not None and case.record.terms.dedup.kind == "natural"
    for line in case.history:
        if line.kind == "retried" and line.facts.get("by") and not (walk.happened or walk.contradicted):
            permitted += 1
        if line.kind == "resent" and natural and not walk.cancelled:
            permitted += 1
        walk.take(line)
    return permitted


def _lost(case: Case) -> Iterator[str]:
    """An effect whose key has no departed row."""
    departed = any(line.kind in SENDINGS for line in case.history)
    for effect in case.effects:
        if case.record is None or not departed:
            yield f"effect {effect.sequence} has no departed call"
        elif effect.wire_key != case.record.wire_key:
            yield f"effect {effect.sequence} came under {effect.wire_key}, a key of no call"


def _unexplained(case: Case, effects: list[Happening]) -> Iterator[str]:
    """An effect under a state that denies it, with no decision and no open contradiction."""
    record = case.record
    if record is None or record.contradicted or _decided_by_person(case):
        return
    if record.state.value in ("failed", "refused", "ready", "held") and effects:
        yield f"{len(effects)} effects of a call that is {record.state.value}"
    if record.state.value == "compensated" and case.undoing:
        late = [effect.sequence for effect in effects if effect.sequence > min(case.undoing)]
        if late:
            yield f"effects {late} came after the call was undone"


def _decided_by_person(case: Case) -> bool:
    return any(
        line.kind in ("overturned", "upheld") or (line.kind == "settled" and line.facts.get("via") == "person")
        for line in case.history
    )


# -- sends ------------------------------------------------------------------------------------------------


def _last_check(case: Case, request: Arrival) -> Any:
    """The last check of the attempt before the request arrived."""
    passed = [c for c in case.checks if c.attempt == request.attempt and c.at_us <= request.at_us + 1000]
    return max(passed, key=lambda check: check.at_us, default=None)


def _moved(case: Case, attempt: str) -> Ack | None:
    """The first acknowledged write that took the attempt's right to send away."""
    record = case.record
    known = None if record is None else record.attempt(attempt)
    if known is None:
        return None
    return min((ack for ack in case.acks if ack.fence > known.fence), key=lambda ack: ack.at_us, default=None)


def _unfenced(case: Case) -> Iterator[str]:
    """A send whose last check began after the call was set aside or settled, or whose owner was set aside alive."""
    for request in case.requests:
        moved, check = _moved(case, request.attempt), _last_check(case, request)
        if moved is None or check is None or request.at_us <= moved.at_us:
            continue
        if _lost_by_lease(case, request.attempt) and check.lease_until_us > moved.at_us:
            left_ms = (check.lease_until_us - moved.at_us) / 1000
            yield f"{request.attempt} was set aside {left_ms:.0f} ms before its lease ended, and its request came"
        elif check.began_us > moved.at_us and not _excused(case, request.attempt, moved, check.began_us):
            late_ms = (check.began_us - moved.at_us) / 1000
            yield f"{request.attempt} passed a check {late_ms:.0f} ms after {', '.join(moved.kinds)}"


def _lost_by_lease(case: Case, attempt: str) -> bool:
    return any(
        line.kind == "owner_lost" and attempt in line.facts["attempts"] and line.facts["proof"] == "lease"
        for line in case.history
    )


def _excused(case: Case, attempt: str, moved: Ack, began_us: int) -> bool:
    """Commit 1 stands in for the store's word for 100 ms, but never for the lease, which the owner itself knows."""
    if "owner_lost" in moved.kinds:
        return False
    known = None if case.record is None else case.record.attempt(attempt)
    fence = 0 if known is None else known.fence
    started = [ack.at_us for ack in case.acks if ack.fence == fence and SENDINGS & set(ack.kinds)]
    first = min((c.began_us for c in case.checks if c.attempt == attempt), default=began_us)
    return (
        bool(started) and began_us - started[0] <= 2 * COMMIT_IS_CHECK_US and first >= started[0] - COMMIT_IS_CHECK_US
    )


def _residual(case: Case) -> set[int]:
    """Sequences of the requests that were overtaken between their check and the receiver."""
    return {request.sequence for request in case.requests if _overtaken(case, request)}


def _overtaken(case: Case, request: Arrival) -> bool:
    known = None if case.record is None else case.record.attempt(request.attempt)
    check = _last_check(case, request)
    if known is None or check is None:
        return False
    moved = _moved(case, request.attempt)
    send_by_us = _send_by_us(case, request.attempt)
    by_fence = moved is not None and check.began_us <= moved.at_us < request.at_us
    by_time = send_by_us is not None and check.began_us <= send_by_us < request.at_us
    return by_fence or by_time


def _send_by_us(case: Case, attempt: str) -> int | None:
    """Until when it might send, as its owner knew it, on the machine's own clock."""
    for line in case.history:
        if line.kind in SENDINGS and line.facts.get("attempt") == attempt:
            return int(line.facts["send_by_us"]) + case.skew_us
    return None


# -- history ----------------------------------------------------------------------------------------------


class _Walk:
    """A history read line by line: what each attempt came to, and what stands open."""

    def __init__(self, case: Case) -> None:
        self.read = case.record is not None and case.record.effect == "read"
        self.state: str | None = None
        self.round = 1
        self.outcomes: dict[str, str | None] = {}
        self.rounds: dict[str, int] = {}
        self.settled_rounds: set[int] = set()
        self.contradicted = self.cancelled = False

    @property
    def happened(self) -> bool:
        """Whether any attempt is on record with a result."""
        return "happened" in self.outcomes.values()

    def take(self, line: HistoryLine) -> None:
        self.state = line.facts.get("state", self.state)
        self._outcomes_of(line)
        facts = line.facts
        match line.kind:
            case "cancel_asked":
                self.cancelled = True
            case "wait_ended":
                self.cancelled = self.cancelled or facts.get("why") == "cancel"
            case "retried":
                self.round, self.cancelled = facts["round"], False
            case "contradiction_opened":
                self.contradicted = True
            case "settled" | "overturned" | "upheld":
                self.contradicted = self.contradicted and line.kind == "settled"
                self.settled_rounds.add(self.round)

    def _outcomes_of(self, line: HistoryLine) -> None:
        facts = line.facts
        match line.kind:
            case "departed" | "resent":
                self.outcomes[facts["attempt"]], self.rounds[facts["attempt"]] = None, facts["round"]
            case "outcome" | "late_outcome":
                self.outcomes[facts["attempt"]] = facts.get("outcome") or self.outcomes.get(facts["attempt"])
            case "wait_ended":
                self._unknown([facts["attempt"]])
            case "owner_lost":
                self._unknown(facts["attempts"])
            case "forced":
                self._unknown(list(self.outcomes))

    def _unknown(self, attempts: list[str]) -> None:
        for attempt in attempts:
            self.outcomes[attempt] = self.outcomes.get(attempt) or "unknown"

    def of_round(self) -> list[str | None]:
        """Outcomes of the current round."""
        return [self.outcomes[attempt] for attempt, number in self.rounds.items() if number == self.round]


def _weakened(case: Case) -> Iterator[str]:
    """A weaker outcome replaced a stronger one, in an attempt or in the state."""
    walk = _Walk(case)
    if walk.read:
        return
    for line in case.history:
        before, known = walk.state, dict(walk.outcomes)
        walk.take(line)
        attempt = str(line.facts.get("attempt", ""))
        was, now = known.get(attempt), walk.outcomes.get(attempt)
        if was in FINAL and now is not None and RANK[now] < RANK[was]:
            yield f"line {line.seq}: {attempt} was {was} and became {now}"
        if line.kind in BY_OUTCOME and before in SETTLED and walk.state != before:
            yield f"line {line.seq}: {line.kind} made {before} {walk.state}"
        if _below_its_round(walk):
            yield f"line {line.seq}: an attempt happened, the call is {walk.state}"
    if case.record is not None and walk.state is not None and case.record.state.value != walk.state:
        yield f"the history ends in {walk.state}, the row says {case.record.state.value}"


def _below_its_round(walk: _Walk) -> bool:
    outcomes = walk.of_round()
    quiet = None not in outcomes and walk.round not in walk.settled_rounds
    return quiet and "happened" in outcomes and walk.state not in TOOK_EFFECT


def _stuck(case: Case) -> Iterator[str]:
    """A state from which nothing led to settlement though people acted."""
    if not case.settled and case.record is not None:
        open_too = " with a contradiction" if case.record.contradicted else ""
        yield f"people acted, and the call is still {case.record.state.value}{open_too}"


def _overspent(case: Case) -> Iterator[str]:
    """An approval that let more than one round send, or other arguments than were approved."""
    record = case.record
    if record is None or record.terms.approval is None:
        return
    granted_round: int | None = None
    granted = False
    for line in case.history:
        if line.kind == "approved":
            granted, granted_round = True, None
        elif line.kind in ("held", "lapsed", "edited"):
            granted = False
        elif line.kind in SENDINGS:
            number = line.facts["round"]
            if not granted or granted_round not in (None, number):
                yield f"line {line.seq}: round {number} was sent on no approval of its own"
            granted_round = number
    yield from _other_arguments(case)


def _other_arguments(case: Case) -> Iterator[str]:
    record = case.record
    if record is None or not any(line.kind in SENDINGS for line in case.history):
        return
    edits = [d.at_us for d in case.decisions if d.verb == "edit" and d.accepted]
    for vote in case.decisions:
        voided = any(at_us >= vote.asked_us for at_us in edits)
        if vote.verb == "approve" and vote.accepted and vote.shown not in (None, record.digest) and not voided:
            yield f"{vote.by} approved {vote.shown}, and {record.digest} was sent"


# -- contradictions ---------------------------------------------------------------------------------------


def _silent(case: Case) -> Iterator[str]:
    """Two settlements that contradict each other, with no contradiction open or closed by a person."""
    record = case.record
    if record is None or record.contradicted:
        return
    yield from _unheard(case)
    if any(s.kind in ("overturn", "uphold") for s in record.settlements):
        return
    for settlement in record.settlements:
        if settlement.kind == "evidence" and settlement.finding == "did_not_happen":
            late = [
                a.id
                for a in record.attempts
                if a.round == settlement.round and a.outcome == "happened" and settlement.covers.get(a.id) != "happened"
            ]
            if late:
                yield f"{settlement.by} settled that it did not happen, {late[0]} came back with a result"
        if settlement.kind == "finding" and settlement.finding == "happened" and record.state.value not in TOOK_EFFECT:
            yield f"{settlement.by} found that it happened, the call is {record.state.value}"
    if any(a.outcome == "happened" and a.round < record.round for a in record.attempts):
        yield "an attempt of an earlier round happened"
    yield from _both_told_yes(case)


def _both_told_yes(case: Case) -> Iterator[str]:
    """Two people who were told that their contrary decisions stand."""
    accepted = [d for d in case.decisions if d.verb == "resolve" and d.accepted]
    rounds = 1 + sum(line.kind == "retried" for line in case.history)
    if len({d.finding for d in accepted}) > 1 and rounds == 1:
        yield f"{' and '.join(f'{d.by} ({d.finding})' for d in accepted)} were both told that it is settled so"


def _unheard(case: Case) -> Iterator[str]:
    """A result that came back in a process that lived, and that the ledger does not have."""
    record = case.record
    assert record is not None
    for attempt in record.attempts:
        if attempt.id in case.returned and attempt.outcome not in ("happened", "accepted") and attempt.ended_at_us:
            yield f"{attempt.id} came back with a result, the ledger has {attempt.outcome}"
