"""People in a simulated world: they look, think, and decide, sometimes wrongly, often two at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tollhouse.contract.answers import did_not_happen, happened
from tollhouse.doubt.callbacks import report
from tollhouse.errors import NotAllowed
from tollhouse.ledger.codec import from_tree, loads
from tollhouse.ledger.record import CallRecord, State
from tollhouse.testing.simulation.process import TENANT, Process
from tollhouse.testing.simulation.world import DESK, World

Deed = Callable[[World, Process, CallRecord, str], Awaitable[Any]]
WHY = "simulated"


def decide(world: World, verb: str, key: str, *, think_s: float = 0.0, at: str = DESK) -> None:
    """Somebody takes a decision: they see the call as it is, think, and act on what they saw."""
    by = world.somebody()

    async def decided(process: Process) -> Any:
        seen = await process.store.get(TENANT, key)
        if seen is None:
            return None
        if think_s:
            await asyncio.sleep(think_s)
        return await DEEDS[verb](world, process, seen, by)

    world.run_as(at, f"{by}: {verb} {key}", decided)


def amount_of(record: CallRecord) -> int:
    """What a person sees of the arguments."""
    tree: Any = from_tree(loads(record.arguments))
    return int(tree["amount"])


def truth(world: World, record: CallRecord) -> bool:
    """Whether it took effect by now, as somebody finds out who asks the receiver."""
    return world.receiver.took_effect(record.wire_key)


def _answer(yes: bool) -> Any:
    return happened(1) if yes else did_not_happen("seen to")


def _resolve(yes: bool | None, *, force: bool = False, shown: bool = False) -> Deed:
    """``yes`` None: the truth as it is when the person looks. ``shown``: bound to the version that they saw."""

    async def deed(world: World, process: Process, seen: CallRecord, by: str) -> Any:
        answer = _answer(truth(world, seen) if yes is None else yes)
        version = seen.version if shown else None
        return await process.people.resolve(seen.key, answer, reason=WHY, by=by, force=force, version=version)

    return deed


async def _approve(world: World, process: Process, seen: CallRecord, by: str) -> Any:
    world.model.seen[seen.key, by] = amount_of(seen)
    return await process.people.approve(seen.key, by=by, digest=seen.digest)


async def _deny(_world: World, process: Process, seen: CallRecord, by: str) -> Any:
    return await process.people.deny(seen.key, by=by, reason=WHY)


async def _edit(world: World, process: Process, seen: CallRecord, by: str) -> Any:
    return await process.people.edit(seen.key, {"amount": world.random.randint(2, 9)}, by=by)


async def _retry(_world: World, process: Process, seen: CallRecord, by: str) -> Any:
    return await process.people.retry(seen.key, by=by, reason=WHY)


async def _cancel(_world: World, process: Process, seen: CallRecord, by: str) -> Any:
    return await process.people.cancel(seen.key, by=by)


async def _overturn(_world: World, process: Process, seen: CallRecord, by: str) -> Any:
    return await process.people.overturn(seen.key, by=by, reason=WHY)


async def _uphold(_world: World, process: Process, seen: CallRecord, by: str) -> Any:
    return await process.people.uphold(seen.key, by=by, reason=WHY)


async def _overturn_or_uphold(world: World, process: Process, seen: CallRecord, by: str) -> Any:
    """Whoever finds a contradiction reverses what was settled where that is allowed, and otherwise confirms it."""
    try:
        return await _overturn(world, process, seen, by)
    except NotAllowed:
        return await _uphold(world, process, seen, by)


async def _compensate(_world: World, process: Process, seen: CallRecord, by: str) -> Any:
    return await process.compensator.compensate(seen.key, by=by, reason=WHY)


async def _report(world: World, process: Process, seen: CallRecord, _by: str) -> Any:
    """The receiver calls back about a job that ended, perhaps not for the first time."""
    ended = [job for job in world.receiver.jobs if job.ended is not None and job.request.wire_key == seen.wire_key]
    if not ended:
        return None
    job = world.random.choice(ended)
    answer = happened(1) if job.ended == "done" else did_not_happen("failed", job_status="failed")
    return await report(process.core, seen.key, answer, job.reference)


DEEDS: dict[str, Deed] = {
    "resolve": _resolve(None),
    "resolve_shown": _resolve(None, shown=True),
    "say_yes": _resolve(True),
    "say_no": _resolve(False),
    "force": _resolve(None, force=True),
    "force_yes": _resolve(True, force=True),
    "force_no": _resolve(False, force=True),
    "approve": _approve,
    "deny": _deny,
    "edit": _edit,
    "retry": _retry,
    "cancel": _cancel,
    "overturn": _overturn,
    "uphold": _uphold,
    "overturn_or_uphold": _overturn_or_uphold,
    "compensate": _compensate,
    "report": _report,
}
"""What people (and the receiver's callback) can do to a call, by name."""


def next_deed(world: World, record: CallRecord) -> str | None:
    """What somebody does who wants the call settled and tells the truth; None when it is."""
    effect = truth(world, record)
    if record.contradicted:
        told = record.state in (State.SUCCEEDED, State.COMPENSATED)
        return "uphold" if told == effect else "overturn_or_uphold"
    match record.state:
        case State.DEPARTED | State.IN_DOUBT | State.ACCEPTED:
            return "force"
        case State.HELD:
            return "deny"
        case State.READY:
            return "cancel"
        case _:
            return None
