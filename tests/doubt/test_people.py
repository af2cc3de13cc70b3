"""What people decide: each decision has a name, a reason and a version; who comes second is told who was first."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.crash import tools
from tests.crash.fixtures import Start
from tests.crash.listening import Heard, kinds
from tests.crash.process import Answered
from tests.doubt.scenes import ASKED, KEY, facts, house_over, in_doubt, lossy
from tests.support.houses import OpenHouse
from tollhouse import (
    AttemptOutcome,
    CallContext,
    Rejected,
    State,
    Tollhouse,
    approval,
    destructive,
    did_not_happen,
    external,
    happened,
    tool,
    unknown,
)
from tollhouse.contract.tool import Tool
from tollhouse.errors import (
    CallFailed,
    Contradicted,
    DecisionConflict,
    Held,
    InvalidArguments,
    InvalidKey,
    InvalidSetting,
    NotAllowed,
    NotEntitled,
    Refused,
    UnknownCall,
)
from tollhouse.ledger.store import Store, Write, Written
from tollhouse.testing.receiver import Receiver


class Work:
    """A tool that counts what it did. ``rejects``: how many times the receiver says no first."""

    def __init__(self, rejects: int = 0) -> None:
        self.done: list[dict[str, Any]] = []
        self.rejects = rejects

    def tool(self, **terms: Any) -> Tool[str]:
        """`credit`, needing approval where the terms say so."""

        @tool(external(**terms))
        async def credit(account: str, cents: int) -> str:
            if self.rejects > 0:
                self.rejects -= 1
                raise Rejected("the account is closed")
            self.done.append({"account": account, "cents": cents})
            return f"cr-{len(self.done)}"

        return credit


async def held(house: Tollhouse, **options: Any) -> None:
    """A call that waits for people, asked for by the agent."""
    with pytest.raises(Held):
        await house.call("credit", ASKED, key=KEY, by="agent", **options)


# -- resolving a doubt -----------------------------------------------------------------------------------


async def test_resolved_as_happened_replays_the_value(open_house: OpenHouse) -> None:
    """Who and why is on the record, and later callers get the value that the person gave."""
    house = await open_house(lossy())
    await in_doubt(house)
    record = await house.resolve(KEY, happened("cr-9", "ref-9"), by="ada", reason="seen in the dashboard")
    assert (record.state, record.result, record.reference) == (State.SUCCEEDED, "cr-9", "ref-9")
    replay = await house.call("credit", ASKED, key=KEY)
    assert (replay.value, replay.replayed, replay.reference) == ("cr-9", True, "ref-9")
    (settled,) = facts(await house.get(KEY), "settled")
    assert (settled["by"], settled["reason"], settled["via"]) == ("ada", "seen in the dashboard", "person")


async def test_resolved_as_not_happened_replays_the_failure(open_house: OpenHouse) -> None:
    """The key stays used up: only a named retry makes it go again."""
    house = await open_house(lossy())
    await in_doubt(house)
    record = await house.resolve(KEY, did_not_happen("no such credit"), by="ada", reason="called the bank")
    assert record.state is State.FAILED
    with pytest.raises(CallFailed, match="called the bank"):
        await house.call("credit", ASKED, key=KEY)


async def test_person_may_say_no_at_once_when_every_attempt_has_ended(open_house: OpenHouse) -> None:
    """Silence is for look-ups; a person who knows need not wait for it."""
    house = await open_house(lossy(absent_after_s=3600.0))
    await in_doubt(house)
    assert (await house.resolve(KEY, did_not_happen(), by="ada", reason="I pulled the plug")).state is State.FAILED


async def test_resolving_what_is_still_out_needs_force_and_sets_it_aside(open_house: OpenHouse) -> None:
    """Without force nobody overrules a living owner; with it the attempt's fence is gone."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    @tool(external(departs="at_confirm"))
    async def credit(account: str, cents: int, ctx: CallContext) -> str:
        begun.set()
        await go_on.wait()
        return "cr-1"

    house = await open_house(credit)
    call = asyncio.ensure_future(house.call(credit, ASKED, key=KEY))
    await begun.wait()
    for answer in (happened("cr-9"), did_not_happen()):
        with pytest.raises(NotAllowed):
            await house.resolve(KEY, answer, by="ada", reason="hurry")
    assert (await house.get(KEY)).state is State.DEPARTED
    record = await house.resolve(KEY, happened("cr-9"), by="ada", reason="seen", force=True)
    assert (record.state, record.attempts[0].outcome) == (State.SUCCEEDED, AttemptOutcome.UNKNOWN)
    assert (await kinds(house, KEY))[-2:] == ["forced", "settled"]
    go_on.set()
    assert (await call).value == "cr-9"
    assert (await house.get(KEY)).attempts[0].outcome is AttemptOutcome.HAPPENED


async def test_saying_no_while_a_thread_goes_on_needs_force(open_house: OpenHouse) -> None:
    """The wait has ended, the attempt has not: that is what force is for."""
    go_on = threading.Event()

    @tool(external(attempt_timeout_s=0.2))
    def credit(account: str, cents: int) -> str:
        go_on.wait(20)
        return "cr-1"

    heard = Heard()
    house = await open_house(credit, on_event=heard)
    await in_doubt(house)
    with pytest.raises(NotAllowed, match="force"):
        await house.resolve(KEY, did_not_happen(), by="ada", reason="not there")
    record = await house.resolve(KEY, did_not_happen(), by="ada", reason="not there", force=True)
    assert record.state is State.FAILED
    go_on.set()
    await heard.until("contradiction_opened", key=KEY)


async def test_decision_is_made_on_the_version_that_was_shown(open_house: OpenHouse) -> None:
    """What moved since must be looked at again, whoever moved it."""
    house = await open_house(lossy(lambda _call: unknown()))
    shown = await in_doubt(house)
    await house.reconcile(KEY)
    with pytest.raises(DecisionConflict):
        await house.resolve(KEY, happened(), by="ada", reason="seen", version=shown.version)
    now = await house.get(KEY)
    assert (await house.resolve(KEY, happened(), by="ada", reason="seen", version=now.version)).state is State.SUCCEEDED


class Meanwhile:
    """A store in which something happens just before the next write."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.happens: Callable[[], Awaitable[object]] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def write(self, *writes: Write) -> tuple[Written, ...]:
        """Once what is to happen has happened, as the store does."""
        happens, self.happens = self.happens, None
        if happens is not None:
            await happens()
        return await self._store.write(*writes)


async def test_look_up_noted_meanwhile_is_no_conflict(
    open_house: OpenHouse, shared_store_url: str, house_tenant: str
) -> None:
    """A person who decides on the call as it stands is not sent away because the reconciler looked in vain."""
    other = await open_house(lossy(lambda _call: unknown()))
    await in_doubt(other)
    async with house_over(shared_store_url, Meanwhile, lossy(), tenant=house_tenant) as (house, meanwhile):
        meanwhile.happens = lambda: other.reconcile(KEY)
        assert (await house.resolve(KEY, happened(), by="ada", reason="seen")).state is State.SUCCEEDED
    assert await kinds(other, KEY, looks=True) == ["departed", "outcome", "looked_up", "settled"]


@pytest.mark.parametrize("verb", ["resolve", "cancel"])
async def test_decision_taken_meanwhile_is_a_conflict(
    open_house: OpenHouse, shared_store_url: str, house_tenant: str, verb: str
) -> None:
    """Whatever else moved the call must be looked at, though no version was named."""
    other = await open_house(lossy())
    await in_doubt(other)
    first = {
        "resolve": lambda: other.resolve(KEY, happened("cr-1"), by="bob", reason="seen"),
        "cancel": lambda: other.cancel(KEY, by="bob"),
    }
    async with house_over(shared_store_url, Meanwhile, lossy(), tenant=house_tenant) as (house, meanwhile):
        meanwhile.happens = first[verb]
        with pytest.raises(DecisionConflict):
            await house.resolve(KEY, did_not_happen(), by="ada", reason="not there")


# case H01
async def test_of_two_operators_one_wins_and_the_other_is_told(start: Start, house_store_url: str) -> None:
    """In two processes, at the same moment, on the same version: one decision stands, history holds both tries."""
    offered: dict[str, dict[str, Any]] = {"tests.doubt.lossy_tools:tools": {}}
    workers = [await start(house_store_url, offered, background=False) for _ in range(2)]
    with pytest.raises(Answered):
        await workers[0].ask("call", "credit", ASKED, key=KEY)
    version = (await workers[0].ask("get", KEY))["version"]
    says = [("ada", {"happened": "cr-1"}), ("bob", {"did_not_happen": "no trace"})]
    tries = [
        worker.ask("resolve", KEY, answer, by=by, reason=f"{by} looked", version=version)
        for worker, (by, answer) in zip(workers, says, strict=True)
    ]
    answers = await asyncio.gather(*tries, return_exceptions=True)
    (loser,) = (number for number, answer in enumerate(answers) if isinstance(answer, Answered))
    refusal = answers[loser]
    assert isinstance(refusal, Answered)
    winner = says[1 - loser][0]
    assert refusal.code == "decision_conflict"
    assert f"{winner} decided" in refusal.cause
    assert f"{winner} looked" in refusal.cause
    async with Tollhouse.open(house_store_url, background=False) as house:
        record = await house.get(KEY)
        assert record.state is (State.SUCCEEDED if winner == "ada" else State.FAILED)
        assert [each.by for each in record.settlements] == [winner]
        assert [each["by"] for each in facts(record, "decision_refused")] == [says[loser][0]]


async def test_second_decision_without_a_version_is_told_who_was_first(open_house: OpenHouse) -> None:
    """Deciding on the call as it stands finds it settled, and says by whom and why."""
    house = await open_house(lossy())
    await in_doubt(house)
    await house.resolve(KEY, happened("cr-1"), by="ada", reason="seen")
    with pytest.raises(DecisionConflict, match=r"ada decided 'happened' \(seen\)"):
        await house.resolve(KEY, did_not_happen(), by="bob", reason="not there")
    assert facts(await house.get(KEY), "decision_refused")[0]["by"] == "bob"


@pytest.mark.parametrize("answer", [unknown(), None, "happened", True])
async def test_resolution_must_say_one_or_the_other(open_house: OpenHouse, answer: Any) -> None:
    """*Unknown* is what it is already."""
    house = await open_house(lossy())
    await in_doubt(house)
    with pytest.raises(InvalidSetting):
        await house.resolve(KEY, answer, by="ada", reason="hm")
    assert (await house.get(KEY)).state is State.IN_DOUBT


VERBS: dict[str, tuple[Any, ...]] = {
    "resolve": (happened(),),
    "approve": (),
    "deny": (),
    "edit": ({"account": "a1", "cents": 1},),
    "retry": (),
    "cancel": (),
    "overturn": (),
    "uphold": (),
}
WITHOUT_REASON = {"approve", "edit", "cancel"}


@pytest.mark.parametrize("verb", VERBS)
async def test_decision_needs_a_name_a_known_key_and_mostly_a_reason(open_house: OpenHouse, verb: str) -> None:
    """The same mistakes get the same codes, whatever is decided, and change nothing."""
    house = await open_house(lossy())
    before = await in_doubt(house)
    decide = getattr(house, verb)
    for name in ("", "   ", None, "x" * 201):
        with pytest.raises(NotEntitled):
            await decide(KEY, *VERBS[verb], by=name, reason="because")
    if verb not in WITHOUT_REASON:
        for reason in ("", "  ", None):
            with pytest.raises(InvalidSetting):
                await decide(KEY, *VERBS[verb], by="ada", reason=reason)
    for no_text in ("x" * 4001, 7):
        with pytest.raises(InvalidSetting):
            await decide(KEY, *VERBS[verb], by="ada", reason=no_text)
    with pytest.raises(UnknownCall):
        await decide("no-such-call", *VERBS[verb], by="ada", reason="because")
    with pytest.raises(InvalidKey):
        await decide("not a key", *VERBS[verb], by="ada", reason="because")
    assert (await house.get(KEY)).version == before.version


@pytest.mark.parametrize("verb", ["approve", "deny", "edit", "retry", "overturn", "uphold"])
async def test_decision_that_the_state_does_not_allow_is_refused_and_noted(open_house: OpenHouse, verb: str) -> None:
    """A doubt is neither held nor settled: these have nothing to decide, and history holds the try."""
    house = await open_house(lossy())
    await in_doubt(house)
    with pytest.raises(NotAllowed) as refused:
        await getattr(house, verb)(KEY, *VERBS[verb], by="ada", reason="because")
    assert (refused.value.key, refused.value.sent) == (KEY, "no")
    (noted,) = facts(await house.get(KEY), "decision_refused")
    assert (noted["verb"], noted["by"]) == (verb, "ada")


# -- contradictions --------------------------------------------------------------------------------------


async def contradicted(open_house: OpenHouse, **settings: Any) -> Tollhouse:
    """A call that a person settled as not happened, and that a look-up then found."""
    house = await open_house(lossy(lambda _call: happened("cr-1")), **settings)
    await in_doubt(house)
    await house.resolve(KEY, did_not_happen(), by="ada", reason="not there")
    assert (await house.reconcile(KEY)).contradicted
    return house


async def test_contradiction_blocks_replays_and_retries_until_a_person_decides(open_house: OpenHouse) -> None:
    """It stays open whatever is asked, and says so."""
    house = await contradicted(open_house)
    with pytest.raises(Contradicted):
        await house.call("credit", ASKED, key=KEY)
    with pytest.raises(NotAllowed, match="contradict"):
        await house.retry(KEY, by="bob", reason="again")
    (listed,) = await house.list(contradicted=True)
    assert listed.key == KEY


async def test_overturned_decision_becomes_what_was_found(open_house: OpenHouse) -> None:
    """The recorded evidence is the result, and both decisions stay on record."""
    house = await contradicted(open_house)
    record = await house.overturn(KEY, by="bob", reason="the credit is there")
    assert (record.state, record.result, record.contradicted) == (State.SUCCEEDED, "cr-1", False)
    assert (await house.call("credit", ASKED, key=KEY)).value == "cr-1"
    assert [(each.kind, each.by) for each in record.settlements] == [
        ("evidence", "ada"),
        ("finding", "hook:credit"),
        ("overturn", "bob"),
    ]


async def test_upheld_decision_stands_in_view_of_what_contradicts_it(open_house: OpenHouse) -> None:
    """Somebody looked and confirmed: replays answer again, as failure."""
    house = await contradicted(open_house)
    record = await house.uphold(KEY, by="bob", reason="that was another credit")
    assert (record.state, record.contradicted) == (State.FAILED, False)
    with pytest.raises(CallFailed):
        await house.call("credit", ASKED, key=KEY)
    with pytest.raises(NotAllowed):
        await house.uphold(KEY, by="bob", reason="again")


async def test_nothing_is_overturned_without_something_that_says_so(open_house: OpenHouse) -> None:
    """A person's word alone does not make an effect out of a failure."""
    house = await open_house(lossy())
    await in_doubt(house)
    await house.resolve(KEY, did_not_happen(), by="ada", reason="not there")
    with pytest.raises(NotAllowed) as refused:
        await house.overturn(KEY, by="bob", reason="I think it did")
    assert "Reconcile" in refused.value.remedy


async def test_person_who_was_wrong_about_an_effect_can_be_overturned(open_house: OpenHouse) -> None:
    """*Happened* without any result that came back can turn out false; the evidence is kept with the reversal."""
    house = await open_house(lossy())
    await in_doubt(house)
    await house.resolve(KEY, happened("cr-1"), by="ada", reason="I mixed it up")
    record = await house.overturn(KEY, by="bob", reason="statement of May", evidence="page 3")
    assert record.state is State.FAILED
    assert record.settlements[-1].evidence == "page 3"


async def test_result_that_came_back_cannot_be_overturned(open_house: OpenHouse) -> None:
    """First-hand success is no matter of opinion; what is unwanted is compensated."""
    work = Work()
    house = await open_house(work.tool())
    await house.call("credit", ASKED, key=KEY)
    with pytest.raises(NotAllowed):
        await house.overturn(KEY, by="bob", reason="not wanted")


# case H02
async def test_late_reply_against_a_decision_stands_beside_it(open_house: OpenHouse, receiver: Receiver) -> None:
    """The decision stands, nothing is sent by itself, and the contradiction shows until a person ends it."""
    receiver.fault("hold_after_effect")

    @tool(external(attempt_timeout_s=0.3))
    def credit(account: str, cents: int, ctx: CallContext) -> str:
        return str(tools.post_plainly(receiver.url, "credits", {"cents": cents}, ctx.idempotency_key)["id"])

    heard = Heard()
    house = await open_house(credit, on_event=heard, background=True, every_s=0.05)
    await in_doubt(house)
    await house.resolve(KEY, did_not_happen(), by="ada", reason="not in my list", force=True)
    receiver.release()
    await heard.until("contradiction_opened", key=KEY, state="failed")
    record = await house.get(KEY)
    assert (record.state, record.contradicted) == (State.FAILED, True)
    assert record.attempts[0].outcome is AttemptOutcome.HAPPENED
    assert (await kinds(house, KEY))[-3:] == ["settled", "late_outcome", "contradiction_opened"]
    overturned = await house.overturn(KEY, by="bob", reason="the reply says so")
    assert (overturned.state, overturned.result) == (State.SUCCEEDED, receiver.effects()[0].id)
    assert len(receiver.requests(method="POST")) == 1


# -- rounds ----------------------------------------------------------------------------------------------


async def test_retry_gives_a_failed_call_one_new_round(open_house: OpenHouse) -> None:
    """It sends nothing itself; the same key then goes again, under the same idempotency key."""
    work = Work(rejects=1)
    house = await open_house(work.tool())
    with pytest.raises(CallFailed):
        await house.call("credit", ASKED, key=KEY)
    with pytest.raises(CallFailed):
        await house.call("credit", ASKED, key=KEY)
    record = await house.retry(KEY, by="ada", reason="the account is open again")
    assert (record.state, record.raw.round, work.done) == (State.READY, 2, [])
    outcome = await house.call("credit", ASKED, key=KEY)
    assert (outcome.value, outcome.attempts) == ("cr-1", 2)
    assert await kinds(house, KEY) == ["departed", "outcome", "retried", "departed", "outcome"]
    (retried,) = facts(await house.get(KEY), "retried")
    assert (retried["by"], retried["reason"], retried["round"]) == ("ada", "the account is open again", 2)


async def test_success_of_an_earlier_round_contradicts_the_later_one(open_house: OpenHouse) -> None:
    """Round 1's reply arrives in round 2: nothing more may leave before a person has looked."""
    first, begun = asyncio.Event(), asyncio.Event()
    rounds = 0

    @tool(external(attempt_timeout_s=0.3))
    async def credit(account: str, cents: int) -> str:
        nonlocal rounds
        rounds += 1
        begun.set()
        await first.wait()
        return f"cr-{rounds}"

    heard = Heard()
    house = await open_house(credit, on_event=heard)
    await in_doubt(house)
    await house.resolve(KEY, did_not_happen(), by="ada", reason="not there", force=True)
    await house.retry(KEY, by="ada", reason="once more")
    first.set()
    await heard.until("contradiction_opened", key=KEY)
    with pytest.raises(Contradicted):
        await house.call("credit", ASKED, key=KEY)
    assert rounds == 1


async def test_only_what_failed_or_was_refused_is_retried(open_house: OpenHouse) -> None:
    """A success needs no retry, a doubt may not have one."""
    work = Work()
    house = await open_house(work.tool(), lossy(name="doubted"))
    await house.call("credit", ASKED, key=KEY)
    await in_doubt(house, "doubted", "doubt")
    for key in (KEY, "doubt"):
        with pytest.raises(NotAllowed):
            await house.retry(key, by="ada", reason="again")


# -- approvals -------------------------------------------------------------------------------------------


async def test_approved_call_runs_once_for_its_caller(open_house: OpenHouse) -> None:
    """Held until somebody else agrees; then the same key departs, with the approval consumed."""
    work = Work()
    house = await open_house(work.tool(approval=True))
    await held(house)
    await held(house)
    record = await house.approve(KEY, by="ada", reason="fine")
    assert (record.state, work.done) == (State.READY, [])
    assert (await house.call("credit", ASKED, key=KEY, by="agent")).value == "cr-1"
    assert (await house.call("credit", ASKED, key=KEY, by="agent")).replayed
    record = await house.get(KEY)
    assert record.approval is not None
    assert record.approval.consumed_round == 1
    assert work.done == [ASKED]


# case H08
async def test_nobody_approves_or_edits_their_own_call(open_house: OpenHouse) -> None:
    """The requester is refused, and the try is on record."""
    house = await open_house(Work().tool(approval=True))
    await held(house)
    with pytest.raises(NotEntitled, match="own call"):
        await house.approve(KEY, by="agent")
    with pytest.raises(NotEntitled, match="own call"):
        await house.edit(KEY, {"account": "a1", "cents": 1}, by="agent")
    assert [each["verb"] for each in facts(await house.get(KEY), "decision_refused")] == ["approve", "edit"]
    assert (await house.get(KEY)).state is State.HELD


async def test_quorum_needs_different_people(open_house: OpenHouse) -> None:
    """Two yeses of one person are one."""
    house = await open_house(Work().tool(approval=approval(quorum=2)))
    await held(house)
    assert (await house.approve(KEY, by="ada")).state is State.HELD
    with pytest.raises(NotEntitled, match="already"):
        await house.approve(KEY, by="ada")
    assert (await house.approve(KEY, by="bob")).state is State.READY
    assert await kinds(house, KEY) == ["held", "voted", "decision_refused", "approved"]


async def test_only_named_approvers_count(open_house: OpenHouse) -> None:
    """Where a contract names who may agree, nobody else may agree or deny."""
    house = await open_house(Work().tool(approval=approval(approvers=["ada", "bob"])))
    await held(house)
    with pytest.raises(NotEntitled):
        await house.approve(KEY, by="eve")
    with pytest.raises(NotEntitled):
        await house.deny(KEY, by="eve", reason="no")
    assert (await house.approve(KEY, by="ada")).state is State.READY


async def test_denied_call_is_refused_for_good_and_for_the_reason_given(open_house: OpenHouse) -> None:
    """The key replays the refusal; nothing was ever sent."""
    work = Work()
    house = await open_house(work.tool(approval=True))
    await held(house)
    assert (await house.deny(KEY, by="ada", reason="over the limit")).state is State.REFUSED
    with pytest.raises(Refused, match="over the limit") as refused:
        await house.call("credit", ASKED, key=KEY)
    assert (refused.value.sent, work.done) == ("no", [])
    with pytest.raises(NotAllowed):
        await house.approve(KEY, by="bob")


async def test_approved_call_may_still_be_denied_before_it_departs(open_house: OpenHouse) -> None:
    """A second thought comes in time as long as nothing has left."""
    work = Work()
    house = await open_house(work.tool(approval=True))
    await held(house)
    await house.approve(KEY, by="ada")
    assert (await house.deny(KEY, by="bob", reason="wait")).state is State.REFUSED
    with pytest.raises(Refused):
        await house.call("credit", ASKED, key=KEY)
    assert work.done == []


async def test_edit_changes_what_runs_and_voids_the_votes(open_house: OpenHouse) -> None:
    """Who agreed, agreed to something else; the difference is on record, and the request's digest still finds it."""
    work = Work()
    house = await open_house(work.tool(approval=approval(quorum=2)))
    await held(house)
    await house.approve(KEY, by="ada")
    edited = await house.edit(KEY, {"account": "a1", "cents": 100}, by="bob", reason="less")
    assert edited.approval is not None
    assert (edited.state, edited.approval.votes, edited.arguments["cents"]) == (State.HELD, (), 100)
    assert facts(await house.get(KEY), "edited")[0]["difference"] == {"cents": {"old": 2500, "new": 100}}
    for person in ("ada", "bob"):
        await house.approve(KEY, by=person)
    assert (await house.call("credit", ASKED, key=KEY, by="agent")).value == "cr-1"
    assert work.done == [{"account": "a1", "cents": 100}]


async def test_edit_must_fit_the_tool(open_house: OpenHouse) -> None:
    """What could not be called cannot be edited in."""
    house = await open_house(Work().tool(approval=True))
    await held(house)
    with pytest.raises(InvalidArguments):
        await house.edit(KEY, {"account": "a1", "cents": "many"}, by="ada")
    assert await kinds(house, KEY) == ["held"]


async def test_vote_is_for_what_was_shown(open_house: OpenHouse) -> None:
    """Given the digest, an edit in between makes the yes void instead of wrong."""
    house = await open_house(Work().tool(approval=True))
    await held(house)
    shown = await house.get(KEY)
    await house.edit(KEY, {"account": "a1", "cents": 1}, by="bob")
    with pytest.raises(NotAllowed, match="changed since"):
        await house.approve(KEY, by="ada", digest=shown.digest)
    with pytest.raises(DecisionConflict):
        await house.approve(KEY, by="ada", version=shown.version)
    assert (await house.get(KEY)).state is State.HELD


async def test_unanswered_hold_expires_by_the_clock(open_house: OpenHouse) -> None:
    """No caller and no person is needed for that; it is a refusal, and nothing was sent."""
    work = Work()
    house = await open_house(work.tool(approval=approval(expires_s=0.3)), background=True, every_s=0.05)
    await held(house)
    record = await house.wait(KEY, timeout_s=20)
    assert (record.state, record.history[-1].kind) == (State.REFUSED, "expired")
    with pytest.raises(NotAllowed):
        await house.approve(KEY, by="ada")
    with pytest.raises(Refused, match="expired"):
        await house.call("credit", ASKED, key=KEY)
    assert work.done == []


async def test_expiry_needs_no_process_that_has_the_tool(open_house: OpenHouse) -> None:
    """Any worker of the tenant ends what waits too long."""
    house = await open_house(Work().tool(approval=approval(expires_s=0.3)))
    await held(house)
    other = await open_house(background=True, every_s=0.05)
    assert (await other.wait(KEY, timeout_s=20)).state is State.REFUSED


# case C80
async def test_approval_given_in_time_lapses_before_a_late_departure(open_house: OpenHouse) -> None:
    """Expiry is checked when the call departs, not only while it waits."""
    work = Work()
    house = await open_house(work.tool(approval=approval(expires_s=0.4)))
    await held(house)
    await house.approve(KEY, by="ada")
    await asyncio.sleep(0.45)
    with pytest.raises(Refused, match="expired"):
        await house.call("credit", ASKED, key=KEY)
    assert work.done == []


async def test_retry_of_a_refused_call_asks_for_approval_anew(open_house: OpenHouse) -> None:
    """No approval outlives its round, used or not."""
    work = Work(rejects=1)
    house = await open_house(work.tool(approval=True))
    await held(house)
    await house.approve(KEY, by="ada")
    with pytest.raises(CallFailed):
        await house.call("credit", ASKED, key=KEY)
    record = await house.retry(KEY, by="ada", reason="open again")
    assert record.approval is not None
    assert (record.state, record.approval.votes) == (State.HELD, ())
    with pytest.raises(Held):
        await house.call("credit", ASKED, key=KEY)
    await house.approve(KEY, by="bob")
    assert (await house.call("credit", ASKED, key=KEY)).value == "cr-1"


async def test_cancelled_hold_is_refused(open_house: OpenHouse) -> None:
    """Nothing has left, so cancelling is final at once."""
    house = await open_house(Work().tool(approval=True))
    await held(house)
    assert (await house.cancel(KEY, by="agent")).state is State.REFUSED
    with pytest.raises(NotAllowed):
        await house.cancel(KEY, by="agent")


async def test_settled_call_cannot_be_cancelled(open_house: OpenHouse) -> None:
    """What took effect is compensated, not cancelled."""
    house = await open_house(Work().tool())
    await house.call("credit", ASKED, key=KEY)
    with pytest.raises(NotAllowed):
        await house.cancel(KEY, by="ada")


async def test_cancelling_a_doubt_twice_is_one_cancel(open_house: OpenHouse) -> None:
    """It only forbids resends; saying so again adds nothing."""
    house = await open_house(lossy())
    await in_doubt(house)
    first = await house.cancel(KEY, by="ada", reason="enough")
    again = await house.cancel(KEY, by="bob")
    assert (first.state, again.version) == (State.IN_DOUBT, first.version)
    assert facts(await house.get(KEY), "cancel_asked") == [{"state": "in_doubt", "by": "ada", "reason": "enough"}]


async def test_cancel_reaches_an_attempt_before_it_sends(open_house: OpenHouse) -> None:
    """Another process cancels while the tool prepares: its last check says no, and that is known for certain."""
    begun, go_on = asyncio.Event(), asyncio.Event()
    sent = 0

    @tool(external(departs="at_confirm"))
    async def credit(account: str, cents: int, ctx: CallContext) -> str:
        nonlocal sent
        begun.set()
        await go_on.wait()
        await ctx.confirm()
        sent += 1
        return "cr-1"

    house, other = await open_house(credit), await open_house()
    call = asyncio.ensure_future(house.call(credit, ASKED, key=KEY))
    await begun.wait()
    assert (await other.cancel(KEY, by="ada")).state is State.DEPARTED
    await asyncio.sleep(0.15)  # commit 1 stands in for the check for 0.1 s
    go_on.set()
    with pytest.raises(CallFailed):
        await call
    assert (sent, (await house.get(KEY)).attempts[0].outcome) == (0, AttemptOutcome.NOT_SENT)


# -- approved calls that nobody waits for ----------------------------------------------------------------


async def test_approved_call_is_run_by_a_worker_that_has_the_tool(
    start: Start, house_store_url: str, receiver: Receiver
) -> None:
    """The asking process may be long gone; one of two workers runs it, once."""
    async with Tollhouse.open(house_store_url, tools=tools.guarded(receiver.url), background=False) as house:
        with pytest.raises(Held):
            await house.call("delete_account", {"account": "a1"}, key=KEY, run_when_approved=True)
        offered = {"tests.crash.tools:guarded": {"url": receiver.url}}
        for _ in range(2):
            await start(house_store_url, offered, every_s=0.05)
        await house.approve(KEY, by="ada")
        record = await house.wait(KEY, timeout_s=20)
        assert (record.state, record.result) == (State.SUCCEEDED, receiver.effects()[0].id)
        assert await kinds(house, KEY) == ["held", "approved", "departed", "outcome"]
    assert len(receiver.requests(method="POST")) == 1


async def test_approved_call_waits_for_its_caller_unless_told_otherwise(open_house: OpenHouse) -> None:
    """A worker does not run what its caller wants to hear of."""
    work = Work()
    house = await open_house(work.tool(approval=True), background=True, every_s=0.05)
    await held(house)
    await house.approve(KEY, by="ada")
    await house.services.round()
    assert ((await house.get(KEY)).state, work.done) == (State.READY, [])


async def test_long_approved_call_does_not_keep_others_from_running(open_house: OpenHouse) -> None:
    """One worker, two approved calls: the second does not wait for the first."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    @tool(destructive())
    async def slow(account: str) -> str:
        begun.set()
        await go_on.wait()
        return "slow"

    @tool(destructive())
    async def quick(account: str) -> str:
        return "quick"

    house = await open_house(slow, quick, background=True, every_s=0.05, run_when_approved=True)
    for name in ("slow", "quick"):
        with pytest.raises(Held):
            await house.call(name, {"account": "a1"}, key=name)
    await house.approve("slow", by="ada")
    await begun.wait()
    await house.approve("quick", by="ada")
    assert (await house.wait("quick", timeout_s=20)).result == "quick"
    assert (await house.get("slow")).state is State.DEPARTED
    go_on.set()
    assert (await house.wait("slow", timeout_s=20)).result == "slow"


async def test_closing_worker_lets_an_approved_call_end(open_house: OpenHouse) -> None:
    """What it runs on its own account has the same grace as any attempt, and is not taken for cancelled."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    @tool(destructive())
    async def slow(account: str) -> str:
        begun.set()
        await go_on.wait()
        return "slow"

    worker = await open_house(slow, background=True, every_s=0.05, run_when_approved=True, grace_s=20.0)
    with pytest.raises(Held):
        await worker.call("slow", {"account": "a1"}, key=KEY)
    await worker.approve(KEY, by="ada")
    await begun.wait()
    closing = asyncio.ensure_future(worker.close())
    await asyncio.sleep(0.1)
    go_on.set()
    await closing
    house = await open_house(slow)
    record = await house.get(KEY)
    assert (record.state, record.result, record.raw.cancel_asked) == (State.SUCCEEDED, "slow", False)
