"""Records as JSON: the shapes that every surface answers with, with field names that stay.

Called by the command line and the HTTP API. Moments are ISO 8601 strings in UTC with microseconds; an absent thing is
null. Values of users are plain JSON where JSON has a word for them (a date is its ISO string, a tuple an array, as in
arguments) and in the ledger's marked form, such as ``{"$float": "nan"}``, where it has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from decimal import Decimal
from typing import Any

from tollhouse.contract.tool import Tool
from tollhouse.gate.outcome import Outcome
from tollhouse.gate.results import Unavailable
from tollhouse.gate.view import HistoryLine, RecordedCall
from tollhouse.ledger.codec import from_tree, loads, to_tree
from tollhouse.ledger.plain import moment, plain_json
from tollhouse.ledger.purging import purged_at_us
from tollhouse.ledger.record import Approval, Attempt, CallRecord, Settlement, State, Stored


def call_as_json(call: RecordedCall) -> dict[str, Any]:
    """A recorded call, whole; ``history`` only where it was read."""
    record = call.raw
    shown = {
        **_identity(record),
        **_standing(record),
        "contract": asdict(record.terms),
        "guarantee": call.guarantee,
        "limits": asdict(record.limits),
        "arguments": plain_json(call.arguments),
        "digest": record.digest,
        "request_digest": record.request_digest,
        "result": _result(call),
        "result_problem": None if record.result is None else record.result.problem,
        "result_detail": None if record.result is None else record.result.detail,
        "reference": call.reference,
        "error": None if record.error is None else dict(record.error),
        "cost": total_cost(record),
        "purged_at": moment(purged_at_us(record)),
        "attempts": [_attempt(attempt) for attempt in record.attempts],
        "settlements": [_settlement(settlement) for settlement in record.settlements],
        "approval": None if record.approval is None else _approval(record.approval),
    }
    if call.history:
        shown["history"] = [_line(line) for line in call.history]
    return shown


def outcome_as_json(outcome: Outcome[Any]) -> dict[str, Any]:
    """What a caller gets back from a call."""
    kept = not isinstance(outcome.value, Unavailable)
    return {
        "key": outcome.key,
        "state": outcome.state.value,
        "result": _typed(outcome.value) if kept else None,
        "result_problem": outcome.problem,
        "result_detail": outcome.problem_detail,
        "replayed": outcome.replayed,
        "attempts": outcome.attempts,
        "reference": outcome.reference,
    }


def tool_as_json(tool: Tool[Any]) -> dict[str, Any]:
    """A tool's contract: what it promises, what its author should know, and the schema that a model sees."""
    return {
        "name": tool.name,
        "description": tool.description,
        "effect": tool.effect.value,
        "contract": asdict(tool.terms),
        "guarantee": tool.terms.guarantee,
        "cautions": list(tool.cautions),
        "json_schema": tool.json_schema,
    }


def total_cost(record: CallRecord) -> str | None:
    """What all sendings cost together, as a decimal number; None where none has a cost."""
    costs = [Decimal(attempt.cost) for attempt in record.attempts if attempt.cost is not None]
    return format(sum(costs, Decimal()), "f") if costs else None


def doubt_since_us(record: CallRecord) -> int | None:
    """Since when a call in doubt may have taken effect: its oldest unsettled departure. None for other states."""
    if record.state is not State.IN_DOUBT:
        return None
    return min((a.started_at_us for a in record.round_attempts if a.unsettled), default=None)


def _typed(value: Any) -> Any:
    """A result in its declared type, as it would read if the tool were not here: the same JSON in every process."""
    return plain_json(from_tree(to_tree(value, lossless=True)))


def _result(call: RecordedCall) -> Any:
    stored = call.raw.result
    if stored is None or isinstance(call.result, Unavailable):
        return None
    return plain_json(from_tree(loads(stored.text))) if stored.text is not None else _typed(call.result)


def _identity(record: CallRecord) -> dict[str, Any]:
    return {
        "key": record.key,
        "tenant": record.tenant,
        "idempotency_key": record.wire_key,
        "tool": record.tool,
        "effect": record.effect,
        "requested_by": record.requested_by,
        "scope": record.scope,
        "group": record.group,
        "repeat_of": record.repeat_of,
        "compensates": record.compensates,
        "compensated_by": record.compensated_by,
    }


def _standing(record: CallRecord) -> dict[str, Any]:
    return {
        "state": record.state.value,
        "version": record.version,
        "round": record.round,
        "contradicted": record.contradicted,
        "cancel_asked": record.cancel_asked,
        "run_when_approved": record.run_when_approved,
        "created_at": moment(record.created_at_us),
        "updated_at": moment(record.updated_at_us),
        "departed_at": moment(record.departed_at_us),
        "deadline_at": moment(record.deadline_at_us),
        "due_at": moment(record.due_at_us),
        "doubt_since": moment(doubt_since_us(record)),
        "looks": record.looks,
    }


def _attempt(attempt: Attempt) -> dict[str, Any]:
    return {
        "id": attempt.id,
        "round": attempt.round,
        "number": attempt.number,
        "owner": attempt.owner,
        "fence": attempt.fence,
        "started_at": moment(attempt.started_at_us),
        "send_by": moment(attempt.send_by_us),
        "ended_at": moment(attempt.ended_at_us),
        "outcome": attempt.outcome,
        "judged": attempt.judged,
        "lost": attempt.lost,
        "late": attempt.late,
        "late_result": _kept(attempt.late_result),
        "reference": attempt.reference,
        "error": None if attempt.error is None else dict(attempt.error),
        "cost": attempt.cost,
    }


def _settlement(settlement: Settlement) -> dict[str, Any]:
    return {
        "id": settlement.id,
        "kind": settlement.kind,
        "via": settlement.via,
        "finding": settlement.finding,
        "by": settlement.by,
        "reason": settlement.reason,
        "round": settlement.round,
        "at": moment(settlement.at_us),
        "evidence": settlement.evidence,
        "reference": settlement.reference,
        "result": _kept(settlement.result),
        "covers": dict(settlement.covers),
    }


def _approval(approval: Approval) -> dict[str, Any]:
    return {
        "reason": approval.reason,
        "quorum": approval.quorum,
        "approvers": None if approval.approvers is None else list(approval.approvers),
        "votes": [{"by": vote.by, "at": moment(vote.at_us), "digest": vote.digest} for vote in approval.votes],
        "granted_at": moment(approval.granted_at_us),
        "expires_at": moment(approval.expires_at_us),
        "digest": approval.digest,
        "contract_version": approval.contract_version,
        "consumed_round": approval.consumed_round,
        "covers_repeat": approval.covers_repeat,
    }


def _kept(stored: Stored | None) -> Any:
    """A result beside the call's own: its value, or where its body is (``$blob``, a SHA-256), or why there is none."""
    if stored is None:
        return None
    if stored.text is not None:
        return plain_json(from_tree(loads(stored.text)))
    return {"$blob": stored.blob, "size": stored.size, "problem": stored.problem, "detail": stored.detail}


def _line(line: HistoryLine) -> dict[str, Any]:
    return {"seq": line.seq, "at": moment(line.at_us), "kind": line.kind, "facts": facts_as_json(line.facts)}


def facts_as_json(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of an event with its moments as strings: ``send_by_us`` becomes ``send_by``."""
    return {name.removesuffix("_us"): moment(value) if name.endswith("_us") else value for name, value in facts.items()}
