"""Mutants of sending: rules about when something may leave, under which key, and until when."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from tollhouse.contract.terms import Dedup, Terms
from tollhouse.contract.tool import Tool
from tollhouse.doubt.sweeper import Sweeper
from tollhouse.errors import StoreUnavailable
from tollhouse.gate.context import Context
from tollhouse.gate.core import Core
from tollhouse.gate.gate import Gate
from tollhouse.gate.leftovers import begin, put_back_later
from tollhouse.gate.outcome import Outcome
from tollhouse.gate.planning import Plan
from tollhouse.gate.request import Request, new_record
from tollhouse.ledger import steps
from tollhouse.ledger.guards import CANCELLED_ROUND, guard_r
from tollhouse.ledger.record import Attempt, CallRecord, Lost, State, replace
from tollhouse.ledger.steps import Start, first_departure
from tollhouse.ledger.store import Query, Written
from tollhouse.testing.mutants.patching import Patches


def send_before_commit_1(patches: Patches) -> None:
    """The tool runs first and its departure is recorded afterwards."""
    insert = Gate._insert_departed

    async def sent_first(self: Gate, request: Request, plan: Plan) -> Outcome[Any]:
        return await insert(self, request, plan._replace(tool=await _already_run(self._core, request, plan)))

    patches.on(Gate, "_insert_departed", sent_first)


async def _already_run(core: Core, request: Request, plan: Plan) -> Tool[Any]:
    """The tool after its function ran: what it returned or raised is all that running it again would do."""
    now_us = core.clock.now_us()
    new = new_record(core, request, plan.tool, now_us)
    start = Start(core.ids.new("att"), core.owner_id, now_us, now_us + round(new.limits.attempt_timeout_s * 1_000_000))
    record = first_departure(new, start, {}).record
    early = Context(
        core,
        record,
        record.attempts[0],
        acknowledged_local_us=core.local_us(),
        loop=asyncio.get_running_loop(),
        principal=request.principal,
        secrets=plan.secrets,
    )
    arguments, context_name = dict(plan.arguments), plan.tool.schema.context_parameter
    if context_name is not None:
        arguments[context_name] = early
    running = plan.tool.fn(**arguments) if plan.tool.is_async else core.threads.run(plan.tool.fn, **arguments)
    value, error = None, None
    try:
        value = await running
    except Exception as raised:
        error = raised

    def again(**given: Any) -> Any:
        if context_name is not None:
            given[context_name].confirmed = early.confirmed
        if error is not None:
            raise error
        return value

    async def again_async(**given: Any) -> Any:
        return again(**given)

    ran = copy.copy(plan.tool)
    ran.fn = again_async if plan.tool.is_async else again
    return ran


def sweep_ignores_lease(patches: Patches) -> None:
    """The sweeper sets an owner aside although its lease still runs."""

    async def sweep(self: Sweeper) -> int:
        core, swept = self._core, 0
        for record in await core.store.find(core.tenant, Query(state=State.DEPARTED)):
            for name in (record.open_owners or "").split():
                owner = await core.store.owner(core.tenant, name)
                if owner is not None and name != core.owner_id:
                    swept += await self._lose(record, owner, Lost.LEASE)
        return swept

    patches.on(Sweeper, "sweep", sweep)


def no_store_fence_at_check(patches: Patches) -> None:
    """The last check before bytes leave does not ask the store for the fence."""
    patches.on(Context, "_fresh", lambda _self: True)


def resend_after_cancel(patches: Patches) -> None:
    """A call is sent again although its cancel was asked."""

    def forgetful(record: CallRecord, today: Terms, now_us: int) -> int | None:
        extra = {name: value for name, value in record.extra.items() if name != CANCELLED_ROUND}
        return guard_r(replace(record, cancel_asked=False, extra=extra), today, now_us)

    patches.everywhere(guard_r, forgetful)


def key_minted_per_attempt(patches: Patches) -> None:
    """Each attempt sends a key of its own, so no receiver recognises a repeat."""
    made = Context.__init__

    def init(self: Context, sender: Any, record: CallRecord, attempt: Attempt, **rest: Any) -> None:
        made(self, sender, record, attempt, **rest)
        self.idempotency_key = attempt.id

    patches.on(Context, "__init__", init)


def resend_without_dedup(patches: Patches) -> None:
    """A call is sent again although its receiver recognises no repeat."""

    def careless(record: CallRecord, today: Terms, now_us: int) -> int | None:
        most = record.limits.max_attempts + 1
        generous = replace(record, limits=replace(record.limits, max_attempts=most))
        return guard_r(generous, replace(today, max_attempts=most), now_us)

    patches.on(Dedup, "allows_resend", property(lambda _self: True))
    patches.everywhere(guard_r, careless)


def send_by_beyond_window(patches: Patches) -> None:
    """A resend may leave after the receiver has forgotten the key."""
    patches.on(steps, "_within", lambda start, _window_end_us: start)


def reread_by_key_after_lost_ack(patches: Patches) -> None:
    """A departed row under the key is taken for one's own lost commit."""

    async def begin_by_key(core: Core, key: str, attempt_id: str, write: Callable[[], Awaitable[Any]]) -> Any:
        core.beginning.add(attempt_id)
        try:
            return await write()
        except StoreUnavailable:
            record = await core.store.get(core.tenant, key)
            if record is None or record.state is not State.DEPARTED or not isinstance(write, partial):
                put_back_later(core, key, attempt_id)
                raise
            # A departed row is taken for our own departure, whoever wrote it.
            return (Written(),) if len(write.args) == 1 else write.args[1].record
        finally:
            core.beginning.discard(attempt_id)

    patches.everywhere(begin, begin_by_key)
