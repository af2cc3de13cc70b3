"""What a rule returns: the next record and what to write in its history. Every step of a call's life is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tollhouse.ledger.guards import contradicted
from tollhouse.ledger.record import SETTLED, CallRecord, replace
from tollhouse.ledger.value import value_type


@value_type
class Draft:
    """An event before it is sealed into the chain: its kind and its facts (plain JSON, no secrets)."""

    kind: str
    data: dict[str, Any]


@value_type
class Change:
    """One step: ``before`` (None for a new call), ``record`` after it, and the events that tell of it."""

    before: CallRecord | None
    record: CallRecord
    drafts: tuple[Draft, ...]

    def then(self, step: Callable[[CallRecord], Change]) -> Change:
        """A further step on top, to be written in the same commit."""
        following = step(self.record)
        return Change(self.before, following.record, self.drafts + following.drafts)


def advance(before: CallRecord, now_us: int, kind: str, data: dict[str, Any], **fields: Any) -> Change:
    """The change that sets ``fields``: version raised, time never run back, contradiction recomputed.

    A settled call gives up its place in the repeat check; a contradiction that opens is an event of its own.
    """
    record = replace(before, version=before.version + 1, updated_at_us=max(before.updated_at_us, now_us), **fields)
    open_now = contradicted(record)
    if open_now != before.contradicted:
        record = replace(record, contradicted=open_now)
    if record.repeat_slot is not None and record.state in SETTLED:
        record = replace(record, repeat_slot=None)
    drafts = [Draft(kind, {"state": record.state.value, **data})]
    if open_now and not before.contradicted:
        drafts.append(Draft("contradiction_opened", {"state": record.state.value}))
    return Change(before, record, tuple(drafts))
