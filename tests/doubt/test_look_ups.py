"""A tool's own look-up ends a doubt, and nothing but what it really says counts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest
from pydantic import BaseModel

from tests.crash import tools
from tests.crash.listening import Heard, kinds
from tests.doubt.scenes import ASKED, KEY, SILENCE_S, facts, in_doubt, lossy
from tests.support.houses import OpenHouse
from tollhouse import Accepted, CallContext, RecordedCall, State, did_not_happen, external, happened, tool, unknown
from tollhouse.contract.answers import Answer
from tollhouse.contract.terms import US
from tollhouse.doubt import reconciler
from tollhouse.errors import CallFailed, Contradicted, HouseClosed, InDoubt
from tollhouse.testing.receiver import Receiver


class Credit(BaseModel):
    """A result with a type, to be rebuilt."""

    id: str
    cents: int


async def test_found_effect_is_recorded_with_its_value_and_replayed(open_house: OpenHouse) -> None:
    """What the hook found is the call's result, in the tool's own type, for every later caller."""

    @tool(external(), reconcile=lambda _call: happened(Credit(id="cr-1", cents=2500), "cr-1"))
    async def credit(account: str, cents: int) -> Credit:
        raise ConnectionResetError("the reply was lost")

    house = await open_house(credit)
    await in_doubt(house)
    record = await house.reconcile(KEY)
    assert record.state is State.SUCCEEDED
    assert (record.result, record.reference) == (Credit(id="cr-1", cents=2500), "cr-1")
    replay = await house.call(credit, ASKED, key=KEY)
    assert (replay.value, replay.replayed, replay.reference) == (record.result, True, "cr-1")
    assert await kinds(house, KEY) == ["departed", "outcome", "settled"]


async def test_caller_of_a_doubt_has_it_looked_up_first(open_house: OpenHouse) -> None:
    """Asking for a doubtful key looks once before it is answered; nothing is sent again."""
    sent = 0

    @tool(external(), reconcile=lambda _call: happened("cr-1"))
    async def credit(account: str, cents: int) -> str:
        nonlocal sent
        sent += 1
        raise ConnectionResetError("the reply was lost")

    house = await open_house(credit)
    await in_doubt(house)
    assert (await house.call("credit", ASKED, key=KEY)).value == "cr-1"
    assert sent == 1


async def test_absence_counts_only_after_silence(open_house: OpenHouse) -> None:
    """A look-up that began too early proves nothing: a late request may still arrive. The next begins in time."""
    heard = Heard()
    house = await open_house(lossy(lambda _call: did_not_happen("not in the books")), on_event=heard, every_s=0.05)
    await in_doubt(house)
    ended_us = (await house.get(KEY)).attempts[0].ended_at_us
    assert ended_us is not None
    early = await house.reconcile(KEY)
    assert early.state is State.IN_DOUBT
    assert early.raw.due_at_us == ended_us + round(SILENCE_S * US) + 1
    with pytest.raises(InDoubt):
        await house.call("credit", ASKED, key=KEY)
    house.services.start()
    await heard.until("doubt_settled", key=KEY, state="failed")
    record = await house.get(KEY)
    (settled,) = (line for line in record.history if line.kind == "settled")
    assert settled.at_us >= ended_us + round(SILENCE_S * US)
    assert settled.facts["evidence"] == "not in the books"
    assert "too early" in facts(record, "looked_up")[0]["note"]
    with pytest.raises(CallFailed, match="did not happen"):
        await house.call("credit", ASKED, key=KEY)


async def test_absence_proves_nothing_while_a_thread_goes_on(open_house: OpenHouse) -> None:
    """A `def` tool whose wait ended still runs: until it ends, the receiver's empty books say nothing."""
    go_on = threading.Event()

    @tool(external(attempt_timeout_s=0.2, absent_after_s=0.0), reconcile=lambda _call: did_not_happen())
    def credit(account: str, cents: int) -> str:
        go_on.wait(20)
        return "cr-1"

    heard = Heard()
    house = await open_house(credit, on_event=heard)
    await in_doubt(house)
    await asyncio.sleep(0.3)  # past send_by and any silence: only the running thread speaks against absence
    record = await house.reconcile(KEY)
    assert record.state is State.IN_DOUBT
    assert "still be running" in facts(await house.get(KEY), "looked_up")[-1]["note"]
    go_on.set()
    await heard.until("doubt_settled", key=KEY, state="succeeded")
    assert (await house.get(KEY)).result == "cr-1"


async def raises(_call: RecordedCall) -> Answer:
    """A look-up that fails."""
    raise RuntimeError("503 from https://ada:secret@books.example/find?token=abc")


async def under_way(_call: RecordedCall) -> Answer:
    """A look-up that finds long work going on."""
    raise Accepted("job-7")


async def wants_context(_call: RecordedCall, ctx: CallContext) -> Answer:
    """A look-up that takes itself for an attempt."""
    return happened(await ctx.http.get("https://books.example"))


async def gives_up(_call: RecordedCall) -> Answer:
    """A look-up that waits for what somebody else cancelled."""
    shared = asyncio.get_running_loop().create_future()
    shared.cancel()
    return cast(Answer, await shared)


class Unprintable:
    """What some clients give for an answer."""

    def __str__(self) -> str:
        raise AttributeError("no text")


def endless() -> dict[str, Any]:
    """Evidence that holds itself."""
    evidence: dict[str, Any] = {}
    evidence["again"] = evidence
    return evidence


UNTELLING: dict[str, tuple[Callable[..., Any], str]] = {
    "says unknown": (lambda _call: unknown("the books are closed"), "the books are closed"),
    "raises": (raises, "RuntimeError"),
    "is cancelled by itself": (gives_up, "CancelledError"),
    "answers nothing": (lambda _call: None, "NoneType"),
    "answers true": (lambda _call: True, "bool"),
    "answers a word": (lambda _call: "happened", "str"),
    "sees it under way": (under_way, "job-7"),
    "asks for a context": (wants_context, "no context"),
    "shows what cannot be printed": (lambda _call: did_not_happen(Unprintable()), "AttributeError"),
    "shows what never ends": (lambda _call: did_not_happen(endless()), "RecursionError"),
    "shows a number beyond writing": (lambda _call: did_not_happen({"rows": 10**5000}), "ValueError"),
    "answers with a word of its own": (lambda _call: Answer(cast(Any, "perhaps")), "perhaps"),
}


@pytest.mark.parametrize("case", UNTELLING)
async def test_look_up_that_cannot_tell_leaves_the_doubt(open_house: OpenHouse, case: str) -> None:
    """Whatever is not *happened* or *did not happen* is unknown, noted, and never an exception of the caller."""
    hook, noted = UNTELLING[case]
    house = await open_house(lossy(hook, absent_after_s=0.0))
    await in_doubt(house)
    assert (await house.reconcile(KEY)).state is State.IN_DOUBT
    (looked,) = facts(await house.get(KEY), "looked_up")
    assert looked["answer"] == "unknown"
    assert noted in looked["note"]
    assert "secret" not in looked["note"]
    assert "abc" not in looked["note"]


async def test_look_up_that_takes_too_long_is_given_up(open_house: OpenHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look-up has a bound, so that one that hangs does not keep the doubt from being looked at again."""

    async def hangs(_call: RecordedCall) -> Answer:
        await asyncio.Event().wait()
        return happened("never said")

    monkeypatch.setattr(reconciler, "LOOK_TIMEOUT_S", 0.1)
    house = await open_house(lossy(hangs))
    await in_doubt(house)
    assert (await house.reconcile(KEY)).state is State.IN_DOUBT
    assert "TimeoutError" in facts(await house.get(KEY), "looked_up")[0]["note"]


async def test_look_ups_back_off(open_house: OpenHouse) -> None:
    """Each look that settles nothing doubles the pause before the next that nobody asks for."""
    house = await open_house(lossy(lambda _call: unknown()))
    await in_doubt(house)
    for _ in range(5):
        await house.reconcile(KEY)
    record = await house.get(KEY)
    looks = [line for line in record.history if line.kind == "looked_up"]
    pauses_s = [round((line.facts["next_us"] - line.at_us) / US) for line in looks]
    assert pauses_s == [2, 4, 8, 16, 32]
    assert record.raw.due_at_us == looks[-1].facts["next_us"]


async def test_asking_again_and_again_does_not_hammer_the_receiver(open_house: OpenHouse) -> None:
    """Callers who repeat a doubtful key at once share the last look's answer."""
    looks = 0

    def hook(_call: RecordedCall) -> Answer:
        nonlocal looks
        looks += 1
        return unknown()

    house = await open_house(lossy(hook))
    await in_doubt(house)
    for _ in range(10):
        with pytest.raises(InDoubt):
            await house.call("credit", ASKED, key=KEY)
    assert looks == 1


def by_record(record: RecordedCall) -> Answer:
    """Bound by the name `record`."""
    return happened(f"{record.key}|{record.arguments['account']}")


async def by_first_parameter(doubt: RecordedCall) -> Answer:
    """Bound as the first parameter that names nothing else."""
    return happened(f"{doubt.key}|{doubt.arguments['account']}")


def by_names(key: str, account: str) -> Answer:
    """Bound by the names of the key and of an argument."""
    return happened(f"{key}|{account}")


def by_wire_key(idempotency_key: str, *, account: str, page: int = 1) -> Answer:
    """Bound by keyword, what has a default and no meaning left alone."""
    assert page == 1
    return happened(f"{idempotency_key.partition(':')[2]}|{account}")


class Finder:
    """A hook that is an object."""

    async def __call__(self, original: RecordedCall) -> Answer:
        return happened(f"{original.key}|{original.arguments['account']}")


class Books:
    """A hook that is a method."""

    def find(self, call: RecordedCall) -> Answer:
        """Bound by the name `call`."""
        return happened(f"{call.key}|{call.arguments['account']}")


@pytest.mark.parametrize("hook", [by_record, by_first_parameter, by_names, by_wire_key, Finder(), Books().find])
async def test_hook_gets_what_its_parameters_ask_for(open_house: OpenHouse, hook: Callable[..., Any]) -> None:
    """Sync or async, function, method or object: arguments are bound by name, the record by its place."""
    house = await open_house(lossy(hook))
    await in_doubt(house)
    record = await house.reconcile(KEY)
    assert (record.state, record.result) == (State.SUCCEEDED, f"{KEY}|a1")


async def test_sync_hook_does_not_block_the_house(open_house: OpenHouse) -> None:
    """A `def` hook runs in a thread: other calls pass while it waits."""
    asked, answer = threading.Event(), threading.Event()

    def slow(_call: RecordedCall) -> Answer:
        asked.set()
        answer.wait(20)
        return happened("cr-1")

    @tool(external())
    async def other() -> str:
        return "passed"

    house = await open_house(lossy(slow), other)
    await in_doubt(house)
    look = asyncio.ensure_future(house.reconcile(KEY))
    await asyncio.to_thread(asked.wait, 20)
    assert (await house.call(other, key="other")).value == "passed"
    answer.set()
    assert (await look).state is State.SUCCEEDED


class Asked:
    """A hook that counts, waits to be told, and then finds the effect."""

    def __init__(self, answer: Answer | None = None) -> None:
        self.looks = 0
        self.out, self.answer_now = asyncio.Event(), asyncio.Event()
        self._answer = answer or happened("cr-1")

    async def __call__(self, record: RecordedCall) -> Answer:
        self.looks += 1
        self.out.set()
        await self.answer_now.wait()
        return self._answer


async def test_concurrent_callers_share_one_look_up_and_none_takes_it_from_the_others(open_house: OpenHouse) -> None:
    """Whoever began the look-up may leave: the others still get its answer."""
    hook = Asked()
    house = await open_house(lossy(hook))
    await in_doubt(house)
    first = asyncio.ensure_future(house.call("credit", ASKED, key=KEY))
    await hook.out.wait()
    others = [asyncio.ensure_future(house.call("credit", ASKED, key=KEY)) for _ in range(5)]
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    hook.answer_now.set()
    assert [each.value for each in await asyncio.gather(*others)] == ["cr-1"] * 5
    assert hook.looks == 1


async def test_finding_loses_to_what_was_decided_during_the_look_up(open_house: OpenHouse) -> None:
    """A look-up settles the call as it was when it began; a person who decided meanwhile is not overruled."""
    hook = Asked()
    house = await open_house(lossy(hook))
    await in_doubt(house)
    look = asyncio.ensure_future(house.reconcile(KEY))
    await hook.out.wait()
    await house.resolve(KEY, did_not_happen("books checked"), by="ada", reason="checked by hand")
    hook.answer_now.set()
    await look
    record = await house.get(KEY)
    assert (record.state, len(record.settlements)) == (State.FAILED, 1)


@pytest.mark.parametrize("answer", [happened("cr-1"), did_not_happen("not in the books")])
async def test_finding_loses_to_a_retry_that_brought_the_same_state_back(open_house: OpenHouse, answer: Answer) -> None:
    """The state alone would look unchanged: in doubt, then settled, retried and in doubt again. The version is not."""
    hook = Asked(answer)
    house = await open_house(lossy(hook, absent_after_s=0.0))
    await in_doubt(house)
    look = asyncio.ensure_future(house.reconcile(KEY))
    await hook.out.wait()
    await house.resolve(KEY, did_not_happen(), by="ada", reason="checked by hand")
    await house.retry(KEY, by="ada", reason="try once more")
    with pytest.raises(InDoubt):
        await house.call("credit", ASKED, key=KEY)
    hook.answer_now.set()
    await look
    record = await house.get(KEY)
    assert (record.state, record.raw.round) == (State.IN_DOUBT, 2)
    assert [each.by for each in record.settlements] == ["ada"]


async def test_finding_against_a_settled_call_opens_a_contradiction(open_house: OpenHouse) -> None:
    """Evidence that comes after a decision is kept beside it, and a person must look; nothing is moved by itself."""
    heard = Heard()
    house = await open_house(lossy(lambda _call: happened("cr-1")), on_event=heard)
    await in_doubt(house)
    await house.resolve(KEY, did_not_happen(), by="ada", reason="not in my list")
    record = await house.reconcile(KEY)
    assert (record.state, record.contradicted) == (State.FAILED, True)
    assert heard.of("contradiction_opened", key=KEY, tool="credit", state="failed")
    with pytest.raises(Contradicted):
        await house.call("credit", ASKED, key=KEY)
    again = await house.reconcile(KEY)
    assert again.contradicted


async def test_look_up_of_a_settled_call_that_agrees_writes_nothing(open_house: OpenHouse) -> None:
    """Asking for a call that is settled already may not grow its history for ever."""
    house = await open_house(lossy(lambda _call: happened("cr-1")))
    await in_doubt(house)
    settled = await house.reconcile(KEY)
    for _ in range(3):
        assert (await house.reconcile(KEY)).version == settled.version


async def test_look_up_of_a_settled_call_that_cannot_tell_is_never_due(open_house: OpenHouse) -> None:
    """What is settled is no work for the services, whatever a look-up of it says."""
    house = await open_house(lossy(lambda _call: did_not_happen(), accepts=True))
    await in_doubt(house)
    await house.resolve(KEY, happened("cr-1"), by="ada", reason="seen")
    record = await house.reconcile(KEY)
    assert (record.state, record.contradicted, record.raw.due_at_us) == (State.SUCCEEDED, False, None)


# case C56
@pytest.mark.parametrize("status", [401, 402, 403, 404, 409, 429, 500])
async def test_refused_look_up_is_no_evidence(open_house: OpenHouse, receiver: Receiver, status: int) -> None:
    """That the receiver refuses to answer says nothing about the first request, which took effect."""
    receiver.fault("reset_after_effect")
    receiver.fault("error_before_effect", status=status, method="GET")
    _, credit, _ = tools.credits(receiver.url, hooks=True)
    house = await open_house(credit)
    await in_doubt(house)
    await asyncio.sleep(tools.SILENCE_S)  # past the silence: an absence would count now
    assert (await house.reconcile(KEY)).state is State.IN_DOUBT
    with pytest.raises(InDoubt):
        await house.call("credit", ASKED, key=KEY)
    assert str(status) in facts(await house.get(KEY), "looked_up")[0]["note"]
    await asyncio.sleep(reconciler.LEAST_BETWEEN_LOOKS_US / US)
    assert (await house.call("credit", ASKED, key=KEY)).value == receiver.effects()[0].id
    assert len(receiver.requests(method="POST")) == 1


async def test_closing_gives_up_look_ups_and_the_caller_hears_of_the_doubt(open_house: OpenHouse) -> None:
    """A look-up changes nothing by being cut off, so closing does not wait for it."""
    hook = Asked()
    house = await open_house(lossy(hook), grace_s=20.0)
    await in_doubt(house)
    look = asyncio.ensure_future(house.call("credit", ASKED, key=KEY))
    await hook.out.wait()
    async with asyncio.timeout(5):
        await house.close()
    with pytest.raises((InDoubt, HouseClosed)):
        await look
    reopened = await open_house(lossy(lambda _call: happened("cr-1")))
    assert (await reopened.reconcile(KEY)).state is State.SUCCEEDED


async def test_hook_that_uses_an_http_client_of_its_own(open_house: OpenHouse, receiver: Receiver) -> None:
    """A look-up reads at the receiver by the key that the receiver was given."""
    receiver.fault("reset_after_effect")
    _, credit, _ = tools.credits(receiver.url, hooks=True)
    house = await open_house(credit)
    await in_doubt(house)
    record = await house.reconcile(KEY)
    assert (record.state, record.reference) == (State.SUCCEEDED, receiver.effects()[0].id)
    assert receiver.effects()[0].key == record.idempotency_key
