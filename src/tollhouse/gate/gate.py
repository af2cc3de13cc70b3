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
from functools import partial
from typing import Any

from tollhouse.contract.terms import US, Effect
from tollhouse.contract.tool import Tool
from tollhouse.errors import (
    CallInFlight,
    HouseClosed,
    InvalidArguments,
    InvalidKey,
    InvalidSetting,
    StoreUnavailable,
    TollhouseError,
)
from tollhouse.gate.approval import lapsed, question
from tollhouse.gate.core import Core
from tollhouse.gate.gates import Judgement
from tollhouse.gate.leftovers import begin, end_leftover
from tollhouse.gate.outcome import Outcome, check_same_call, error_of, made, outcome_of, sent_of
from tollhouse.gate.planning import Plan, Planner
from tollhouse.gate.reads import ReadRun
from tollhouse.gate.ready import denied, has_expired, ready_step
from tollhouse.gate.request import (
    Options,
    Request,
    new_record,
    principal_of,
    repeat_check,
    request_of,
    tool_name_of,
)
from tollhouse.gate.restored import LookUp, answered, cleared, hear, held, must_ask, noted
from tollhouse.gate.sending import Sending
from tollhouse.gate.verdicts import Hold
from tollhouse.ledger.change import Change
from tollhouse.ledger.codec import loads
from tollhouse.ledger.decisions import expire
from tollhouse.ledger.digest import EncodedArguments
from tollhouse.ledger.ids import Prefix
from tollhouse.ledger.lifecycle import Forbidden
from tollhouse.ledger.record import SETTLED, Attempt, CallRecord, State, replace
from tollhouse.ledger.steps import (
    Ending,
    Start,
    first_departure,
    first_hold,
    first_record,
    first_refusal,
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


class Gate:
    """See the module's docstring. ``visible``: whether this principal may see the tool at all."""

    def __init__(
        self,
        core: Core,
        settle_first: SettleFirst,
        visible: Callable[[str, str], bool] = lambda _principal, _tool: True,
    ) -> None:
        self._core, self._settle_first = core, settle_first
        self.look_up: LookUp | None = None
        """Asked in a restored ledger before anything new departs; None: nobody can be asked."""
        self._planner = Planner(core, visible)

    async def call(
        self, tool: Tool[Any] | str, arguments: Mapping[str, Any], key: Any, options: Options | None = None
    ) -> Outcome[Any]:
        """Pass one request. Returns on success (or *accepted*), raises what the call's state means otherwise."""
        core = self._core
        if core.closed:
            raise HouseClosed("The house is closed.")
        options = options or Options()
        name, principal = tool_name_of(tool), principal_of(core, options)
        if name in core.tools and not self._planner.sees(principal, name):
            raise self._turned_away(self._planner.unknown(name, principal), name, None)
        try:
            request = request_of(core, name, arguments, key, options)
        except (InvalidArguments, InvalidKey, InvalidSetting) as mistake:
            wrong = mistake if core.tools.get(name) is not None else self._planner.unknown(name, principal)
            raise self._turned_away(wrong, name, None) from None
        if request.tool is None:
            return await self._recorded_or(request, self._planner.unknown(name, principal))
        if request.tool.effect is Effect.READ and request.tool.terms.approval is None:
            return await self._read(request, request.tool)
        return await self._new(request, request.tool)

    def _turned_away(self, error: TollhouseError, name: str, key: str | None) -> TollhouseError:
        """The error, audited: nothing of such a request is stored."""
        error.key = error.key or key
        self._core.tell("call_turned_away", key=error.key, tool=name[:80], code=error.code)
        return error

    # -- a key that may be new ---------------------------------------------------------------------------

    async def _new(self, request: Request, tool: Tool[Any]) -> Outcome[Any]:
        try:
            plan = await self._planner.new(request, tool)
        except InvalidArguments as invalid:
            return await self._recorded_or(request, invalid)
        judgement = plan.judgement
        if judgement.denial is not None and not judgement.denial.stored:
            return await self._recorded_or(request, denied(judgement, request.key))
        if judgement.denial is not None or judgement.holds:
            return await self._insert_unsent(request, plan)
        return await self._insert_departed(request, plan)

    async def _ask_about_new(self, request: Request, plan: Plan, new: CallRecord, since_us: int) -> Outcome[Any]:
        """In a restored ledger: replay what the look-up finds, send what it rules out, hold the rest."""
        heard = await hear(self._core, self.look_up, new, plan.tool, since_us)
        if heard.found is not None:
            write = write_of(heard.found, self._core.ids.new(Prefix.DECISION), blobs=heard.blobs)
            try:
                (written,) = await self._core.store.write(write)
            except StoreUnavailable as away:
                raise self._nothing_sent(away, request.key) from away
            return await self._recorded(request, written.record or write.record)
        if heard.hold is not None:
            return await self._insert_unsent(request, plan, heard.hold)
        return await self._insert_departed(request, plan, cleared_us=since_us)

    async def _insert_departed(self, request: Request, plan: Plan, cleared_us: int | None = None) -> Outcome[Any]:
        core, sibling = self._core, False
        for _ in range(OWNER_TRIES):
            now_us = core.clock.now_us()
            new = new_record(core, request, plan.tool, now_us)
            if sibling:
                new = replace(new, repeat_slot=None)
            start, new = self._start(new, now_us), cleared(new, cleared_us)
            if (since_us := must_ask(core, new)) is not None:
                return await self._ask_about_new(request, plan, new, since_us)
            change = first_departure(new, start, _asked_as(request, plan.judgement))
            write = write_of(change, start.id, owner=start.owner, repeat=repeat_check(request, plan.tool))
            try:
                (written,) = await begin(core, request.key, start.id, partial(core.store.write, write))
            except StoreUnavailable as away:
                raise self._nothing_sent(away, request.key) from away
            if written.applied:
                return await self._send(write.record, start.id, plan, request)
            if written.refusal is Refusal.REPEAT and written.record is not None:
                if not sibling and _is_sibling(new, written.record):
                    sibling = True
                    continue
                return await self._insert_repeat(request, plan, written.record)
            if written.record is not None:
                return await self._recorded(request, written.record)
            await core.new_incarnation(start.owner)
        raise _no_lease(request.key)

    async def _insert_repeat(self, request: Request, plan: Plan, twin: CallRecord) -> Outcome[Any]:
        now_us = self._core.clock.now_us()
        new = replace(new_record(self._core, request, plan.tool, now_us), repeat_of=twin.key, repeat_slot=None)
        approval = question(plan.judgement.holds, plan.tool, new.digest, now_us, repeat_of=twin.key)
        return await self._insert(request, first_hold(new, approval, _asked_as(request, plan.judgement)))

    async def _insert_unsent(self, request: Request, plan: Plan, forgotten: Hold | None = None) -> Outcome[Any]:
        """A new call that is held or refused: nothing of it leaves now. ``forgotten``: held for what was restored."""
        now_us = self._core.clock.now_us()
        new = new_record(self._core, request, plan.tool, now_us)
        if (since_us := must_ask(self._core, new)) is not None:
            new, forgotten = cleared(new, since_us), forgotten or held("nobody was asked yet")
        facts = _asked_as(request, plan.judgement)
        if plan.judgement.denial is not None:
            return await self._insert(request, first_refusal(new, plan.judgement.error, facts))
        holds = plan.judgement.holds if forgotten is None else [*plan.judgement.holds, forgotten]
        approval = question(holds, plan.tool, new.digest, now_us)
        return await self._insert(request, first_hold(new, approval, facts), repeat=repeat_check(request, plan.tool))

    async def _insert(self, request: Request, change: Change, repeat: Any = None) -> Outcome[Any]:
        write = write_of(change, self._core.ids.new(Prefix.DECISION), repeat=repeat)
        try:
            (written,) = await self._core.store.write(write)
        except StoreUnavailable as away:
            raise self._nothing_sent(away, request.key) from away
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

    def _nothing_sent(self, away: StoreUnavailable, key: str) -> StoreUnavailable:
        """This request sent nothing; where this process is still at the key, an earlier one may have."""
        at_it = any(context.key == key for context in self._core.running.values())
        return type(away)(away.cause, remedy=away.remedy, key=key, sent="maybe" if at_it else "no")

    # -- a key that is taken -----------------------------------------------------------------------------

    async def _recorded_or(self, request: Request, error: TollhouseError) -> Outcome[Any]:
        """Replay what is recorded under the key; raise ``error`` when nothing is. Only audited, never stored."""
        record = await self._core.store.get(self._core.tenant, request.key) if request.key_given else None
        if record is not None:
            return await self._recorded(request, record)
        raise self._turned_away(error, request.tool_name, request.key if request.key_given else None)

    async def _recorded(self, request: Request, record: CallRecord) -> Outcome[Any]:
        """Answer for a recorded call: replay, wait, settle first, or send it if it is ready."""
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
            start = self._start(record, core.clock.now_us())
            if (since_us := must_ask(core, record)) is not None:
                return await self._ask_about_ready(request, plan, record, since_us)
            step = ready_step(record, plan, start, request.principal)
            write = partial(commit, core.store, step, start.id, owner=start.owner)
            try:
                after = await begin(core, record.key, start.id, write)
                break
            except Stale as stale:
                return await self._recorded(request, stale.record or await self._reread(record))
            except StoreUnavailable as away:
                raise self._nothing_sent(away, record.key) from away
            except OwnerGone:
                await core.new_incarnation(start.owner)
        else:
            raise _no_lease(record.key)
        if after.state is State.DEPARTED:
            return await self._send(after, start.id, plan, request)
        core.tell_of(record, after)
        raise error_of(after)

    async def _ask_about_ready(self, request: Request, plan: Plan, record: CallRecord, since_us: int) -> Outcome[Any]:
        """The same about a call that was ready when the backup was made: it may have departed since."""
        heard = await hear(self._core, self.look_up, record, plan.tool, since_us)
        change = answered(heard, record, plan, self._core.clock.now_us())
        try:
            after = await commit(self._core.store, noted(change, since_us), self._core.ids.new(Prefix.DECISION))
        except Stale as stale:
            after = stale.record or await self._reread(record)
        except StoreUnavailable as away:
            raise self._nothing_sent(away, record.key) from away
        self._core.tell_of(record, after)
        return await self._recorded(request, after)

    async def resend(self, record: CallRecord) -> CallRecord:
        """Send a doubt again under guards D and R, for the reconciler; returns the record once that attempt has ended
        or its wait is over. Raises :class:`Forbidden` where a guard or a gate says no, and the doubt stays."""
        request = self._stored_request(record)
        if (tool := request.tool) is None:
            raise self._planner.unknown(request.tool_name, request.principal)
        plan = await self._planner.recorded(request, tool, record)
        if plan.judgement.denial is not None or lapsed(record, tool, plan.judgement.holds) is not None:
            raise Forbidden("gates", "A gate refuses to let it be sent again.")
        start = self._start(record, self._core.clock.now_us())
        step = resend(record, start, tool.terms, {"by": "reconciler"})
        write = partial(commit, self._core.store, step, start.id, owner=start.owner)
        try:
            after = await begin(self._core, record.key, start.id, write)
        except Stale as stale:
            return stale.record or record
        sending = self._sending(after, plan, request)
        sending.start(_attempt_of(after, start.id))
        ended = (await sending.answer).record
        if ended.state in SETTLED:
            # The step that ended it went from departed, so nobody else can tell that a doubt ended with it.
            self._core.tell("doubt_settled", key=ended.key, tool=ended.tool, state=ended.state.value)
        return ended

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

    async def _answer(self, sending: Sending) -> Outcome[Any]:
        try:
            answered = await sending.answer
        except asyncio.CancelledError:  # the wait is over; the attempt is not
            sending.cancel()
            raise
        record = answered.record
        if record.contradicted or record.state not in (State.SUCCEEDED, State.ACCEPTED):
            raise error_of(record, answered.error)
        kept = answered.kept
        if kept is not None and kept.stored == record.result:
            return made(record, kept.value, replayed=False)
        # What is on record is another attempt's result, or less than what this one returned: replays get that, too.
        return await outcome_of(record, self._core.store, sending.adapter, replayed=False)

    # -- reads -------------------------------------------------------------------------------------------

    async def _read(self, request: Request, tool: Tool[Any]) -> Outcome[Any]:
        """A read with a key that is taken is replayed; otherwise it runs, and one commit records it."""
        if request.key_given:
            record = await self._core.store.get(self._core.tenant, request.key)
            if record is not None:
                return await self._recorded(request, record)
        try:
            plan = await self._planner.new(request, tool)
        except InvalidArguments as invalid:
            return await self._recorded_or(request, invalid)
        if (denial := plan.judgement.denial) is not None and not denial.stored:
            return await self._recorded_or(request, denied(plan.judgement, request.key))
        if denial is not None or plan.judgement.holds:
            return await self._insert_unsent(request, plan)
        new = new_record(self._core, request, tool, self._core.clock.now_us())
        run = ReadRun(self._core, tool, plan.arguments, new, request.principal, plan.secrets)
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
            key = request.key if request.key_given else None
            raise type(away)(away.cause, remedy=away.remedy, key=key, sent="yes") from away
        if not written.applied:
            assert written.record is not None
            return await self._recorded(request, written.record)
        if write.record.state is not State.SUCCEEDED:
            raise error_of(write.record, run.error)
        return made(write.record, run.kept.value if run.kept else None, replayed=False)


def _asked_as(request: Request, judgement: Judgement) -> dict[str, Any]:
    facts = {"tool": request.tool_name, "by": request.principal, "gates": judgement.said}
    return facts if request.options.reason is None else {**facts, "reason": request.options.reason}


def _is_sibling(new: CallRecord, standing: CallRecord) -> bool:
    """Whether only the slot stands against it: siblings of one group are no repeats, and the first one has the slot."""
    return new.group is not None and new.group == standing.group


def _attempt_of(record: CallRecord, attempt_id: str) -> Attempt:
    attempt = record.attempt(attempt_id)
    assert attempt is not None, "an attempt is on the row that its own commit wrote"
    return attempt


def _longest_wait_s(request: Request, record: CallRecord) -> float:
    """How long this caller waits for another's attempt: as long as the call may take, or less if it says so."""
    own_s = request.options.deadline_s
    return record.limits.deadline_s if own_s is None else min(own_s, record.limits.deadline_s)


def _no_lease(key: str) -> StoreUnavailable:
    return StoreUnavailable("This process lost its lease and could not begin a new one.", key=key)
