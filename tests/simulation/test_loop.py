"""The scheduler: time passes only when nobody has work, each process keeps its order, and lots decide between them."""

from __future__ import annotations

import asyncio
from random import Random

from tollhouse.testing.simulation.loop import SimulatedLoop


def _loop(seed: int = 0) -> tuple[SimulatedLoop, list[str]]:
    return SimulatedLoop(Random(seed), start_s=0.0), []


async def _steps(name: str, seen: list[str]) -> None:
    for number in range(3):
        seen.append(f"{name}{number}")
        await asyncio.sleep(0)


def test_time_jumps_to_what_comes_next() -> None:
    """An hour of waiting takes no time, and the clock shows it afterwards."""
    loop, seen = _loop()

    async def wait() -> None:
        await asyncio.sleep(3600)
        seen.append(f"{asyncio.get_running_loop().time():g}")

    loop.begin("a", wait())
    loop.run(4000.0)
    assert seen == ["3600"]
    assert loop.now_s == 4000.0


def test_a_process_keeps_its_own_order_and_lots_decide_between_processes() -> None:
    """Callbacks of one process run as they were scheduled; which process goes first differs by seed."""
    orders = set()
    for seed in range(20):
        loop, seen = _loop(seed)
        for name in ("a", "b"):
            loop.begin(name, _steps(name, seen))
        loop.run(1.0)
        assert [step for step in seen if step[0] == "a"] == ["a0", "a1", "a2"]
        assert [step for step in seen if step[0] == "b"] == ["b0", "b1", "b2"]
        orders.add(tuple(seen))
    assert len(orders) > 3


def test_a_frozen_process_goes_on_where_it_stood_and_finds_it_late() -> None:
    """Freezing stops callbacks, not time."""
    loop, seen = _loop()

    async def wait() -> None:
        await asyncio.sleep(1)
        seen.append(f"{asyncio.get_running_loop().time():g}")

    loop.begin("a", wait())
    loop.run(0.5)
    loop.lanes["a"].frozen = True
    loop.run(10.0)
    assert seen == []
    loop.lanes["a"].frozen = False
    loop.run(11.0)
    assert seen == ["10"]


def test_a_killed_process_never_runs_again_and_what_it_set_going_outside_does() -> None:
    """Its tasks stop for ever, without their clean-up; a request that has left goes on."""
    loop, seen = _loop()

    async def send_and_die() -> None:
        loop.outside(2.0, seen.append, "delivered")
        try:
            await asyncio.sleep(1)
        finally:
            seen.append("cleaned up")

    loop.begin("a", send_and_die())
    loop.run(0.5)
    loop.kill("a")
    loop.run(5.0)
    assert seen == ["delivered"]


def test_nothing_can_begin_to_wait_in_a_history_that_is_over() -> None:
    """What is left at the end is closed: its clean-up runs, and comes to an end wherever it would wait."""
    loop, seen = _loop()

    async def cling() -> None:
        try:
            await asyncio.sleep(100)
        except BaseException:
            seen.append("closing")
            await asyncio.sleep(100)
            seen.append("never")

    loop.begin("a", cling())
    loop.run(1.0)
    loop.end()
    assert seen == ["closing"]
