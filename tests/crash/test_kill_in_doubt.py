"""SIGKILL while a doubt is being ended: in a look-up, a resend, a decision, a compensation, an approved call.

Whoever dies there, the next process finds the call before the step or after it, never between, and goes on.
"""

from __future__ import annotations

import pytest

from tests.crash import tools
from tests.crash.fixtures import Start
from tests.crash.listening import Heard, kinds
from tests.crash.process import LEASE_S, Gone, Worker
from tollhouse import AttemptOutcome, State, Tollhouse, did_not_happen, happened
from tollhouse.errors import DecisionConflict, Held
from tollhouse.testing.receiver import Receiver

pytestmark = pytest.mark.crash

KEY = "order-7:credit"
ASKED = {"account": "a1", "cents": 2500}


async def in_doubt(
    start: Start, house_store_url: str, receiver: Receiver, toolset: str, tool: str, **options: object
) -> None:
    """A call that took effect and whose worker died before it could say so; nobody has noticed yet."""
    offered = {f"tests.crash.tools:{toolset}": {"url": receiver.url, **options}}
    worker = await start(house_store_url, offered, {"point": "before_outcome"}, background=False)
    with pytest.raises(Gone):
        await worker.ask("call", tool, ASKED, key=KEY)
    await worker.until_dead()


async def dies_settling(
    start: Start, house_store_url: str, receiver: Receiver, point: str, toolset: str, **options: object
) -> Worker:
    """A second worker, which sweeps and reconciles by itself, and dies at ``point`` of that."""
    offered = {f"tests.crash.tools:{toolset}": {"url": receiver.url, **options}}
    worker = await start(house_store_url, offered, {"point": point})
    await worker.until_dead()
    assert worker.reached == [point]
    return worker


@pytest.mark.parametrize("point", ["before_set_aside", "after_set_aside", "before_look_up", "after_look_up"])
async def test_killed_reconciler_is_taken_over_by_the_next(
    start: Start, house_store_url: str, receiver: Receiver, point: str
) -> None:
    """A reconciler holds nothing: what it had written stands, what it had not is done again, and nothing is sent."""
    await in_doubt(start, house_store_url, receiver, "credits", "credit")
    await dies_settling(start, house_store_url, receiver, point, "credits", hooks=True)
    async with Tollhouse.open(house_store_url, tools=tools.credits(receiver.url, hooks=True), lease_s=LEASE_S) as house:
        record = await house.wait(KEY, timeout_s=20)
        assert (record.state, record.result) == (State.SUCCEEDED, receiver.effects()[0].id)
        assert await kinds(house, KEY) == ["departed", "owner_lost", "settled"]
    assert len(receiver.requests(method="POST")) == 1


@pytest.mark.parametrize(("point", "numbers"), [("before_resend", 2), ("after_resend", 3), ("inside_before_send", 3)])
async def test_killed_resend_is_sent_again_under_the_same_key(
    start: Start, house_store_url: str, receiver: Receiver, point: str, numbers: int
) -> None:
    """Each sending is an attempt of its own, each with the same key and bytes: the receiver has one effect."""
    receiver.mode("credits", keyed=True)
    await in_doubt(start, house_store_url, receiver, "keyed", "keyed_credit")
    await dies_settling(start, house_store_url, receiver, point, "keyed")
    async with Tollhouse.open(house_store_url, tools=tools.keyed(receiver.url), lease_s=LEASE_S) as house:
        record = await house.wait(KEY, timeout_s=20)
        assert (record.state, record.result) == (State.SUCCEEDED, receiver.effects()[0].id)
        assert len(record.attempts) == numbers
        assert record.attempts[-1].outcome is AttemptOutcome.HAPPENED
    assert len(receiver.effects()) == 1
    sent = {(each.key, each.body_sha256) for each in receiver.requests(method="POST")}
    assert sent == {(f"default:{KEY}", receiver.effects()[0].body_sha256)}


@pytest.mark.parametrize("point", ["before_decision", "after_decision"])
async def test_killed_decision_is_whole_or_nothing(
    start: Start, house_store_url: str, receiver: Receiver, point: str
) -> None:
    """A person's word is durable before they see that it is; where it is not, they can give it again."""
    await in_doubt(start, house_store_url, receiver, "credits", "credit")
    offered = {"tests.crash.tools:credits": {"url": receiver.url}}
    worker = await start(house_store_url, offered, {"point": point})
    await worker.until_told("doubt_appeared")
    with pytest.raises(Gone):
        await worker.ask("resolve", KEY, {"happened": "credit-x"}, by="ada", reason="in the books")
    async with Tollhouse.open(house_store_url, tools=tools.credits(receiver.url), lease_s=LEASE_S) as house:
        if point == "before_decision":
            assert (await house.get(KEY)).state is State.IN_DOUBT
            await house.resolve(KEY, happened("credit-x"), by="ada", reason="in the books")
        with pytest.raises(DecisionConflict, match="ada decided 'happened'"):
            await house.resolve(KEY, did_not_happen(), by="bob", reason="not there")
        record = await house.get(KEY)
        assert (record.state, record.result) == (State.SUCCEEDED, "credit-x")
        assert [(each.by, each.reason) for each in record.settlements] == [("ada", "in the books")]
    assert len(receiver.effects()) == 1


@pytest.mark.parametrize("point", ["before_compensation", "after_compensation"])
async def test_killed_compensation_settles_with_its_original_or_not_at_all(
    start: Start, house_store_url: str, receiver: Receiver, point: str
) -> None:
    """The original is compensated in the commit that settles its compensation, and undone once."""
    offered = {"tests.crash.tools:credits": {"url": receiver.url, "hooks": True}}
    worker = await start(house_store_url, offered, {"point": point})
    await worker.ask("call", "credit", ASKED, key=KEY)
    with pytest.raises(Gone):
        await worker.ask("compensate", KEY, by="ada", reason="wrong account")
    async with Tollhouse.open(house_store_url, tools=tools.credits(receiver.url, hooks=True), lease_s=LEASE_S) as house:
        undone = State.SUCCEEDED if point == "before_compensation" else State.COMPENSATED
        assert (await house.get(KEY)).state is undone
        undo = await house.wait(f"{KEY}:compensate", timeout_s=20)
        assert (undo.state, undo.result) == (State.SUCCEEDED, receiver.effects("voids")[0].id)
        record = await house.get(KEY)
        assert (record.state, record.raw.compensated_by) == (State.COMPENSATED, undo.key)
        assert (await house.compensate(KEY, by="ada", reason="again")).replayed
    assert len(receiver.effects("voids")) == 1


# case H11
@pytest.mark.parametrize("point", ["after_decision", "after_departure", "before_function"])
async def test_killed_after_approval_still_runs_or_is_in_doubt(
    start: Start, house_store_url: str, receiver: Receiver, point: str
) -> None:
    """What was approved runs by itself in the next worker; once departed, it is a doubt like any other."""
    offered = {"tests.crash.tools:guarded": {"url": receiver.url}}
    async with Tollhouse.open(house_store_url, tools=tools.guarded(receiver.url), background=False) as house:
        with pytest.raises(Held):
            await house.call("delete_account", {"account": "a1"}, key=KEY, run_when_approved=True)
    worker = await start(house_store_url, offered, {"point": point})
    approval = worker.ask("approve", KEY, by="ada")
    await worker.until_dead()
    if point == "after_decision":
        with pytest.raises(Gone):
            await approval
    heard = Heard()
    async with Tollhouse.open(
        house_store_url, tools=tools.guarded(receiver.url), lease_s=LEASE_S, on_event=heard
    ) as house:
        if point == "after_decision":
            assert (await house.wait(KEY, timeout_s=20)).state is State.SUCCEEDED
            assert await kinds(house, KEY) == ["held", "approved", "departed", "outcome"]
        else:
            await heard.until("doubt_appeared", key=KEY)
            assert await kinds(house, KEY) == ["held", "approved", "departed", "owner_lost"]
    assert len(receiver.effects()) == (1 if point == "after_decision" else 0)


@pytest.mark.parametrize("point", ["before_hold", "after_hold"])
async def test_killed_hold_is_whole_or_nothing(
    start: Start, house_store_url: str, receiver: Receiver, point: str
) -> None:
    """A call that waits for people waits without its process, or was never asked."""
    worker = await start(house_store_url, {"tests.crash.tools:guarded": {"url": receiver.url}}, {"point": point})
    with pytest.raises(Gone):
        await worker.ask("call", "delete_account", {"account": "a1"}, key=KEY, by="agent")
    async with Tollhouse.open(house_store_url, tools=tools.guarded(receiver.url), lease_s=LEASE_S) as house:
        assert (await house.count())[State.HELD] == (point == "after_hold")
        with pytest.raises(Held):
            await house.call("delete_account", {"account": "a1"}, key=KEY, by="agent")
        await house.approve(KEY, by="ada")
        await house.call("delete_account", {"account": "a1"}, key=KEY)
    assert len(receiver.effects()) == 1


@pytest.mark.parametrize("point", ["before_wait_end", "after_wait_end"])
async def test_killed_timeout_is_a_doubt(start: Start, house_store_url: str, receiver: Receiver, point: str) -> None:
    """Whether the end of the wait was written or not: the attempt was out, so its effect is looked up."""
    receiver.fault("hold_after_effect")
    worker = await start(house_store_url, {"tests.crash.tools:credits": {"url": receiver.url}}, {"point": point})
    with pytest.raises(Gone):
        await worker.ask("call", "plain_credit", ASKED, key=KEY, attempt_timeout_s=0.3)
    async with Tollhouse.open(house_store_url, tools=tools.credits(receiver.url, hooks=True), lease_s=LEASE_S) as house:
        record = await house.wait(KEY, timeout_s=20)
        assert (record.state, record.result) == (State.SUCCEEDED, receiver.effects()[0].id)
    assert len(receiver.requests(method="POST")) == 1


@pytest.mark.parametrize("point", ["before_callback", "after_callback"])
async def test_killed_report_can_be_reported_again(
    start: Start, house_store_url: str, receiver: Receiver, point: str
) -> None:
    """The receiver repeats what was not acknowledged; the second report says nothing new."""
    worker = await start(house_store_url, {"tests.crash.tools:jobs": {"url": receiver.url}}, {"point": point})
    assert (await worker.ask("call", "export", {"month": "may"}, key=KEY))["state"] == "accepted"
    reference = receiver.effects("jobs")[0].id
    with pytest.raises(Gone):
        await worker.ask("report", KEY, {"happened": "may.csv"}, reference=reference)
    async with Tollhouse.open(house_store_url, tools=tools.jobs(receiver.url), lease_s=LEASE_S) as house:
        before = State.ACCEPTED if point == "before_callback" else State.SUCCEEDED
        assert (await house.get(KEY)).state is before
        record = await house.report(KEY, happened("may.csv"), reference=reference)
        assert (record.state, record.result, record.contradicted) == (State.SUCCEEDED, "may.csv", False)
    assert len(receiver.effects("jobs")) == 1


@pytest.mark.parametrize("point", ["before_expiry", "after_expiry"])
async def test_killed_expiry_is_done_by_the_next(
    start: Start, house_store_url: str, receiver: Receiver, point: str
) -> None:
    """The clock needs no particular process."""
    offered = {"tests.crash.tools:guarded": {"url": receiver.url, "expires_s": 0.3}}
    async with Tollhouse.open(
        house_store_url, tools=tools.guarded(receiver.url, expires_s=0.3), background=False
    ) as house:
        with pytest.raises(Held):
            await house.call("delete_account", {"account": "a1"}, key=KEY)
    worker = await start(house_store_url, offered, {"point": point})
    await worker.until_dead()
    async with Tollhouse.open(house_store_url, lease_s=LEASE_S) as house:
        record = await house.wait(KEY, timeout_s=20)
        assert record.state is State.REFUSED
        assert await kinds(house, KEY) == ["held", "expired"]
