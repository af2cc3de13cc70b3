"""The reconciler: settles doubts by evidence, in any process that has the tool, with no caller needed.

First the tool is asked (its ``reconcile=`` hook, which reads only), then, where the receiver recognises the key, the
call is sent again. It never decides by itself: an error or a refusal of the look-up is *unknown*, absence counts only
after silence, and what it cannot settle waits for a person, visibly. Each step is compare-and-set on the version read
before the look-up.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from tollhouse.contract.answers import Accepted, Answer
from tollhouse.contract.terms import US
from tollhouse.contract.tool import Tool
from tollhouse.doubt.hooks import ask
from tollhouse.errors import TollhouseError
from tollhouse.gate.core import Core
from tollhouse.gate.costs import repaired
from tollhouse.gate.ending import error_record
from tollhouse.gate.gate import Gate
from tollhouse.gate.results import keep, rebuild
from tollhouse.gate.view import view
from tollhouse.ledger.approvals import expire
from tollhouse.ledger.change import Change
from tollhouse.ledger.decisions import Finding, looked, settle
from tollhouse.ledger.guards import PURGED, silent_from_us
from tollhouse.ledger.ids import Prefix
from tollhouse.ledger.lease import proven_dead
from tollhouse.ledger.lifecycle import Forbidden
from tollhouse.ledger.record import CallRecord, Lost, State
from tollhouse.ledger.steps import job_deadline, job_deadline_us, owner_proven_dead
from tollhouse.ledger.store import Blob
from tollhouse.ledger.transact import OwnerGone, Stale, commit

LOOK_FIRST_S = 2.0
LOOK_MOST_S = 3600.0
DOUBT_ALARM_S = 3600.0
LOOK_TIMEOUT_S = 30.0
LOOKS_IN_A_ROW = 3
LEAST_BETWEEN_LOOKS_US = US // 2
"""A caller who asks for a doubt again and again makes the look-up run no more often than this."""

OPEN = (State.IN_DOUBT, State.ACCEPTED)
"""States that a look-up can end."""

_FINDINGS = ("happened", "did_not_happen", "unknown")


class Reconciler:
    """See the module's docstring."""

    def __init__(self, core: Core, *, doubt_alarm_s: float = DOUBT_ALARM_S) -> None:
        self._core, self._doubt_alarm_s = core, doubt_alarm_s
        self.gate: Gate | None = None
        """Set once both exist: the gate asks the reconciler, and the reconciler sends through the gate."""
        self.looks = self.resends = 0
        """Times that a hook was asked and that a doubt was sent again, since the house was opened."""
        self._looking: dict[str, asyncio.Task[CallRecord]] = {}

    async def settle_first(self, record: CallRecord) -> CallRecord:
        """For the gate: one look at a doubt before its caller is answered."""
        now_us = self._core.clock.now_us()
        if record.looks and now_us - record.updated_at_us < LEAST_BETWEEN_LOOKS_US:
            return record
        return await self.reconcile(record)

    async def look_up(self, record: CallRecord, tool: Tool[Any]) -> tuple[Finding | None, tuple[Blob, ...]]:
        """For the gate over a restored ledger: what the hook says of a call that may have been forgotten.

        None: there is no hook, or it does not know. Nothing is written.
        """
        if tool.reconcile is None:
            return None, ()
        began_us = self._core.clock.now_us()
        answer = await self._answer(record, tool)
        if answer.finding == "unknown":
            return None, ()
        return self._finding(answer, tool, began_us), self._blobs(answer, tool)

    async def reconcile(self, record: CallRecord) -> CallRecord:
        """Look once, and send again where that is allowed. Returns the record as it then stands.

        Concurrent callers in this process share one look-up; one who is cancelled takes it from nobody.
        """
        task = self._looking.get(record.key)
        if task is None:
            task = self._looking[record.key] = asyncio.get_running_loop().create_task(self._reconcile(record))
            task.add_done_callback(lambda done: self._looked_up(record.key, done))
        await asyncio.wait([task])
        return record if task.cancelled() else task.result()

    async def stop(self) -> None:
        """Give up the look-ups that are out; who waits for one hears what the call is without it."""
        for task in (given_up := list(self._looking.values())):
            task.cancel()
        await asyncio.gather(*given_up, return_exceptions=True)

    def _looked_up(self, key: str, done: asyncio.Task[CallRecord]) -> None:
        del self._looking[key]
        if not done.cancelled():
            done.exception()  # retrieved: perhaps nobody waits any more

    async def _reconcile(self, record: CallRecord) -> CallRecord:
        self._tell_age(record)
        record = await self._with_proof_of_death(record)
        tool = self._core.tools.get(record.tool)
        if tool is None or PURGED in record.extra:  # there are no arguments any more to ask about
            return record
        if tool.reconcile is not None:
            record = await self._look(record, tool)
        if record.state is State.IN_DOUBT and tool.terms.dedup.allows_resend:
            record = await self._resend(record)
        if record.state in OPEN and tool.reconcile is None and self._is_due(record):
            record = await self._write(record, self._looked(record, "no_hook"))
        return record

    # -- asking the tool ---------------------------------------------------------------------------------

    async def _look(self, record: CallRecord, tool: Tool[Any]) -> CallRecord:
        """Ask, and write what came of it. An answer that the call overtook is void: it is asked again, a few times."""
        for _ in range(LOOKS_IN_A_ROW):
            after = await self._look_once(record, tool)
            written = after.looks != record.looks or len(after.settlements) != len(record.settlements)
            if written or after is record or after.state not in OPEN:
                return after
            record = after
        return record

    async def _look_once(self, record: CallRecord, tool: Tool[Any]) -> CallRecord:
        began_us = self._core.clock.now_us()
        answer = await self._answer(record, tool)
        now_us = self._core.clock.now_us()
        if answer.finding == "unknown":
            if record.state not in OPEN:
                return record
            return await self._write(record, self._looked(record, "unknown", note=_bounded(answer.evidence)))
        finding = self._finding(answer, tool, began_us)
        if _agrees(record, finding):
            return record
        try:
            change = settle(record, finding, now_us)
        except Forbidden as forbidden:
            if forbidden.guard == "table":
                return record
            return await self._write(record, self._looked(record, answer.finding, note=forbidden.cause))
        return await self._write(record, change, blobs=self._blobs(answer, tool))

    async def _answer(self, record: CallRecord, tool: Tool[Any]) -> Answer:
        """What the hook says. Whatever goes wrong with the look-up is *unknown*."""
        assert tool.reconcile is not None
        self.looks += 1
        try:
            seen = await view(record, self._core.store, tool.schema.result)
            async with asyncio.timeout(LOOK_TIMEOUT_S):
                answer = await ask(self._core, tool.reconcile, seen)
            if isinstance(answer, Answer) and answer.finding in _FINDINGS:
                return replace(answer, evidence=_bounded(answer.evidence))
        except Accepted as accepted:
            return Answer("unknown", evidence=f"still under way: {accepted.reference}")
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and _given_up():
                raise
            return Answer("unknown", evidence=error_record(error))
        kind = repr(answer.finding) if isinstance(answer, Answer) else type(answer).__name__
        return Answer("unknown", evidence=f"the hook answered {kind}, not happened(), did_not_happen() or unknown()")

    def _finding(self, answer: Answer, tool: Tool[Any], began_us: int) -> Finding:
        stored = keep(answer.value, tool.schema.result).stored if answer.finding == "happened" else None
        return Finding(
            id=self._core.ids.new(Prefix.DECISION),
            finding=answer.finding,
            via="hook",
            began_us=began_us,
            by=f"hook:{tool.name}",
            reason=None,
            evidence=answer.evidence,
            reference=answer.reference,
            result=stored,
            job_status=answer.job_status,
        )

    def _blobs(self, answer: Answer, tool: Tool[Any]) -> Any:
        return keep(answer.value, tool.schema.result).blobs if answer.finding == "happened" else ()

    def _looked(self, record: CallRecord, answer: str, note: Any = None) -> Change:
        """A look that settled nothing, and when the next is due."""
        now_us = self._core.clock.now_us()
        due_us = self._next_look_us(record, answer, now_us) if record.state in OPEN else record.due_at_us
        return looked(record, now_us, due_us, answer, note if note is None else str(note))

    def _next_look_us(self, record: CallRecord, answer: str, now_us: int) -> int:
        """Backoff, but not before silence could count, and not after the job's deadline."""
        pause_s: float = min(LOOK_MOST_S, LOOK_FIRST_S * 2 ** min(record.looks, 20))
        next_us = now_us + round(pause_s * US)
        silent_us = silent_from_us(record) if answer == "did_not_happen" else None
        if silent_us is not None and silent_us > now_us:
            next_us = silent_us + 1
        deadline_us = job_deadline_us(record)
        if record.state is not State.ACCEPTED or deadline_us is None:
            return next_us
        last_us = max(deadline_us, now_us + US)
        return last_us if answer == "no_hook" else min(next_us, last_us)

    # -- sending again -----------------------------------------------------------------------------------

    async def _resend(self, record: CallRecord) -> CallRecord:
        assert self.gate is not None
        if not self._core.clock.steady:
            return record
        try:
            ended = await self.gate.resend(record)
            self.resends += 1
            return ended
        except (Forbidden, OwnerGone, TollhouseError) as refused:
            if self._is_due(record):
                why = refused.cause if isinstance(refused, Forbidden | TollhouseError) else "this process was lost"
                return await self._write(record, self._looked(record, "not_resent", note=why))
            return record

    # -- the clock's work --------------------------------------------------------------------------------

    async def due(self, record: CallRecord) -> None:
        """What is to be done about a call whose time has come."""
        now_us = self._core.clock.now_us()
        if "cost_gap" in record.extra:
            record = await self._repair(record)
        if record.state is State.ACCEPTED and (end := job_deadline_us(record)) is not None and now_us >= end:
            record = await self._write(record, job_deadline(record, now_us))
        if record.state in OPEN:
            await self.reconcile(record)
        elif record.state in (State.HELD, State.READY):
            await self.expire_or_run(record)

    async def expire_or_run(self, record: CallRecord) -> None:
        """A hold or approval that ran out is refused; an approved call that shall run without its caller runs."""
        now_us = self._core.clock.now_us()
        if record.approval is not None and now_us >= record.approval.expires_at_us:
            await self._write(record, expire(record, now_us))
        elif record.state is State.READY and record.run_when_approved and not record.cancel_asked:
            assert self.gate is not None
            if self._core.tools.get(record.tool) is not None:
                await self.gate.run_ready(record)

    async def _repair(self, record: CallRecord) -> CallRecord:
        tool = self._core.tools.get(record.tool)
        if tool is None:
            return record
        value = await rebuild(record, self._core.store, tool.schema.result)
        arguments = (await view(record, self._core.store, None, with_history=False)).arguments
        return await self._write(record, repaired(record, tool, arguments, value, self._core.clock.now_us()))

    async def _with_proof_of_death(self, record: CallRecord) -> CallRecord:
        """Where an owner was only lost by its lease: perhaps its process is proven gone by now."""
        for attempt in record.attempts:
            if attempt.lost is Lost.LEASE and attempt.unsettled:
                owner = await self._core.store.owner(record.tenant, attempt.owner)
                if owner is not None and (owner.proven_dead or proven_dead(owner)):
                    return await self._write(
                        record, owner_proven_dead(record, attempt.owner, self._core.clock.now_us())
                    )
        return record

    async def _write(self, record: CallRecord, change: Change, blobs: Any = ()) -> CallRecord:
        """Compare-and-set; whoever was faster has decided, and that stands."""
        try:
            after = await commit(self._core.store, change, self._core.ids.new(Prefix.DECISION), blobs=blobs)
        except Stale as stale:
            return stale.record or record
        self._core.tell_of(record, after)
        return after

    def _is_due(self, record: CallRecord) -> bool:
        return record.due_at_us is not None and record.due_at_us <= self._core.clock.now_us()

    def _tell_age(self, record: CallRecord) -> None:
        if record.state is not State.IN_DOUBT or record.departed_at_us is None:
            return
        age_s = (self._core.clock.now_us() - record.departed_at_us) / US
        if age_s >= self._doubt_alarm_s:
            self._core.tell("doubt_aged", key=record.key, tool=record.tool, age_s=round(age_s), looks=record.looks)


def _given_up() -> bool:
    """Whether it is this look-up that was cancelled, and not something that its hook waited for."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _agrees(record: CallRecord, finding: Finding) -> bool:
    """Whether the finding only repeats what is settled."""
    if record.state is State.COMPENSATED:
        return True  # what was undone may be there or gone: neither speaks against what is recorded
    if record.state is State.SUCCEEDED:
        return finding.finding == "happened"
    if record.state in (State.FAILED, State.REFUSED, State.HELD, State.READY):
        return finding.finding == "did_not_happen"
    return False


def _bounded(evidence: Any) -> Any:
    """Evidence as it is kept: short text stays, everything else is described within bounds."""
    if evidence is None or isinstance(evidence, bool | float) or (isinstance(evidence, int) and abs(evidence) < 2**63):
        return evidence
    if isinstance(evidence, dict):
        return {str(k)[:100]: _bounded(v) for k, v in list(evidence.items())[:20]}
    return str(evidence)[:1000]
