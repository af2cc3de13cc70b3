"""Many callers, cancels, failing commits and lost replies at once, from a seed: whatever happens, no effect is repeated
without its receiver's word, nobody hangs, and no call stays departed in a house that is idle."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from tests.support.houses import Interfering, OpenHouse, interfering, quiet
from tollhouse import CallContext, NotSent, Rejected, State, Tollhouse, dedup, external, tool
from tollhouse.errors import TollhouseError
from tollhouse.gate import leftovers
from tollhouse.gate import sending as sending_module

KEYS, CALLERS = 12, 8


class Storm:
    """One run: what the tools did, and what their callers heard."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.effects: Counter[str] = Counter()
        self.heard: list[tuple[str, Any]] = []

    async def act(self, key: str, ctx: CallContext) -> str:
        """Wait a little, confirm perhaps, have an effect, and answer or not."""
        await asyncio.sleep(self.random.random() * 0.004)
        if self.random.random() < 0.2:
            raise NotSent("no route") from ConnectionRefusedError()
        await ctx.confirm()
        if self.random.random() < 0.1:
            raise Rejected("busy", transient=True)
        self.effects[key] += 1
        await asyncio.sleep(self.random.random() * 0.004)
        if self.random.random() < 0.2:
            raise ConnectionResetError
        return f"done {key}"

    async def caller(self, house: Tollhouse, name: str, key: str) -> None:
        """One caller who may leave early."""
        await asyncio.sleep(self.random.random() * 0.03)
        call = asyncio.create_task(house.call(name, {"key": key}, key=key))
        if self.random.random() < 0.25:
            await asyncio.sleep(self.random.random() * 0.01)
            call.cancel()
        try:
            outcome = await call
            self.heard.append((key, outcome.value))
        except (TollhouseError, asyncio.CancelledError) as error:
            self.heard.append((key, error))

    async def weather(self, store: Interfering) -> None:
        """Commits that fail now and then, before or after they were applied."""
        for _ in range(25):
            await asyncio.sleep(self.random.random() * 0.004)
            store.fail_next("after" if self.random.random() < 0.5 else "before")


@pytest.mark.parametrize("seed", range(6))
async def test_a_storm_repeats_nothing_and_leaves_nobody_waiting(
    open_house: OpenHouse, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the keys belong to a receiver that recognises them; only there may an effect be counted twice."""
    monkeypatch.setattr(sending_module, "BACKOFF_FIRST_S", 0.005)
    monkeypatch.setattr(leftovers, "PAUSE_FIRST_S", 0.005)
    storm = Storm(seed)

    @tool(external())
    async def once(key: str, ctx: CallContext) -> str:
        return await storm.act(key, ctx)

    @tool(external(dedup=dedup.by_key(hours=24), max_attempts=4, deadline_s=5))
    async def again(key: str, ctx: CallContext) -> str:
        return await storm.act(key, ctx)

    house = await open_house(once, again, interfering=True)
    store = interfering(house)
    keys = [("once" if number % 2 else "again", f"k{number}") for number in range(KEYS)]
    callers = [storm.caller(house, name, key) for name, key in keys for _ in range(CALLERS)]
    async with asyncio.timeout(60):
        await asyncio.gather(storm.weather(store), *callers)
        store.recover()
        await quiet(house)
    values = {key: {heard for k, heard in storm.heard if k == key and isinstance(heard, str)} for _, key in keys}
    for name, key in keys:
        record = await house.store.get(house._core.tenant, key)
        effects = storm.effects[key]
        if record is None:
            assert effects == 0, key
            continue
        assert record.state is not State.DEPARTED, (seed, key)
        assert not any(attempt.running for attempt in record.attempts), (seed, key)
        assert len(values[key]) <= 1
        assert values[key] <= {f"done {key}"}
        sendings = sum(attempt.outcome not in (None, "not_sent", "rejected") for attempt in record.attempts)
        assert effects <= sendings, (seed, key)
        assert effects <= (1 if name == "once" else 4), (seed, key)
        if record.state in (State.READY, State.FAILED):
            assert effects == 0, (seed, key)
        if record.state is State.SUCCEEDED:
            assert effects >= 1, (seed, key)
