"""Many callers of one key, in several processes at once."""

from __future__ import annotations

import asyncio

import pytest

from tests.crash import tools
from tests.crash.fixtures import Start
from tests.crash.listening import kinds
from tollhouse import Tollhouse
from tollhouse.testing.receiver import Receiver

pytestmark = pytest.mark.crash

KEY = "order-7:credit"
ASKED = {"account": "a1", "cents": 2500}


async def test_hundred_callers_in_two_processes_have_one_effect_and_one_value(
    start: Start, house_store_url: str, receiver: Receiver
) -> None:
    """One of them sends; the others wait for that very attempt and get what it brought."""
    offered = {"tests.crash.tools:credits": {"url": receiver.url}}
    receiver.fault("hold_after_effect")
    workers = [await start(house_store_url, offered, lease_s=10.0) for _ in range(2)]
    answers = [worker.ask("call", "credit", ASKED, key=KEY) for worker in workers for _ in range(50)]
    await receiver.await_for_effects(1)
    receiver.release()
    values = await asyncio.gather(*answers)
    (effect,) = receiver.effects()
    assert {each["value"] for each in values} == {effect.id}
    assert sum(not each["replayed"] for each in values) == 1
    assert len(receiver.requests(method="POST")) == 1
    async with Tollhouse.open(house_store_url, tools=tools.credits(receiver.url), background=False) as house:
        assert await kinds(house, KEY) == ["departed", "outcome"]


async def test_callers_of_many_keys_in_two_processes_have_one_effect_each(
    start: Start, house_store_url: str, receiver: Receiver
) -> None:
    """Both processes ask for the same hundred calls; each takes effect once, whoever sent it."""
    offered = {"tests.crash.tools:credits": {"url": receiver.url}}
    workers = [await start(house_store_url, offered, lease_s=10.0) for _ in range(2)]
    keys = [f"order-{number}" for number in range(100)]
    answers = {key: [worker.ask("call", "credit", ASKED, key=key) for worker in workers] for key in keys}
    for key, both in answers.items():
        one, other = await asyncio.gather(*both)
        assert one["value"] == other["value"], key
        assert {one["replayed"], other["replayed"]} == {True, False}, key
    assert sorted(effect.key or "" for effect in receiver.effects()) == sorted(f"default:{key}" for key in keys)
