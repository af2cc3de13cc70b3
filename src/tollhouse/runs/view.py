"""What callers and surfaces see of a run: the row decoded, and as JSON with field names that stay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tollhouse.ledger.plain import moment
from tollhouse.ledger.run_record import RunRecord
from tollhouse.runs.agents import Limits
from tollhouse.runs.body import Body, Spent, Waiting, body_of, limits_as_json, spending_as_json
from tollhouse.runs.states import RunState


@dataclass(frozen=True, slots=True)
class RunView:
    """A run as it stands. ``output`` None: there is none (yet). ``started_before``: this start was known already."""

    record: RunRecord
    body: Body
    output: Any = None
    started_before: bool = False

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def state(self) -> RunState:
        return RunState(self.record.state)

    @property
    def agent(self) -> str:
        return self.record.agent

    @property
    def version(self) -> int:
        """Raised by every write."""
        return self.record.version

    @property
    def limits(self) -> Limits:
        return self.body.limits

    @property
    def spent(self) -> Spent:
        return self.body.spent

    @property
    def by_children(self) -> Spent:
        """How much of it other agents spent that its calls had run."""
        return self.body.by_children

    @property
    def waiting(self) -> tuple[Waiting, ...]:
        """What it waits for, without the questions that were answered and not taken up yet."""
        answered = self.body.answers or {}
        return tuple(each for each in self.body.waiting if each.id not in answered)

    @property
    def purged_at_us(self) -> int | None:
        """When what was said in it was erased; None while it is there."""
        return self.body.purged_at_us

    @property
    def reason(self) -> Mapping[str, Any] | None:
        """Code and cause of its end or stop; None where there is none."""
        return self.body.reason


def view_of(record: RunRecord, output: Any = None, *, started_before: bool = False) -> RunView:
    """The record decoded."""
    body = body_of(record)
    return RunView(record, body, body.output if output is None else output, started_before)


def run_as_json(run: RunView) -> dict[str, Any]:
    """A run, whole, as every surface answers with it."""
    record = run.record
    return {
        "id": record.id,
        "tenant": record.tenant,
        "agent": record.agent,
        "agent_version": record.agent_version,
        "driver": record.driver,
        "state": record.state,
        "sentence": run.state.sentence,
        "version": record.version,
        "finished": record.finished,
        "thread": record.thread,
        "continues": run.body.continues,
        "parent_run_id": record.parent_run_id,
        "parent_key": record.parent_key,
        "source_run_id": record.source_run_id,
        "attempt_no": record.attempt_no,
        "effects": run.body.effects if record.source_run_id is not None else None,
        "requested_by": record.requested_by,
        "created_at": moment(record.created_at_us),
        "updated_at": moment(record.updated_at_us),
        "due_at": moment(record.due_at_us),
        "limits": limits_as_json(run.limits),
        "spent": spending_as_json(run.body),
        "waiting": [_waiting(each) for each in run.waiting],
        "output": run.output,
        "reason": None if run.reason is None else dict(run.reason),
        "last_seq": record.head_seq,
        "purged_at": moment(run.purged_at_us),
    }


def _waiting(waiting: Waiting) -> dict[str, Any]:
    kept = asdict(waiting)
    since_us, until_us = kept.pop("since_us"), kept.pop("until_us")
    return {**kept, "since": moment(since_us), "until": moment(until_us)}
