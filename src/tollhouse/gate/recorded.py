"""A key that is taken: what its call answers, and how a call that stands in the ledger departs (again).

Called by the gate for every request whose key is on record, and through it by workers and the reconciler.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from tollhouse.errors import CallConflict, CallInFlight, StoreUnavailable
from tollhouse.gate.approval import lapsed
from tollhouse.gate.core import Core
from tollhouse.gate.departures import OWNER_TRIES, Departures, attempt_of, no_lease
from tollhouse.gate.leftovers import begin, end_leftover
from tollhouse.gate.outcome import Outcome, check_same_call, error_of, outcome_of, sent_of
from tollhouse.gate.planning import Plan, Planner
from tollhouse.gate.ready import has_expired, ready_step
from tollhouse.gate.request import Options, Request
from tollhouse.gate.restored import answered, hear, must_ask, noted
from tollhouse.ledger.approvals import expire
from tollhouse.ledger.codec import loads
from tollhouse.ledger.digest import EncodedArguments
from tollhouse.ledger.ids import Prefix
from tollhouse.ledger.lifecycle import Forbidden
from tollhouse.ledger.record import SETTLED, CallRecord, State
from tollhouse.ledger.steps import resend
from tollhouse.ledger.transact import OwnerGone, Stale, commit

POLL_FIRST_S = 0.02
POLL_MOST_S = 1.0

SettleFirst = Callable[[CallRecord], Awaitable[CallRecord]]
"""Asked before a doubt is answered: look once whether it can be settled now. Returns the record as it then stands."""


class Recorded:
    """See the module's docstring."""

    def __init__(self, core: Core, planner: Planner, departures: Departures, settle_first: SettleFirst) -> None:
        self._core, self._planner, self._departures = core, planner, departures
        self._settle_first = settle_first

    async def answer(self, request: Request, record: CallRecord) -> Outcome[Any]:
        """Answer for a recorded call: replay, wait, settle first, or send it if it is ready."""
        if record.tool != request.tool_name and not self._planner.sees(request.principal, record.tool):
            raise CallConflict(f"The key {record.key} belongs to another call.", key=record.key)
        check_same_call(record, request.tool_name, request.arguments.digest)
        try:
            return await self._follow(request, record)
        except StoreUnavailable as away:
            if away.key is not None:  # raised by what knows more
                raise
            raise type(away)(away.cause, remedy=away.remedy, key=record.key, sent=sent_of(record)) from away

    async def _follow(self, request: Request, record: CallRecord) -> Outcome[Any]:
        until = asyncio.get_running_loop().time() + _longest_wait_s(request, record)
        pause_s, settled_first = POLL_FIRST_S, False
        while True:
            if record.contradicted:
                raise error_of(record)
            if record.state is State.READY:
                return await self._depart_ready(request, record)
            if record.state is State.HELD and has_expired(record, self._core.clock.now_us()):
                record = await self._expire(record)
                continue
            if record.state is State.IN_DOUBT and not settled_first:
                settled_first = True
                record = await self._settle_first(record)
                continue
            if record.state is not State.DEPARTED:
                adapter = request.tool.schema.result if request.tool is not None else None
                return await outcome_of(record, self._core.store, adapter, replayed=record.state in SETTLED)
            if (ended := await end_leftover(self._core, record)) is not None:
                record = ended
                continue
            left_s = until - asyncio.get_running_loop().time()
            if not request.options.wait or left_s <= 0:
                raise CallInFlight(f"{record.key} is under way.", key=record.key)
            await self._core.moved(record.key, min(pause_s * (0.75 + random.random() / 2), left_s))
            pause_s = min(pause_s * 2, POLL_MOST_S)
            record = await self._reread(record)

    async def _reread(self, record: CallRecord) -> CallRecord:
        fresh = await self._core.store.get(record.tenant, record.key)
        if fresh is None:
            raise StoreUnavailable(f"The row of {record.key} is gone from the store.", key=record.key, sent="maybe")
        return fresh

    async def _expire(self, record: CallRecord) -> CallRecord:
        """A hold whose time is over is refused, whoever finds it."""
        try:
            after = await commit(
                self._core.store, expire(record, self._core.clock.now_us()), self._core.ids.new(Prefix.DECISION)
            )
        except Stale as stale:
            return stale.record or record
        self._core.tell_of(record, after)
        return after

    # -- departures of calls that are ready --------------------------------------------------------------

    async def run_ready(self, record: CallRecord) -> Outcome[Any]:
        """Send a ready call as its stored row says; for workers. Raises :class:`UnknownTool` without the tool."""
        return await self._depart_ready(self._stored_request(record), record)

    def _stored_request(self, record: CallRecord) -> Request:
        options = Options(by=record.requested_by, scope=record.scope, group=record.group)
        encoded = EncodedArguments(loads(record.arguments), record.arguments, record.request_digest)
        tool = self._core.tools.get(record.tool)
        return Request(tool, record.tool, record.key, True, encoded, record.requested_by, options)

    async def _depart_ready(self, request: Request, record: CallRecord) -> Outcome[Any]:
        """All gates again, over the stored call; then the departure, compare-and-set."""
        if request.tool is None:
            raise self._planner.unknown(request.tool_name, request.principal)
        core, tool = self._core, request.tool
        plan = await self._planner.recorded(request, tool, record)
        for _ in range(OWNER_TRIES):
            start = self._departures.start(record, core.clock.now_us())
            if (since_us := must_ask(core, record)) is not None:
                return await self._ask_about_ready(request, plan, record, since_us)
            step = ready_step(record, plan, start, request.principal)
            write = partial(commit, core.store, step, start.id, owner=start.owner)
            try:
                after = await begin(core, record.key, start.id, write)
                break
            except Stale as stale:
                return await self.answer(request, stale.record or await self._reread(record))
            except StoreUnavailable as away:
                raise self._departures.nothing_sent(away, record.key) from away
            except OwnerGone:
                await core.new_incarnation(start.owner)
        else:
            raise no_lease(record.key)
        if after.state is State.DEPARTED:
            return await self._departures.send(after, start.id, plan, request)
        core.tell_of(record, after)
        raise error_of(after)

    async def _ask_about_ready(self, request: Request, plan: Plan, record: CallRecord, since_us: int) -> Outcome[Any]:
        """The same about a call that was ready when the backup was made: it may have departed since."""
        heard = await hear(self._core, self._departures.look_up, record, plan.tool, since_us)
        change = answered(heard, record, plan, self._core.clock.now_us())
        try:
            after = await commit(self._core.store, noted(change, since_us), self._core.ids.new(Prefix.DECISION))
        except Stale as stale:
            after = stale.record or await self._reread(record)
        except StoreUnavailable as away:
            raise self._departures.nothing_sent(away, record.key) from away
        self._core.tell_of(record, after)
        return await self.answer(request, after)

    async def resend(self, record: CallRecord) -> CallRecord:
        """Send a doubt again under guards D and R, for the reconciler; returns the record once that attempt has ended
        or its wait is over. Raises :class:`Forbidden` where a guard or a gate says no, and the doubt stays."""
        request = self._stored_request(record)
        if (tool := request.tool) is None:
            raise self._planner.unknown(request.tool_name, request.principal)
        plan = await self._planner.recorded(request, tool, record)
        if plan.judgement.denial is not None or lapsed(record, tool, plan.judgement.holds) is not None:
            raise Forbidden("gates", "A gate refuses to let it be sent again.")
        start = self._departures.start(record, self._core.clock.now_us())
        step = resend(record, start, tool.terms, {"by": "reconciler"})
        write = partial(commit, self._core.store, step, start.id, owner=start.owner)
        try:
            after = await begin(self._core, record.key, start.id, write)
        except Stale as stale:
            return stale.record or record
        sending = self._departures.sending(after, plan, request)
        sending.start(attempt_of(after, start.id))
        ended = (await sending.answer).record
        if ended.state in SETTLED:
            # The step that ended it went from departed, so nobody else can tell that a doubt ended with it.
            self._core.tell("doubt_settled", key=ended.key, tool=ended.tool, state=ended.state.value)
        return ended


def _longest_wait_s(request: Request, record: CallRecord) -> float:
    """How long this caller waits for another's attempt: as long as the call may take, or less if it says so."""
    own_s = request.options.deadline_s
    return record.limits.deadline_s if own_s is None else min(own_s, record.limits.deadline_s)
