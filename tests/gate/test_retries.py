"""Sending again has one owner and needs the receiver's word: the same key, the same bytes, while attempts and time
last. What was proven not sent uses none up."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.houses import OpenHouse, settled_down, until
from tollhouse import (
    Asked,
    AttemptOutcome,
    CallContext,
    Deny,
    NotSent,
    Pass,
    Rejected,
    State,
    dedup,
    external,
    read,
    tool,
)
from tollhouse.errors import CallFailed, CallNotSent, InDoubt
from tollhouse.gate import sending as sending_module
from tollhouse.testing.ports import free_port
from tollhouse.testing.proxy import Proxy
from tollhouse.testing.receiver import Receiver

BY_KEY = external(dedup=dedup.by_key(hours=24))
UNKNOWN, NOT_SENT = AttemptOutcome.UNKNOWN, AttemptOutcome.NOT_SENT
REJECTED, HAPPENED = AttemptOutcome.REJECTED, AttemptOutcome.HAPPENED

Script = list[BaseException | str]


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending_module, "BACKOFF_FIRST_S", 0.01)


def playing(script: Script, declaration: Any = BY_KEY, **settings: Any) -> Any:
    """A tool that plays its script, one line for each sending; its last line is its value."""

    @tool(declaration, name="pay", **settings)
    async def pay(ctx: CallContext) -> str:
        line = script[min(ctx.attempt, len(script)) - 1]
        if isinstance(line, BaseException):
            raise line
        return line

    return pay


LOST = ConnectionResetError("lost")
BUSY = Rejected("busy", transient=True)
NO = Rejected("no such account")

SCRIPTS: list[tuple[str, Script, list[AttemptOutcome], State]] = [
    ("answered at last", [LOST, LOST, "paid"], [UNKNOWN, UNKNOWN, HAPPENED], State.SUCCEEDED),
    ("never answered", [LOST], [UNKNOWN, UNKNOWN, UNKNOWN], State.IN_DOUBT),
    ("busy, then paid", [BUSY, "paid"], [REJECTED, HAPPENED], State.SUCCEEDED),
    ("always busy", [BUSY], [REJECTED, REJECTED, REJECTED], State.FAILED),
    ("refused for good", [NO, "paid"], [REJECTED], State.FAILED),
    ("lost, then refused", [LOST, NO], [UNKNOWN, REJECTED], State.IN_DOUBT),
    ("lost, then always busy", [LOST, BUSY], [UNKNOWN, REJECTED, REJECTED], State.IN_DOUBT),
]


async def test_an_owner_sends_again_as_its_contract_allows(open_house: OpenHouse) -> None:
    """The state is the image of the strongest outcome: a refusal of the second sending says nothing of the first."""
    house = await open_house(*(renamed(playing(s), f"pay{n}") for n, (_, s, _, _) in enumerate(SCRIPTS)))
    for number, (name, _, outcomes, state) in enumerate(SCRIPTS):
        try:
            outcome = await house.call(f"pay{number}", key=f"k{number}")
            assert outcome.value == "paid"
        except (CallFailed, InDoubt):
            assert state is not State.SUCCEEDED, name
        record = await house.get(f"k{number}")
        assert [attempt.outcome for attempt in record.attempts] == outcomes, name
        assert record.state is state, name
        assert [attempt.number for attempt in record.attempts] == list(range(1, len(outcomes) + 1))
        fences = [attempt.fence for attempt in record.attempts]
        assert fences == sorted(set(fences))


def renamed(made: Any, name: str) -> Any:
    """The same tool under another name."""
    return tool(BY_KEY, name=name)(made.fn)


async def test_without_dedup_nothing_is_sent_twice(open_house: OpenHouse) -> None:
    """Not by its owner, not when its caller comes back, not by a reconciliation."""
    sendings: list[int] = []

    @tool(external())
    async def pay(ctx: CallContext) -> None:
        sendings.append(ctx.attempt)
        raise LOST

    house = await open_house(pay)
    for _ in range(3):
        with pytest.raises(InDoubt):
            await house.call(pay, key="k")
    await house.reconcile("k")
    assert sendings == [1]


async def test_what_was_not_sent_uses_up_no_attempt(open_house: OpenHouse, receiver: Receiver) -> None:
    """A receiver that is away longer than ``max_attempts`` tries is reached once it is back; only time ends that."""
    receiver.mode("credits", keyed=True)
    host, port = receiver.url.removeprefix("http://").split(":")
    with Proxy(host, int(port)) as proxy:
        proxy.refuse()
        url = proxy.through(receiver.url) + "/v1/credits"
        tries: list[int] = []

        @tool(external(dedup=dedup.by_key(hours=24), max_attempts=2))
        async def credit(ctx: CallContext) -> Any:
            tries.append(ctx.attempt)
            if ctx.attempt == 5:
                proxy.pass_through()
            return (await ctx.http.post(url, json={})).json()

        house = await open_house(credit)
        outcome = await house.call(credit, key="k")
    assert outcome.attempts == len(tries) >= 5
    record = await house.get("k")
    assert [attempt.outcome for attempt in record.attempts] == [NOT_SENT] * (len(tries) - 1) + [HAPPENED]
    assert len(receiver.effects("credits")) == 1


async def test_a_receiver_that_stays_away_is_given_up_at_the_deadline(open_house: OpenHouse) -> None:
    """Then the call is ready, and nothing was sent."""

    @tool(external(dedup=dedup.by_key(hours=24), deadline_s=1.0))
    async def credit(ctx: CallContext) -> Any:
        return (await ctx.http.post(f"http://127.0.0.1:{free_port()}/", json={})).json()

    house = await open_house(credit)
    with pytest.raises(CallNotSent) as caught:
        await asyncio.wait_for(house.call(credit, key="k"), 5)
    assert caught.value.sent == "no"
    record = await house.get("k")
    assert record.state is State.READY
    assert {attempt.outcome for attempt in record.attempts} == {NOT_SENT}
    assert len(record.attempts) > 1


async def test_a_bug_that_was_not_sent_is_not_tried_again(open_house: OpenHouse) -> None:
    """Only trouble with the connection may pass by itself."""
    house = await open_house(pay := playing([KeyError("account"), "paid"], departs="at_confirm"))
    with pytest.raises(CallNotSent):
        await house.call(pay, key="k")
    assert len((await house.get("k")).attempts) == 1


async def test_not_sent_with_a_connection_error_behind_it_is_tried_again(open_house: OpenHouse) -> None:
    """A tool with a client of its own says ``NotSent`` and why."""
    proof = NotSent("no route")
    proof.__cause__ = ConnectionRefusedError()
    house = await open_house(pay := playing([proof, "paid"]))
    assert (await house.call(pay, key="k")).attempts == 2


async def test_an_unknown_first_stays_a_doubt_though_the_second_was_not_sent(open_house: OpenHouse) -> None:
    """And it is sent a third time, since what was not sent used up nothing."""
    proof = NotSent("no route")
    proof.__cause__ = ConnectionRefusedError()
    house = await open_house(pay := playing([LOST, proof, "paid"], max_attempts=2))
    outcome = await house.call(pay, key="k")
    assert (outcome.value, outcome.attempts) == ("paid", 3)


async def test_after_a_timeout_the_owner_sends_again_beside_the_running_attempt(open_house: OpenHouse) -> None:
    """The receiver recognises the key; both replies are on record, and the first caller and every replay get the same
    one."""
    go = asyncio.Event()

    @tool(external(dedup=dedup.by_key(hours=24), attempt_timeout_s=0.5))
    async def pay(ctx: CallContext) -> str:
        if ctx.attempt == 1:
            await go.wait()
        return f"by attempt {ctx.attempt}"

    house = await open_house(pay)
    first = await house.call(pay, key="k")
    assert (first.value, first.attempts) == ("by attempt 2", 2)
    go.set()
    record = await settled_down(house, "k")
    assert [attempt.outcome for attempt in record.attempts] == [HAPPENED, HAPPENED]
    assert record.attempts[0].late
    assert not record.contradicted
    assert (await house.call(pay, key="k")).value == "by attempt 2"


async def test_a_late_reply_settles_a_call_whose_resend_is_lost(open_house: OpenHouse) -> None:
    """The caller gets the value that came late, though the attempt it waits for brought none."""
    resent = asyncio.Event()

    @tool(external(dedup=dedup.by_key(hours=24), attempt_timeout_s=0.5, max_attempts=2))
    async def pay(ctx: CallContext) -> str:
        if ctx.attempt == 1:
            await resent.wait()
            return "late but true"
        resent.set()
        await asyncio.sleep(0.05)
        raise LOST

    house = await open_house(pay)
    outcome = await house.call(pay, key="k")
    assert (outcome.value, outcome.state) == ("late but true", State.SUCCEEDED)
    assert (await house.call(pay, key="k")).value == "late but true"
    outcomes = [attempt.outcome for attempt in (await house.get("k")).attempts]
    assert outcomes == [HAPPENED, UNKNOWN]


async def test_of_two_replies_the_first_is_the_result_for_everybody(open_house: OpenHouse) -> None:
    """The older attempt's reply came while the newer one was out: the caller who waited gets what replays get."""
    resent, answered = asyncio.Event(), asyncio.Event()

    @tool(external(dedup=dedup.by_key(hours=24), attempt_timeout_s=0.5, max_attempts=2))
    async def pay(ctx: CallContext) -> str:
        if ctx.attempt == 1:
            await resent.wait()
            return "first"
        resent.set()
        await answered.wait()
        return "second"

    house = await open_house(pay)
    call = asyncio.create_task(house.call(pay, key="k"))
    await resent.wait()
    await until(house, "k", lambda record: not record.attempts[0].running)
    answered.set()
    assert (await call).value == "first"
    assert (await house.call(pay, key="k")).value == "first"


async def test_the_fence_stops_an_older_attempt_that_has_not_sent_yet(open_house: OpenHouse) -> None:
    """A resend raises the fence, so only one of the two reaches the receiver."""
    late, refusals, effects = asyncio.Event(), [], []

    @tool(external(dedup=dedup.by_key(hours=24), attempt_timeout_s=0.5))
    async def pay(ctx: CallContext) -> int:
        if ctx.attempt == 1:
            await late.wait()
        try:
            await ctx.confirm()
        except NotSent as no:
            refusals.append(no)
            raise
        effects.append(ctx.attempt)
        return ctx.attempt

    house = await open_house(pay)
    assert (await house.call(pay, key="k")).value == 2
    late.set()
    record = await settled_down(house, "k")
    assert (effects, len(refusals)) == ([2], 1)
    assert [attempt.outcome for attempt in record.attempts] == [NOT_SENT, HAPPENED]


@dataclass
class Limiter:
    """A gate that lets a call pass until told otherwise."""

    name: str = "limiter"
    closed: bool = False

    def check(self, asked: Asked) -> Pass | Deny:
        return Deny("too many") if self.closed and asked.sent_before else Pass()


async def test_a_gate_that_says_no_to_a_resend_leaves_the_doubt(open_house: OpenHouse) -> None:
    """All gates run again before every sending; a refusal then is no statement about what was sent."""
    house = await open_house(pay := playing([LOST, "paid"]), gates=[Limiter(closed=True)])
    with pytest.raises(InDoubt):
        await house.call(pay, key="k")
    record = await house.get("k")
    assert [attempt.outcome for attempt in record.attempts] == [UNKNOWN]
    assert record.state is State.IN_DOUBT


async def test_the_limits_of_a_call_stay_with_it(open_house: OpenHouse) -> None:
    """Whoever asks later, in whatever house, gets no sendings that the first caller had given up."""
    pay = playing([LOST, LOST, "paid"])
    few, many = await open_house(pay, max_attempts=2), await open_house(pay)
    for house in (few, few, many):
        with pytest.raises(InDoubt):
            await house.call(pay, key="k")
    assert len((await many.get("k")).attempts) == 2


@pytest.mark.parametrize(
    ("then", "today"),
    [(external(), BY_KEY), (BY_KEY, external())],
    ids=["dedup declared since", "dedup withdrawn since"],
)
async def test_a_resend_needs_dedup_in_the_contract_of_then_and_of_today(
    open_house: OpenHouse, then: Any, today: Any
) -> None:
    """What was promised at departure binds it; what is known today, too."""
    sendings: list[int] = []

    async def pay(ctx: CallContext) -> None:
        sendings.append(ctx.attempt)
        raise LOST

    old = await open_house(tool(then)(pay), gates=[Limiter(closed=True)])
    with pytest.raises(InDoubt):
        await old.call("pay", key="k")
    new = await open_house(tool(today)(pay))
    with pytest.raises(InDoubt):
        await new.call("pay", key="k")
    assert sendings == [1]


async def test_a_caller_who_comes_back_has_a_doubt_sent_again(open_house: OpenHouse) -> None:
    """Where the receiver recognises the key, within the attempts that are left."""
    strict = await open_house(pay := playing([LOST, "paid"]), gates=[Limiter(closed=True)])
    with pytest.raises(InDoubt):
        await strict.call(pay, key="k")
    outcome = await (await open_house(pay)).call(pay, key="k")
    assert (outcome.value, outcome.attempts) == ("paid", 2)


async def test_natural_dedup_ends_with_the_deadline(open_house: OpenHouse) -> None:
    """Harmless to repeat, but not for ever: after ``deadline_s`` nothing is sent again by itself."""
    sendings: list[int] = []

    @tool(external(dedup=dedup.natural, deadline_s=0.8, max_attempts=100))
    async def switch_off(ctx: CallContext) -> None:
        sendings.append(ctx.attempt)
        raise LOST

    house = await open_house(switch_off)
    with pytest.raises(InDoubt):
        await house.call(switch_off, key="k")
    await asyncio.sleep(0.8)
    count = len(sendings)
    assert count > 1
    with pytest.raises(InDoubt):
        await house.call(switch_off, key="k")
    assert len(sendings) == count


EFFECTS = pytest.mark.parametrize(
    "effect",
    [external(dedup=dedup.by_key(hours=24), max_attempts=2), read(max_attempts=2)],
    ids=["effect", "read"],
)


@EFFECTS
async def test_a_sending_is_booked_for_what_was_asked(open_house: OpenHouse, effect: Any) -> None:
    """Its cost is counted after the tool ran, which may have used its arguments up."""

    @tool(effect, cost=lambda arguments, _value: len(arguments["items"]))
    async def order(items: list[str]) -> None:
        items.clear()

    house = await open_house(order)
    await house.call(order, {"items": ["book", "pen"]}, key="k")
    assert (await house.get("k")).attempts[0].cost == "2"


@EFFECTS
async def test_every_sending_gets_the_arguments_that_were_asked_for(open_house: OpenHouse, effect: Any) -> None:
    """A tool may change what it is given; under one key the receiver still gets the same bytes each time."""

    @tool(effect)
    async def order(items: list[str]) -> int:
        items.append("gift card")
        got.append(items)
        if len(got) == 1:
            raise ConnectionResetError("cut off")
        return len(items)

    got: list[list[str]] = []
    house = await open_house(order)
    assert (await house.call(order, {"items": ["book"]}, key="k")).attempts == 2
    assert got == [["book", "gift card"]] * 2
