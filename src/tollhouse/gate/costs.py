"""What each sending cost. Bookkeeping: a cost that cannot be computed leaves a gap that is shown and repaired later."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from tollhouse.contract.terms import US
from tollhouse.contract.tool import Tool
from tollhouse.ledger.change import Change, advance
from tollhouse.ledger.record import AttemptOutcome, CallRecord, State, replace
from tollhouse.ledger.steps import Ending

REPAIR_AFTER_US = 30 * US


@dataclass(frozen=True, slots=True)
class CostGap:
    """A cost that should be on the books and is not: the error's type says why, without its message."""

    error_type: str


def cost_of(
    tool: Tool[Any], arguments: Mapping[str, Any], ending: Ending, value: Any
) -> tuple[str | None, CostGap | None]:
    """The cost of one attempt as a decimal number, or the gap. Nothing sent costs nothing; replays are never billed."""
    if tool.cost is None or ending.outcome is AttemptOutcome.NOT_SENT:
        return None, None
    try:
        amount = tool.cost(arguments, value) if callable(tool.cost) else tool.cost
        return _decimal(amount), None
    except Exception as error:
        return None, CostGap(type(error).__name__)


def _decimal(amount: Any) -> str:
    number = Decimal(str(amount))
    if not number.is_finite():
        raise InvalidOperation
    return format(number, "f")


def note_gap(gap: CostGap, now_us: int) -> Callable[[CallRecord], Change]:
    """The step that records a gap and has a worker come back for it."""

    def step(record: CallRecord) -> Change:
        facts = {"what": "cost", "error_type": gap.error_type}
        due_us = record.due_at_us or now_us + REPAIR_AFTER_US
        return advance(
            record,
            now_us,
            "bookkeeping_gap",
            facts,
            extra={**record.extra, "cost_gap": gap.error_type},
            due_at_us=due_us,
        )

    return step


def repaired(record: CallRecord, tool: Tool[Any], arguments: Mapping[str, Any], value: Any, now_us: int) -> Change:
    """Compute again what could not be computed when it was due; the gap closes, or a worker comes back later."""
    missing = [a for a in record.attempts if a.cost is None and a.outcome not in (None, AttemptOutcome.NOT_SENT)]
    attempts = {a.id: a for a in record.attempts}
    for attempt in missing:
        assert attempt.outcome is not None
        happened = attempt.outcome is AttemptOutcome.HAPPENED
        cost, gap = cost_of(tool, arguments, Ending(attempt.outcome), value if happened else None)
        if gap is not None:
            facts = {"what": "cost", "error_type": gap.error_type}
            return advance(record, now_us, "bookkeeping_gap", facts, due_at_us=now_us + 10 * REPAIR_AFTER_US)
        attempts[attempt.id] = replace(attempt, cost=cost)
    extra = {name: value for name, value in record.extra.items() if name != "cost_gap"}
    costs = {a.id: attempts[a.id].cost for a in missing}
    repairs: dict[str, Any] = {"what": "cost", "attempts": list(costs), "costs": costs}
    due_us = record.due_at_us if record.state in (State.IN_DOUBT, State.ACCEPTED) else None
    return advance(
        record, now_us, "gap_repaired", repairs, attempts=tuple(attempts.values()), extra=extra, due_at_us=due_us
    )
