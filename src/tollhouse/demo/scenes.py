"""The scenes of the demo, in order. Each says only what it has seen in the ledger or in the receiver's book."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tollhouse import State, did_not_happen, happened
from tollhouse.demo.job import Order
from tollhouse.demo.processes import DemoStopped
from tollhouse.demo.report import Scenario
from tollhouse.demo.stage import SHORT_LEASE_S, Stage, in_state, refused
from tollhouse.demo.tools import ABSENT_AFTER_S, Receipt
from tollhouse.errors import Contradicted, Held, NotAllowed, NotEntitled, Refused
from tollhouse.testing.receiver import Fault

AFTER_COMMIT_1 = "after_departure"
BEFORE_COMMIT_2 = "before_outcome"
CROWD_PROCESSES = 3
CROWD_CALLERS = 4

PLAIN = Order("refund", {"order": "1", "amount_cents": 2500}, "order-1:refund")
TOO_MUCH = Order("refund", {"order": "2", "amount_cents": 900_000}, "order-2:refund")
MISTAKE = Order("refund", {"order": "3", "amount_cents": 4900}, "order-3:refund")
UNSENT = Order("refund", {"order": "4", "amount_cents": 1250}, "order-4:refund")
UNRECORDED = Order("refund", {"order": "5", "amount_cents": 7700}, "order-5:refund")
RECOGNISED = Order("pay_invoice", {"invoice": "6", "amount_cents": 120_000}, "invoice-6:pay")
UNASKABLE = Order("send_letter", {"to": "customer 7"}, "customer-7:letter")
FOR_GOOD = Order("close_account", {"account": "8"}, "customer-8:close")
LATE = Order("refund", {"order": "9", "amount_cents": 3100}, "order-9:refund")
CROWDED = Order("refund", {"order": "10", "amount_cents": 1500}, "order-10:refund")

SCENARIOS = (
    Scenario("sent and answered", PLAIN.key, State.SUCCEEDED, 1),
    Scenario("refused by a gate before sending", TOO_MUCH.key, State.REFUSED, 0),
    Scenario("undone on purpose", MISTAKE.key, State.COMPENSATED, 1),
    Scenario("the call that undoes it", f"{MISTAKE.key}:compensate", State.SUCCEEDED, 1),
    Scenario("killed before sending, then retried by a person", UNSENT.key, State.SUCCEEDED, 1),
    Scenario("killed before the reply was recorded, found by look-up", UNRECORDED.key, State.SUCCEEDED, 1),
    Scenario("killed after the effect, sent again under its key", RECOGNISED.key, State.SUCCEEDED, 1),
    Scenario("killed after the effect, settled by a person", UNASKABLE.key, State.SUCCEEDED, 1),
    Scenario("destructive, sent once a second person agreed", FOR_GOOD.key, State.SUCCEEDED, 1),
    Scenario("a late reply contradicted a person", LATE.key, State.SUCCEEDED, 1),
    Scenario("twelve callers at once under one key", CROWDED.key, State.SUCCEEDED, 1),
)


async def an_ordinary_morning(stage: Stage) -> None:
    """Calls that go well, a replay, and one that a gate refuses."""
    stage.act("An ordinary morning")
    await stage.call(PLAIN)
    stage.say(PLAIN.key, "sent, answered, recorded.")
    again = await stage.call(PLAIN)
    if not again.replayed or len(stage.effects(PLAIN.key)) != 1:
        raise DemoStopped(f"{PLAIN.key} was asked for twice and was not simply answered from the ledger.")
    stage.say(PLAIN.key, "asked again: answered from the ledger, not sent.")
    await refused(stage.call(TOO_MUCH), Refused)
    stage.say(TOO_MUCH.key, "9000.00 is over the limit: refused, nothing sent.")
    await stage.call(MISTAKE)
    stage.say(MISTAKE.key, "sent, answered, recorded.")


async def four_workers_die(stage: Stage) -> None:
    """SIGKILL at each of the three moments that matter; twice after the effect, for two kinds of receiver."""
    stage.act("Four workers die at the worst moments")
    stage.receiver.mode("payments", keyed=True)
    stage.receiver.mode("letters", lookup=False)
    await asyncio.gather(
        _dies_at(stage, UNSENT, AFTER_COMMIT_1, "once written down, before it was sent."),
        _dies_at(stage, UNRECORDED, BEFORE_COMMIT_2, "after the reply, before it was recorded."),
        _dies_after_effect(stage, RECOGNISED, "once paid, before the reply came."),
        _dies_after_effect(stage, UNASKABLE, "once posted, before the reply came."),
    )
    stage.receiver.release()
    for order in (UNSENT, UNRECORDED, RECOGNISED, UNASKABLE):
        in_state(await stage.house.get(order.key), State.DEPARTED)
    stage.say("", "In the ledger all four are 'departed': maybe sent, nobody left to say.")


async def _dies_at(stage: Stage, order: Order, point: str, words: str) -> None:
    worker = await stage.worker(order, crash_at=point, lease_s=SHORT_LEASE_S)
    await stage.died(worker, order.key, words)


async def _dies_after_effect(stage: Stage, order: Order, words: str) -> None:
    stage.receiver.fault(Fault.HOLD_AFTER_EFFECT, key=stage.wire_key(order.key))
    worker = await stage.worker(order, lease_s=SHORT_LEASE_S)
    await stage.effect(order.key)
    await worker.kill()
    await stage.died(worker, order.key, words)


async def a_fresh_process(stage: Stage) -> None:
    """Recovery, with no caller and no help: what evidence can settle is settled, the rest stays visible."""
    stage.act("A fresh process finds out what it can")
    recovery = await stage.worker(serve=True)
    for order in (UNSENT, UNRECORDED, RECOGNISED, UNASKABLE):
        await recovery.heard("doubt_appeared", key=order.key)
    stage.say("", "Their leases have ended: four calls in doubt, and none just repeated.")
    await asyncio.gather(
        _ends(stage, UNRECORDED, State.SUCCEEDED, "billing is asked and has it: settled, it happened."),
        _ends(stage, RECOGNISED, State.SUCCEEDED, "sent again; billing knows the key: one payment."),
        _ends(
            stage,
            UNSENT,
            State.FAILED,
            f"billing has nothing after {ABSENT_AFTER_S:g} s: it did not happen.",
        ),
    )
    in_state(await stage.house.get(UNASKABLE.key), State.IN_DOUBT)
    stage.say(UNASKABLE.key, "no look-up, no known key: it stays in doubt.")


async def _ends(stage: Stage, order: Order, state: State, words: str) -> None:
    in_state(await stage.settled(order.key), state)
    stage.say(order.key, words)


async def people_decide(stage: Stage) -> None:
    """What no evidence settles, and what no machine may decide, is decided by people, by name and with a reason."""
    stage.act("People decide the rest, by name and with a reason")
    house = stage.house
    (letter,) = stage.effects(UNASKABLE.key)
    found = happened(Receipt(letter.id), reference=letter.id)
    await house.resolve(UNASKABLE.key, found, reason="the print shop posted it", by="ada")
    stage.say(UNASKABLE.key, "ada asks the print shop: settled, it happened.")
    await house.retry(UNSENT.key, by="ada", reason="the customer still waits")
    await stage.call(UNSENT)
    stage.say(UNSENT.key, "ada has it tried again: sent, answered, recorded.")
    await house.compensate(MISTAKE.key, by="ada", reason="wrong customer")
    stage.say(MISTAKE.key, "ada has it undone, by a recorded call of its own.")
    await _two_must_agree(stage)


async def _two_must_agree(stage: Stage) -> None:
    house, key = stage.house, FOR_GOOD.key
    await refused(stage.call(FOR_GOOD, run_when_approved=True), Held)
    stage.say(key, "destructive: held until a second person agrees.")
    await refused(house.approve(key, by="shop-agent"), NotEntitled)
    stage.say(key, "shop-agent, who asked for it, may not approve it.")
    await house.approve(key, by="ada")
    in_state(await stage.settled(key), State.SUCCEEDED)
    stage.say(key, "ada approves; the fresh process sends it.")


async def a_late_reply(stage: Stage) -> None:
    """A person judges too early; the reply that comes after all is kept, told, and judged by another person."""
    stage.act("A reply comes after somebody said it never would")
    house, key = stage.house, LATE.key
    stage.receiver.fault(Fault.HOLD_AFTER_EFFECT, key=stage.wire_key(key))
    worker = await stage.worker(LATE)
    await stage.effect(key)
    stage.say(key, "sent; billing has done it and is slow to answer.")
    await house.resolve(key, did_not_happen(), reason="their hotline saw nothing", by="ada", force=True)
    stage.say(key, "ada does not wait: she forces 'it did not happen'.")
    stage.receiver.release()
    await worker.heard("answered", key=key, code=Contradicted.code)
    stage.say(key, "the late reply says it did: a contradiction is open.")
    await refused(house.retry(key, by="ada", reason="it never happened"), NotAllowed)
    stage.say(key, "ada may not retry it while the records disagree.")
    await house.overturn(key, by="bob", reason="the reply names the refund")
    in_state(await stage.settled(key), State.SUCCEEDED)
    stage.say(key, "bob reads both sides and overturns ada: it happened.")


async def a_crowd(stage: Stage) -> None:
    """Many callers of one key, in several processes: one sends, the others get its answer."""
    stage.act("Twelve callers in three processes ask for the same thing at once")
    key = CROWDED.key
    stage.receiver.fault(Fault.HOLD_AFTER_EFFECT, key=stage.wire_key(key))
    crowd = [await stage.worker(CROWDED, callers=CROWD_CALLERS) for _ in range(CROWD_PROCESSES)]
    for worker in crowd:
        await worker.heard("asks", CROWD_CALLERS, key=key)
    await stage.effect(key)
    stage.receiver.release()
    told = [await worker.heard("answered", CROWD_CALLERS, key=key, code=None) for worker in crowd]
    sent = sum(answer["replayed"] is False for answers in told for answer in answers)
    stage.say(key, f"{sent} of them sent it, the other {CROWD_PROCESSES * CROWD_CALLERS - sent} got its answer.")


Scene = Callable[[Stage], Awaitable[None]]
SCENES: tuple[Scene, ...] = (
    an_ordinary_morning,
    four_workers_die,
    a_fresh_process,
    people_decide,
    a_late_reply,
    a_crowd,
)
