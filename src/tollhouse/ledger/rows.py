"""A call record as the columns that every store keeps, and back. One mapping, so that no store invents its own.

Columns are what statements look at (guards, indexes, joins); everything else a rule reads rides in ``body`` as JSON.
Immutable columns are written once at insert; an update writes the mutable ones only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tollhouse.ledger.compact import compact_encoder
from tollhouse.ledger.record import (
    Approval,
    Attempt,
    AttemptOutcome,
    CallRecord,
    Limits,
    Lost,
    Settlement,
    State,
    Stored,
    Vote,
)

IMMUTABLE = (
    "tenant", "key", "wire_key", "tool", "effect", "scope", "call_group", "request_digest", "contract",
    "requested_by", "created_at_us",
)  # fmt: skip
MUTABLE = (
    "state", "version", "fence", "round", "open_owners", "due_at_us", "contradicted", "cancel_asked", "repeat_slot",
    "updated_at_us", "head_seq", "head_hash", "body", "result",
)  # fmt: skip
EDITABLE = ("digest", "arguments")
COLUMNS = IMMUTABLE + EDITABLE + MUTABLE


def immutable_values(record: CallRecord) -> tuple[Any, ...]:
    """Values for :data:`IMMUTABLE`, in order."""
    return (
        record.tenant, record.key, record.wire_key, record.tool, record.effect, record.scope, record.group,
        record.request_digest, record.contract, record.requested_by, record.created_at_us,
    )  # fmt: skip


def mutable_values(record: CallRecord, made: tuple[CallRecord, str] | None = None) -> tuple[Any, ...]:
    """Values for :data:`MUTABLE`, in order. ``result`` holds an inline body only; the rest of it is in ``body``.

    ``made``: what :func:`dump_body` made of which record; it counts for that very one only.
    """
    body = dump_body(record) if made is None or made[0] is not record else made[1]
    return (
        str(record.state), record.version, record.fence, record.round, record.open_owners, record.due_at_us,
        record.contradicted, record.cancel_asked, record.repeat_slot, record.updated_at_us, record.head_seq,
        record.head_hash, body, None if record.result is None else record.result.text,
    )  # fmt: skip


def record_of(row: Mapping[str, Any]) -> CallRecord:
    """The record in a row (any mapping with :data:`COLUMNS`)."""
    body = json.loads(row["body"])
    return CallRecord(
        tenant=row["tenant"],
        key=row["key"],
        wire_key=row["wire_key"],
        tool=row["tool"],
        effect=row["effect"],
        request_digest=row["request_digest"],
        requested_by=row["requested_by"],
        contract=row["contract"],
        limits=Limits(*body["limits"]),
        digest=row["digest"],
        arguments=row["arguments"],
        state=State(row["state"]),
        created_at_us=row["created_at_us"],
        updated_at_us=row["updated_at_us"],
        version=row["version"],
        fence=row["fence"],
        round=row["round"],
        attempts=tuple(_attempt(raw) for raw in body["attempts"]),
        settlements=tuple(_settlement(raw) for raw in body.get("settlements", ())),
        approval=_approval(body.get("approval")),
        contradicted=bool(row["contradicted"]),
        cancel_asked=bool(row["cancel_asked"]),
        departed_at_us=body.get("departed_at_us"),
        deadline_at_us=body.get("deadline_at_us"),
        due_at_us=row["due_at_us"],
        looks=body.get("looks", 0),
        scope=row["scope"],
        group=row["call_group"],
        repeat_of=body.get("repeat_of"),
        repeat_slot=row["repeat_slot"],
        compensates=body.get("compensates"),
        compensated_by=body.get("compensated_by"),
        run_when_approved=body.get("run_when_approved", False),
        result=_stored(body.get("result"), row["result"]),
        error=body.get("error"),
        head_seq=row["head_seq"],
        head_hash=row["head_hash"],
        extra=body.get("extra", {}),
    )


def dump_body(record: CallRecord) -> str:
    """The JSON of everything that has no column of its own; absent means default."""
    body: dict[str, Any] = {
        "limits": (record.limits.max_attempts, record.limits.attempt_timeout_s, record.limits.deadline_s),
        "attempts": [_dump_attempt(a) for a in record.attempts],
    }
    if record.settlements:
        body["settlements"] = [_dump_settlement(s) for s in record.settlements]
    if record.approval is not None:
        body["approval"] = _dump_approval(record.approval)
    if record.result is not None:
        body["result"] = _dump_stored(record.result, inline=False)
    held = record.__dict__
    for name in _PLAIN:
        if (value := held[name]) is not None:
            body[name] = value
    if record.looks:
        body["looks"] = record.looks
    if record.run_when_approved:
        body["run_when_approved"] = True
    if record.extra:
        body["extra"] = dict(record.extra)
    return _encode(body)


_PLAIN = ("departed_at_us", "deadline_at_us", "repeat_of", "compensates", "compensated_by", "error")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return str(value)


_encode = compact_encoder(default=_plain)


def _dump_attempt(a: Attempt) -> dict[str, Any]:
    raw: dict[str, Any] = {
        "id": a.id, "round": a.round, "number": a.number, "owner": a.owner, "fence": a.fence,
        "started_at_us": a.started_at_us, "send_by_us": a.send_by_us,
    }  # fmt: skip
    if a.outcome is not None:
        raw["outcome"] = a.outcome
    if a.ended_at_us is not None:
        raw["ended_at_us"] = a.ended_at_us
    if a.error is not None:
        raw["error"] = a.error
    if a.cost is not None:
        raw["cost"] = a.cost
    if a.lost or a.judged or a.reference or a.late or a.late_result:
        raw |= {"lost": a.lost, "judged": a.judged, "reference": a.reference, "late": a.late}
        raw["late_result"] = None if a.late_result is None else _dump_stored(a.late_result, inline=True)
    return raw


def _attempt(raw: dict[str, Any]) -> Attempt:
    for name, kind in (("outcome", AttemptOutcome), ("judged", AttemptOutcome), ("lost", Lost)):
        if raw.get(name) is not None:
            raw[name] = kind(raw[name])
    if raw.get("late_result") is not None:
        raw["late_result"] = Stored(**raw["late_result"])
    return Attempt(**raw)


def _dump_stored(stored: Stored, *, inline: bool) -> dict[str, Any]:
    raw = {"blob": stored.blob, "size": stored.size, "problem": stored.problem, "detail": stored.detail}
    if inline:
        raw["text"] = stored.text
    return {name: value for name, value in raw.items() if value is not None}


def _stored(raw: dict[str, Any] | None, text: str | None) -> Stored | None:
    return None if raw is None else Stored(text=text, **raw)


def _dump_settlement(s: Settlement) -> dict[str, Any]:
    raw = {name: getattr(s, name) for name in Settlement.__dataclass_fields__ if name not in ("covers", "result")}
    raw["covers"] = dict(s.covers)
    raw["result"] = None if s.result is None else _dump_stored(s.result, inline=True)
    return raw


def _settlement(raw: dict[str, Any]) -> Settlement:
    if raw.get("result") is not None:
        raw["result"] = Stored(**raw["result"])
    return Settlement(**raw)


def _dump_approval(a: Approval) -> dict[str, Any]:
    raw = {name: getattr(a, name) for name in Approval.__dataclass_fields__ if name != "votes"}
    raw["votes"] = [(v.by, v.at_us, v.digest) for v in a.votes]
    return raw


def _approval(raw: dict[str, Any] | None) -> Approval | None:
    if raw is None:
        return None
    raw["votes"] = tuple(Vote(*vote) for vote in raw["votes"])
    raw["approvers"] = None if raw["approvers"] is None else tuple(raw["approvers"])
    return Approval(**raw)
