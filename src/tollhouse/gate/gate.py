"""The gate: the one path from any caller to any tool.

In order: resolve and digest; may they see it; look the key up; validate; gates that deny; gates that hold; secrets;
commit 1; send; commit 2. The look-up of the key is part of commit 1's statement, so a new call costs no extra round
trip; wherever a request ends before commit 1, the key is looked up first, so that a recorded call is replayed whatever
became of the tool, its schema or the rules since.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tollhouse.contract.terms import Effect
from tollhouse.contract.tool import Tool
from tollhouse.errors import (
    HouseClosed,
    InvalidArguments,
    InvalidKey,
    InvalidSetting,
    StoreUnavailable,
    TollhouseError,
)
from tollhouse.gate.approval import question
from tollhouse.gate.core import Core
from tollhouse.gate.departures import OWNER_TRIES, Departures, no_lease
from tollhouse.gate.gates import Judgement
from tollhouse.gate.leftovers import begin
from tollhouse.gate.outcome import Outcome, error_of, made
from tollhouse.gate.planning import Plan, Planner
from tollhouse.gate.reads import ReadRun
from tollhouse.gate.ready import denied
from tollhouse.gate.recorded import Recorded, SettleFirst
from tollhouse.gate.request import (
    Options,
    Request,
    new_record,
    principal_of,
    repeat_check,
    request_of,
    tool_name_of,
)
from tollhouse.gate.restored import LookUp, cleared, hear, held, must_ask
from tollhouse.gate.verdicts import Hold
from tollhouse.ledger.change import Change
from tollhouse.ledger.ids import Prefix
from tollhouse.ledger.record import CallRecord, State, replace
from tollhouse.ledger.steps import (
    Ending,
    first_departure,
    first_hold,
    first_record,
    first_refusal,
)
from tollhouse.ledger.store import Refusal
from tollhouse.ledger.writes import write_of


class Gate:
    """See the module's docstring. ``visible``: whether this principal may see the tool at all."""

    def __init__(
        self,
        core: Core,
        settle_first: SettleFirst,
        visible: Callable[[str, str], bool] = lambda _principal, _tool: True,
    ) -> None:
        self._core = core
        self._planner = Planner(core, visible)
        self._departures = Departures(core, self._planner)
        self._recorded = Recorded(core, self._planner, self._departures, settle_first)

    @property
    def look_up(self) -> LookUp | None:
        """Asked in a restored ledger before anything new departs; None: nobody can be asked."""
        return self._departures.look_up

    @look_up.setter
    def look_up(self, asked: LookUp | None) -> None:
        self._departures.look_up = asked

    async def call(
        self, tool: Tool[Any] | str, arguments: Mapping[str, Any], key: Any, options: Options | None = None
    ) -> Outcome[Any]:
        """Pass one request. Returns on success (or *accepted*), raises what the call's state means otherwise."""
        core = self._core
        if core.closed:
            raise HouseClosed("The house is closed.")
        options = options or Options()
        name, principal = tool_name_of(tool), principal_of(core, options)
        if not self._planner.sees(principal, name):
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

    async def run_ready(self, record: CallRecord) -> Outcome[Any]:
        """Send a ready call as its stored row says; for workers. Raises :class:`UnknownTool` without the tool."""
        return await self._recorded.run_ready(record)

    async def resend(self, record: CallRecord) -> CallRecord:
        """Send a doubt again under guards D and R, for the reconciler; see :meth:`Recorded.resend`."""
        return await self._recorded.resend(record)

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
        heard = await hear(self._core, self._departures.look_up, new, plan.tool, since_us)
        if heard.found is not None:
            write = write_of(heard.found, self._core.ids.new(Prefix.DECISION), blobs=heard.blobs)
            try:
                (written,) = await self._core.store.write(write)
            except StoreUnavailable as away:
                raise self._departures.nothing_sent(away, request.key) from away
            return await self._recorded.answer(request, written.record or write.record)
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
            start, new = self._departures.start(new, now_us), cleared(new, cleared_us)
            if (since_us := must_ask(core, new)) is not None:
                return await self._ask_about_new(request, plan, new, since_us)
            change = first_departure(new, start, _asked_as(request, plan.judgement))
            write = write_of(change, start.id, owner=start.owner, repeat=repeat_check(request, plan.tool))
            try:
                (written,) = await begin(core, request.key, start.id, partial(core.store.write, write))
            except StoreUnavailable as away:
                raise self._departures.nothing_sent(away, request.key) from away
            if written.applied:
                return await self._departures.send(write.record, start.id, plan, request)
            if written.refusal is Refusal.REPEAT and written.record is not None:
                if not sibling and _is_sibling(new, written.record):
                    sibling = True
                    continue
                return await self._insert_repeat(request, plan, written.record)
            if written.record is not None:
                return await self._recorded.answer(request, written.record)
            await core.new_incarnation(start.owner)
        raise no_lease(request.key)

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
            raise self._departures.nothing_sent(away, request.key) from away
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
            return await self._recorded.answer(request, written.record)
        self._core.tell_of(None, write.record)
        raise error_of(write.record)

    # -- a key that is taken -----------------------------------------------------------------------------

    async def _recorded_or(self, request: Request, error: TollhouseError) -> Outcome[Any]:
        """Replay what is recorded under the key; raise ``error`` when nothing is. Only audited, never stored."""
        record = await self._core.store.get(self._core.tenant, request.key) if request.key_given else None
        if record is not None:
            return await self._recorded.answer(request, record)
        raise self._turned_away(error, request.tool_name, request.key if request.key_given else None)

    # -- reads -------------------------------------------------------------------------------------------

    async def _read(self, request: Request, tool: Tool[Any]) -> Outcome[Any]:
        """A read with a key that is taken is replayed; otherwise it runs, and one commit records it."""
        if request.key_given:
            record = await self._core.store.get(self._core.tenant, request.key)
            if record is not None:
                return await self._recorded.answer(request, record)
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
            return await self._recorded.answer(request, written.record)
        if write.record.state is not State.SUCCEEDED:
            raise error_of(write.record, run.error)
        return made(write.record, run.kept.value if run.kept else None, replayed=False)


def _asked_as(request: Request, judgement: Judgement) -> dict[str, Any]:
    facts = {"tool": request.tool_name, "by": request.principal, "gates": judgement.said}
    return facts if request.options.reason is None else {**facts, "reason": request.options.reason}


def _is_sibling(new: CallRecord, standing: CallRecord) -> bool:
    """Whether only the slot stands against it: siblings of one group are no repeats, and the first one has the slot."""
    return new.group is not None and new.group == standing.group
