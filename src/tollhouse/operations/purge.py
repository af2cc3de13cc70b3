"""Purging: old settled calls lose their bodies, and their keys stay taken. Called by ``tollhouse db purge``.

Works in small transactions beside running processes, and may be killed and run again at any time. A body that is kept
outside its row may belong to several calls, and to the histories of runs; it goes once a search after the purge has
found nobody else who has it. Whoever keeps the same bytes again after the search brings them along with its write,
which takes them off the list. Runs are purged in ``operations.purge_runs``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass

from tollhouse.contract.terms import US
from tollhouse.doubt.compensation import compensation_key
from tollhouse.ledger.change import Change, Draft
from tollhouse.ledger.events import Event
from tollhouse.ledger.purging import bodies_of, has_results, may_purge, tombstone, without_results
from tollhouse.ledger.record import SETTLED, CallRecord, State
from tollhouse.ledger.run_record import run_stream
from tollhouse.ledger.writes import write_of
from tollhouse.stores import open_raw
from tollhouse.stores.common.raw import RawLedger

BATCH = 200
"""Calls in one transaction: bounds how long writers wait."""

_BODY = re.compile(r'"blob":"([0-9a-f]{64})"')
BODY_OF_RUN = re.compile(r'"\$blob":"([0-9a-f]{64})"')


@dataclass(frozen=True, slots=True)
class Purged:
    """What was purged, or with a dry run would be: calls by state, and bodies outside rows that were deleted."""

    calls: dict[str, int]
    bodies: int


async def purge(
    url: str,
    tenant: str,
    *,
    older_than_s: float,
    states: Collection[State] = SETTLED,
    results_only: bool = False,
    dry_run: bool = False,
) -> Purged:
    """Purge a tenant's calls that were settled in one of ``states`` and last changed longer ago than ``older_than_s``.

    Never a call that is unsettled, contradicted, still running somewhere, or being undone. ``results_only``: what came
    back goes, and arguments and history stay. Raises what the store raises.
    """
    ledger = await open_raw(url)
    try:
        now_us = await ledger.now_us()
        before_us = now_us - round(older_than_s * US)
        counted: Counter[str] = Counter()
        async for batch in _batches(ledger, tenant, before_us, states, results_only):
            done = {record.key for record in batch}
            if not dry_run:
                changes = [_purged_of(record, now_us, results_only=results_only) for record in batch]
                bodies = {record.key: digests for record in batch if (digests := bodies_of(record))}
                done = set(await ledger.purge(changes, bodies))
            counted.update(str(record.state) for record in batch if record.key in done)
        return Purged(dict(counted), 0 if dry_run else await drop_condemned(ledger))
    finally:
        await ledger.close()


async def _batches(
    ledger: RawLedger, tenant: str, before_us: int, states: Collection[State], results_only: bool
) -> AsyncIterator[list[CallRecord]]:
    """Calls that may be purged, oldest first."""
    after = (0, "")
    while page := await ledger.purgeable(tenant, after, before_us, BATCH):
        after = (page[-1].created_at_us, page[-1].key)
        wanted = [r for r in page if may_purge(r, before_us, states) and (has_results(r) or not results_only)]
        if batch := [record for record in wanted if not await _is_being_undone(ledger, record)]:
            yield batch


def _purged_of(
    record: CallRecord, now_us: int, *, results_only: bool
) -> tuple[CallRecord, CallRecord, tuple[Event, ...]]:
    """The record, what stays of it, and what its history says of that: the history of a tombstone is empty.

    Losing results is no update of the call, so its age goes on counting towards the purge of the rest.
    """
    if not results_only:
        return record, tombstone(record, now_us), ()
    told = Draft("results_purged", {"state": record.state.value})
    write_id = f"{record.key}~purge~{record.version}"
    write = write_of(Change(record, without_results(record), (told,)), write_id, at_us=now_us)
    return record, write.record, write.events


async def _is_being_undone(ledger: RawLedger, record: CallRecord) -> bool:
    """Whether a compensation that still needs it is under way."""
    if record.state is not State.SUCCEEDED or record.terms.compensate is None:
        return False
    undoing = await ledger.get(record.tenant, compensation_key(record.key))
    return undoing is not None and undoing.state not in SETTLED


async def drop_condemned(ledger: RawLedger) -> int:
    """Delete the bodies of purged calls and runs that nobody else has; those of a purge that was killed as well."""
    condemned = await ledger.condemned()
    for tenant in {tenant for tenant, _ in condemned}:
        for named in (_named(ledger, tenant), _named_by_runs(ledger, tenant)):
            async for digest in named:
                if (tenant, digest) in condemned:
                    condemned.discard((tenant, digest))
                    await ledger.pardon(tenant, digest)
    return sum([await ledger.drop_blob(tenant, digest) for tenant, digest in condemned])


async def _named(ledger: RawLedger, tenant: str) -> AsyncIterator[str]:
    """Digests of bodies that the tenant's calls name."""
    after = ""
    while page := await ledger.with_bodies(tenant, after, BATCH):
        for _, body in page:
            for digest in _BODY.findall(body):
                yield digest
        after = page[-1][0]


async def _named_by_runs(ledger: RawLedger, tenant: str) -> AsyncIterator[str]:
    """Digests of bodies that the histories of the tenant's runs name."""
    after = (run_stream(""), 0)
    while page := await ledger.runs_with_bodies(tenant, after, BATCH):
        for stream, seq, data in page:
            for digest in BODY_OF_RUN.findall(data):
                yield digest
            after = (stream, seq)
