"""The documents of the API as types: what bodies are checked against, and what the OpenAPI document describes.

Answers are written by ``house/as_json.py``; their types here describe them, and the tests hold both together.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints

Name = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00]+$")]
Reason = Annotated[str, StringConstraints(min_length=1, max_length=4000, pattern=r"^[^\x00]*[^\x00\s][^\x00]*$")]
OptionalReason = Annotated[str, StringConstraints(max_length=4000, pattern=r"^[^\x00]*$")]
State = Literal["ready", "held", "departed", "accepted", "in_doubt", "succeeded", "failed", "refused", "compensated"]
Sent = Literal["no", "maybe", "yes"]


class Body(BaseModel):
    """A body: unknown members are refused, since a mistyped one would be a wish that nobody heard."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Shown(BaseModel):
    """A document that is answered with; more members may come with later releases."""

    model_config = ConfigDict(extra="allow")


def example(value: dict[str, Any]) -> ConfigDict:
    """The settings of a document with its example."""
    return ConfigDict(json_schema_extra={"examples": [value]})


def example_of(model: type[BaseModel]) -> Any:
    """The example of a document, for those that hold it."""
    extra: Any = model.model_config["json_schema_extra"]
    return extra["examples"][0]


# -- calling -------------------------------------------------------------------------------------------------------


class NewCall(Body):
    """One intended use of a tool. Its key is the header `Idempotency-Key`."""

    model_config = example({"arguments": {"account_id": "a1", "amount_cents": 2500}, "scope": "order-7"})

    arguments: dict[str, JsonValue] = Field({}, description="What the tool's `json_schema` describes.")
    scope: Name | None = Field(None, description="Where repeats of the same call under other keys are looked for.")
    group: Name | None = Field(None, description="Calls of one scope and group are no repeats of each other.")
    wait: bool = Field(True, description="Wait for an attempt that another request has out; false answers 202 at once.")
    run_when_approved: bool = Field(
        True, description="Once approved, run it without waiting for the caller to come back."
    )
    max_attempts: int | None = Field(None, ge=1, le=100, description="At most so many sendings; tightens the contract.")
    attempt_timeout_s: float | None = Field(None, gt=0, allow_inf_nan=False, description="For one sending, in seconds.")
    deadline_s: float | None = Field(None, gt=0, allow_inf_nan=False, description="For all sendings, in seconds.")


class ErrorShown(Shown):
    """Why a call did not succeed, or has not yet."""

    code: str
    cause: str
    remedy: str
    sent: Sent


class CallAnswer(Shown):
    """What became of a call. `error` is null where it succeeded or was accepted."""

    model_config = example(
        {
            "key": "order-7:refund",
            "state": "succeeded",
            "result": {"credit_id": "cr_1", "amount_cents": 2500},
            "result_problem": None,
            "result_detail": None,
            "replayed": False,
            "attempts": 1,
            "reference": None,
            "error": None,
        }
    )

    key: str
    state: State
    result: JsonValue = None
    result_problem: str | None
    result_detail: str | None
    replayed: bool
    attempts: int | None
    reference: str | None
    error: ErrorShown | None


# -- looking -------------------------------------------------------------------------------------------------------


class Event(Shown):
    """One line of a history."""

    model_config = example(
        {"seq": 1, "at": "2026-11-29T12:00:00.000000Z", "kind": "departed", "facts": {"state": "departed"}}
    )

    seq: int
    at: str
    kind: str
    facts: dict[str, JsonValue]


class EventPage(Shown):
    """Part of a history, oldest first. `next`: the cursor of the rest; null at the end."""

    model_config = example({"events": [example_of(Event)], "next": None})

    events: list[Event]
    next: str | None


class Call(Shown):
    """A recorded call, whole."""

    model_config = example(
        {
            "key": "order-7:refund",
            "tenant": "default",
            "idempotency_key": "default:order-7:refund",
            "tool": "issue_credit",
            "effect": "external",
            "requested_by": "billing-agent",
            "state": "succeeded",
            "version": 3,
            "round": 1,
            "contradicted": False,
            "arguments": {"account_id": "a1", "amount_cents": 2500},
            "digest": "5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef",
            "result": {"credit_id": "cr_1"},
            "reference": None,
            "error": None,
            "cost": None,
            "created_at": "2026-11-29T12:00:00.000000Z",
            "attempts": [],
            "settlements": [],
            "approval": None,
        }
    )

    key: str
    tenant: str
    idempotency_key: str
    tool: str
    effect: str
    requested_by: str
    state: State
    version: int
    round: int
    contradicted: bool
    arguments: dict[str, JsonValue]
    digest: str
    result: JsonValue
    reference: str | None
    error: dict[str, JsonValue] | None
    cost: str | None
    created_at: str
    attempts: list[dict[str, JsonValue]]
    settlements: list[dict[str, JsonValue]]
    approval: dict[str, JsonValue] | None
    history: list[Event] | None = Field(None, description="Only with `history=1`.")


class CallPage(Shown):
    """Calls, newest first. `next`: the cursor of the next page; null at the end."""

    model_config = example({"calls": [example_of(Call)], "next": None})

    calls: list[Call]
    next: str | None


class ToolShown(Shown):
    """A tool's contract, what its author should know, and the schema of its arguments."""

    model_config = example(
        {
            "name": "issue_credit",
            "description": "Credit an account.",
            "effect": "external",
            "contract": {"effect": "external"},
            "guarantee": "sent at most once",
            "cautions": [],
            "json_schema": {"type": "object", "properties": {"account_id": {"type": "string"}}},
        }
    )

    name: str
    description: str | None
    effect: str
    contract: dict[str, JsonValue]
    guarantee: str
    cautions: list[str]
    json_schema: dict[str, JsonValue]


class ToolList(Shown):
    """The tools that the caller may see, by name."""

    model_config = example({"tools": [example_of(ToolShown)]})

    tools: list[ToolShown]


class ApprovalAsked(Shown):
    """A call that waits for people: what is asked, of whom, until when, and who has voted."""

    model_config = example(
        {
            "key": "order-7:refund",
            "tool": "issue_credit",
            "effect": "external",
            "version": 1,
            "arguments": {"account_id": "a1", "amount_cents": 2500},
            "digest": "5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef",
            "requested_by": "billing-agent",
            "scope": "order-7",
            "repeat_of": None,
            "reason": "the contract requires approval",
            "quorum": 1,
            "approvers": None,
            "votes": [],
            "asked_at": "2026-11-29T12:00:00.000000Z",
            "expires_at": "2026-11-30T12:00:00.000000Z",
            "may_decide": True,
        }
    )

    key: str
    tool: str
    effect: str
    version: int
    arguments: dict[str, JsonValue]
    digest: str
    requested_by: str
    scope: str | None
    repeat_of: str | None
    reason: str
    quorum: int
    approvers: list[str] | None
    votes: list[dict[str, JsonValue]]
    asked_at: str
    expires_at: str | None
    may_decide: bool = Field(description="Whether the caller is neither the requester nor left out by `approvers`.")


class ApprovalPage(Shown):
    """Held calls, newest first. `next`: the cursor of the next page; null at the end."""

    model_config = example({"approvals": [example_of(ApprovalAsked)], "next": None})

    approvals: list[ApprovalAsked]
    next: str | None


class Cost(Shown):
    """What the sendings of one tool cost on one day (UTC, by when each began)."""

    model_config = example({"day": "2026-11-29", "tool": "issue_credit", "cost": "1.25", "attempts": 5, "unpriced": 0})

    day: str
    tool: str
    cost: str = Field(description="A decimal number, in the unit that the tools' contracts use.")
    attempts: int
    unpriced: int = Field(description="Sendings of which no cost is known; they are not in `cost`.")


class CostPage(Shown):
    """Sums over the calls that were read. `next`: the cursor of the older ones; null where all were read."""

    model_config = example({"costs": [example_of(Cost)], "calls": 5, "next": None})

    costs: list[Cost]
    calls: int = Field(description="How many calls these sums are of.")
    next: str | None


# -- deciding ------------------------------------------------------------------------------------------------------


class Because(Body):
    """A decision that needs a reason."""

    model_config = example({"reason": "checked with the customer"})

    reason: Reason = Field(description="Why; kept on the record.")


class MaybeBecause(Body):
    """A decision that may give a reason."""

    model_config = example({"reason": "checked with the customer"})

    reason: OptionalReason | None = Field(None, description="Why; kept on the record.")


class Happened(Because):
    """A doubt that is settled: it took effect."""

    model_config = example({"finding": "happened", "reason": "seen in the dashboard", "value": {"credit_id": "cr_1"}})

    finding: Literal["happened"]
    value: JsonValue = Field(None, description="The result to record.")
    reference: Name | None = Field(None, description="The receiver's id for it.")
    force: bool = Field(False, description="Set aside an attempt that may still be running.")


class DidNotHappen(Because):
    """A doubt that is settled: it had no effect."""

    model_config = example({"finding": "did_not_happen", "reason": "the receiver has no such order"})

    finding: Literal["did_not_happen"]
    evidence: OptionalReason | None = Field(None, description="What shows it.")
    force: bool = Field(False, description="Set aside an attempt that may still be running.")


Resolution = Annotated[Happened | DidNotHappen, Field(discriminator="finding")]
"""What a person found out about a doubt."""


class ApprovalGiven(MaybeBecause):
    """A yes. It says nothing about what runs: that is the stored call."""

    model_config = example({"digest": "5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef"})

    digest: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")] | None = Field(
        None, description="Approve only if these are still the arguments."
    )


class Edit(MaybeBecause):
    """Other arguments for a held call."""

    model_config = example({"arguments": {"account_id": "a1", "amount_cents": 2000}, "reason": "less was agreed"})

    arguments: dict[str, JsonValue] = Field(description="All arguments; votes given so far become void.")


class Overturning(Because):
    """A settlement that is reversed."""

    model_config = example({"reason": "the receiver shows the credit", "evidence": "cr_1"})

    evidence: OptionalReason | None = Field(None, description="What shows it; kept on the record.")


# -- errors --------------------------------------------------------------------------------------------------------


class Problem(Shown):
    """An error (RFC 9457). Branch on `code`; `sent` says whether anything left the house."""

    model_config = example(
        {
            "type": "urn:tollhouse:problem:call_conflict",
            "title": "The key already belongs to another tool or to other arguments.",
            "status": 409,
            "detail": "The key order-7:refund belongs to a call with other arguments.",
            "code": "call_conflict",
            "remedy": "Use a new key for a new call; a key names one intended use of a tool for ever.",
            "sent": "no",
            "key": "order-7:refund",
            "request_id": "6f1d2c3b4a59687786958473",
        }
    )

    type: str
    title: str
    status: int
    detail: str
    code: str
    remedy: str
    sent: Sent
    key: str | None
    request_id: str | None


# -- operations ----------------------------------------------------------------------------------------------------


class Alive(Shown):
    """Whether the process answers."""

    model_config = example({"status": "ok"})

    status: Literal["ok", "stopping"]


class Check(Shown):
    """Whether one thing works, and how long asking took."""

    ok: bool
    ms: float


class Readiness(Shown):
    """Whether the process can do its work, and what of it works."""

    model_config = example(
        {
            "status": "ready",
            "checks": {
                "store": {"ok": True, "ms": 1.2},
                "lease": {"ok": True, "ms": 0.0},
                "rounds": {"ok": True, "ms": 0.0},
            },
        }
    )

    status: Literal["ready", "not_ready"]
    checks: dict[str, Check]
