"""The store fails around a commit: before it, or after it was applied and nobody heard. What left, left once."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.crash import tools
from tests.crash.fixtures import Start
from tests.crash.listening import Heard, eventually, kinds
from tests.crash.process import LEASE_S, Answered
from tests.doubt.scenes import ASKED, KEY
from tollhouse import AttemptOutcome, State, Tollhouse, happened
from tollhouse.errors import InDoubt, StoreFull, StoreReadOnly, StoreUnavailable, UnknownCall
from tollhouse.testing.crashpoints import Action, Crash, Crashes, crashing_house
from tollhouse.testing.pgwire import Statement, Variant
from tollhouse.testing.proxy import Proxy
from tollhouse.testing.receiver import Receiver

CREDITS = "tests.crash.tools:credits"


# case H03
@pytest.mark.parametrize("error", [StoreUnavailable, StoreFull, StoreReadOnly])
async def test_store_that_fails_before_commit_1_lets_nothing_leave(
    house_store_url: str, receiver: Receiver, error: type[StoreUnavailable]
) -> None:
    """The caller hears that nothing was sent; after the recovery the same key runs once, anywhere."""
    crashes = Crashes(Crash("before_departure", Action.RAISE, error=error))
    offered = tools.credits(receiver.url)
    async with crashing_house(house_store_url, crashes, tools=offered, lease_s=LEASE_S) as house:
        with pytest.raises(error) as away:
            await house.call("credit", ASKED, key=KEY)
        assert (away.value.sent, away.value.key) == ("no", KEY)
        with pytest.raises(UnknownCall):
            await house.get(KEY)
        assert receiver.requests() == []
        async with Tollhouse.open(house_store_url, tools=offered) as other:
            assert not (await other.call("credit", ASKED, key=KEY)).replayed
        assert (await house.call("credit", ASKED, key=KEY)).replayed
    assert len(receiver.effects()) == 1


# case H03
async def test_store_that_fails_after_commit_1_lets_nothing_leave_either(
    start: Start, house_store_url: str, receiver: Receiver
) -> None:
    """The departure is on record and was never begun: its own process takes it back, so another may go at once."""
    failing = {"point": "after_departure", "action": "raise"}
    worker = await start(house_store_url, {CREDITS: {"url": receiver.url}}, failing, lease_s=60.0)
    with pytest.raises(Answered) as away:
        await worker.ask("call", "credit", ASKED, key=KEY)
    assert (away.value.code, away.value.sent) == ("store_unavailable", "no")
    assert receiver.requests() == []
    async with Tollhouse.open(house_store_url, tools=tools.credits(receiver.url)) as house:
        async with asyncio.timeout(20):
            outcome = await house.call("credit", ASKED, key=KEY)
        assert (outcome.replayed, outcome.attempts) == (False, 2)
        record = await house.get(KEY)
        assert [each.outcome for each in record.attempts] == [AttemptOutcome.NOT_SENT, AttemptOutcome.HAPPENED]
    assert len(receiver.requests(method="POST")) == 1


# case H03
@pytest.mark.crash
async def test_process_that_dies_after_an_unheard_commit_1_leaves_a_doubt(
    start: Start, house_store_url: str, receiver: Receiver
) -> None:
    """Only the process itself knew that nothing had left; without it, what is on record may have been sent."""
    failing = {"point": "after_departure", "action": "raise"}
    dying = {"point": "before_outcome"}
    worker = await start(house_store_url, {CREDITS: {"url": receiver.url}}, failing, dying)
    with pytest.raises(Answered):
        await worker.ask("call", "credit", ASKED, key=KEY)
    await worker.until_dead()
    heard = Heard()
    async with Tollhouse.open(house_store_url, lease_s=LEASE_S, on_event=heard) as house:
        await heard.until("doubt_appeared", key=KEY)
        assert await kinds(house, KEY) == ["departed", "owner_lost"]
    assert receiver.requests() == []


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_store_that_fails_around_commit_2_keeps_the_effect(
    house_store_url: str, receiver: Receiver, moment: str
) -> None:
    """The caller hears that it was sent; the outcome is written when the store is back, and replays from then on."""
    crashes = Crashes(Crash(f"{moment}_outcome", Action.RAISE))
    offered = tools.credits(receiver.url)
    async with crashing_house(house_store_url, crashes, tools=offered, lease_s=LEASE_S) as house:
        with pytest.raises(StoreUnavailable) as away:
            await house.call("credit", ASKED, key=KEY)
        assert away.value.sent == "yes"

        async def written() -> bool:
            return (await house.get(KEY)).state is State.SUCCEEDED

        await eventually(written)
        replay = await house.call("credit", ASKED, key=KEY)
        assert (replay.value, replay.replayed) == (receiver.effects()[0].id, True)
        assert await kinds(house, KEY) == ["departed", "outcome"]
    assert len(receiver.requests(method="POST")) == 1


@pytest.mark.crash
async def test_store_that_stays_away_after_the_effect_leaves_a_doubt_for_the_next_process(
    start: Start, house_store_url: str, receiver: Receiver
) -> None:
    """The process ends before it could write: the effect is found by its look-up, and nothing is sent again."""
    failing = {"point": "before_outcome", "action": "raise", "times": 1000}
    worker = await start(house_store_url, {CREDITS: {"url": receiver.url}}, failing, grace_s=0.1)
    with pytest.raises(Answered) as away:
        await worker.ask("call", "credit", ASKED, key=KEY)
    assert (away.value.code, away.value.sent) == ("store_unavailable", "yes")
    await worker.kill()
    offered = tools.credits(receiver.url, hooks=True)
    async with Tollhouse.open(house_store_url, tools=offered, lease_s=LEASE_S) as house:
        record = await house.wait(KEY, timeout_s=20)
        assert (record.state, record.result) == (State.SUCCEEDED, receiver.effects()[0].id)
    assert len(receiver.requests(method="POST")) == 1


# case C28
@pytest.mark.crash
async def test_expired_reservation_is_a_doubt_and_is_looked_up_before_anything_runs(
    start: Start, house_store_url: str, receiver: Receiver
) -> None:
    """The write took effect, its process died before it could say so, the lease ended: the same key looks first."""
    worker = await start(house_store_url, {CREDITS: {"url": receiver.url}}, {"point": "after_function"})
    answer = worker.ask("call", "credit", ASKED, key=KEY)
    await worker.until_dead()
    assert answer.exception() is not None
    await asyncio.sleep(1.2 * LEASE_S)
    offered = tools.credits(receiver.url, hooks=True)
    async with Tollhouse.open(house_store_url, tools=offered, lease_s=LEASE_S, background=False) as house:
        await house.services.round()
        outcome = await house.call("credit", ASKED, key=KEY)
        assert (outcome.value, outcome.replayed) == (receiver.effects()[0].id, True)
    assert len(receiver.requests(method="POST")) == 1


# case C29
@pytest.mark.parametrize("tool", ["credit", "plain_credit"])
async def test_call_past_its_time_is_a_doubt_and_not_free_again(
    house_store_url: str, receiver: Receiver, tool: str
) -> None:
    """The function's time is over, its effect is not: an identical request is answered with the doubt."""
    receiver.fault("hold_after_effect")
    offered = tools.credits(receiver.url)
    async with Tollhouse.open(house_store_url, tools=offered, lease_s=LEASE_S) as house:
        for _ in range(3):
            with pytest.raises(InDoubt):
                await house.call(tool, ASKED, key=KEY, attempt_timeout_s=0.3)
        await asyncio.sleep(1.2 * LEASE_S)
        with pytest.raises(InDoubt):
            await house.call(tool, ASKED, key=KEY)
        assert len(receiver.requests(method="POST")) == 1
        receiver.release()


# -- an acknowledgement lost between COMMIT and its reply ------------------------------------------------


def names(kind: str) -> Any:
    """Whether a statement writes an event of that kind, whatever its text."""

    def matches(statement: Statement) -> bool:
        return any(kind.encode() in each for each in statement.parameters if each is not None)

    return matches


# case C71
@pytest.mark.postgres
@pytest.mark.parametrize("variant", ["applied", "not_applied"])
@pytest.mark.parametrize("kind", ["departed", "outcome"])
async def test_acknowledgement_lost_during_a_commit_is_resolved_by_its_own_id(
    postgres_url: str, receiver: Receiver, kind: str, variant: Variant
) -> None:
    """The same guarded write is repeated until it is applied or refused: one attempt, one effect, one history."""
    parts = urlsplit(postgres_url)
    assert parts.hostname is not None
    assert parts.port is not None
    with Proxy(parts.hostname, parts.port) as proxy:
        offered = tools.credits(receiver.url)
        async with Tollhouse.open(proxy.through(postgres_url), tools=offered, background=False) as house:
            await house.call("credit", ASKED, key="warm-up")
            trap = proxy.lose_next_ack(names(kind), variant=variant)
            outcome = await house.call("credit", ASKED, key=KEY)
            assert trap.sprung
            assert (outcome.replayed, outcome.attempts) == (False, 1)
            assert outcome.value == receiver.effects()[1].id
            assert await kinds(house, KEY) == ["departed", "outcome"]
            assert house.store.counters.reconnects > 0
    assert len(receiver.requests(method="POST")) == 2


# case C71
@pytest.mark.postgres
@pytest.mark.parametrize("variant", ["applied", "not_applied"])
async def test_acknowledgement_lost_during_a_decision_is_resolved_by_its_own_id(
    postgres_url: str, receiver: Receiver, variant: Variant
) -> None:
    """A person's word is written once, and they are not told that somebody else was faster: it was they."""
    parts = urlsplit(postgres_url)
    assert parts.hostname is not None
    assert parts.port is not None
    receiver.fault("reset_after_effect")
    with Proxy(parts.hostname, parts.port) as proxy:
        offered = tools.credits(receiver.url)
        async with Tollhouse.open(proxy.through(postgres_url), tools=offered, background=False) as house:
            with pytest.raises(InDoubt):
                await house.call("credit", ASKED, key=KEY)
            trap = proxy.lose_next_ack(names("settled"), variant=variant)
            record = await house.resolve(KEY, happened("cr-1"), by="ada", reason="seen")
            assert trap.sprung
            assert (record.state, len(record.settlements)) == (State.SUCCEEDED, 1)
            assert await kinds(house, KEY) == ["departed", "outcome", "settled"]


# case C71
@pytest.mark.postgres
async def test_server_that_is_gone_for_good_during_commit_1_lets_nothing_leave(
    postgres_url: str, receiver: Receiver
) -> None:
    """The commit was applied and the connection cannot be made again: the caller hears that nothing was sent."""
    parts = urlsplit(postgres_url)
    assert parts.hostname is not None
    assert parts.port is not None
    with Proxy(parts.hostname, parts.port) as proxy:
        offered = tools.credits(receiver.url)
        async with Tollhouse.open(
            proxy.through(postgres_url), tools=offered, background=False, store_wait_s=1.0
        ) as house:
            await house.call("credit", ASKED, key="warm-up")
            proxy.refuse()  # what is connected stays so, until the acknowledgement is lost
            trap = proxy.lose_next_ack(names("departed"), variant="applied")
            with pytest.raises(StoreUnavailable) as away:
                await house.call("credit", ASKED, key=KEY)
            assert (trap.sprung, away.value.sent) == (True, "no")
            proxy.pass_through()
            assert receiver.requests(key=f"default:{KEY}") == []
            outcome = await house.call("credit", ASKED, key=KEY)
            assert outcome.value == receiver.effects()[1].id
    assert len(receiver.requests(key=f"default:{KEY}")) == 1
