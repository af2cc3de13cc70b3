"""What a run's row keeps besides its columns: limits, what was spent, what it waits for, how it ended.

Only ``runs`` reads it. Absent figures are counted apart, never taken for zero.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from decimal import Decimal
from functools import cache, lru_cache
from typing import Any, Literal

from tollhouse.ledger.compact import compact_encoder
from tollhouse.ledger.record import replace
from tollhouse.ledger.run_record import RunRecord
from tollhouse.models.port import RequestAttempt
from tollhouse.runs.agents import Limits
from tollhouse.runs.states import RunState

WaitKind = Literal["reconciliation", "approval", "answer", "work", "time"]
Effects = Literal["hold", "reuse", "repeat"]
"""What a rerun does about an effect that its lineage had: hold it for people, answer from the record, or repeat it."""

_encode = compact_encoder(ensure_ascii=False)

STATE_OF: dict[WaitKind, RunState] = {
    "reconciliation": RunState.AWAITING_RECONCILIATION,
    "approval": RunState.AWAITING_APPROVAL,
    "answer": RunState.AWAITING_ANSWER,
    "work": RunState.AWAITING_WORK,
    "time": RunState.AWAITING_TIME,
}
"""The state of a run that waits for several things is that of the first kind in this order."""


@dataclass(frozen=True, slots=True)
class Spent:
    """What a run used up so far, every attempt of every model request included.

    Tokens and cost hold what its children spent, as far as their calls are settled; turns and calls are its own.
    ``cost``: US dollars of the attempts whose price is known; ``unpriced``: attempts whose price is not.
    ``unmeasured``: attempts that the provider gave no tokens for.
    """

    turns: int = 0
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: Decimal = Decimal()
    unpriced: int = 0
    unmeasured: int = 0

    def with_attempts(self, attempts: tuple[RequestAttempt, ...]) -> Spent:
        """The same and these attempts of one model request."""
        return replace(
            self,
            input_tokens=self.input_tokens + sum(a.input_tokens or 0 for a in attempts),
            output_tokens=self.output_tokens + sum(a.output_tokens or 0 for a in attempts),
            cost=self.cost + sum((a.cost for a in attempts if a.cost is not None), Decimal()),
            unpriced=self.unpriced + sum(a.cost is None for a in attempts),
            unmeasured=self.unmeasured + sum(a.input_tokens is None for a in attempts),
        )

    @property
    def tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens

    def plus(self, other: Spent) -> Spent:
        """Both together."""
        return Spent(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Spent)))

    def with_children(self, others: Spent) -> Spent:
        """The same and the tokens and cost of others."""
        return replace(self.plus(others), turns=self.turns, calls=self.calls)

    def without_children(self, others: Spent) -> Spent:
        """What :meth:`with_children` was given these to."""
        less = Spent(*(-getattr(others, f.name) for f in fields(Spent)))
        return self.with_children(less)


@dataclass(frozen=True, slots=True)
class Waiting:
    """One thing that a run waits for. ``id``: the key of the ask, which is also that of its call.

    ``until_us`` None: no end of its own. ``text``: the question, or why. ``reminded``: people were told once more.
    """

    kind: WaitKind
    id: str
    since_us: int
    until_us: int | None = None
    text: str = ""
    reminded: bool = False

    @property
    def due_at_us(self) -> int | None:
        """When somebody must look at it: half-way to its end, to remind people, then at its end."""
        if self.until_us is None or self.kind not in ("approval", "answer") or self.reminded:
            return self.until_us
        return (self.since_us + self.until_us) // 2


@dataclass(frozen=True, slots=True)
class Body:
    """See the module's docstring.

    ``by_children``: how much of what was spent its children did, with their turns and calls, and theirs in turn.
    ``output``: text, or JSON where the agent declares a schema; None while there is none.
    ``reason``: code and cause of a run that failed, was cancelled or reached a limit. ``failures``: model requests
    that failed in a row. ``answers``: what people said, by question, until the run has taken it up. ``continues``: the
    run of the same thread before it. ``purged_at_us``: when what was said in it was erased; None while it is there.
    """

    limits: Limits = field(default_factory=Limits)
    spent: Spent = field(default_factory=Spent)
    by_children: Spent = field(default_factory=Spent)
    waiting: tuple[Waiting, ...] = ()
    output: Any = None
    reason: Mapping[str, Any] | None = None
    failures: int = 0
    answers: Mapping[str, Any] | None = None
    effects: Effects = "hold"
    continues: str | None = None
    purged_at_us: int | None = None

    @property
    def own(self) -> Spent:
        """What the run spent itself."""
        return self.spent.without_children(self.by_children)

    def with_children(self, spent: Spent) -> Body:
        """The same once children are known to have spent that, in all."""
        return replace(self, spent=self.own.with_children(spent), by_children=spent)

    @property
    def text(self) -> str:
        """As the row keeps it: what is not there is left out."""
        kept = _flat(self)
        kept["limits"], kept["spent"] = limits_as_json(self.limits), spent_as_json(self.spent)
        kept["by_children"] = None if self.by_children == _NOTHING else spent_as_json(self.by_children)
        kept["waiting"], kept["answers"] = waiting_as_json(self.waiting) or None, self.answers or None
        return _encode({name: value for name, value in kept.items() if value is not None})


_NOTHING = Spent()


def body_of(record: RunRecord) -> Body:
    """The body that :attr:`Body.text` wrote. Fields that a later release added are passed over, at any depth."""
    known = _read(record.body)
    holds_containers = known.output is not None or known.reason is not None or known.answers is not None
    return _read.__wrapped__(record.body) if holds_containers else known  # each reader has containers of its own


@lru_cache(maxsize=256)
def _read(text: str) -> Body:
    """A step asks some ten times for what its row keeps, and most rows are of runs that are on their way."""
    kept = json.loads(text)
    plain = _known(Body, kept).keys() - {"limits", "spent", "by_children", "waiting"}
    return Body(
        limits=limits_of(kept.get("limits", {})),
        spent=spent_of(kept.get("spent", {})),
        by_children=spent_of(kept.get("by_children", {})),
        waiting=tuple(Waiting(**_known(Waiting, each)) for each in kept.get("waiting", ())),
        **{name: kept[name] for name in plain},
    )


def _known(kind: Any, kept: Mapping[str, Any]) -> dict[str, Any]:
    """What this release knows of it."""
    return {name: kept[name] for name in _names(kind) if name in kept}


def limits_of(kept: Mapping[str, Any]) -> Limits:
    """Limits from their JSON."""
    given = _known(Limits, kept)
    if given.get("cost") is not None:
        given["cost"] = Decimal(str(given["cost"]))
    return Limits(**given)


def limits_as_json(limits: Limits) -> dict[str, Any]:
    """Limits as JSON; a limit that is not set is null."""
    return {**_flat(limits), "cost": None if limits.cost is None else format(limits.cost, "f")}


def spent_as_json(spent: Spent) -> dict[str, Any]:
    """What was spent as JSON; the cost is a decimal number in a string."""
    return {**_flat(spent), "cost": format(spent.cost, "f")}


def spent_of(kept: Mapping[str, Any]) -> Spent:
    """What was spent, from its JSON."""
    return Spent(**{**_known(Spent, kept), "cost": Decimal(kept.get("cost", "0"))})


def spending_as_json(body: Body) -> dict[str, Any]:
    """What a run spent as JSON, with what of it its children did."""
    return {**spent_as_json(body.spent), "by_children": spent_as_json(body.by_children)}


def waiting_as_json(waiting: tuple[Waiting, ...]) -> list[dict[str, Any]]:
    """What is waited for, as JSON."""
    return [_flat(each) for each in waiting]


def _flat(value: Any) -> dict[str, Any]:
    """The fields by name, as they are; a step does this to several values, and ``asdict`` copies them through."""
    kind: Any = type(value)
    return {name: getattr(value, name) for name in _names(kind)}


@cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind))
