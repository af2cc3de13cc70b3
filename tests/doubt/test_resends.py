"""A doubt is sent again only where the receiver recognises the key: same key, same bytes, inside the window."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.crash.listening import Heard, kinds
from tests.doubt.scenes import ASKED, KEY, facts
from tests.support.houses import OpenHouse
from tollhouse import AttemptOutcome, CallContext, Deny, Pass, State, dedup, did_not_happen, external, happened, tool
from tollhouse.contract.terms import US, Dedup
from tollhouse.contract.tool import Tool
from tollhouse.errors import InDoubt, NotAllowed
from tollhouse.gate.verdicts import Asked, Verdict
from tollhouse.testing.receiver import Receiver

BY_KEY = dedup.by_key(hours=1)


class Sender:
    """Makes tools named `credit` over a receiver. The first ``lost`` sendings of all of them are never answered."""

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self.lost = 1
        self.sendings = 0

    def tool(self, kind: Dedup = BY_KEY, *, hook: Callable[..., Any] | None = None, **terms: Any) -> Tool[str]:
        """The tool under these terms."""

        @tool(external(**{"resend_margin_s": 1.0, "departs": "at_confirm", **terms}), dedup=kind, reconcile=hook)
        async def credit(account: str, cents: int, ctx: CallContext) -> str:
            self.sendings += 1
            mine = self.sendings
            response = await ctx.http.post(f"{self.receiver.url}/v1/credits", json={"account": account, "cents": cents})
            if mine <= self.lost:
                await asyncio.Event().wait()
            return str(response.json()["id"])

        return credit

    async def doubt(self, open_house: OpenHouse, credit: Tool[str]) -> None:
        """A call that took effect in a house that closed before it had the answer, with attempts left."""
        house = await open_house(credit, grace_s=0.0)
        call = asyncio.ensure_future(house.call("credit", ASKED, key=KEY))
        await self.receiver.await_for_effects(1)
        await house.close()
        with pytest.raises(InDoubt):
            await call

    def sent_alike(self) -> int:
        """How many requests arrived. Fails unless all had the same key and bytes."""
        requests = self.receiver.requests(method="POST")
        assert len({(each.key, each.body_sha256) for each in requests}) <= 1
        return len(requests)


@pytest.fixture
def sender(receiver: Receiver) -> Sender:
    """A sender whose first request is not answered, at a receiver that recognises keys."""
    receiver.mode("credits", keyed=True)
    return Sender(receiver)


async def test_reconciler_sends_a_doubt_again_by_itself(open_house: OpenHouse, sender: Sender) -> None:
    """No caller is needed: a process that has the tool sends it with the same key, and the receiver has one effect."""
    credit, heard = sender.tool(), Heard()
    await sender.doubt(open_house, credit)
    house = await open_house(credit, background=True, on_event=heard)
    await heard.until("doubt_settled", key=KEY, state="succeeded")
    record = await house.get(KEY)
    assert record.result == sender.receiver.effects()[0].id
    assert [each.outcome for each in record.attempts] == [AttemptOutcome.UNKNOWN, AttemptOutcome.HAPPENED]
    assert await kinds(house, KEY) == ["departed", "outcome", "resent", "outcome"]
    assert (sender.sent_alike(), len(sender.receiver.effects())) == (2, 1)


async def test_caller_of_a_doubt_has_it_sent_again(open_house: OpenHouse, sender: Sender) -> None:
    """Whoever asks for the key again gets the value of the resend."""
    credit = sender.tool()
    await sender.doubt(open_house, credit)
    house = await open_house(credit)
    assert (await house.call(credit, ASKED, key=KEY)).value == sender.receiver.effects()[0].id
    assert (sender.sent_alike(), len(sender.receiver.effects())) == (2, 1)


async def test_hook_is_asked_before_anything_is_sent_again(open_house: OpenHouse, sender: Sender) -> None:
    """Where a look-up can tell, a second request is needless."""
    credit = sender.tool(hook=lambda _call: happened("found"))
    await sender.doubt(open_house, credit)
    house = await open_house(credit)
    assert (await house.reconcile(KEY)).result == "found"
    assert sender.sent_alike() == 1


async def test_last_attempt_that_is_lost_too_stays_in_doubt(open_house: OpenHouse, sender: Sender) -> None:
    """Attempts are counted over all processes; when they are used up, only evidence or a person can end it."""
    sender.lost = 99
    credit = sender.tool(max_attempts=2, attempt_timeout_s=0.3)
    await sender.doubt(open_house, credit)
    house = await open_house(credit)
    assert (await house.reconcile(KEY)).state is State.IN_DOUBT
    record = await house.reconcile(KEY)
    assert (record.state, len(record.attempts)) == (State.IN_DOUBT, 2)
    assert (sender.sent_alike(), len(sender.receiver.effects())) == (2, 1)


async def test_nothing_is_sent_again_once_the_window_less_margin_is_over(open_house: OpenHouse, sender: Sender) -> None:
    """The receiver may forget the key while a slow request is under way, so the margin is taken off."""
    window_s, margin_s = 2.0, 1.2
    credit = sender.tool(dedup.by_key(hours=window_s / 3600), resend_margin_s=margin_s)
    await sender.doubt(open_house, credit)
    house = await open_house(credit)
    await asyncio.sleep(window_s - margin_s)  # the store's own clock decides
    assert (await house.reconcile(KEY)).state is State.IN_DOUBT
    with pytest.raises(InDoubt):
        await house.call(credit, ASKED, key=KEY)
    assert "has ended" in facts(await house.get(KEY), "looked_up")[-1]["note"]
    assert sender.sent_alike() == 1


async def test_resend_may_leave_until_the_window_ends_and_no_later(open_house: OpenHouse, sender: Sender) -> None:
    """Its last moment to send is bounded by the window less margin, counted from the first departure."""
    credit = sender.tool(dedup.by_key(hours=10 / 3600), resend_margin_s=4.0)
    await sender.doubt(open_house, credit)
    house = await open_house(credit)
    record = await house.reconcile(KEY)
    departed_us = record.raw.departed_at_us
    assert departed_us is not None
    resent = facts(await house.get(KEY), "resent")[0]
    assert resent["send_by_us"] == departed_us + 6 * US


async def test_what_repeats_harmlessly_is_sent_again_within_its_deadline(open_house: OpenHouse, sender: Sender) -> None:
    """`natural` needs no key at the receiver; it ends with the deadline."""
    credit = sender.tool(dedup.natural, deadline_s=60.0, attempt_timeout_s=20.0)
    await sender.doubt(open_house, credit)
    house = await open_house(credit)
    assert (await house.reconcile(KEY)).state is State.SUCCEEDED
    assert sender.sent_alike() == 2


async def test_what_repeats_harmlessly_is_not_sent_after_its_deadline(open_house: OpenHouse, sender: Sender) -> None:
    """Later the world may have moved on, and setting the value again would undo what came between."""
    credit = sender.tool(dedup.natural, deadline_s=0.6, attempt_timeout_s=0.5)
    await sender.doubt(open_house, credit)
    house = await open_house(credit)
    await asyncio.sleep(0.6)  # the deadline, on the store's own clock
    assert (await house.reconcile(KEY)).state is State.IN_DOUBT
    assert sender.sent_alike() == 1


async def test_cancel_forbids_that_a_doubt_is_sent_again(open_house: OpenHouse, sender: Sender) -> None:
    """Who cancels wants nothing more of it to leave; whether the first one took effect stays open."""
    credit = sender.tool()
    await sender.doubt(open_house, credit)
    house = await open_house(credit)
    await house.cancel(KEY, by="ada", reason="not wanted any more")
    assert (await house.reconcile(KEY)).state is State.IN_DOUBT
    with pytest.raises(InDoubt):
        await house.call(credit, ASKED, key=KEY)
    assert sender.sent_alike() == 1
    assert "cancelled" in facts(await house.get(KEY), "looked_up")[-1]["note"]


async def test_new_round_after_a_cancel_may_send_again(open_house: OpenHouse, sender: Sender) -> None:
    """A named person who retries takes the cancel back."""
    credit = sender.tool()
    await sender.doubt(open_house, credit)
    house = await open_house(credit)
    await house.cancel(KEY, by="ada")
    await house.resolve(KEY, did_not_happen(), by="ada", reason="it never arrived")
    await house.retry(KEY, by="ada", reason="wanted after all")
    assert (await house.call(credit, ASKED, key=KEY)).value == sender.receiver.effects()[0].id
    assert (sender.sent_alike(), len(sender.receiver.effects())) == (2, 1)


@pytest.mark.parametrize("then", [True, False])
async def test_both_contracts_must_allow_it(open_house: OpenHouse, sender: Sender, then: bool) -> None:
    """What was promised when it departed still binds, and what is promised today binds as well."""
    with_key, without = sender.tool(), sender.tool(dedup.none)
    await sender.doubt(open_house, with_key if then else without)
    house = await open_house(without if then else with_key)
    assert (await house.reconcile(KEY)).state is State.IN_DOUBT
    assert sender.sent_alike() == 1


class Gatekeeper:
    """A gate that lets the first departure pass, and nothing after it."""

    name = "gatekeeper"

    def check(self, asked: Asked) -> Verdict:
        return Pass() if asked.sent_before == 0 else Deny("the budget is spent")


async def test_gate_that_says_no_leaves_the_doubt(open_house: OpenHouse, sender: Sender) -> None:
    """All gates run again before each resend; their refusal is no settlement."""
    credit = sender.tool()
    await sender.doubt(open_house, credit)
    house = await open_house(credit, gates=[Gatekeeper()])
    record = await house.reconcile(KEY)
    assert (record.state, record.settlements) == (State.IN_DOUBT, ())
    assert "gate" in facts(await house.get(KEY), "looked_up")[-1]["note"]
    assert sender.sent_alike() == 1


async def test_process_without_the_tool_sends_nothing(open_house: OpenHouse, sender: Sender) -> None:
    """Only a process that has the tool can act on its doubts; the others leave them alone."""
    credit = sender.tool()
    await sender.doubt(open_house, credit)
    house = await open_house()
    before = (await house.get(KEY)).version
    await house.services.round()
    assert (await house.reconcile(KEY)).version == before
    assert sender.sent_alike() == 1


async def test_late_reply_of_the_first_sending_and_of_the_second_agree(open_house: OpenHouse, sender: Sender) -> None:
    """Beside a running attempt a keyed resend is allowed; two replies for one effect contradict nothing."""
    sender.lost = 0
    sender.receiver.fault("hold_after_effect")
    credit = sender.tool(attempt_timeout_s=0.5, absent_after_s=0.0)
    house = await open_house(credit)
    outcome = await house.call(credit, ASKED, key=KEY)
    sender.receiver.release()
    record = await house.get(KEY)
    assert (outcome.value, outcome.attempts) == (sender.receiver.effects()[0].id, 2)
    assert (record.state, record.contradicted) == (State.SUCCEEDED, False)
    assert (sender.sent_alike(), len(sender.receiver.effects())) == (2, 1)


async def test_resend_is_refused_for_a_settled_call(open_house: OpenHouse, sender: Sender) -> None:
    """A person's word ends it; reconciling afterwards sends nothing, and a new round of an effect is refused."""
    credit = sender.tool()
    await sender.doubt(open_house, credit)
    house = await open_house(credit)
    await house.resolve(KEY, happened("seen"), by="ada", reason="in the books")
    assert (await house.reconcile(KEY)).result == "seen"
    with pytest.raises(NotAllowed):
        await house.retry(KEY, by="ada", reason="again")
    assert sender.sent_alike() == 1
