"""The gate: the one path from any caller to any tool.

In order: resolve and digest; may they see it; look the key up; validate; gates that deny; gates that hold; secrets;
commit 1; send; commit 2. The look-up of the key is part of commit 1's statement, so a new call costs no extra round
trip; wherever a request ends before commit 1, the key is looked up first, so that a recorded call is replayed whatever
became of the tool, its schema or the rules since.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from tollhouse.contract.terms import US, Effect
from tollhouse.contract.tool import Tool
from tollhouse.errors import (
    CallInFlight,
    HouseClosed,
    InvalidArguments,
    Refused,
    StoreUnavailable,
    TollhouseError,
    UnknownTool,
)
from tollhouse.gate.approval import lapsed, question
from tollhouse.gate.core import Core
from tollhouse.gate.gates import Judgement, judge
from tollhouse.gate.outcome import Outcome, check_same_call, error_of, made, outcome_of
from tollhouse.gate.reads import ReadRun
from tollhouse.gate.request import Options, Request, new_record, repeat_check, request_of
from tollhouse.gate.sending import Sending
from tollhouse.gate.verdicts import Asked
from tollhouse.ledger.change import Change
from tollhouse.ledger.codec import from_tree, loads
from tollhouse.ledger.decisions import expire, gate_denied, lapse
from tollhouse.ledger.digest import EncodedArguments
from tollhouse.ledger.ids import Prefix
from tollhouse.ledger.lifecycle import Forbidden
from tollhouse.ledger.record import SETTLED, Attempt, AttemptOutcome, CallRecord, Lost, State, replace
from tollhouse.ledger.steps import (
    Ending,
    Start,
    depart,
    end_attempt,
    first_departure,
    first_hold,
    first_record,
    first_refusal,
    owner_lost,
    resend,
)
from tollhouse.ledger.store import Refusal
from tollhouse.ledger.transact import OwnerGone, Stale, commit
from tollhouse.ledger.writes import write_of

POLL_FIRST_S = 0.02
POLL_MOST_S = 1.0
OWNER_TRIES = 3

SettleFirst = Callable[[CallRecord], Awaitable[CallRecord]]
"""Asked before a doubt is answered: look once whether it can be settled now. Returns the record as it then stands."""


class Plan(NamedTuple):
    """A request that passed validation and was judged."""

    tool: Tool[Any]
    arguments: dict[str, Any]
    judgement: Judgement


class Gate:
    """See the module's docstring. ``visible``: whether this principal may see the tool at all."""

    def __init__(
        self,
        core: Core,
        settle_first: SettleFirst,
        visible: Callable[[str, str], bool] = lambda _principal, _tool: True,
    ) -> None:
        self._core, self._settle_first, self._visible = core, settle_first, visible

    async def call(
        self, tool: Tool[Any] | str, arguments: Mapping[str, Any], key: Any, options: Options | None = None
    ) -> Outcome[Any]:
        """Pass one request. Returns on success (or *accepted*), raises what the call's state means otherwise."""
        core = self._core
        if core.closed:
            raise HouseClosed("The house is closed.")
        request = request_of(core, tool, arguments, key, options or Options())
        if request.tool is None or not self._visible(request.principal, request.tool_name):
            return await self._recorded_or(request, _unknown(core, request))
        if request.tool.effect is Effect.READ and request.tool.terms.approval is None:
            return await self._read(request, request.tool)
        return await self._new(request, request.tool)

    # -- a key that may be new ---------------------------------------------------------------------------

    async def _new(self, request: Request, tool: Tool[Any]) -> Outcome[Any]:
        try:
            plan = await self._plan(tool, request.arguments.tree, request.arguments.digest, request, 0)
        except InvalidArguments as invalid:
            return await self._recorded_or(request, invalid)
        judgement = plan.judgement
        if judgement.denial is not None and not judgement.denial.stored:
            denied = Refused(f"{judgement.denied_by} denied it: {judgement.denial.cause}", key=request.key)
            return await self._recorded_or(request, denied)
        if judgement.denial is not None or judgement.holds:
            return await self._insert_unsent(request, plan)
        return await self._insert_departed(request, plan)

    async def _plan(
        self, tool: Tool[Any], tree: Any, digest: str, request: Request, sent_before: int, scope: str | None = None
    ) -> Plan:
        values = tool.schema.validate(from_tree(tree), key=request.key)
        asked = Asked(
            self._core.tenant,
            request.principal,
            tool,
            request.key,
            values,
            scope or request.options.scope,
            digest,
            sent_before,
        )
        return Plan(tool, values, await judge(self._core, asked))

    async def _insert_departed(self, request: Request, plan: Plan) -> Outcome[Any]:
        core, sibling = self._core, False
        for _ in range(OWNER_TRIES):
            now_us = core.clock.now_us()
            new = new_record(core, request, plan.tool, now_us)
            if sibling:
                new = replace(new, repeat_slot=None)
            start = self._start(new, now_us)
            change = first_departure(new, start, _asked_as(request, plan.judgement))
            write = write_of(change, start.id, owner=start.owner, repeat=repeat_check(request, plan.tool))
            try:
                (written,) = await core.store.write(write)
            except StoreUnavailable as away:
                core.never_started.add(start.id)
                raise _nothing_sent(away, request.key) from away
            if written.applied:
                return await self._send(write.record, start.id, plan, request)
            if written.refusal is Refusal.REPEAT and written.record is not None:
                if not sibling and _is_sibling(new, written.record):
                    sibling = True
                    continue
                return await self._insert_repeat(request, plan, written.record)
            if written.record is not None:
                return await self._recorded(request, written.record)
            await asyncio.sleep(POLL_FIRST_S)  # taken for lost: the lease keeper begins a new incarnation
        raise StoreUnavailable("This process lost its lease and could not begin a new one.", key=request.key)

    async def _insert_repeat(self, request: Request, plan: Plan, twin: CallRecord) -> Outcome[Any]:
        now_us = self._core.clock.now_us()
        new = replace(new_record(self._core, request, plan.tool, now_us), repeat_of=twin.key, repeat_slot=None)
        approval = question(plan.judgement.holds, plan.tool, new.digest, now_us, repeat_of=twin.key)
        return await self._insert(request, first_hold(new, approval, _asked_as(request, plan.judgement)))

    async def _insert_unsent(self, request: Request, plan: Plan) -> Outcome[Any]:
        """A new call that is held or refused: nothing of it leaves now."""
        now_us = self._core.clock.now_us()
        new = new_record(self._core, request, plan.tool, now_us)
        facts = _asked_as(request, plan.judgement)
        if plan.judgement.denial is not None:
            return await self._insert(request, first_refusal(new, plan.judgement.error, facts))
        approval = question(plan.judgement.holds, plan.tool, new.digest, now_us)
        return await self._insert(request, first_hold(new, approval, facts), repeat=repeat_check(request, plan.tool))

    async def _insert(self, request: Request, change: Change, repeat: Any = None) -> Outcome[Any]:
        write = write_of(change, self._core.ids.new(Prefix.DECISION), repeat=repeat)
        try:
            (written,) = await self._core.store.write(write)
        except StoreUnavailable as away:
            raise _nothing_sent(away, request.key) from away
        if written.refusal is Refusal.REPEAT and written.record is not None and change.record.approval is not None:
            twin = written.record
            if change.record.repeat_slot is not None and _is_sibling(change.record, twin):
                beside = replace(change.record, repeat_slot=None)
                return await self._insert(request, Change(None, beside, change.drafts), repeat)
            approval = replace(
                change.record.approval,
                covers_repeat=True,
                reason=f"{change.record.approval.reason}; it repeats {twin.key}",
            )
            held = replace(change.record, approval=approval, repeat_of=twin.key, repeat_slot=None)
            return await self._insert(request, Change(None, held, change.drafts))
        if not written.applied:
            assert written.record is not None
            return await self._recorded(request, written.record)
        self._core.tell_of(None, write.record)
        raise error_of(write.record)

    # -- a key that is taken -----------------------------------------------------------------------------

    async def _recorded_or(self, request: Request, error: TollhouseError) -> Outcome[Any]:
        """Replay what is recorded under the key; raise ``error`` when nothing is. Only audited, never stored."""
        record = await self._core.store.get(self._core.tenant, request.key) if request.key_given else None
        if record is not None:
            return await self._recorded(request, record)
        error.key = error.key or (request.key if request.key_given else None)
        self._core.tell("call_turned_away", key=error.key, tool=request.tool_name, code=error.code)
        raise error

    async def _recorded(self, request: Request, record: CallRecord) -> Outcome[Any]:
        """Answer for a recorded call: replay, wait, settle first, or send it if it is ready."""
        check_same_call(record, request.tool_name, request.arguments.digest)
        until = asyncio.get_running_loop().time() + record.limits.deadline_s
        pause_s, settled_first = POLL_FIRST_S, False
        while True:
            if record.contradicted:
                raise error_of(record)
            if record.state is State.READY:
                return await self._depart_ready(request, record)
            if record.state is State.IN_DOUBT and not settled_first:
                settled_first = True
                record = await self._settle_first(record)
                continue
            if record.state is not State.DEPARTED:
                adapter = request.tool.schema.result if request.tool is not None else None
                return await outcome_of(record, self._core.store, adapter, replayed=record.state in SETTLED)
            if (ended := await self._end_own_leftover(record)) is not None:
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

    async def _end_own_leftover(self, record: CallRecord) -> CallRecord | None:
        """End attempts in this process's name that it is not running: never started is *not sent*, else *unknown*."""
        core = self._core
        for attempt in record.attempts:
            if not attempt.running or attempt.owner != core.owner_id or attempt.id in core.running:
                continue
            now_us = core.clock.now_us()
            if attempt.id in core.never_started:
                ending = Ending(AttemptOutcome.NOT_SENT, error={"type": "store", "message": "Never started."})
                change = end_attempt(record, attempt.id, ending, now_us)
            else:
                change = owner_lost(record, attempt.owner, now_us, Lost.DEAD, now_us)
            try:
                after = await commit(core.store, change, f"{attempt.id}:leftover")
            except Stale as stale:
                return stale.record
            core.never_started.discard(attempt.id)
            core.tell_of(record, after)
            return after
        return None

    # -- departures of calls that are ready --------------------------------------------------------------

    async def run_ready(self, record: CallRecord) -> Outcome[Any]:
        """Send a ready call as its stored row says; for workers. Raises :class:`UnknownTool` without the tool."""
        tool = self._core.tools.get(record.tool)
        stored = loads(record.arguments)
        options = Options(by=record.requested_by, scope=record.scope, group=record.group)
        encoded = _as_encoded(stored, record)
        request = Request(tool, record.tool, record.key, True, encoded, record.requested_by, options)
        if tool is None:
            raise _unknown(self._core, request)
        return await self._depart_ready(request, record)

    async def _depart_ready(self, request: Request, record: CallRecord) -> Outcome[Any]:
        """All gates again, over the stored call; then the departure, compare-and-set."""
        if request.tool is None:
            raise _unknown(self._core, request)
        tool = request.tool
        plan = await self._plan(
            tool, loads(record.arguments), record.digest, request, len(record.attempts), record.scope
        )
        start = self._start(record, self._core.clock.now_us())
        step = self._ready_step(record, plan, start, request)
        core = self._core
        try:
            after = await commit(core.store, step, start.id, owner=start.owner)
        except Stale as stale:
            return await self._recorded(request, stale.record or await self._reread(record))
        except OwnerGone:
            await asyncio.sleep(POLL_FIRST_S)
            return await self._recorded(request, await self._reread(record))
        except StoreUnavailable as away:
            core.never_started.add(start.id)
            raise _nothing_sent(away, record.key) from away
        if after.state is State.DEPARTED:
            return await self._send(after, start.id, plan, request)
        core.tell_of(record, after)
        raise error_of(after)

    async def resend(self, record: CallRecord) -> CallRecord:
        """Send a doubt again under guards D and R, for the reconciler; returns the record once that attempt has ended
        or its wait is over. Raises :class:`Forbidden` where a guard or a gate says no, and the doubt stays."""
        tool = self._core.tools.get(record.tool)
        options = Options(by=record.requested_by, scope=record.scope, group=record.group)
        encoded = _as_encoded(loads(record.arguments), record)
        request = Request(tool, record.tool, record.key, True, encoded, record.requested_by, options)
        if tool is None:
            raise _unknown(self._core, request)
        plan = await self._plan(tool, encoded.tree, record.digest, request, len(record.attempts), record.scope)
        if plan.judgement.denial is not None or lapsed(record, tool, plan.judgement.holds) is not None:
            raise Forbidden("gates", "A gate refuses to let it be sent again.")
        start = self._start(record, self._core.clock.now_us())
        try:
            after = await commit(
                self._core.store, resend(record, start, tool.terms, {"by": "reconciler"}), start.id, owner=start.owner
            )
        except Stale as stale:
            return stale.record or record
        sending = self._sending(after, plan, request)
        sending.start(_attempt_of(after, start.id))
        return (await sending.answer).record

    def _ready_step(self, record: CallRecord, plan: Plan, start: Start, request: Request) -> Change:
        now_us, judgement = start.at_us, plan.judgement
        approval = record.approval
        if approval is not None and now_us >= approval.expires_at_us:
            return expire(record, now_us)
        if judgement.denial is not None:
            return gate_denied(record, judgement.denied_by or "gate", judgement.error, now_us)
        if (why := lapsed(record, plan.tool, judgement.holds)) is not None:
            fresh = question(judgement.holds, plan.tool, record.digest, now_us, repeat_of=record.repeat_of)
            return lapse(record, fresh, why, now_us)
        try:
            return depart(record, start, {"by": request.principal, "gates": judgement.said})
        except Forbidden as forbidden:
            raise Refused(f"{record.key} may not depart: {forbidden.cause}", key=record.key) from None

    def _start(self, record: CallRecord, now_us: int) -> Start:
        end_us = now_us + round(record.limits.attempt_timeout_s * US)
        if record.deadline_at_us is not None and now_us < record.deadline_at_us:
            end_us = min(end_us, record.deadline_at_us)
        return Start(self._core.ids.new(Prefix.ATTEMPT), self._core.owner_id, now_us, end_us)

    # -- sending -----------------------------------------------------------------------------------------

    async def _send(self, record: CallRecord, attempt_id: str, plan: Plan, request: Request) -> Outcome[Any]:
        sending = self._sending(record, plan, request)
        sending.start(_attempt_of(record, attempt_id))
        return await self._answer(sending)

    def _sending(self, record: CallRecord, plan: Plan, request: Request) -> Sending:
        async def gates_pass(current: CallRecord) -> bool:
            again = await self._plan(
                plan.tool, loads(current.arguments), current.digest, request, len(current.attempts), current.scope
            )
            judgement = again.judgement
            return judgement.denial is None and lapsed(current, plan.tool, judgement.holds) is None

        return Sending(
            self._core, plan.tool, plan.arguments, record, principal=request.principal, gates_pass=gates_pass
        )

    async def _answer(self, sending: Sending) -> Outcome[Any]:
        try:
            answered = await sending.answer
        except asyncio.CancelledError:  # the wait is over; the attempt is not
            sending.cancel()
            raise
        record = answered.record
        if record.contradicted or record.state not in (State.SUCCEEDED, State.ACCEPTED):
            raise error_of(record, answered.error)
        value = answered.kept.value if answered.kept is not None else None
        return made(record, value, replayed=False)

    # -- reads -------------------------------------------------------------------------------------------

    async def _read(self, request: Request, tool: Tool[Any]) -> Outcome[Any]:
        """A read with a key that is taken is replayed; otherwise it runs, and one commit records it."""
        if request.key_given:
            record = await self._core.store.get(self._core.tenant, request.key)
            if record is not None:
                return await self._recorded(request, record)
        try:
            plan = await self._plan(tool, request.arguments.tree, request.arguments.digest, request, 0)
        except InvalidArguments as invalid:
            return await self._recorded_or(request, invalid)
        if plan.judgement.denial is not None or plan.judgement.holds:
            return await self._insert_unsent(request, plan)
        new = new_record(self._core, request, tool, self._core.clock.now_us())
        run = ReadRun(self._core, tool, plan.arguments, new, request.principal)
        ending = await run.run()
        return await self._record_read(request, plan, new, run, ending)

    async def _record_read(
        self, request: Request, plan: Plan, new: CallRecord, run: ReadRun, ending: Ending
    ) -> Outcome[Any]:
        change = first_record(new, tuple(run.attempts), ending, _asked_as(request, plan.judgement))
        blobs = run.kept.blobs if run.kept is not None else ()
        write = write_of(change, run.attempts[-1].id, blobs=blobs)
        try:
            (written,) = await self._core.store.write(write)
        except StoreUnavailable as away:
            raise _nothing_sent(away, request.key) from away
        if not written.applied:
            assert written.record is not None
            return await self._recorded(request, written.record)
        if write.record.state is not State.SUCCEEDED:
            raise error_of(write.record, run.error)
        return made(write.record, run.kept.value if run.kept else None, replayed=False)


def _asked_as(request: Request, judgement: Judgement) -> dict[str, Any]:
    return {"tool": request.tool_name, "by": request.principal, "gates": judgement.said}


def _is_sibling(new: CallRecord, standing: CallRecord) -> bool:
    """Whether only the slot stands against it: siblings of one group are no repeats, and the first one has the slot."""
    return new.group is not None and new.group == standing.group


def _attempt_of(record: CallRecord, attempt_id: str) -> Attempt:
    attempt = record.attempt(attempt_id)
    assert attempt is not None, "an attempt is on the row that its own commit wrote"
    return attempt


def _as_encoded(tree: Any, record: CallRecord) -> EncodedArguments:
    return EncodedArguments(tree, record.arguments, record.request_digest)


def _unknown(core: Core, request: Request) -> UnknownTool:
    known = core.tools.names()
    near = f" Known here: {', '.join(known[:10])}." if known else " No tools are registered here."
    return UnknownTool(f"No tool named {request.tool_name[:80]!r} is registered.{near}")


def _nothing_sent(away: StoreUnavailable, key: str) -> StoreUnavailable:
    return type(away)(away.cause, remedy=away.remedy, key=key, sent="no")
