"""Callbacks: the receiver's own word about long work that it accepted, matched by its reference."""

from __future__ import annotations

import hmac
from typing import Any

from pydantic import TypeAdapter

from tollhouse.contract.answers import Answer
from tollhouse.errors import InvalidSetting, NotAllowed, NotEntitled, UnknownCall
from tollhouse.gate.core import Core
from tollhouse.gate.results import keep
from tollhouse.ledger.decisions import Finding, settle
from tollhouse.ledger.ids import Prefix
from tollhouse.ledger.lifecycle import Forbidden
from tollhouse.ledger.record import CallRecord
from tollhouse.ledger.transact import transact

_ANY: TypeAdapter[Any] = TypeAdapter(Any)


async def report(core: Core, key: str, answer: Answer, reference: str) -> CallRecord:
    """Settle accepted work by callback; against a settled call it is recorded as a finding. Durable on return."""
    if answer.finding == "unknown":
        raise InvalidSetting("A callback says happened(value) or did_not_happen(evidence).")
    record = await core.store.get(core.tenant, key)
    if record is None:
        raise UnknownCall(f"No call is recorded under {key}.", key=key)
    known = [a.reference for a in record.attempts if a.reference is not None]
    if not any(hmac.compare_digest(one.encode(), reference.encode()) for one in known):
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
        reference=answer.reference or reference,
        result=kept.stored if kept else None,
        job_status=answer.job_status,
    )
    try:
        before, after = await transact(
            core.store,
            record,
            lambda current: settle(current, finding, core.clock.now_us()),
            finding.id,
            blobs=kept.blobs if kept else (),
        )
    except Forbidden as forbidden:
        raise NotAllowed(f"The callback does not fit {key}: {forbidden.cause}", key=key) from None
    core.tell_of(before, after)
    return after
