"""What is asked before a departure while the ledger is marked as restored from a backup.

A backup forgets what departed after it was made: a key that looks new may have been sent, and so may a call that looks
ready. Until a person ends the mode, no effect departs unless the tool's look-up says that it did not happen, or a
person agrees; about a new call of a run only a person can tell. Reads are not asked about. The moment of the restore
comes with the lease, so whoever departs under a lease knows of it; it is also the moment from which no process that
used the lost ledger can have sent anything.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from tollhouse.contract.terms import Effect
from tollhouse.contract.tool import Tool
from tollhouse.gate.approval import question
from tollhouse.gate.core import Core
from tollhouse.gate.planning import Plan
from tollhouse.gate.verdicts import Hold
from tollhouse.ledger.approvals import lapse
from tollhouse.ledger.change import Change
from tollhouse.ledger.decisions import HAPPENED, Finding, looked, settle
from tollhouse.ledger.ids import Prefix
from tollhouse.ledger.lifecycle import Forbidden
from tollhouse.ledger.record import CallRecord, Lost, State, replace
from tollhouse.ledger.steps import Start, first_departure, owner_lost
from tollhouse.ledger.store import Blob
from tollhouse.ledger.value import value_type

CLEARED = "restored"
"""In ``CallRecord.extra``: the restore for which this call was looked up or held, so that it is asked about once."""

FORGOTTEN_OWNER = "before-the-restore"
"""Stands for the process that may have sent a call which the ledger forgot."""

LookUp = Callable[[CallRecord, Tool[Any]], Awaitable[tuple[Finding | None, tuple[Blob, ...]]]]
"""Ask the tool's hook about a record. None: there is no hook, or it does not know."""


@value_type
class Heard:
    """What came of asking. ``found``: it took effect, as this change says of a call that is new and ``finding`` of any;
    ``blobs`` are its result's. ``hold``: nobody can tell, so a person must. Neither: it did not happen."""

    found: Change | None = None
    finding: Finding | None = None
    blobs: tuple[Blob, ...] = ()
    hold: Hold | None = None


def held(why: str) -> Hold:
    """The question to people about a call that the ledger may have forgotten."""
    return Hold(f"the ledger was restored from a backup and may have forgotten this call ({why})")


def must_ask(core: Core, record: CallRecord) -> int | None:
    """The moment of the restore, if this call may have departed in the time that was forgotten; else None."""
    since_us = core.restored_at_us
    return None if record.effect == Effect.READ or record.extra.get(CLEARED) == since_us else since_us


def cleared(record: CallRecord, since_us: int | None) -> CallRecord:
    """The record with the note that it was asked about."""
    return record if since_us is None else replace(record, extra={**record.extra, CLEARED: since_us})


def noted(change: Change, since_us: int | None) -> Change:
    """The change with that note in its record."""
    return Change(change.before, cleared(change.record, since_us), change.drafts)


async def hear(core: Core, look_up: LookUp | None, record: CallRecord, tool: Tool[Any], since_us: int) -> Heard:
    """Ask about a call as if it had departed in the forgotten time and its process were gone."""
    attempt_id = core.ids.new(Prefix.ATTEMPT)
    forgotten = _forgotten(record, attempt_id, since_us)
    finding, blobs = (None, ()) if look_up is None else await look_up(forgotten.record, tool)
    if finding is None:
        return Heard(hold=held("its tool has no look-up" if tool.reconcile is None else "the look-up does not know"))
    try:
        settled = forgotten.then(lambda known: settle(known, finding, core.clock.now_us()))
    except Forbidden as forbidden:
        return Heard(hold=held(forbidden.cause))
    if finding.finding == HAPPENED:
        return Heard(found=noted(settled, since_us), finding=finding, blobs=blobs)
    if _is_named_anew(record):
        return Heard(hold=held("its run may have made it before, under another key"))
    return Heard()


def _is_named_anew(record: CallRecord) -> bool:
    """Whether its key says nothing of a call that was forgotten: a model may ask otherwise, and runs are lost too."""
    return record.head_seq == 0 and record.scope is not None and record.scope.startswith(f"{Prefix.RUN}_")


def answered(heard: Heard, record: CallRecord, plan: Plan, now_us: int) -> Change:
    """What to write of a ready call that was asked about: a finding, which contradicts it, a question, or its leave."""
    if heard.finding is not None:
        return settle(record, heard.finding, now_us)
    if heard.hold is None:
        return looked(record, now_us, record.due_at_us, "did_not_happen", "asked because the ledger was restored")
    asked = question([*plan.judgement.holds, heard.hold], plan.tool, record.digest, now_us, repeat_of=record.repeat_of)
    return lapse(record, asked, heard.hold.reason, now_us)


def _forgotten(record: CallRecord, attempt_id: str, since_us: int) -> Change:
    """A call in doubt under that key: sent once, by a process that was gone when the ledger was restored."""
    blank = replace(
        record,
        state=State.READY,
        version=1,
        fence=0,
        round=1,
        attempts=(),
        settlements=(),
        approval=None,
        contradicted=False,
        cancel_asked=False,
        result=None,
        error=None,
        head_seq=0,
        head_hash="",
    )
    start = Start(attempt_id, FORGOTTEN_OWNER, since_us, since_us)
    facts = {"tool": record.tool, "by": record.requested_by, "gates": {}, "assumed": "restored"}
    sent = first_departure(blank, start, facts)
    return sent.then(lambda r: owner_lost(r, FORGOTTEN_OWNER, since_us, Lost.DEAD, since_us))
