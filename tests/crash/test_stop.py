"""SIGSTOP at every named point, for longer than the lease: another process takes over, then the frozen one wakes.

A frozen process comes back in the middle of whatever it was doing. It must not send any more what passes a check, and
what it knows (its late outcome) must be kept: as the answer where nobody has answered, else as a contradiction.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.crash import tools
from tests.crash.fixtures import Start
from tests.crash.listening import Heard, eventually, kinds
from tests.crash.process import LEASE_S, Answered, Worker
from tollhouse import State, Tollhouse, did_not_happen
from tollhouse.errors import Contradicted
from tollhouse.ledger.record import AttemptOutcome
from tollhouse.testing.receiver import Receiver

pytestmark = pytest.mark.crash

KEY = "order-7:credit"
ASKED = {"account": "a1", "cents": 2500}
UNSENT = ["after_departure", "before_function", "inside_before_send"]
SENT = ["inside_after_send", "after_function", "before_outcome"]


async def frozen(start: Start, house_store_url: str, receiver: Receiver, point: str, tool: str = "credit") -> Any:
    """A worker that stands still at ``point`` of a call, and the answer it owes."""
    options = {"tests.crash.tools:credits": {"url": receiver.url}}
    worker = await start(house_store_url, options, {"point": point, "action": "stop"})
    answer = worker.ask("call", tool, ASKED, key=KEY)
    await worker.until_stopped()
    return worker, answer


@asynccontextmanager
async def takeover(house_store_url: str, receiver: Receiver, **options: Any) -> AsyncIterator[tuple[Tollhouse, Heard]]:
    """A house in this process, once it has set the frozen owner aside."""
    heard = Heard()
    offered = tools.credits(receiver.url, **options)
    async with Tollhouse.open(house_store_url, tools=offered, lease_s=LEASE_S, on_event=heard) as house:
        await heard.until("doubt_appeared", key=KEY)
        yield house, heard


async def wakes(worker: Worker, answer: asyncio.Future[Any]) -> Any:
    """Let it go on; what it answers."""
    worker.go_on()
    async with asyncio.timeout(20):
        return await answer


async def is_ended(house: Tollhouse, owner_id: str) -> bool:
    """Whether some sweeper has ended that owner."""
    owner = await house.store.owner("default", owner_id)
    return owner is not None and owner.ended_at_us is not None


# case C19
@pytest.mark.parametrize("point", UNSENT)
async def test_frozen_before_sending_does_not_send_after_it_was_set_aside(
    start: Start, house_store_url: str, receiver: Receiver, point: str
) -> None:
    """The last check sees the lost lease: nothing leaves, and the proof of that makes the call ready again."""
    worker, answer = await frozen(start, house_store_url, receiver, point)
    async with takeover(house_store_url, receiver) as (house, _):
        with pytest.raises(Answered) as refused:
            await wakes(worker, answer)
        assert (refused.value.code, refused.value.sent) == ("call_not_sent", "no")
        assert receiver.requests() == []
        record = await house.get(KEY)
        assert record.state is State.READY
        assert (record.attempts[0].outcome, record.attempts[0].late) == (AttemptOutcome.NOT_SENT, True)
        assert await kinds(house, KEY) == ["departed", "owner_lost", "late_outcome"]
        assert (await house.call("credit", ASKED, key=KEY)).attempts == 2
    assert len(receiver.effects()) == 1


@pytest.mark.parametrize("point", UNSENT)
async def test_frozen_before_sending_stays_unsent_after_a_person_settled_it(
    start: Start, house_store_url: str, receiver: Receiver, point: str
) -> None:
    """A settlement moves the fence as well; that nothing left agrees with it, so there is no contradiction."""
    worker, answer = await frozen(start, house_store_url, receiver, point)
    async with takeover(house_store_url, receiver) as (house, heard):
        await house.resolve(KEY, did_not_happen("not in the books"), by="ada", reason="looked")
        with pytest.raises(Answered) as failed:
            await wakes(worker, answer)
        assert failed.value.code == "call_failed"
        record = await house.get(KEY)
        assert (record.state, record.contradicted) == (State.FAILED, False)
        assert record.attempts[0].outcome is AttemptOutcome.NOT_SENT
        assert heard.of("contradiction_opened") == []
    assert receiver.requests() == []


# case C25
@pytest.mark.parametrize("point", SENT)
async def test_frozen_after_sending_answers_late_and_settles_its_own_doubt(
    start: Start, house_store_url: str, receiver: Receiver, point: str
) -> None:
    """The late outcome is first-hand: it ends the doubt, and the caller gets the value."""
    worker, answer = await frozen(start, house_store_url, receiver, point)
    async with takeover(house_store_url, receiver) as (house, _):
        assert (await house.get(KEY)).state is State.IN_DOUBT
        late = await wakes(worker, answer)
        assert (late["state"], late["value"]) == ("succeeded", receiver.effects()[0].id)
        record = await house.get(KEY)
        assert (record.state, record.result) == (State.SUCCEEDED, receiver.effects()[0].id)
        assert (record.attempts[0].outcome, record.attempts[0].late) == (AttemptOutcome.HAPPENED, True)
        assert await kinds(house, KEY) == ["departed", "owner_lost", "late_outcome"]
    assert len(receiver.effects()) == 1


# case C25
# case H02
@pytest.mark.parametrize("point", SENT)
async def test_frozen_after_sending_contradicts_a_person_who_said_no(
    start: Start, house_store_url: str, receiver: Receiver, point: str
) -> None:
    """The decision stands, the late outcome stands beside it, and everybody is told of the contradiction."""
    worker, answer = await frozen(start, house_store_url, receiver, point)
    async with takeover(house_store_url, receiver) as (house, _):
        await house.resolve(KEY, did_not_happen("not in the books"), by="ada", reason="looked")
        with pytest.raises(Answered) as contradicted:
            await wakes(worker, answer)
        assert contradicted.value.code == "call_contradicted"
        await worker.until_told("contradiction_opened")
        record = await house.get(KEY)
        assert (record.state, record.contradicted) == (State.FAILED, True)
        assert record.attempts[0].outcome is AttemptOutcome.HAPPENED
        assert (await kinds(house, KEY))[-2:] == ["late_outcome", "contradiction_opened"]
        with pytest.raises(Contradicted):
            await house.call("credit", ASKED, key=KEY)
    assert len(receiver.effects()) == 1


async def test_frozen_before_commit_1_finds_its_key_taken(
    start: Start, house_store_url: str, receiver: Receiver
) -> None:
    """Another process made the call meanwhile: the woken one's insert is refused, and it replays."""
    worker, answer = await frozen(start, house_store_url, receiver, "before_departure")
    async with Tollhouse.open(house_store_url, tools=tools.credits(receiver.url), lease_s=LEASE_S) as house:
        mine = await house.call("credit", ASKED, key=KEY)
        theirs = await wakes(worker, answer)
        assert (theirs["value"], theirs["replayed"]) == (mine.value, True)
    assert len(receiver.effects()) == 1


async def test_frozen_before_commit_1_departs_only_as_a_new_incarnation(
    start: Start, house_store_url: str, receiver: Receiver
) -> None:
    """The store refuses a departure in the name of an owner that was ended; the woken process takes a new lease."""
    worker, answer = await frozen(start, house_store_url, receiver, "before_departure")
    async with Tollhouse.open(house_store_url, tools=[], lease_s=LEASE_S) as house:
        await eventually(lambda: is_ended(house, worker.owner))
        value = (await wakes(worker, answer))["value"]
        record = await house.get(KEY)
        assert (record.state, record.result) == (State.SUCCEEDED, value)
        assert record.attempts[0].owner != worker.owner
    assert len(receiver.effects()) == 1


async def test_frozen_after_commit_2_changes_nothing(start: Start, house_store_url: str, receiver: Receiver) -> None:
    """It was recorded in time: no doubt appears, and the woken caller gets its value."""
    worker, answer = await frozen(start, house_store_url, receiver, "after_outcome")
    async with Tollhouse.open(house_store_url, tools=tools.credits(receiver.url), lease_s=LEASE_S) as house:
        assert (await house.call("credit", ASKED, key=KEY)).replayed
        assert (await wakes(worker, answer))["value"] == receiver.effects()[0].id
        assert await kinds(house, KEY) == ["departed", "outcome"]
    assert len(receiver.requests(method="POST")) == 1


async def test_unchecked_frozen_sender_is_never_declared_absent(
    start: Start, house_store_url: str, receiver: Receiver
) -> None:
    """A tool that asks nobody may still send when it wakes: no look-up's absence counts, and then the effect comes."""
    worker, answer = await frozen(start, house_store_url, receiver, "before_function", "plain_credit")
    async with takeover(house_store_url, receiver, hooks=True) as (house, heard):
        for _ in range(3):
            record = await house.reconcile(KEY)
            assert record.state is State.IN_DOUBT
        assert (await house.get(KEY)).attempts[0].lost == "lease"
        assert (await wakes(worker, answer))["state"] == "succeeded"
        assert (await house.get(KEY)).state is State.SUCCEEDED
        assert heard.of("contradiction_opened") == []
    assert len(receiver.effects()) == 1


async def test_woken_caller_of_a_hung_tool_hears_of_the_doubt_in_its_time(
    start: Start, house_store_url: str, receiver: Receiver
) -> None:
    """Its call was set aside while it slept, and the receiver never answers: the timeout still ends the wait."""
    receiver.fault("hold_after_effect")
    options = {"tests.crash.tools:credits": {"url": receiver.url}}
    worker = await start(house_store_url, options)
    answer = worker.ask("call", "plain_credit", ASKED, key=KEY, attempt_timeout_s=2.5)
    await receiver.await_for_effects(1)
    await worker.stop()
    async with takeover(house_store_url, receiver) as (house, _):
        with pytest.raises(Answered) as doubt:
            await wakes(worker, answer)
        assert (doubt.value.code, doubt.value.sent) == ("call_in_doubt", "maybe")
        assert (await house.get(KEY)).state is State.IN_DOUBT
    assert len(receiver.effects()) == 1
