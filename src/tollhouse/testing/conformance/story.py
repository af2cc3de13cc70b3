"""A call's life told step by step, with plausible particulars: how the suites bring a call where they want it.

Every method takes one real step of ``ledger.steps`` or ``ledger.decisions`` and raises
:class:`~tollhouse.ledger.lifecycle.Forbidden` where that does. ``writes`` holds the guarded writes that tell the same
story to a store, so a scene is built once for the pure rules and for every store.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from tollhouse.contract.terms import US, Dedup, Effect, RepeatTerms, Terms
from tollhouse.ledger import approvals, decisions, steps
from tollhouse.ledger.change import Change
from tollhouse.ledger.decisions import Finding
from tollhouse.ledger.record import Approval, Attempt, AttemptOutcome, CallRecord, Limits, Lost, State, Stored
from tollhouse.ledger.steps import Ending, Start
from tollhouse.ledger.store import RepeatCheck, Write
from tollhouse.ledger.writes import write_of

T0 = 1_700_000_000 * US
"""When stories begin: long ago on any store's clock, so that whatever they make due is due."""

TERMS = Terms(
    tool="issue_credit",
    effect=Effect.EXTERNAL,
    version="1",
    dedup=Dedup("by_key", 24.0),
    max_attempts=3,
    attempt_timeout_s=30.0,
    deadline_s=120.0,
    absent_after_s=60.0,
    departs="at_confirm",
    accepts=False,
    job_deadline_s=3600.0,
    resend_margin_s=300.0,
    approval=None,
    on_repeat=RepeatTerms(),
    has_reconcile=True,
    compensate=None,
    guarantee="",
)


def terms(**changed: Any) -> Terms:
    """The terms of the tool that stories are about, with fields changed."""
    return replace(TERMS, **changed)


def digest_of(arguments: str) -> str:
    """The digest of arguments given as canonical JSON text."""
    return sha256(arguments.encode()).hexdigest()


def new_call(
    key: str = "order-7:refund",
    *,
    tenant: str = "t1",
    contract: Terms = TERMS,
    arguments: str = '{"account_id":"a1","amount_cents":2500}',
    at_us: int = T0,
    **changed: Any,
) -> CallRecord:
    """A call that nothing has happened to yet."""
    record = CallRecord(
        tenant=tenant,
        key=key,
        wire_key=f"{tenant}:{key}",
        tool=contract.tool,
        effect=contract.effect.value,
        request_digest=digest_of(arguments),
        requested_by="rita",
        contract=contract.dumps(),
        limits=Limits(contract.max_attempts, contract.attempt_timeout_s, contract.deadline_s),
        digest=digest_of(arguments),
        arguments=arguments,
        state=State.READY,
        created_at_us=at_us,
        updated_at_us=at_us,
    )
    return replace(record, **changed)


@dataclass(slots=True)
class Story:
    """See the module's docstring. ``now_us`` moves with :meth:`later`; ids are counted, so stories are repeatable."""

    contract: Terms = TERMS
    record: CallRecord = field(default_factory=new_call)
    now_us: int = T0
    changes: list[Change] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)

    @staticmethod
    def of(contract: Terms = TERMS, **changed: Any) -> Story:
        """A story about a new call under these terms."""
        record = new_call(contract=contract, **changed)
        return Story(contract, record, record.created_at_us)

    # -- telling -------------------------------------------------------------------------------------------------

    def take(self, change: Change, owner: str | None = None, repeat: RepeatCheck | None = None) -> Story:
        """Let ``change`` happen."""
        write = write_of(change, f"{self.record.key}/{len(self.writes) + 1}", owner=owner, repeat=repeat)
        self.changes.append(change)
        self.writes.append(write)
        self.record = write.record
        return self

    def later(self, seconds: float) -> Story:
        """Let time pass."""
        self.now_us += round(seconds * US)
        return self

    @property
    def state(self) -> State:
        return self.record.state

    @property
    def is_new(self) -> bool:
        return not self.writes

    def attempt(self, number: int | None = None) -> Attempt:
        """The attempt of that number, counted from 1 over all rounds; the last one by default."""
        return self.record.attempts[-1 if number is None else number - 1]

    # -- sending -------------------------------------------------------------------------------------------------

    def start(self, owner: str = "own_a", send_for_s: float = 30.0) -> Start:
        """A sending that begins now."""
        number = len(self.record.attempts) + 1
        return Start(f"att_{number}", owner, self.now_us, self.now_us + round(send_for_s * US))

    def depart(self, owner: str = "own_a", send_for_s: float = 30.0) -> Story:
        start = self.start(owner, send_for_s)
        if self.is_new:
            return self.take(steps.first_departure(self.record, start, {}), owner)
        return self.take(steps.depart(self.record, start, {}), owner)

    def resend(self, owner: str = "own_a", today: Terms | None = None, send_for_s: float = 30.0) -> Story:
        start = self.start(owner, send_for_s)
        return self.take(steps.resend(self.record, start, today or self.contract, {}), owner)

    def end_and_resend(self, outcome: AttemptOutcome, number: int | None = None, owner: str = "own_a") -> Story:
        attempt, start = self.attempt(number), self.start(owner)
        ending = Ending(outcome)
        return self.take(steps.end_and_resend(self.record, attempt.id, ending, start, self.contract, {}), owner)

    def end(
        self, outcome: AttemptOutcome, number: int | None = None, result: str | None = None, error: Any = None
    ) -> Story:
        """An attempt's first-hand end, in time or late."""
        stored = Stored(text=result or f'"of {self.attempt(number).id}"', size=3)
        ending = Ending(
            outcome,
            result=stored if outcome is AttemptOutcome.HAPPENED else None,
            error=error,
            reference="job-1" if outcome is AttemptOutcome.ACCEPTED else None,
        )
        return self.take(steps.end_attempt(self.record, self.attempt(number).id, ending, self.now_us))

    def end_wait(self, number: int | None = None, *, cancel: bool = False) -> Story:
        why = "cancel" if cancel else "timeout"
        return self.take(steps.end_wait(self.record, self.attempt(number).id, why, self.now_us, cancel=cancel))

    def lose(self, owner: str = "own_a", proof: Lost = Lost.LEASE) -> Story:
        """The lease of an owner has ended."""
        return self.take(steps.owner_lost(self.record, owner, self.now_us, proof, self.now_us))

    def prove_dead(self, owner: str = "own_a") -> Story:
        return self.take(steps.owner_proven_dead(self.record, owner, self.now_us))

    def pass_deadline(self) -> Story:
        return self.take(steps.job_deadline(self.record, self.now_us))

    def read(self, outcome: AttemptOutcome) -> Story:
        """A read, recorded in one commit after it ran."""
        start = self.start()
        attempt = Attempt(start.id, 1, 1, start.owner, 1, start.at_us, start.send_by_us, outcome, self.now_us)
        result = Stored(text="[1]", size=3) if outcome is AttemptOutcome.HAPPENED else None
        return self.take(steps.first_record(self.record, (attempt,), Ending(outcome, result=result), {}))

    # -- people --------------------------------------------------------------------------------------------------

    def question(self, quorum: int = 1, approvers: tuple[str, ...] | None = None) -> Approval:
        """What people are asked: good for an hour from now."""
        return approvals.approval_for(
            "needs approval", quorum, 3600, approvers, self.record.digest, self.contract.version, self.now_us
        )

    def hold(self, quorum: int = 1, approvers: tuple[str, ...] | None = None) -> Story:
        return self.take(steps.first_hold(self.record, self.question(quorum, approvers), {}))

    def refuse(self) -> Story:
        return self.take(steps.first_refusal(self.record, {"type": "policy", "message": "No."}, {}))

    def approve(self, by: str = "ada", digest: str | None = None) -> Story:
        return self.take(decisions.approve(self.record, by, self.now_us, digest=digest))

    def edit(self, arguments: str = '{"account_id":"a1","amount_cents":1}', by: str = "ada") -> Story:
        difference = {"amount_cents": [2500, 1]}
        return self.take(decisions.edit(self.record, by, arguments, digest_of(arguments), difference, self.now_us))

    def deny(self, by: str = "ada", reason: str = "too much") -> Story:
        return self.take(decisions.deny(self.record, by, reason, self.now_us))

    def deny_by_gate(self) -> Story:
        error = {"type": "policy", "message": "No."}
        return self.take(approvals.gate_denied(self.record, "policy", error, self.now_us))

    def expire(self) -> Story:
        return self.take(approvals.expire(self.record, self.now_us))

    def cancel(self, by: str = "rita") -> Story:
        return self.take(decisions.cancel(self.record, by, self.now_us))

    def lapse(self) -> Story:
        return self.take(approvals.lapse(self.record, self.question(), "contract changed", self.now_us))

    def retry(self, by: str = "ada", reason: str = "try again", approval: Approval | None = None) -> Story:
        return self.take(decisions.retry(self.record, by, reason, approval, self.now_us))

    # -- evidence ------------------------------------------------------------------------------------------------

    def finding(self, finding: str, via: str = "person", began_s_ago: float = 0.0, **particulars: Any) -> Finding:
        """A statement made now, on a look-up that began ``began_s_ago`` seconds before."""
        named = {"by": "ada", "reason": "looked it up"} if via == "person" else {}
        return Finding(
            id=f"dec_{len(self.writes) + 1}",
            finding=finding,
            via=via,
            began_us=self.now_us - round(began_s_ago * US),
            **(named | particulars),
        )

    def settle(
        self, finding: str, via: str = "person", *, force: bool = False, began_s_ago: float = 0.0, **particulars: Any
    ) -> Story:
        found = self.finding(finding, via, began_s_ago, **particulars)
        return self.take(decisions.settle(self.record, found, self.now_us, force=force))

    def force(self, by: str = "ada", reason: str = "its host burnt down") -> Story:
        return self.take(decisions.force(self.record, by, reason, self.now_us))

    def look(self, next_in_s: float | None = 60.0) -> Story:
        next_due_us = None if next_in_s is None else self.now_us + round(next_in_s * US)
        return self.take(decisions.looked(self.record, self.now_us, next_due_us, "unknown"))

    def overturn(self, by: str = "ada", reason: str = "seen in the books", evidence: Any = None) -> Story:
        settlement_id = f"dec_{len(self.writes) + 1}"
        change = decisions.overturn(self.record, by, reason, settlement_id, self.now_us, evidence=evidence)
        return self.take(change)

    def uphold(self, by: str = "ada", reason: str = "the finding is wrong") -> Story:
        return self.take(decisions.uphold(self.record, by, reason, f"dec_{len(self.writes) + 1}", self.now_us))

    def compensate(self, by_key: str = "order-7:void") -> Story:
        return self.take(decisions.compensated(self.record, by_key, self.now_us))
