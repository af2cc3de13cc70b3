"""The runs that a run's calls started: what they spent counts for it, and its limits bound them.

Asked where a run is started for a call, where that call is settled, and where a run ends before its children do.
"""

from __future__ import annotations

from tollhouse.ledger.record import replace
from tollhouse.ledger.run_record import RunRecord, RunStore
from tollhouse.runs.agents import Limits
from tollhouse.runs.body import Spent, body_of
from tollhouse.runs.journal import runs_of


async def spent_by_children(store: RunStore, tenant: str, run_id: str) -> Spent:
    """What the children of a run spent by now, all the way down, whether it has heard of their ends or not."""
    spent = Spent()
    async for child in runs_of(store, tenant, parent=run_id):
        spent = spent.plus(await spent_in_all(store, child))
    return spent


async def spent_in_all(store: RunStore, run: RunRecord) -> Spent:
    """What a run spent by now, with its children."""
    return body_of(run).own.plus(await spent_by_children(store, run.tenant, run.id))


async def spent_for_call(store: RunStore, tenant: str, key: str) -> Spent | None:
    """What the run spent that the call under this key started; None where it started none."""
    child = await store.run_of_start(tenant, key)
    return None if child is None or child.parent_key != key else await spent_in_all(store, child)


def limits_within(limits: Limits, parent: RunRecord) -> Limits:
    """The limits of a child, tightened to the tokens and dollars that its parent has left, which may be none."""
    body = body_of(parent)
    most, spent = body.limits, body.spent
    if most.tokens is not None:
        left = most.tokens - spent.tokens
        limits = replace(limits, tokens=left if limits.tokens is None else min(limits.tokens, left))
    if most.cost is not None:
        dollars = most.cost - spent.cost
        limits = replace(limits, cost=dollars if limits.cost is None else min(limits.cost, dollars))
    return limits


def nothing_left(limits: Limits) -> str | None:
    """The limit that leaves a child nothing to start with; None: it may start."""
    if limits.tokens is not None and limits.tokens <= 0:
        return "tokens"
    return "cost" if limits.cost is not None and limits.cost <= 0 else None
