"""Departures: what every path to the first byte shares, from the new attempt to what its caller hears.

The gate sends new calls through it, and :class:`~tollhouse.gate.recorded.Recorded` those that stand in the ledger.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tollhouse.contract.terms import US
from tollhouse.errors import StoreUnavailable
from tollhouse.gate.approval import lapsed
from tollhouse.gate.core import Core
from tollhouse.gate.outcome import Outcome, error_of, made, outcome_of
from tollhouse.gate.planning import Plan, Planner
from tollhouse.gate.request import Request
from tollhouse.gate.restored import LookUp
from tollhouse.gate.sending import Sending
from tollhouse.ledger.ids import Prefix
from tollhouse.ledger.record import Attempt, CallRecord, State
from tollhouse.ledger.steps import Start

OWNER_TRIES = 3


class Departures:
    """See the module's docstring."""

    def __init__(self, core: Core, planner: Planner) -> None:
        self._core, self._planner = core, planner
        self.look_up: LookUp | None = None
        """Asked in a restored ledger before anything new departs; None: nobody can be asked."""

    def start(self, record: CallRecord, now_us: int) -> Start:
        """A sending that begins now, within the times of the call."""
        end_us = now_us + round(record.limits.attempt_timeout_s * US)
        if record.deadline_at_us is not None and now_us < record.deadline_at_us:
            end_us = min(end_us, record.deadline_at_us)
        return Start(self._core.ids.new(Prefix.ATTEMPT), self._core.owner_id, now_us, end_us)

    async def send(self, record: CallRecord, attempt_id: str, plan: Plan, request: Request) -> Outcome[Any]:
        """Start the attempt whose commit was just acknowledged, and wait for what comes of it."""
        sending = self.sending(record, plan, request)
        sending.start(attempt_of(record, attempt_id))
        return await self.answer(sending)

    def sending(self, record: CallRecord, plan: Plan, request: Request) -> Sending:
        """The sending of a call, nothing of it started."""

        async def gates_pass(current: CallRecord) -> bool:
            judgement = (await self._planner.recorded(request, plan.tool, current)).judgement
            return judgement.denial is None and lapsed(current, plan.tool, judgement.holds) is None

        return Sending(
            self._core,
            plan.tool,
            plan.arguments,
            record,
            principal=request.principal,
            secrets=plan.secrets,
            gates_pass=gates_pass,
        )

    async def answer(self, sending: Sending) -> Outcome[Any]:
        """What the caller of a started sending hears; a caller who leaves ends the wait only."""
        try:
            answered = await sending.answer
        except asyncio.CancelledError:  # the wait is over; the attempt is not
            sending.cancel()
            raise
        record = answered.record
        if record.contradicted or record.state not in (State.SUCCEEDED, State.ACCEPTED):
            raise error_of(record, answered.error)
        kept = answered.kept
        if kept is not None and (kept.stored is record.result or kept.stored == record.result):
            return made(record, kept.value, replayed=False)
        # What is on record is another attempt's result, or less than what this one returned: replays get that, too.
        return await outcome_of(record, self._core.store, sending.adapter, replayed=False)

    def nothing_sent(self, away: StoreUnavailable, key: str) -> StoreUnavailable:
        """This request sent nothing; where this process is still at the key, an earlier one may have."""
        at_it = any(context.key == key for context in self._core.running.values())
        return type(away)(away.cause, remedy=away.remedy, key=key, sent="maybe" if at_it else "no")


def attempt_of(record: CallRecord, attempt_id: str) -> Attempt:
    """The attempt that a commit of this process just began."""
    attempt = record.attempt(attempt_id)
    assert attempt is not None, "an attempt is on the row that its own commit wrote"
    return attempt


def no_lease(key: str) -> StoreUnavailable:
    """What a caller hears where no lease could be had in :data:`OWNER_TRIES` tries."""
    return StoreUnavailable("This process lost its lease and could not begin a new one.", key=key)
