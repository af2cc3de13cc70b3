"""Who takes part: the controls, houses over either engine, and peers, each with what is measured of it.

A contestant is a name like ``postgres.rate_c32`` and a coroutine that measures once. All are opened before the first
round and closed after the last, so that every round has the same company.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial

from tollhouse import Tollhouse
from tollhouse.bench.engines import Engine
from tollhouse.bench.job import SETTINGS, TOOLS, effects, reads, replays
from tollhouse.bench.measure import p50_ms, rate
from tollhouse.bench.peers.process import NAMES, Peer
from tollhouse.bench.plan import CALLERS, Plan, size_name

Contestants = dict[str, Callable[[], Awaitable[float]]]


async def contestants(engine: Engine, plan: Plan, stack: AsyncExitStack) -> Contestants:
    """Everybody over one engine, opened; ``stack`` closes them."""
    controls = await _controls(engine, plan, stack)
    house = await _house(engine.ledger(), stack)
    governed = await _governed(engine.name, house, plan)
    growth = await _growth(engine, plan, stack)
    peers = await _peers(engine, plan, stack) if plan.peers and engine.name == "postgres" else {}
    return {**controls, **governed, **growth, **peers}


async def _house(url: str, stack: AsyncExitStack) -> Tollhouse:
    return await stack.enter_async_context(Tollhouse.open(url, tools=TOOLS, **SETTINGS))


async def _controls(engine: Engine, plan: Plan, stack: AsyncExitStack) -> Contestants:
    raw = engine.raw(32)
    await raw.open()
    stack.push_async_callback(raw.close)
    found: Contestants = {
        f"{engine.name}.raw.p50_c1": partial(p50_ms, raw.call, plan.seconds),
        f"{engine.name}.raw.rate_c32": partial(rate, raw.call, 32, plan.seconds),
    }
    for name, group in engine.groups().items():
        await group.open()
        stack.push_async_callback(group.close)
        found[f"{engine.name}.{name}.rate_c32"] = partial(rate, group.call, 32, plan.seconds)
    return found


async def _governed(name: str, house: Tollhouse, plan: Plan) -> Contestants:
    work = effects(house)
    found: Contestants = {f"{name}.p50_c1": partial(p50_ms, work, plan.seconds)}
    if plan.peers:
        found[f"{name}.rate_c1"] = partial(rate, work, 1, plan.seconds)
    for callers in CALLERS:
        found[f"{name}.rate_c{callers}"] = partial(rate, work, callers, plan.seconds)
    found[f"{name}.read.p50_c1"] = partial(p50_ms, reads(house), plan.seconds / 2)
    found[f"{name}.replay.p50_c1"] = partial(p50_ms, await replays(house), plan.seconds / 2)
    return found


async def _growth(engine: Engine, plan: Plan, stack: AsyncExitStack) -> Contestants:
    """One caller over a table of each size."""
    found: Contestants = {}
    for rows in plan.sizes:
        url = engine.ledger()
        async with Tollhouse.open(url, tools=TOOLS, **SETTINGS) as house:
            await effects(house)()
        await engine.fill(url, rows)
        work = effects(await _house(url, stack))
        found[f"{engine.name}.p50_{size_name(rows)}"] = partial(p50_ms, work, plan.seconds)
    return found


async def _peers(engine: Engine, plan: Plan, stack: AsyncExitStack) -> Contestants:
    found: Contestants = {}
    for name in NAMES:
        peer = await Peer.start(name, engine.ledger(), 32)
        stack.push_async_callback(peer.close)
        for callers in (1, 32):
            found[f"peers.{name}.rate_c{callers}"] = partial(peer.rate, callers, plan.seconds)
    return found
