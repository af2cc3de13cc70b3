"""Callbacks: the receiver's own word about long work that it accepted, matched by its reference."""

from __future__ import annotations

import hmac
from typing import Any

from pydantic import TypeAdapter

from tollhouse.contract.answers import Answer
from tollhouse.errors import InvalidSetting, NotAllowed, NotEntitled, UnknownCall
from tollhouse.gate.core import Core
from tollhouse.gate.results import keep
from tollhouse.ledger.change import Change
from tollhouse.ledger.decisions import Finding, settle
from tollhouse.ledger.ids import Prefix
from tollhouse.ledger.lifecycle import Forbidden
from tollhouse.ledger.record import SETTLED, Attempt, AttemptOutcome, CallRecord
from tollhouse.ledger.steps import earlier_job_happened
from tollhouse.ledger.transact import transact

_ANY: TypeAdapter[Any] = TypeAdapter(Any)


async def report(core: Core, key: str, answer: Answer, reference: str) -> CallRecord:
    """Settle accepted work by callback; against a settled call it is recorded as a finding. Durable on return."""
    if answer.finding == "unknown":
        raise InvalidSetting("A callback says happened(value) or did_not_happen(evidence).")
    record = await core.store.get(core.tenant, key)
    if record is None:
        raise UnknownCall(f"No call is recorded under {key}.", key=key)
    if not _under(record, reference):
        raise NotEntitled(f"{key} was not accepted under that reference.", key=key)
    tool = core.tools.get(record.tool)
    kept = keep(answer.value, tool.schema.result if tool else _ANY) if answer.finding == "happened" else None
    finding = Finding(
        id=core.ids.new(Prefix.DECISION),
        finding=answer.finding,
        via="callback",
        began_us=core.clock.now_us(),
        by="callback",
        evidence=None if answer.evidence is None else str(answer.evidence)[:1000],
        reference=answer.reference or str(reference),
        result=kept.stored if kept else None,
        job_status=answer.job_status,
    )

    def step(current: CallRecord) -> Change:
        return _heard(current, finding, reference, core.clock.now_us())

    try:
        before, after = await transact(core.store, record, step, finding.id, blobs=kept.blobs if kept else ())
    except _SaidBefore as said:
        return said.record
    except Forbidden as forbidden:
        raise NotAllowed(f"The callback does not fit {key}: {forbidden.cause}", key=key) from None
    core.tell_of(before, after)
    return after


class _SaidBefore(Exception):
    """The callback says what it said before, or of an earlier round what is settled there: callbacks are delivered more
    than once."""

    def __init__(self, record: CallRecord) -> None:
        super().__init__("nothing new")
        self.record = record


def _heard(record: CallRecord, finding: Finding, reference: str, now_us: int) -> Change:
    """What a callback makes of the call. It speaks of the work under its reference, and of no other work."""
    spoken_of = _under(record, reference)
    if any(attempt.round == record.round for attempt in spoken_of):
        if finding.finding == "did_not_happen" and _other_work(record, spoken_of):
            raise Forbidden("reference", "Another attempt of it may have begun work of its own.")
        if record.state in SETTLED and _said(record, finding):
            raise _SaidBefore(record)
        return settle(record, finding, now_us)
    attempt = spoken_of[-1]
    if finding.finding == "did_not_happen" or attempt.outcome is AttemptOutcome.HAPPENED:
        raise _SaidBefore(record)
    return earlier_job_happened(record, attempt.id, finding.result, now_us)


def _said(record: CallRecord, finding: Finding) -> bool:
    """Whether the same was said by callback of the same outcomes, so that whoever decided since had heard it."""
    outcomes = {a.id: a.outcome for a in record.attempts}
    said = (finding.finding, finding.reference, finding.evidence, finding.result, outcomes)
    heard = (s for s in record.settlements if s.via == "callback")
    return any((s.finding, s.reference, s.evidence, s.result, s.covers) == said for s in heard)


def _under(record: CallRecord, reference: str) -> list[Attempt]:
    """The attempts that were accepted under that reference."""
    given = _bytes(str(reference))  # receivers number their jobs
    return [a for a in record.attempts if a.reference is not None and hmac.compare_digest(_bytes(a.reference), given)]


def _bytes(reference: str) -> bytes:
    return reference.encode(errors="surrogatepass")  # what is no text is no reason to fail: it fits nothing


def _other_work(record: CallRecord, spoken_of: list[Attempt]) -> bool:
    """Whether another attempt of the round may have had work begun, which a receiver that dedups by key rules out."""
    if record.terms.dedup.kind == "by_key":
        return False
    return any(attempt.unsettled for attempt in record.round_attempts if attempt not in spoken_of)
