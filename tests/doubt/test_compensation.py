"""Undoing: on purpose only, by a call of its own that is linked to the original, gated and ledgered like any other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.crash.listening import Heard, kinds
from tests.doubt.scenes import ASKED, KEY, facts, in_doubt
from tests.support.houses import OpenHouse
from tollhouse import (
    AttemptOutcome,
    CallContext,
    RecordedCall,
    Rejected,
    State,
    dedup,
    destructive,
    did_not_happen,
    external,
    happened,
    tool,
)
from tollhouse.contract.tool import Tool
from tollhouse.doubt.compensation import compensation_key
from tollhouse.errors import (
    CallFailed,
    Compensated,
    Held,
    InDoubt,
    InvalidKey,
    InvalidSetting,
    NotAllowed,
    NotEntitled,
    UnknownCall,
    UnknownTool,
)

UNDO = f"{KEY}:compensate"


class Account:
    """What was credited and taken back. ``refuse``: how many times taking back is rejected first."""

    def __init__(self) -> None:
        self.credits: list[str] = []
        self.voided: list[str] = []
        self.refuse = 0
        self.lose_reply = False

    def take_back(self, credit: str) -> str:
        """Undo, or refuse to."""
        if self.refuse:
            self.refuse -= 1
            raise Rejected("the period is closed")
        self.voided.append(credit)
        if self.lose_reply:
            raise ConnectionResetError("the reply was lost")
        return f"void of {credit}"

    def tool(self, undo: Callable[..., Any] | Tool[Any] | None, **terms: Any) -> Tool[str]:
        """`credit`, undone by ``undo``."""

        @tool(external(**terms), compensate=undo)
        async def credit(account: str, cents: int) -> str:
            self.credits.append(f"cr-{len(self.credits) + 1}")
            return self.credits[-1]

        return credit

    def by_function(self) -> Callable[..., Any]:
        """A plain function that undoes; it gets the recorded call."""

        async def void(original: RecordedCall, ctx: CallContext) -> str:
            assert ctx.key == compensation_key(original.key)
            return self.take_back(original.result)

        return void

    def by_sync_function(self) -> Callable[..., Any]:
        """One that is sync and asks for what it needs by name."""

        def void(result: str, account: str) -> str:
            assert account == "a1"
            return self.take_back(result)

        return void

    def by_tool(self) -> Tool[str]:
        """A tool of its own, with its own contract."""

        @tool(external())
        async def void_credit(result: str, account: str) -> str:
            assert account == "a1"
            return self.take_back(result)

        return void_credit


@pytest.mark.parametrize("kind", ["by_function", "by_sync_function", "by_tool"])
async def test_undone_call_is_compensated_in_the_commit_that_settles_its_undoing(
    open_house: OpenHouse, kind: str
) -> None:
    """Original and compensation point at each other, and the key then answers that it was undone."""
    account, heard = Account(), Heard()
    house = await open_house(account.tool(getattr(account, kind)()), on_event=heard)
    await house.call("credit", ASKED, key=KEY)
    commits = house.store.counters.commits
    outcome = await house.compensate(KEY, by="ada", reason="wrong account")
    assert house.store.counters.commits == commits + 2
    assert (outcome.key, outcome.value) == (UNDO, "void of cr-1")
    original, undo = await house.get(KEY), await house.get(UNDO)
    assert (original.state, original.raw.compensated_by) == (State.COMPENSATED, UNDO)
    assert (undo.state, undo.raw.compensates, undo.requested_by) == (State.SUCCEEDED, KEY, "ada")
    assert await kinds(house, KEY) == ["departed", "outcome", "compensated"]
    assert await kinds(house, UNDO) == ["departed", "outcome"]
    assert facts(undo, "departed")[0]["reason"] == "wrong account"
    assert heard.of("call_compensated", key=KEY, by="ada", reason="wrong account", compensation=UNDO)
    with pytest.raises(Compensated) as undone:
        await house.call("credit", ASKED, key=KEY)
    assert undone.value.sent == "yes"


# case C94
async def test_sync_function_undoes_in_a_thread_of_its_own(open_house: OpenHouse) -> None:
    """As any `def` tool does: the house goes on meanwhile, and the last check before it sends is the sync one."""
    go_on, house_loop = threading.Event(), threading.get_ident()

    def void(original: RecordedCall, ctx: CallContext) -> str:
        assert threading.get_ident() != house_loop
        assert go_on.wait(10), "the house stood still"
        ctx.confirm_sync()
        return f"void of {original.result}"

    house = await open_house(Account().tool(void))
    await house.call("credit", ASKED, key=KEY)
    undoing = asyncio.ensure_future(house.compensate(KEY, by="ada", reason="a mistake"))
    await asyncio.sleep(0.2)  # longer than commit 1 counts as the check itself
    go_on.set()
    assert (await undoing).value == "void of cr-1"


@pytest.mark.parametrize("kind", ["by_function", "by_tool"])
async def test_compensation_asked_twice_undoes_once(open_house: OpenHouse, kind: str) -> None:
    """One original has one compensation under one key: asking again replays it, also in another house."""
    account = Account()
    credit = account.tool(getattr(account, kind)())
    house, other = await open_house(credit), await open_house(credit)
    await house.call("credit", ASKED, key=KEY)
    first = await house.compensate(KEY, by="ada", reason="the withdrawal failed")
    again = await house.compensate(KEY, by="ada", reason="it failed again")
    elsewhere = await other.compensate(KEY, by="bob", reason="and again")
    assert [first.replayed, again.replayed, elsewhere.replayed] == [False, True, True]
    assert account.voided == ["cr-1"]


# case C94
async def test_compensations_asked_at_once_undo_once(open_house: OpenHouse) -> None:
    """Ten people press the button together."""
    account = Account()
    house = await open_house(account.tool(account.by_function()))
    await house.call("credit", ASKED, key=KEY)
    asked = [house.compensate(KEY, by=f"p{number}", reason="undo") for number in range(10)]
    assert {each.value for each in await asyncio.gather(*asked)} == {"void of cr-1"}
    assert account.voided == ["cr-1"]


async def test_failed_compensation_leaves_the_original_and_can_be_retried(open_house: OpenHouse) -> None:
    """What could not be undone still stands; a named retry of the compensation tries anew."""
    account = Account()
    account.refuse = 1
    house = await open_house(account.tool(account.by_function()))
    await house.call("credit", ASKED, key=KEY)
    with pytest.raises(CallFailed, match="period is closed"):
        await house.compensate(KEY, by="ada", reason="wrong account")
    with pytest.raises(CallFailed):
        await house.compensate(KEY, by="ada", reason="once more")
    assert (await house.call("credit", ASKED, key=KEY)).value == "cr-1"
    await house.retry(UNDO, by="ada", reason="the period is open again")
    assert (await house.compensate(KEY, by="ada", reason="wrong account")).value == "void of cr-1"
    assert (await house.get(KEY)).state is State.COMPENSATED
    assert account.voided == ["cr-1"]


async def test_doubtful_compensation_is_a_doubt_and_its_settlement_compensates(open_house: OpenHouse) -> None:
    """Whether it was undone is unknown until somebody knows; the original follows in that same commit."""
    account = Account()
    account.lose_reply = True
    house = await open_house(account.tool(account.by_function()))
    await house.call("credit", ASKED, key=KEY)
    with pytest.raises(InDoubt):
        await house.compensate(KEY, by="ada", reason="wrong account")
    with pytest.raises(InDoubt):
        await house.compensate(KEY, by="ada", reason="again")
    assert (await house.get(KEY)).state is State.SUCCEEDED
    commits = house.store.counters.commits
    await house.resolve(UNDO, happened("void seen"), by="ada", reason="in the books")
    assert house.store.counters.commits == commits + 1
    assert (await house.get(KEY)).state is State.COMPENSATED
    assert account.voided == ["cr-1"]


async def test_doubtful_compensation_that_did_not_happen_leaves_the_original(open_house: OpenHouse) -> None:
    """Nothing was undone, so the original stands."""
    account = Account()
    account.lose_reply = True
    house = await open_house(account.tool(account.by_function()))
    await house.call("credit", ASKED, key=KEY)
    with pytest.raises(InDoubt):
        await house.compensate(KEY, by="ada", reason="wrong account")
    await house.resolve(UNDO, did_not_happen(), by="ada", reason="not in the books")
    assert (await house.get(KEY)).state is State.SUCCEEDED


async def test_undoing_tool_passes_the_gates_like_any_other(open_house: OpenHouse) -> None:
    """One that needs approval is held, by whoever asked for it not approved, and runs when somebody else agrees."""
    account = Account()

    @tool(destructive())
    async def void_credit(result: str) -> str:
        return account.take_back(result)

    house = await open_house(account.tool(void_credit))
    await house.call("credit", ASKED, key=KEY)
    with pytest.raises(Held):
        await house.compensate(KEY, by="ada", reason="wrong account")
    assert ((await house.get(KEY)).state, account.voided) == (State.SUCCEEDED, [])
    await house.approve(UNDO, by="bob")
    assert (await house.compensate(KEY, by="ada", reason="wrong account")).value == "void of cr-1"
    assert (await house.get(KEY)).state is State.COMPENSATED


async def test_only_an_effect_can_be_undone(open_house: OpenHouse) -> None:
    """A doubt, a failure or a hold has nothing that is known to have happened."""
    account = Account()

    @tool(external(), compensate=account.by_function())
    async def doubted(account: str, cents: int) -> str:
        raise ConnectionResetError("the reply was lost")

    @tool(external(), compensate=account.by_function())
    async def failed(account: str, cents: int) -> str:
        raise Rejected("closed")

    @tool(destructive(), compensate=account.by_function())
    async def held(account: str, cents: int) -> str:
        return "never"

    house = await open_house(doubted, failed, held)
    for each in (doubted, failed, held):
        with pytest.raises((InDoubt, CallFailed, Held)):
            await house.call(each, ASKED, key=each.name)
        with pytest.raises(NotAllowed):
            await house.compensate(each.name, by="ada", reason="undo")
    assert account.voided == []


async def test_compensation_needs_a_tool_that_declares_one(open_house: OpenHouse) -> None:
    """The mistakes have codes of their own, and send nothing."""
    account = Account()
    house = await open_house(account.tool(None))
    await house.call("credit", ASKED, key=KEY)
    with pytest.raises(NotAllowed, match="declares no compensation"):
        await house.compensate(KEY, by="ada", reason="undo")
    with pytest.raises(UnknownCall):
        await house.compensate("no-such-call", by="ada", reason="undo")
    with pytest.raises(InvalidKey):
        await house.compensate("not a key", by="ada", reason="undo")
    other = await open_house()
    with pytest.raises(UnknownTool):
        await other.compensate(KEY, by="ada", reason="undo")


@pytest.mark.parametrize(("by", "reason"), [("", "undo"), (None, "undo"), ("ada", ""), ("ada", None)])
async def test_compensation_is_somebodys_and_says_why(open_house: OpenHouse, by: Any, reason: Any) -> None:
    """Undoing is a decision like the others: without name or reason nothing is sent."""
    account = Account()
    house = await open_house(account.tool(account.by_function()))
    await house.call("credit", ASKED, key=KEY)
    with pytest.raises((NotEntitled, InvalidSetting)):
        await house.compensate(KEY, by=by, reason=reason)
    assert account.voided == []


async def test_contradiction_blocks_undoing(open_house: OpenHouse) -> None:
    """While it is disputed whether it happened, nothing is undone."""
    account = Account()
    found = [happened("cr-1"), did_not_happen("gone")]

    @tool(external(absent_after_s=0.0), reconcile=lambda _call: found.pop(0), compensate=account.by_function())
    async def credit(account: str, cents: int) -> str:
        raise ConnectionResetError("the reply was lost")

    house = await open_house(credit)
    await in_doubt(house)
    assert (await house.reconcile(KEY)).state is State.SUCCEEDED
    assert (await house.reconcile(KEY)).contradicted
    with pytest.raises(NotAllowed, match="contradict"):
        await house.compensate(KEY, by="ada", reason="undo")
    await house.uphold(KEY, by="bob", reason="it is there")
    assert (await house.compensate(KEY, by="ada", reason="undo")).value == "void of cr-1"


async def test_undoing_waits_until_nothing_can_arrive_late(open_house: OpenHouse) -> None:
    """Of two sendings one has answered; the other may still be under way, and would bring back what was undone."""
    account = Account()
    sendings = 0

    @tool(
        external(dedup=dedup.natural, absent_after_s=0.5, attempt_timeout_s=5.0, deadline_s=20.0),
        compensate=account.by_function(),
    )
    async def credit(account: str, cents: int) -> str:
        nonlocal sendings
        sendings += 1
        if sendings == 1:
            raise ConnectionResetError("the reply was lost")
        return "cr-1"

    house = await open_house(credit)
    outcome = await house.call(credit, ASKED, key=KEY)
    assert outcome.attempts == 2
    with pytest.raises(NotAllowed, match="late request"):
        await house.compensate(KEY, by="ada", reason="undo")
    assert (account.voided, (await house.get(KEY)).attempts[0].outcome) == ([], AttemptOutcome.UNKNOWN)
    await asyncio.sleep(0.6)
    assert (await house.compensate(KEY, by="ada", reason="undo")).value == "void of cr-1"


def test_key_of_a_compensation_is_a_valid_key_for_the_longest_original() -> None:
    """Two long keys that differ only at their end have compensations of their own."""
    longest = "k" * 199
    one, other = compensation_key(longest + "1"), compensation_key(longest + "2")
    assert one != other
    assert max(len(one), len(other)) <= 200
    assert compensation_key("short") == "short:compensate"


async def test_longest_key_can_be_undone(open_house: OpenHouse) -> None:
    """The link to the original does not depend on the key's form."""
    account = Account()
    house = await open_house(account.tool(account.by_function()))
    key = "k" * 200
    await house.call("credit", ASKED, key=key)
    await house.compensate(key, by="ada", reason="undo")
    assert (await house.get(key)).state is State.COMPENSATED


async def test_nothing_is_undone_by_the_runtime_itself(open_house: OpenHouse) -> None:
    """Neither a failure nor a contradiction sets a compensation off; people do."""
    account = Account()

    @tool(external(), reconcile=lambda _call: happened("cr-1"), compensate=account.by_function())
    async def credit(account: str, cents: int) -> str:
        raise ConnectionResetError("the reply was lost")

    house = await open_house(credit)
    await in_doubt(house)
    await house.resolve(KEY, did_not_happen(), by="ada", reason="no")
    assert (await house.reconcile(KEY)).contradicted
    await house.services.round()
    assert ([call.key for call in await house.list()], account.voided) == ([KEY], [])
