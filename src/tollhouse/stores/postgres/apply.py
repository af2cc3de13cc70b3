"""One try at writes on one connection: what was applied, what was refused and why, what must be tried again.

What a failed try means, and whether another follows, is the writer's affair.
"""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg

from tollhouse.ledger.record import CallRecord
from tollhouse.ledger.store import Counters, Refusal, Written
from tollhouse.stores.postgres.link import Link
from tollhouse.stores.postgres.rows import Item, Request, columns, many, record_in, repeat_row
from tollhouse.stores.postgres.statements import calls, owners

APPLIED = Written()


class _Refused(Exception):
    """Undoes a transaction of which one item was refused."""


async def apply_many(link: Link, requests: Sequence[Request], within_s: float, counters: Counters) -> list[Request]:
    """Apply requests of one item each, all inserts or all updates, in one commit; return those still undecided.

    Of several with one key the first is tried and the others look at what stands then.
    """
    leaders = {request.items[0].key: request for request in reversed(requests)}
    if len(leaders) == 1:
        (leader,) = leaders.values()
        text, values = leader.items[0].single
        applied = {leader} if await link.fetch(text, *values, within_s=within_s) else set()
    else:
        text, arrays = many([request.items[0] for request in leaders.values()])
        rows = await link.fetch(text, *arrays, within_s=within_s)
        applied = {leaders[key] for tenant, key in rows}
    counters.batches += 1
    if applied:
        counters.commits += 1
        counters.writes += len(applied)
        for request in applied:
            request.settle(APPLIED)
        if len(applied) == len(requests):
            return []
    return await _tell_refused(link, [request for request in requests if request not in applied], within_s)


async def _tell_refused(link: Link, requests: Sequence[Request], within_s: float) -> list[Request]:
    answers = await refusals(link, [request.items[0] for request in requests], within_s)
    undecided = []
    for request, answer in zip(requests, answers, strict=True):
        if answer is None:
            undecided.append(request)
        else:
            request.settle(answer)
    return undecided


async def apply_together(link: Link, request: Request, within_s: float, counters: Counters) -> list[Request]:
    """Apply a caller's items all or none, in a transaction of their own; empty when that is decided."""
    # In one order everywhere, so that two transactions never wait for each other in a circle.
    ordered = sorted(request.items, key=lambda item: item.key)
    counters.batches += 1
    try:
        async with link.transaction(within_s):
            for item in ordered:
                text, values = item.single
                if not await link.fetch(text, *values, within_s=within_s):
                    raise _Refused
    except _Refused:
        return await _tell_together(link, request, within_s)
    counters.commits += 1
    counters.writes += len(request.items)
    request.settle(*(APPLIED for _ in request.items))
    return []


async def _tell_together(link: Link, request: Request, within_s: float) -> list[Request]:
    standing = await _standing(link, request.items, within_s)
    if all(applied for _, applied in standing):
        request.settle(*(Written(stands=record) for record, _ in standing))
        return []
    answers = await refusals(link, request.items, within_s)
    if all(answer is None for answer in answers):
        return [request]
    told = [answer or Written(Refusal.STALE, record) for answer, (record, _) in zip(answers, standing, strict=True)]
    request.settle(*told)
    return []


async def refusals(link: Link, items: Sequence[Item], within_s: float) -> list[Written | None]:
    """Why a guarded statement did not apply these writes, or that an earlier try of the same write did.

    None: nothing stands against it any more. Asked by a statement of its own, begun after the guarded one ended: that
    one waited for whoever wrote the same row or key, but its snapshot may be older than what it met.
    """
    answers: list[Written | None] = []
    for item, (record, applied) in zip(items, await _standing(link, items, within_s), strict=True):
        if applied:
            answers.append(Written(stands=record))
        elif (None if record is None else record.version) != item.write.expected:
            answers.append(Written(Refusal.EXISTS if item.inserts else Refusal.STALE, record))
        else:
            answers.append(await _owner_or_twin(link, item, record, within_s))
    return answers


async def _standing(link: Link, items: Sequence[Item], within_s: float) -> list[tuple[CallRecord | None, bool]]:
    """What stands under each key, and whether that very write put it there."""
    asked = [(at, item.tenant, item.key, item.stream, item.write.write_id) for at, item in enumerate(items)]
    found: list[tuple[CallRecord | None, bool]] = [(None, False)] * len(items)
    for row in await link.fetch(calls.STANDING, *columns(asked, 5), within_s=within_s):
        found[row["item"]] = (_record(row), row["applied"])
    return found


async def _owner_or_twin(link: Link, item: Item, record: CallRecord | None, within_s: float) -> Written | None:
    write = item.write
    if write.owner is not None:
        (row,) = await link.fetch(owners.IS_LIVE, item.tenant, write.owner, within_s=within_s)
        if not row["live"]:
            return Written(Refusal.OWNER, record)
    if not item.inserts:
        return None
    twins: list[asyncpg.Record] = []
    if write.repeat is not None:
        twins = await link.fetch(calls.TWIN, item.tenant, *repeat_row(write), within_s=within_s)
    if not twins and write.record.repeat_slot is not None:
        twins = await link.fetch(calls.BY_SLOT, item.tenant, write.record.repeat_slot, within_s=within_s)
    return Written(Refusal.REPEAT, record_in(twins[0])) if twins else None


def _record(row: asyncpg.Record) -> CallRecord | None:
    return None if row["version"] is None else record_in(row)
