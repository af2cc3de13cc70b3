"""Purging runs: what was said in old runs is erased; who ran what, how it ended and the chain stay.

Called by ``tollhouse db purge --runs``. Each run is one small transaction beside running processes: its events lose
their data, its row keeps the outline, and one more event says so. The chain covers digests of the data, so it holds as
before, and a proof names what was erased. May be killed and run again at any time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass

from tollhouse.contract.terms import US
from tollhouse.ledger.cover import covered, run_digest
from tollhouse.ledger.events import seal
from tollhouse.ledger.record import replace
from tollhouse.ledger.run_record import RunRecord, run_stream
from tollhouse.operations.purge import BATCH, BODY_OF_RUN, drop_condemned
from tollhouse.runs import steps
from tollhouse.runs.states import FINISHED, RunState
from tollhouse.stores import open_raw
from tollhouse.stores.common.raw import RawLedger


@dataclass(frozen=True, slots=True)
class PurgedRuns:
    """What was purged, or with a dry run would be: runs by state, and bodies outside rows that were deleted."""

    runs: dict[str, int]
    bodies: int


async def purge_runs(
    url: str,
    tenant: str,
    *,
    older_than_s: float,
    states: Collection[RunState] = FINISHED,
    dry_run: bool = False,
) -> PurgedRuns:
    """Purge a tenant's runs that ended in one of ``states`` and last changed longer ago than ``older_than_s``.

    Never a run about which something is left to do, one of whose calls is unsettled, contradicted or still running
    somewhere, whose conversation is being gone on with, or whose parent has not heard of its end. Calls are purged on
    their own, see :func:`~tollhouse.operations.purge.purge`. Raises what the store raises.
    """
    ledger = await open_raw(url)
    try:
        now_us = await ledger.now_us()
        counted: Counter[str] = Counter()
        async for run in _purgeable(ledger, tenant, now_us - round(older_than_s * US)):
            if run.state in states and (dry_run or await _purge(ledger, run, now_us)):
                counted[run.state] += 1
        return PurgedRuns(dict(counted), 0 if dry_run else await drop_condemned(ledger))
    finally:
        await ledger.close()


async def _purgeable(ledger: RawLedger, tenant: str, before_us: int) -> AsyncIterator[RunRecord]:
    after = (0, "")
    while page := await ledger.purgeable_runs(tenant, after, before_us, BATCH):
        for run in page:
            yield run
        after = (page[-1].created_at_us, page[-1].id)


async def _purge(ledger: RawLedger, run: RunRecord, now_us: int) -> bool:
    named = [BODY_OF_RUN.findall(data) for data in await ledger.data_with_bodies(run.tenant, run.id)]
    change = steps.purged(run, now_us)
    drafts = covered(change.drafts, run_digest(change.record))
    write_id = f"{run.id}~purge~{run.version}"
    events = seal(run_stream(run.id), run.head_seq, run.head_hash, drafts, now_us, write_id)
    after = replace(change.record, head_seq=events[-1].seq, head_hash=events[-1].hash)
    return await ledger.purge_run(run, after, events, sorted({digest for each in named for digest in each}))
