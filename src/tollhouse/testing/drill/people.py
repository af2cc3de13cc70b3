"""People of the drill: they bring a call to its end, whatever state it is left in, by what the receiver's book says.

Honest by default: they say *did not happen* only after the network has been silent long enough. Plots have rash ones.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tollhouse.testing.drill.crew import Gone
from tollhouse.testing.drill.stage import Stage
from tollhouse.testing.drill.tools import SILENCE_S

SETTLED = frozenset({"succeeded", "failed", "refused", "compensated"})
PATIENCE_S = 9.0
"""How long people leave a doubt to look-ups and resends before they decide themselves."""
GIVE_UP_S, GIVE_UP_BROKEN_S = 240.0, 30.0
"""How long they try; with a broken rule there may be no end."""
HAPPENED = {"finding": "happened", "value": "seen in the book"}
DID_NOT_HAPPEN = {"finding": "did_not_happen"}


async def bring_to_end(stage: Stage, key: str, *, patience_s: float = PATIENCE_S) -> bool:
    """Act until the call is settled, free of contradictions and quiet; False when that cannot be reached.

    A call that has no row needs nothing.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    while loop.time() - began < (GIVE_UP_BROKEN_S if stage.broken else GIVE_UP_S):
        seen = await stage.seen(key)
        if seen is None:
            return True
        if seen["state"] in SETTLED and not seen["contradicted"] and not seen["running"]:
            return True
        await _act(stage, key, seen, tired=loop.time() - began > patience_s)
    return False


async def _act(stage: Stage, key: str, seen: dict[str, Any], *, tired: bool) -> None:
    desk = await stage.desk(1)
    state, version = seen["state"], seen["version"]
    if seen["contradicted"]:
        if state in ("succeeded", "compensated") or not await stage.decide(desk, "overturn", key, "judge"):
            await stage.decide(desk, "uphold", key, "judge")
    elif state == "held":
        await stage.decide(desk, "approve", key, "ada", digest=seen["digest"])
    elif state == "ready":
        await _go(stage, key)
    elif state == "accepted":
        await _finish_job(stage, key, seen)
    elif tired and state in ("in_doubt", "departed"):
        await _resolve(stage, key, state == "departed" or seen["running"])
    else:
        watch = stage.state(key)
        await stage.until(key, lambda _: watch.version > version, 0.5 if tired else 1.5)


async def _go(stage: Stage, key: str) -> None:
    """Whoever wanted it asks again."""
    if key.endswith(":compensate"):
        original = key.removesuffix(":compensate")
        await stage.decide(await stage.desk(0), "compensate", original, "ada")
        return
    facts = stage.state(key).case.facts
    if facts["tool"] == "odd":  # no desk has it
        async with stage.alone("odd", only=["odd"]) as worker:
            await stage.call(worker, "odd", key, facts["acts"])
        return
    await stage.call(await stage.desk(0), facts["tool"], key, facts["acts"])


async def _finish_job(stage: Stage, key: str, seen: dict[str, Any]) -> None:
    cancelled = bool(stage.state(key).case.facts.get("job_cancelled"))
    await stage.at_receiver(
        stage.receiver.finish_job, seen["reference"], "cancelled" if cancelled else "done", {"ok": 1}
    )
    try:
        await (await stage.desk(0)).ask("reconcile", key=key)
    except (Gone, TimeoutError):
        await asyncio.sleep(0.2)


async def _resolve(stage: Stage, key: str, force: bool) -> None:
    """Look into the book, and say what it says."""
    await asyncio.sleep(SILENCE_S)
    effects = await stage.at_receiver(stage.receiver.effects, reference=key)
    answer = HAPPENED if effects else DID_NOT_HAPPEN
    await stage.decide(await stage.desk(1), "resolve", key, "bob", answer=answer, force=force)
