"""Approvals at the gate: people agree to what they were shown, for one round and for a time; what runs is what is
stored."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.houses import OpenHouse, until
from tollhouse import (
    Asked,
    CallContext,
    Deny,
    Hold,
    Pass,
    State,
    approval,
    dedup,
    destructive,
    external,
    read,
    tool,
)
from tollhouse.errors import (
    CallConflict,
    CallFailed,
    CallNotSent,
    DecisionConflict,
    Held,
    InDoubt,
    InvalidArguments,
    NotAllowed,
    NotEntitled,
    Refused,
)

sent: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_sent_yet() -> None:
    sent.clear()


@tool(destructive())
async def delete(path: str) -> str:
    """Delete a file."""
    sent.append(path)
    return f"deleted {path}"


ARGUMENTS = {"path": "/a"}


async def held(house: Any, tool_: Any = delete, key: str = "k", arguments: Any = None, **options: Any) -> Held:
    """The call as it waits for people."""
    with pytest.raises(Held) as caught:
        await house.call(tool_, ARGUMENTS if arguments is None else arguments, key=key, **options)
    return caught.value


async def test_a_call_that_needs_approval_waits_and_sends_nothing(open_house: OpenHouse) -> None:
    """Asking again asks nobody twice; once people agreed, the same call goes."""
    told: list[str] = []
    house = await open_house(delete, on_event=lambda kind, _: told.append(kind))
    first = await held(house)
    assert (first.code, first.sent, first.key) == ("call_held", "no", "k")
    await held(house)
    assert sent == []
    assert (await house.get("k")).state is State.HELD
    assert told == ["call_held"]
    approved = await house.approve("k", by="ada")
    assert (approved.state, sent) == (State.READY, [])
    assert (await house.call(delete, ARGUMENTS, key="k")).value == "deleted /a"
    assert (await house.call(delete, ARGUMENTS, key="k")).replayed
    assert sent == ["/a"]


# case H08
async def test_nobody_approves_their_own_call(open_house: OpenHouse) -> None:
    """Refused, and the try is on record."""
    house = await open_house(delete, principal="ada")
    await held(house)
    await held(house, key="k2", by="bob")
    for key, requester in (("k", "ada"), ("k2", "bob")):
        with pytest.raises(NotEntitled) as caught:
            await house.approve(key, by=requester)
        assert caught.value.code == "not_entitled"
        record = await house.get(key)
        assert record.state is State.HELD
        assert record.approval is not None
        assert record.approval.votes == ()
        tried = record.history[-1]
        assert (tried.kind, tried.facts["by"], tried.facts["verb"]) == ("decision_refused", requester, "approve")
        with pytest.raises(NotEntitled):
            await house.edit(key, {"path": "/b"}, by=requester)
        with pytest.raises(Held):
            await house.call(delete, ARGUMENTS, key=key, by=requester)
    await house.approve("k", by="bob")
    assert sent == []


async def test_an_approval_needs_a_name(open_house: OpenHouse) -> None:
    """An anonymous yes is none."""
    house = await open_house(delete)
    await held(house)
    for nobody in ("", "  ", None):
        with pytest.raises(NotEntitled):
            await house.approve("k", by=nobody)  # type: ignore[arg-type]
    assert (await house.get("k")).state is State.HELD


async def test_a_quorum_is_that_many_different_people(open_house: OpenHouse) -> None:
    """One person's second yes counts for nothing; only the named may vote."""
    two = approval(quorum=2, approvers=["ada", "bob", "cy"])

    @tool(external(approval=two))
    async def wire(cents: int) -> int:
        sent.append(cents)
        return cents

    house = await open_house(wire)
    await held(house, wire, arguments={"cents": 5})
    with pytest.raises(NotEntitled):
        await house.approve("k", by="mallory")
    assert (await house.approve("k", by="ada")).state is State.HELD
    with pytest.raises(NotEntitled):
        await house.approve("k", by="ada")
    with pytest.raises(Held):
        await house.call(wire, {"cents": 5}, key="k")
    assert (await house.approve("k", by="cy")).state is State.READY
    assert (await house.call(wire, {"cents": 5}, key="k")).value == 5
    assert sent == [5]


async def test_a_denial_stands(open_house: OpenHouse) -> None:
    """It replays as a refusal, with who and why; a later yes comes too late."""
    house = await open_house(delete)
    await held(house)
    await house.deny("k", by="ada", reason="still needed")
    for _ in range(2):
        with pytest.raises(Refused, match="still needed") as caught:
            await house.call(delete, ARGUMENTS, key="k")
        assert caught.value.sent == "no"
    with pytest.raises(NotAllowed):
        await house.approve("k", by="bob")
    assert sent == []


async def test_an_edit_runs_what_was_edited_and_the_caller_keeps_its_key(open_house: OpenHouse) -> None:
    """Votes given before are void; the difference is on record; the same request finds the edited call."""
    house = await open_house(delete)
    await held(house)
    shown = await house.get("k")
    edited = await house.edit("k", {"path": "/b"}, by="ada", reason="wrong path")
    assert (edited.arguments, edited.state) == ({"path": "/b"}, State.HELD)
    assert edited.digest != shown.digest
    with pytest.raises(DecisionConflict):
        await house.approve("k", by="bob", version=shown.version)
    with pytest.raises((DecisionConflict, NotAllowed)):
        await house.approve("k", by="bob", digest=shown.digest)
    await house.approve("k", by="bob", digest=edited.digest)
    outcome = await house.call(delete, ARGUMENTS, key="k")
    assert (outcome.value, sent) == ("deleted /b", ["/b"])
    with pytest.raises(CallConflict):
        await house.call(delete, {"path": "/b"}, key="k")
    facts = next(line.facts for line in (await house.get("k")).history if line.kind == "edited")
    assert facts["difference"] == {"path": {"old": "/a", "new": "/b"}}


async def test_an_edit_voids_the_votes_given_before(open_house: OpenHouse) -> None:
    """Whoever agreed to the old arguments has not agreed to the new ones."""

    @tool(external(approval=approval(quorum=2)))
    async def wire(cents: int) -> None: ...

    house = await open_house(wire)
    await held(house, wire, arguments={"cents": 5})
    await house.approve("k", by="ada")
    await house.edit("k", {"cents": 500}, by="bob")
    assert (await house.approve("k", by="cy")).state is State.HELD
    assert (await house.approve("k", by="ada")).state is State.READY


async def test_an_edit_must_fit_the_tool(open_house: OpenHouse) -> None:
    """Nobody approves what cannot run; and once something departed, the arguments stand."""

    @tool(destructive(dedup=dedup.by_key(hours=1)))
    async def lose(path: str) -> None:
        raise ConnectionResetError

    house = await open_house(delete, lose)
    await held(house)
    with pytest.raises(InvalidArguments) as caught:
        await house.edit("k", {"pth": "/b"}, by="ada")
    assert (caught.value.sent, caught.value.key) == ("no", "k")
    await held(house, lose, key="k2")
    await house.approve("k2", by="ada")
    with pytest.raises(InDoubt):
        await house.call(lose, ARGUMENTS, key="k2")
    with pytest.raises(NotAllowed):
        await house.edit("k2", {"path": "/b"}, by="ada")


# case C80
async def test_an_approval_that_ran_out_before_departure_sends_nothing(open_house: OpenHouse) -> None:
    """Given in time, used too late: expiry is checked again when it departs."""

    @tool(external(approval=approval(expires_s=0.8)))
    async def wire(cents: int) -> None:
        sent.append(cents)

    house = await open_house(wire)
    await held(house, wire, arguments={"cents": 5})
    await house.approve("k", by="ada")
    await asyncio.sleep(0.82)
    with pytest.raises(Refused, match="expired"):
        await house.call(wire, {"cents": 5}, key="k")
    assert (await house.get("k")).state is State.REFUSED
    assert sent == []


async def test_a_wait_for_people_that_ran_out_is_a_refusal(open_house: OpenHouse) -> None:
    """Whoever comes first finds it so, though nobody's clock told."""

    @tool(external(approval=approval(expires_s=0.05)))
    async def wire(cents: int) -> None:
        sent.append(cents)

    house = await open_house(wire)
    await held(house, wire, arguments={"cents": 5})
    await asyncio.sleep(0.06)
    with pytest.raises(NotAllowed):
        await house.approve("k", by="ada")
    for _ in range(2):
        with pytest.raises(Refused, match="expired"):
            await house.call(wire, {"cents": 5}, key="k")
    assert (await house.get("k")).state is State.REFUSED


async def test_an_approval_lapses_when_the_contract_changed_since(open_house: OpenHouse) -> None:
    """People agreed to another tool than the one that would run: they are asked again, with no vote counted."""

    async def wire(cents: int) -> int:
        sent.append(cents)
        return cents

    old = await open_house(tool(external(approval=True))(wire))
    await held(old, "wire", arguments={"cents": 5})
    await old.approve("k", by="ada")
    new = await open_house(tool(external(approval=True, attempt_timeout_s=7))(wire))
    for _ in range(2):
        with pytest.raises(Held):
            await new.call("wire", {"cents": 5}, key="k")
    record = await new.get("k")
    assert record.approval is not None
    assert (record.state, record.approval.votes) == (State.HELD, ())
    assert "contract changed" in record.approval.reason
    assert "lapsed" in [line.kind for line in record.history]
    await new.approve("k", by="ada")
    assert (await new.call("wire", {"cents": 5}, key="k")).value == 5
    assert sent == [5]


async def test_an_approval_covers_one_round(open_house: OpenHouse) -> None:
    """A call that failed and is retried by name asks people anew."""
    answers: list[BaseException | None] = [PermissionError("no"), None]

    @tool(external(approval=True, rejects=PermissionError))
    async def wire(cents: int) -> str:
        sent.append(cents)
        if (error := answers.pop(0)) is not None:
            raise error
        return "wired"

    house = await open_house(wire)
    await held(house, wire, arguments={"cents": 5})
    await house.approve("k", by="ada")
    with pytest.raises(Exception, match="no"):
        await house.call(wire, {"cents": 5}, key="k")
    assert (await house.retry("k", by="bob", reason="limit raised")).state is State.HELD
    with pytest.raises(Held):
        await house.call(wire, {"cents": 5}, key="k")
    assert sent == [5]
    await house.approve("k", by="ada")
    assert (await house.call(wire, {"cents": 5}, key="k")).value == "wired"
    assert sent == [5, 5]


async def test_an_approval_covers_all_sendings_of_its_round(open_house: OpenHouse) -> None:
    """What proved not sent may go again under it."""
    answers: list[BaseException | None] = [KeyError("bug"), None]

    @tool(external(approval=True, departs="at_confirm"))
    async def wire(cents: int, ctx: CallContext) -> str:
        if (error := answers.pop(0)) is not None:
            raise error
        await ctx.confirm()
        return "wired"

    house = await open_house(wire)
    await held(house, wire, arguments={"cents": 5})
    await house.approve("k", by="ada")
    with pytest.raises(CallNotSent):
        await house.call(wire, {"cents": 5}, key="k")
    assert (await house.call(wire, {"cents": 5}, key="k")).value == "wired"


async def test_only_one_of_many_callers_uses_an_approval(open_house: OpenHouse) -> None:
    """A hundred callers find it ready; one sends."""
    house = await open_house(delete)
    await held(house)
    await house.approve("k", by="ada")
    outcomes = await asyncio.gather(*(house.call(delete, ARGUMENTS, key="k") for _ in range(100)))
    assert {outcome.value for outcome in outcomes} == {"deleted /a"}
    assert sent == ["/a"]


async def test_what_is_approved_can_run_without_its_caller(open_house: OpenHouse) -> None:
    """``run_when_approved``: the house's services send it, with the stored arguments."""
    house = await open_house(delete, run_when_approved=True, background=True, every_s=0.02)
    await held(house)
    await house.approve("k", by="ada")
    record = await until(house, "k", lambda call: call.state is State.SUCCEEDED)
    assert (record.result, sent) == ("deleted /a", ["/a"])
    await held(house, key="k2", run_when_approved=False)
    await house.approve("k2", by="ada")
    await asyncio.sleep(0.1)
    assert (await house.get("k2")).state is State.READY


async def test_parallel_approvals_are_answered_in_any_order(open_house: OpenHouse) -> None:
    """Each answer reaches its own call."""
    house = await open_house(delete)
    for letter in "abc":
        await held(house, key=letter, arguments={"path": f"/{letter}"})
    for letter in "bca":
        await house.approve(letter, by="ada")
        outcome = await house.call(delete, {"path": f"/{letter}"}, key=letter)
        assert outcome.value == f"deleted /{letter}"
    assert sent == ["/b", "/c", "/a"]


# -- gates of one's own ----------------------------------------------------------------------------------------------


@dataclass
class Rule:
    """A gate that answers what it is told to."""

    answer: Any
    name: str = "rule"

    def check(self, asked: Asked) -> Any:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


@dataclass
class LateRule(Rule):
    """The same, after a while."""

    async def check(self, asked: Asked) -> Any:
        await asyncio.sleep(0)
        return super().check(asked)


@tool(external())
async def pay(cents: int) -> int:
    """Pay."""
    sent.append(cents)
    return cents


@pytest.mark.parametrize("kind", [Rule, LateRule])
async def test_a_gate_that_is_broken_lets_nobody_pass(open_house: OpenHouse, kind: Any) -> None:
    """Raising, or answering what is no verdict, denies."""
    for number, answer in enumerate((RuntimeError("s3cret"), None, True, "pass", object())):
        house = await open_house(pay, gates=[kind(answer)])
        with pytest.raises(Refused, match="rule denied it: the gate itself failed") as caught:
            await house.call(pay, {"cents": 5}, key=f"k{number}")
        assert "s3cret" not in str(caught.value)
    assert sent == []


async def test_a_denial_is_stored_or_leaves_the_key_free(open_house: OpenHouse) -> None:
    """Policy is a row that replays; a rate limit is none, and the same key may come again."""
    rule = Rule(Deny("closed on Sundays"))
    house = await open_house(pay, gates=[rule])
    with pytest.raises(Refused, match="rule denied it: closed on Sundays"):
        await house.call(pay, {"cents": 5}, key="policy")
    rule.answer = Deny("too many", stored=False)
    with pytest.raises(Refused, match="too many") as caught:
        await house.call(pay, {"cents": 5}, key="limit")
    assert caught.value.sent == "no"
    rule.answer = Pass()
    with pytest.raises(Refused, match="Sundays"):
        await house.call(pay, {"cents": 5}, key="policy")
    assert (await house.call(pay, {"cents": 5}, key="limit")).value == 5
    assert [call.key for call in await house.list()] == ["limit", "policy"]


async def test_gates_judge_again_at_every_departure(open_house: OpenHouse) -> None:
    """What was approved and is forbidden since does not run; a limit only makes it wait."""
    rule = Rule(Pass())
    house = await open_house(delete, gates=[rule])
    for key in ("policy", "limit"):
        await held(house, key=key)
        await house.approve(key, by="ada")
    rule.answer = Deny("too many", stored=False)
    with pytest.raises(Refused):
        await house.call(delete, ARGUMENTS, key="limit")
    assert (await house.get("limit")).state is State.READY
    rule.answer = Deny("frozen")
    with pytest.raises(Refused, match="frozen"):
        await house.call(delete, ARGUMENTS, key="policy")
    assert (await house.get("policy")).state is State.REFUSED
    rule.answer = Pass()
    assert (await house.call(delete, ARGUMENTS, key="limit")).value == "deleted /a"
    assert sent == ["/a"]


async def test_all_holds_make_one_question_and_a_denial_outweighs_them(open_house: OpenHouse) -> None:
    """The largest quorum, the earliest end, approvers whom all accept."""
    terms = approval(quorum=2, expires_s=60, approvers=["ada", "bob", "cy"])
    other = approval(quorum=1, expires_s=30, approvers=["bob", "cy", "dee"])
    house = await open_house(pay, gates=[Rule(Hold("large", terms), "size"), Rule(Hold("new payee", other), "payee")])
    error = await held(house, pay, arguments={"cents": 5})
    assert "large; new payee" in error.cause
    asked = (await house.get("k")).approval
    assert asked is not None
    assert (asked.quorum, asked.approvers) == (2, ("bob", "cy"))
    strict = await open_house(pay, gates=[Rule(Hold("large")), Rule(Deny("no"), "last")])
    with pytest.raises(Refused, match="last denied it"):
        await strict.call(pay, {"cents": 5}, key="k2")


async def test_gates_see_what_would_run_and_not_how_to_change_it(open_house: OpenHouse) -> None:
    """Validated arguments, who asks, and how often it was sent; a read passes the same gates."""
    seen: list[Asked] = []

    class Watch:
        name = "watch"

        def check(self, asked: Asked) -> Pass:
            seen.append(asked)
            return Pass()

    @tool(read())
    async def look(cents: int = 7) -> int:
        return cents

    house = await open_house(pay, look, gates=[Watch()])
    await house.call(pay, {"cents": "5"}, key="k", by="ada", scope="run-1")
    await house.call(look)
    assert [(a.principal, a.arguments, a.scope, a.sent_before) for a in seen] == [
        ("ada", {"cents": 5}, "run-1", 0),
        ("local", {"cents": 7}, None, 0),
    ]
    assert (await house.get("k")).history[0].facts["gates"] == {"watch": "pass", "approval": "pass"}


async def test_a_read_may_need_approval_too(open_house: OpenHouse) -> None:
    """It waits like any other, and is still never in doubt."""

    @tool(read(approval=True, max_attempts=1))
    async def look() -> None:
        sent.append(1)
        raise ValueError("no such thing")

    house = await open_house(look)
    await held(house, look, arguments={})
    await house.approve("k", by="ada")
    with pytest.raises(Exception, match="may go again") as caught:
        await house.call(look, key="k")
    assert caught.value.code == "call_failed"  # type: ignore[attr-defined]
    assert (await house.get("k")).state is State.READY
    assert sent == [1]


async def test_a_hold_before_another_round_tells_what_an_earlier_one_sent(open_house: OpenHouse) -> None:
    """Nothing was sent in this round; the call is no call of which nothing left."""

    @tool(external(approval=True, rejects=PermissionError))
    async def pay() -> None:
        raise PermissionError

    house = await open_house(pay)
    with pytest.raises(Held) as fresh:
        await house.call(pay, key="k")
    await house.approve("k", by="ada")
    with pytest.raises(CallFailed):
        await house.call(pay, key="k")
    await house.retry("k", by="ada", reason="once more")
    with pytest.raises(Held) as again:
        await house.call(pay, key="k")
    assert (fresh.value.sent, again.value.sent) == ("no", "yes")
