"""The contracts that simulated processes work under. Their functions and hooks do what the running history says.

One set for all histories, since a tool is costly to make; which history it acts in is :func:`acting_in`.
Annotations are read at run time, so this module keeps them real.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from tollhouse.contract import dedup
from tollhouse.contract.answers import Answer
from tollhouse.contract.context import CallContext
from tollhouse.contract.effects import approval, destructive, external
from tollhouse.contract.tool import Tool, tool
from tollhouse.gate.view import RecordedCall

LEASE_S = 12.0
TIMEOUT_S = 15.0
LONG_S = 50.0
"""How long a sending of the patient kind may take: longer than what is left of a window near its end."""
DEADLINE_S = 60.0
NETWORK_S = 20.0
"""The slowest that a simulated network delivers."""
SILENCE_S = 25.0
WINDOW_S = 120.0
"""How long the simulated receiver recognises a key from its first request on."""
MARGIN_S = 40.0
"""The network's slowest and the farthest that the simulated store's clock steps back."""
JOB_S = 90.0
APPROVAL_S = 80.0


class Act(Protocol):
    """What a history does when a tool or a look-up runs in it."""

    async def send(self, kind: str, amount: int, ctx: Any) -> int: ...

    async def undo(self, original_key: str, ctx: Any) -> int: ...

    async def look(self, record: RecordedCall) -> Answer: ...


_acts: list[Act] = []


@contextmanager
def acting_in(act: Act) -> Iterator[None]:
    """Tools act in that history while the block runs."""
    _acts.append(act)
    try:
        yield
    finally:
        _acts.pop()


async def _look(record: RecordedCall) -> Answer:
    return await _acts[-1].look(record)


async def _undo(original_key: str, ctx: CallContext) -> int:
    return await _acts[-1].undo(original_key, ctx)


undo = tool(external(departs="at_confirm", attempt_timeout_s=TIMEOUT_S), name="undo", description="Undoes one call.")(
    _undo
)

_TIMES: dict[str, Any] = {
    "attempt_timeout_s": TIMEOUT_S,
    "deadline_s": DEADLINE_S,
    "absent_after_s": SILENCE_S,
    "resend_margin_s": MARGIN_S,
    "job_deadline_s": JOB_S,
}


def _make(kind: str, declare: Any = external, **settings: Any) -> Tool[int]:
    async def act(amount: int, ctx: CallContext) -> int:
        return await _acts[-1].send(kind, amount, ctx)

    merged = {"departs": "at_confirm", **_TIMES, **settings}
    return tool(declare(**merged), name=kind, description="Acts.", reconcile=_look, compensate=undo)(act)


_APPROVED = approval(quorum=1, expires_s=APPROVAL_S)
_TWICE = approval(quorum=2, expires_s=APPROVAL_S)
_BY_KEY = dedup.by_key(hours=WINDOW_S / 3600)

TOOLS: dict[str, Tool[int]] = {
    made.name: made
    for made in (
        _make("plain"),
        _make("unchecked", departs="at_start"),
        _make("by_key", dedup=_BY_KEY),
        _make("by_key_long", dedup=_BY_KEY, attempt_timeout_s=LONG_S, deadline_s=3 * LONG_S),
        _make("natural", dedup=dedup.natural),
        _make("job", accepts=True),
        _make("approved", destructive, approval=_APPROVED),
        _make("approved_twice", destructive, approval=_TWICE),
    )
}
"""By kind. All share the undoing tool; ``by_key`` and ``natural`` may be sent up to three times."""
