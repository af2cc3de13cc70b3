"""What a run leaves when it ends: calls that nobody may run any more, children, and the call of its parent.

A run ends in one commit. The rest is done after it, by whoever finds it undone, and may be repeated: so a process that
dies in between strands nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from tollhouse.contract.answers import happened
from tollhouse.contract.terms import Effect
from tollhouse.doubt.callbacks import report
from tollhouse.doubt.people import People
from tollhouse.errors import NotAllowed, NotEntitled, UnknownCall
from tollhouse.gate.core import Core
from tollhouse.ledger.ids import Prefix
from tollhouse.ledger.record import State
from tollhouse.ledger.run_record import RunRecord
from tollhouse.runs import steps
from tollhouse.runs.body import Spent, body_of
from tollhouse.runs.children import spent_by_children
from tollhouse.runs.journal import JournalStore, RunStale, calls_of, commit, output_of, runs_of
from tollhouse.runs.states import RunState

CancelChild = Callable[[str, str, str], Awaitable[None]]

_LEFT = (State.DEPARTED, State.ACCEPTED, State.IN_DOUBT, State.SUCCEEDED)
"""States of a call that left the house, or may have."""
_OPEN = (State.HELD, State.READY, State.DEPARTED, State.ACCEPTED, State.IN_DOUBT)


class Ending:
    """Tidies up after finished runs. One per process."""

    def __init__(self, core: Core, people: People, store: JournalStore) -> None:
        self._core, self._people, self._store = core, people, store

    async def left(self, run: RunRecord) -> list[dict[str, Any]]:
        """The calls of the run that left, or may have: what a cancel cannot take back."""
        return [
            {"key": call.key, "tool": call.tool, "call_state": call.state.value}
            async for call in calls_of(self._store, run.tenant, run.id)
            if call.state in _LEFT and call.effect != Effect.READ
        ]

    async def tidy(self, run: RunRecord, cancel_child: CancelChild) -> RunRecord:
        """Do what is left to do about a finished run; the run as it then stands."""
        await self._store.forget_wakes(run.tenant, run.id)
        if run.due_at_us is None:
            return run
        forbidden: list[str] = []
        by_children: Spent | None = None
        if run.state != RunState.SUCCEEDED:
            forbidden = await self.forbid_calls(run)
            await self.cancel_children(run, cancel_child)
            by_children = await spent_by_children(self._store, run.tenant, run.id)
        left = await self.left(run) if run.state == RunState.CANCELLED else []
        told = await self._tell_parent(run)
        change = steps.tidied(run, forbidden, left, told, self._core.clock.now_us(), by_children)
        try:
            return (await commit(self._store, change, self._core.ids.new(Prefix.DECISION)))[0]
        except RunStale as stale:
            return stale.record or run  # another process was as quick

    async def forbid_calls(self, run: RunRecord) -> list[str]:
        """Refuse what has not left; forbid that the rest is sent again."""
        forbidden = []
        async for call in calls_of(self._store, run.tenant, run.id):
            if call.state not in _OPEN:
                continue
            try:
                await self._people.cancel(call.key, by=run.id, reason=f"its run {run.id} is {run.state}")
            except NotAllowed:
                continue  # it ended by itself
            forbidden.append(call.key)
        return forbidden

    async def cancel_children(self, run: RunRecord, cancel_child: CancelChild) -> None:
        """Cancel what the run had other agents do, as far as it has not ended."""
        async for child in runs_of(self._store, run.tenant, parent=run.id):
            if not child.finished:
                await cancel_child(child.id, run.id, f"its parent {run.id} is {run.state}")

    async def _tell_parent(self, run: RunRecord) -> str | None:
        """The call whose effect this run is happened, whatever the run came to: its end is that call's result."""
        if run.parent_key is None:
            return None
        try:
            await report(self._core, run.parent_key, happened(await end_of(self._store, run)), run.id)
        except (NotAllowed, NotEntitled, UnknownCall):
            return None  # settled otherwise; its look-up finds the run by itself
        return run.parent_key


async def end_of(store: JournalStore, run: RunRecord) -> dict[str, Any]:
    """What the parent of a finished run hears of it, the output whole."""
    return {"run": run.id, "state": run.state, "output": await output_of(store, run), "reason": body_of(run).reason}
