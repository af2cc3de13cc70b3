"""Runs told step by step, with plausible particulars: how the suite brings a run where it wants it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from tollhouse.ledger.change import Draft
from tollhouse.ledger.events import GENESIS, seal
from tollhouse.ledger.run_record import RunRecord, RunRefusal, RunStore, RunWrite, run_stream
from tollhouse.ledger.store import Blob, Store
from tollhouse.runs.states import RunEvent, RunState
from tollhouse.testing.conformance.base import TENANT
from tollhouse.testing.conformance.story import T0

RUN = "run_1"
FAR_US = 10**17
"""A moment that no store's clock reaches."""

_numbers = itertools.count(1)


class RunLedger(Store, RunStore, Protocol):
    """A store that keeps runs too."""


def begin(run_id: str = RUN, *, by: str | None = None, **particulars: Any) -> RunWrite:
    """The first write of a run: queued, and due at once. ``particulars``: as in :func:`move`."""
    plain: dict[str, Any] = {
        "tenant": TENANT, "agent": "concierge", "agent_version": "v1", "driver": "local", "state": RunState.QUEUED,
        "version": 0, "owner": None, "start_key": None, "start_digest": "d1", "thread": None, "parent_run_id": None,
        "parent_key": None, "source_run_id": None, "attempt_no": 1, "requested_by": "rita", "created_at_us": T0,
        "updated_at_us": T0, "due_at_us": T0, "finished": False, "head_seq": 0, "head_hash": GENESIS, "body": "{}",
    }  # fmt: skip
    return replace(move(RunRecord(id=run_id, **plain), RunEvent.STARTED, by=by, **particulars), expected=None)


def move(
    before: RunRecord,
    event: RunEvent,
    *,
    by: str | None = None,
    facts: Mapping[str, Any] | None = None,
    blobs: tuple[Blob, ...] = (),
    **changes: Any,
) -> RunWrite:
    """The write that replaces a run by its next version, with one event.

    ``by``: who must be a live owner. ``facts``: what the event tells besides. ``changes``: fields of the run.
    """
    write_id = f"write_{next(_numbers)}"
    record = replace(before, **changes)
    drafts = [Draft(event, {"state": record.state, **(facts or {})})]
    events = seal(run_stream(before.id), before.head_seq, before.head_hash, drafts, record.updated_at_us, write_id)
    head = events[-1]
    record = replace(record, version=before.version + 1, head_seq=head.seq, head_hash=head.hash)
    return RunWrite(record, before.version, events, write_id, by, blobs)


def claim(before: RunRecord, owner: str = "own_a") -> RunWrite:
    """A driver takes the run."""
    return move(before, RunEvent.CLAIMED, by=owner, state=RunState.RUNNING, owner=owner, due_at_us=None)


def pause(before: RunRecord, state: RunState = RunState.AWAITING_APPROVAL, due_at_us: int | None = None) -> RunWrite:
    """Its driver lets go of it."""
    event = RunEvent.LIMIT_REACHED if state is RunState.LIMIT_REACHED else RunEvent.WAITING
    return move(before, event, state=state, owner=None, due_at_us=due_at_us)


def finish(before: RunRecord, state: RunState = RunState.SUCCEEDED, due_at_us: int | None = None) -> RunWrite:
    """It ends."""
    return move(before, RunEvent(f"run_{state}"), state=state, owner=None, due_at_us=due_at_us, finished=True)


async def put(store: RunStore, write: RunWrite) -> RunRecord:
    """Write, and insist on success and on reading back what was written."""
    written = await store.write_run(write)
    assert written.applied, written
    assert await store.run(write.record.tenant, write.record.id) == write.record
    return write.record


async def rejected(store: RunStore, write: RunWrite, why: RunRefusal) -> RunRecord | None:
    """Write, insist on that refusal, and return the run that came with it."""
    written = await store.write_run(write)
    assert written.refusal is why
    return written.record


async def running(store: RunStore, run_id: str = RUN, owner: str = "own_a", **fields: Any) -> RunRecord:
    """A new run that is driven by that owner."""
    return await put(store, claim(await put(store, begin(run_id, **fields)), owner))


async def paused(store: RunStore, run_id: str = RUN, **fields: Any) -> RunRecord:
    """A new run that waits for people, and that nobody need look at."""
    return await put(store, pause(await running(store, run_id, **fields)))


def ids(records: list[RunRecord]) -> list[str]:
    """Their ids, in order."""
    return [record.id for record in records]
