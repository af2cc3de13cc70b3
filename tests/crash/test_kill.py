"""SIGKILL at every named point of a call's life: a fresh process finds out what happened, and nothing happens twice."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.crash import tools
from tests.crash.fixtures import Start
from tests.crash.listening import Heard, kinds
from tests.crash.process import LEASE_S, Gone
from tollhouse import State, Tollhouse
from tollhouse.errors import InDoubt, UnknownCall
from tollhouse.testing.receiver import Receiver

pytestmark = pytest.mark.crash

KEY = "order-7:credit"
ASKED = {"account": "a1", "cents": 2500}


class Left(NamedTuple):
    """What a crash leaves behind: effects at the receiver, whether a row, and what the hook makes of it."""

    effects: int
    settled: State | None


AT: dict[str, Left] = {
    "before_departure": Left(0, None),
    "after_departure": Left(0, State.FAILED),
    "before_function": Left(0, State.FAILED),
    "inside_before_send": Left(0, State.FAILED),
    "inside_after_send": Left(1, State.SUCCEEDED),
    "after_function": Left(1, State.SUCCEEDED),
    "before_outcome": Left(1, State.SUCCEEDED),
    "after_outcome": Left(1, State.SUCCEEDED),
}
DOUBTFUL = [point for point in AT if point not in ("before_departure", "after_outcome")]


async def killed(start: Start, house_store_url: str, receiver: Receiver, point: str, *, tool: str = "credit") -> None:
    """A worker that died at ``point`` of a call."""
    options = {"tests.crash.tools:credits": {"url": receiver.url}}
    worker = await start(house_store_url, options, {"point": point})
    with pytest.raises(Gone):
        await worker.ask("call", tool, ASKED, key=KEY)
    await worker.until_dead()
    assert worker.reached == [point]


# case C28
@pytest.mark.parametrize(
    ("tool", "point"),
    [
        *(("credit", point) for point in DOUBTFUL),
        ("plain_credit", "before_function"),
        ("plain_credit", "after_function"),
    ],
)
async def test_killed_call_is_in_doubt_and_a_hook_deployed_later_settles_it(
    start: Start, house_store_url: str, receiver: Receiver, point: str, tool: str
) -> None:
    """After commit 1 nobody runs it again by itself; what the receiver says in the end is what is recorded."""
    await killed(start, house_store_url, receiver, point, tool=tool)
    heard = Heard()
    without_hook = {each.name: each for each in tools.credits(receiver.url)}
    async with Tollhouse.open(house_store_url, tools=without_hook.values(), lease_s=LEASE_S, on_event=heard) as house:
        told = await heard.until("doubt_appeared", key=KEY)
        assert told["tool"] == tool
        with pytest.raises(InDoubt):
            await house.call(tool, ASKED, key=KEY)
        assert (await kinds(house, KEY))[:2] == ["departed", "owner_lost"]
        assert (await house.get(KEY)).state is State.IN_DOUBT
    assert len(receiver.effects()) == AT[point].effects
    with_hook = tools.credits(receiver.url, hooks=True)
    async with Tollhouse.open(house_store_url, tools=with_hook, lease_s=LEASE_S, on_event=heard) as house:
        await heard.until("doubt_settled", key=KEY)
        record = await house.get(KEY)
        assert record.state is AT[point].settled
        assert record.settlements[0].by == f"hook:{tool}"
        assert record.attempts[0].lost == "dead"
        if record.state is State.SUCCEEDED:
            replay = await house.call(tool, ASKED, key=KEY)
            assert (replay.value, replay.replayed) == (receiver.effects()[0].id, True)
    assert len(receiver.effects()) == AT[point].effects
    assert len(receiver.requests(method="POST")) == AT[point].effects


async def test_kill_before_commit_1_leaves_the_key_free(start: Start, house_store_url: str, receiver: Receiver) -> None:
    """Nothing was written and nothing sent: the same key runs once in a fresh process."""
    await killed(start, house_store_url, receiver, "before_departure")
    async with Tollhouse.open(house_store_url, tools=tools.credits(receiver.url), lease_s=LEASE_S) as house:
        with pytest.raises(UnknownCall):
            await house.get(KEY)
        outcome = await house.call("credit", ASKED, key=KEY)
        assert not outcome.replayed
        assert await kinds(house, KEY) == ["departed", "outcome"]
    assert len(receiver.effects()) == 1


async def test_kill_after_commit_2_replays_without_any_recovery(
    start: Start, house_store_url: str, receiver: Receiver
) -> None:
    """The outcome was durable before anybody saw its acknowledgement; a fresh process replays it at once."""
    await killed(start, house_store_url, receiver, "after_outcome")
    async with Tollhouse.open(
        house_store_url, tools=tools.credits(receiver.url), lease_s=LEASE_S, background=False
    ) as house:
        outcome = await house.call("credit", ASKED, key=KEY)
        assert (outcome.value, outcome.replayed) == (receiver.effects()[0].id, True)
        assert await kinds(house, KEY) == ["departed", "outcome"]
    assert len(receiver.requests(method="POST")) == 1


@pytest.mark.parametrize("point", ["inside_before_send", "before_record", "after_record"])
async def test_killed_read_runs_again(start: Start, house_store_url: str, receiver: Receiver, point: str) -> None:
    """A read is never in doubt: what was not recorded runs again, what was is replayed."""
    options = {"tests.crash.tools:reading": {"url": receiver.url}}
    worker = await start(house_store_url, options, {"point": point})
    with pytest.raises(Gone):
        await worker.ask("call", "count_credits", {"account": "a1"}, key=KEY)
    async with Tollhouse.open(house_store_url, tools=tools.reading(receiver.url), lease_s=LEASE_S) as house:
        outcome = await house.call("count_credits", {"account": "a1"}, key=KEY)
        assert (outcome.value, outcome.replayed) == (0, point == "after_record")
        assert await kinds(house, KEY) == ["recorded"]
