"""The documents about agents and runs; see :mod:`tollhouse.api.models`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, JsonValue, StringConstraints

from tollhouse.api.models import Body, Call, Name, OptionalReason, Shown, example, example_of
from tollhouse.runs.starting import INPUT_CHARACTERS_MOST, WALL_S_MOST


def _whole(given: Any) -> Any:
    return int(given) if isinstance(given, float) and given.is_integer() else given


WHOLE = BeforeValidator(_whole)
"""For whole numbers, which JSON may write with a fraction of zero."""

RunState = Literal[
    "queued",
    "running",
    "awaiting_approval",
    "awaiting_reconciliation",
    "awaiting_answer",
    "awaiting_work",
    "awaiting_time",
    "limit_reached",
    "succeeded",
    "failed",
    "cancelled",
]
Words = Annotated[str, StringConstraints(max_length=INPUT_CHARACTERS_MOST, pattern=r"^[^\x00]*$")]
Version = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{8,64}$")]

_DOLLARS = r"^(0\.[0-9]{0,8}[1-9][0-9]{0,8}|[1-9][0-9]{0,8}(\.[0-9]{1,9})?)$"

RUN_ID = "run_06fg0c8t3s7kx9q2m4n5p6r7v8"
_LIMITS = {"turns": 25, "calls": 200, "tokens": None, "cost": "5.00", "wall_s": None}
_RUN: dict[str, Any] = {
    "id": RUN_ID,
    "tenant": "default",
    "agent": "refunds",
    "agent_version": "5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef",
    "driver": "local",
    "state": "awaiting_approval",
    "sentence": "one of its calls waits for people",
    "version": 5,
    "finished": False,
    "thread": "order-7",
    "continues": None,
    "parent_run_id": None,
    "parent_key": None,
    "source_run_id": None,
    "attempt_no": 1,
    "effects": None,
    "requested_by": "billing-agent",
    "created_at": "2026-11-29T12:00:00.000000Z",
    "updated_at": "2026-11-29T12:00:02.000000Z",
    "due_at": None,
    "limits": _LIMITS,
    "spent": {
        "turns": 1,
        "calls": 1,
        "input_tokens": 210,
        "output_tokens": 34,
        "cost": "0.0011",
        "unpriced": 0,
        "unmeasured": 0,
        "by_children": {
            "turns": 0,
            "calls": 0,
            "input_tokens": 0,
            "output_tokens": 0,
            "cost": "0",
            "unpriced": 0,
            "unmeasured": 0,
        },
    },
    "waiting": [
        {
            "kind": "approval",
            "id": f"{RUN_ID}:1.1",
            "since": "2026-11-29T12:00:02.000000Z",
            "until": "2026-11-30T12:00:02.000000Z",
            "text": "The contract requires approval.",
            "reminded": False,
        }
    ],
    "output": None,
    "reason": None,
    "last_seq": 4,
    "purged_at": None,
}

EVENT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "One server-sent event.",
    "properties": {
        "id": {"type": "string", "description": "The place in the journal; absent where there is none to go on after."},
        "event": {"type": "string"},
        "data": {"type": "string", "description": "JSON."},
    },
    "required": ["data"],
}
EVENT_EXAMPLE = {
    "id": "1",
    "event": "run_started",
    "data": '{"seq":1,"at":"2026-11-29T12:00:00.000000Z","kind":"run_started","facts":{"state":"queued"}}',
}


class LimitsWished(Body):
    """Limits by name; those left out stay as they are. Null: no limit."""

    model_config = example({"turns": 50, "cost": "10.00"})

    turns: Annotated[int, Field(ge=1, le=10_000), WHOLE] = Field(
        default_factory=lambda: 1, description="Model answers."
    )
    calls: Annotated[int, Field(ge=1, le=100_000), WHOLE] | None = Field(None, description="Tool calls.")
    tokens: Annotated[int, Field(ge=1, le=10**12), WHOLE] | None = Field(None, description="Input and output together.")
    cost: Annotated[str, StringConstraints(pattern=_DOLLARS)] | None = Field(
        None, description="US dollars above zero, as a decimal number."
    )
    wall_s: float | None = Field(
        None, gt=0, le=WALL_S_MOST, allow_inf_nan=False, description="Seconds since its start."
    )


class NewRun(Body):
    """A start of a run. Its key is the header `Idempotency-Key`."""

    model_config = example({"agent": "refunds", "input": "Refund order 7.", "thread": "order-7"})

    agent: Name = Field(description="The name of the agent.")
    input: Words = Field(description="What it is asked.")
    thread: Name | None = Field(None, description="The conversation that it continues; one unfinished run at a time.")
    agent_version: Version | None = Field(None, description="A version, or the beginning of one; null: the newest.")
    limits: LimitsWished | None = Field(None, description="Tighter limits than the agent's.")
    driver: Literal["local", "temporal"] | None = Field(None, description="Who drives it; null: the server's choice.")


class Rerun(Body):
    """How a run is run again."""

    model_config = example({"effects": "hold"})

    effects: Literal["hold", "reuse", "repeat"] = Field(
        "hold", description="What becomes of an effect that the run had, or may have had."
    )
    agent_version: Version | None = Field(None, description="A version; null: that of the run.")


class Rehearse(Body):
    """With what a recorded run is rehearsed."""

    model_config = example({"model": "anthropic:claude-opus-4-8", "compare_output": False})

    agent_version: Version | None = Field(None, description="A version of its agent; null: the newest.")
    model: Name | None = Field(None, description="Another model; null: that of the version.")
    compare_output: bool | None = Field(
        None, description="Whether another output is a difference; null: where the agent declares a schema."
    )


class Cancelling(Body):
    """Why a run is stopped."""

    model_config = example({"reason": "the customer changed their mind"})

    reason: OptionalReason | None = Field(None, description="Why; kept on the record.")


class AnswerGiven(Body):
    """An answer to a question of a run."""

    model_config = example({"text": "Yes, the address is right."})

    text: Words = Field(description="What the model hears.")


class WaitingShown(Shown):
    """One thing that a run waits for. `id`: the key of its call, or of its question."""

    model_config = example(_RUN["waiting"][0])

    kind: Literal["reconciliation", "approval", "answer", "work", "time"]
    id: str
    since: str
    until: str | None
    text: str


class Run(Shown):
    """A run as it stands. `last_seq`: the number of its last event."""

    model_config = example(_RUN)

    id: str
    agent: str
    agent_version: str
    driver: str
    state: RunState
    version: int
    finished: bool
    thread: str | None
    source_run_id: str | None
    attempt_no: int
    requested_by: str
    created_at: str
    updated_at: str
    limits: dict[str, JsonValue]
    spent: dict[str, JsonValue]
    waiting: list[WaitingShown]
    output: JsonValue
    reason: dict[str, JsonValue] | None
    last_seq: int
    purged_at: str | None = Field(None, description="When what was said in it was erased; null while it is there.")
    calls: dict[str, int] | None = Field(
        None, description="How many calls stand in each state; for one run only, and null where they are over 1,000."
    )


class RunPage(Shown):
    """Runs, newest first. `next`: the cursor of the next page; null at the end."""

    model_config = example({"runs": [_RUN], "next": None})

    runs: list[Run]
    next: str | None


class RunCallPage(Shown):
    """Calls of a run, newest first. `next`: the cursor of the next page; null at the end."""

    model_config = example({"calls": [example_of(Call)], "next": None})

    calls: list[Call]
    next: str | None


class Question(Shown):
    """A question that a run asks of people. Answer it at `/v1/runs/{run_id}/questions/{id}/answer`."""

    model_config = example(
        {
            "id": f"{RUN_ID}:2.1",
            "run_id": RUN_ID,
            "agent": "refunds",
            "thread": "order-7",
            "requested_by": "billing-agent",
            "text": "Which of the two addresses is right?",
            "since": "2026-11-29T12:00:02.000000Z",
            "until": "2026-11-30T12:00:02.000000Z",
        }
    )

    id: str
    run_id: str
    agent: str
    thread: str | None
    requested_by: str
    text: str
    since: str
    until: str | None


class QuestionPage(Shown):
    """Questions that are open, of the newest runs first. `next`: the cursor of the next page; null at the end."""

    model_config = example({"questions": [example_of(Question)], "next": None})

    questions: list[Question]
    next: str | None


class AgentShown(Shown):
    """The newest version of an agent."""

    model_config = example(
        {
            "name": "refunds",
            "version": _RUN["agent_version"],
            "description": "Refunds orders.",
            "published_at": "2026-11-29T12:00:00.000000Z",
            "model": "anthropic:claude-opus-4-8",
            "tools": ["find_order", "issue_credit"],
            "agents": [],
            "limits": _LIMITS,
        }
    )

    name: str
    version: str
    description: str
    published_at: str
    model: str
    tools: list[str]
    agents: list[str]
    limits: dict[str, JsonValue]


class AgentList(Shown):
    """Agents by name."""

    model_config = example({"agents": [example_of(AgentShown)]})

    agents: list[AgentShown]


class AgentVersions(Shown):
    """An agent: its newest version, and every version that was ever published, newest first."""

    model_config = example(
        {
            "name": "refunds",
            "newest": example_of(AgentShown),
            "versions": [
                {
                    "version": _RUN["agent_version"],
                    "first_published_at": "2026-11-29T12:00:00.000000Z",
                    "agent": {"name": "refunds", "model": "anthropic:claude-opus-4-8"},
                }
            ],
        }
    )

    name: str
    newest: AgentShown
    versions: list[dict[str, JsonValue]]


class RehearsalShown(Shown):
    """What a rehearsal came to: what would have gone otherwise than recorded."""

    model_config = example(
        {
            "run_id": RUN_ID,
            "agent_version": _RUN["agent_version"],
            "model": "anthropic:claude-opus-4-8",
            "state": "succeeded",
            "same": False,
            "differences": [
                {
                    "kind": "other_arguments",
                    "turn": 1,
                    "sentence": "It would call issue_credit with other arguments.",
                    "recorded": {"amount_cents": 2500},
                    "now": {"amount_cents": 2000},
                }
            ],
        }
    )

    run_id: str
    agent_version: str
    model: str
    state: str
    same: bool
    differences: list[dict[str, JsonValue]]


class Proof(Shown):
    """A signed bundle. Verify it anywhere with `tollhouse proof verify`."""

    model_config = example(
        {
            "format": "tollhouse-proof/1",
            "contents": {"about": {"kind": "run", "id": RUN_ID, "tenant": "default"}},
            "envelope": {"payloadType": "application/vnd.in-toto+json", "payload": "", "signatures": []},
            "public_key": "-----BEGIN PUBLIC KEY-----",
        }
    )

    format: str
    contents: dict[str, JsonValue]
    envelope: dict[str, JsonValue]
    public_key: str
