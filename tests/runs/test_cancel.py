"""Cancel: immediate to whoever asks, honest about what had left, passed on, and right to repeat."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.houses import settled_down
from tests.support.runs import Bank, OpenStage, Stage, agent, calls, driven_only, on_sqlite
from tollhouse import CallContext, Tool, external, tool
from tollhouse.errors import NotAllowed, NotEntitled, RunNotAllowed, TollhouseError, UnknownRun
from tollhouse.gate.context import COMMIT_IS_CHECK_US
from tollhouse.ledger.run_record import RunRecord
from tollhouse.models.port import ModelRequest
from tollhouse.runs.agents import AgentApproval, Limits
from tollhouse.runs.drivers.local import LocalDriver
from tollhouse.runs.ending import Ending
from tollhouse.runs.view import RunView

TOOLS = ("credit", "letter", "balance")
CREDIT = ("credit", {"account": "a1", "cents": 5})
LETTER = ("letter", {"to": "a1", "text": "hello"})


async def until_state(stage: Stage, run_id: str, *states: str) -> RunView:
    """The run once it is in one of these states."""
    with stage.runs.bus.subscribe(run_id) as moves:
        while (run := await stage.runs.get(run_id)).state not in states:
            await moves.get()
    return run


WAITS = {
    "awaiting_approval": calls(CREDIT),
    "awaiting_answer": calls(("ask_person", {"question": "Who?"})),
    "awaiting_time": calls(("wait", {"seconds": 60})),
    "awaiting_reconciliation": calls(LETTER),
}


@pytest.mark.parametrize("state", WAITS)
async def test_cancel_in_every_paused_state(open_stage: OpenStage, bank: Bank, state: str) -> None:
    """A run that waits ends at once; what it waited for is refused, or forbidden and named."""
    agents = [agent(tools=TOOLS, approvals={"credit": AgentApproval()}, questions=True, timers=True)]
    stage = await open_stage(*bank.tools, agents=agents, clerk=[WAITS[state], "ok"])
    bank.receiver.fault("close_after_effect", collection="letters")
    run = await stage.run()
    assert run.state == state
    ended = await stage.runs.cancel(run.id, by="bob", reason="enough")
    assert (ended.state, ended.waiting, ended.record.finished) == ("cancelled", (), True)
    (facts,) = await stage.facts(run.id, "run_cancelled")
    assert (facts["by"], facts["reason"]) == ("bob", "enough")
    left = [(each["key"], each["call_state"]) for each in facts["left"]]
    assert left == ([(f"{run.id}:1.1", "in_doubt")] if state == "awaiting_reconciliation" else [])
    await stage.settle()
    assert len(await stage.facts(run.id, "run_tidied")) == 1
    assert bank.credits == []
    if state == "awaiting_approval":
        with pytest.raises(NotAllowed):
            await stage.house.approve(f"{run.id}:1.1", by="bob")
    await stage.conversation(run.id)


async def test_cancel_when_queued_and_at_a_limit(open_stage: OpenStage, bank: Bank) -> None:
    """A run that nobody took yet, and one that stopped at a limit, are cancelled like any other."""
    agents = [agent(tools=TOOLS, limits=Limits(turns=1))]
    stage = await open_stage(*bank.tools, agents=agents, clerk=[calls(CREDIT), "ok"])
    queued = await stage.runs.start("clerk", "go", by="ada")
    assert (await stage.runs.cancel(queued.id, by="bob")).state == "cancelled"
    run = await stage.run()
    assert run.state == "limit_reached"
    run = await stage.runs.cancel(run.id, by="bob")
    assert run.state == "cancelled"
    (facts,) = await stage.facts(run.id, "run_cancelled")
    assert [(each["key"], each["call_state"]) for each in facts["left"]] == [(f"{run.id}:1.1", "succeeded")]


async def test_cancel_is_repeatable_and_ended_runs_refuse_it(open_stage: OpenStage, bank: Bank) -> None:
    """Cancelling twice changes nothing; what ended otherwise stays as it ended; nobody cancels without a name."""
    stage = await open_stage(*bank.tools, agents=[agent(tools=TOOLS)], clerk=["ok"])
    first = await stage.runs.start("clerk", "go", by="ada")
    with pytest.raises(NotEntitled):
        await stage.runs.cancel(first.id, by="")
    once, twice = [await stage.runs.cancel(first.id, by=by) for by in ("bob", "carol")]
    assert once.record == twice.record
    done = await stage.run()
    with pytest.raises(RunNotAllowed):
        await stage.runs.cancel(done.id, by="bob")
    with pytest.raises(UnknownRun):
        await stage.runs.cancel("run_none", by="bob")


@driven_only
async def test_cancel_stops_a_model_request_at_once(open_stage: OpenStage) -> None:
    """A run that is asking its model ends now, not when the model has answered."""
    asked = asyncio.Event()

    async def slow(_request: ModelRequest) -> str:
        asked.set()
        await asyncio.Event().wait()
        return "never"

    stage = await open_stage(agents=[agent()], clerk=slow)
    driver = LocalDriver(stage.runs)
    stage.drivers.append(driver)
    driver.start()
    run = await stage.runs.start("clerk", "go", by="ada")
    await asked.wait()
    assert (await stage.runs.cancel(run.id, by="bob")).state == "cancelled"
    while driver.in_hand:  # noqa: ASYNC110 - the test waits for the task to end
        await asyncio.sleep(0.005)
    assert await stage.kinds(run.id) == ["run_started", "run_cancelled", "run_tidied"]


@driven_only
async def test_cancel_in_another_process_stops_a_model_request(open_stage: OpenStage) -> None:
    """The driver finds at its next look that the run is not its own any more."""
    asked = asyncio.Event()

    async def slow(_request: ModelRequest) -> str:
        asked.set()
        await asyncio.Event().wait()
        return "never"

    stage = await open_stage(agents=[agent()], clerk=slow)
    driver = LocalDriver(stage.runs)
    run = await stage.runs.start("clerk", "go", by="ada")
    await driver.round()
    await asked.wait()
    await stage.all_runs[1].cancel(run.id, by="bob")
    await driver.round()
    while driver.in_hand:  # noqa: ASYNC110 - the test waits for the task to end
        await asyncio.sleep(0.005)
    assert (await stage.runs.get(run.id)).state == "cancelled"


def awaiting_token(bank: Bank, at_token: asyncio.Event, go_on: asyncio.Event) -> Tool[object]:
    """A tool that awaits a token before it sends."""

    @tool(external())
    async def pay(ctx: CallContext) -> object:
        """Pay, once a token is there."""
        at_token.set()
        await go_on.wait()
        return (await ctx.http.post(f"{bank.receiver.url}/v1/credits", json={"account": "a", "cents": 1})).json()

    return pay


# case C58
@driven_only
@on_sqlite
@pytest.mark.parametrize("place", [0, 1], ids=["same process", "another process"])
async def test_tool_that_awaits_before_its_send_sends_nothing_after_a_cancel(
    open_stage: OpenStage, bank: Bank, place: int
) -> None:
    """Cancelled while a tool waits for a token, a run sends nothing more; that its call was under way is named."""
    at_token, go_on = asyncio.Event(), asyncio.Event()
    pay = awaiting_token(bank, at_token, go_on)
    stage = await open_stage(pay, agents=[agent(tools=("pay",))], clerk=[calls(("pay", {})), "ok"])
    driver = LocalDriver(stage.runs)
    stage.drivers.append(driver)
    driver.start()
    run = await stage.runs.start("clerk", "go", by="ada")
    await at_token.wait()
    stage.clock.advance(COMMIT_IS_CHECK_US / 1_000_000 + 1)  # what was just committed is its own check for so long
    await stage.all_runs[place].cancel(run.id, by="bob")
    (facts,) = await stage.facts(run.id, "run_cancelled")
    assert [(each["key"], each["call_state"]) for each in facts["left"]] == [(f"{run.id}:1.1", "departed")]
    go_on.set()
    call = await settled_down(stage.house, f"{run.id}:1.1")
    assert [attempt.outcome for attempt in call.attempts] == ["not_sent"]
    with pytest.raises(TollhouseError):
        await stage.house.call(pay, {}, key=call.key, scope=run.id)
    assert bank.receiver.requests() == []


@driven_only
async def test_call_that_departs_in_the_moment_of_the_cancel_is_named(
    open_stage: OpenStage, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What left between the cancel's look at the calls and its commit is in the history of the run all the same."""
    stage = await open_stage(*bank.tools, agents=[agent(tools=TOOLS)], clerk=[calls(LETTER), "ok"])
    driver = LocalDriver(stage.all_runs[1])
    run = await stage.runs.start("clerk", "go", by="ada")
    look = Ending.left

    async def before_it_left(ending: Ending, record: RunRecord) -> list[dict[str, Any]]:
        left = await look(ending, record)
        if not record.finished:
            await driver.settle()
        return left

    with monkeypatch.context() as patch:
        bank.receiver.fault("close_after_effect", collection="letters")
        patch.setattr(Ending, "left", before_it_left)
        await stage.runs.cancel(run.id, by="bob")
    named = [f["left"] for kind in ("run_cancelled", "run_tidied") for f in await stage.facts(run.id, kind)]
    assert [each["key"] for each in named[-1]] == [f"{run.id}:1.1"]
    assert bank.letters == 1


# case C59
@driven_only
async def test_what_was_out_at_the_cancel_is_settled_by_its_late_reply(open_stage: OpenStage, bank: Bank) -> None:
    """A request that is out when its run is cancelled is named, is not sent again, and its reply still counts."""
    stage = await open_stage(*bank.tools, agents=[agent(tools=TOOLS)], clerk=[calls(LETTER), "ok"])
    bank.receiver.fault("hold_after_effect", collection="letters")
    driver = LocalDriver(stage.runs)
    stage.drivers.append(driver)
    driver.start()
    run = await stage.runs.start("clerk", "go", by="ada")
    await bank.receiver.await_for_effects(1)
    await stage.runs.cancel(run.id, by="bob")
    (facts,) = await stage.facts(run.id, "run_cancelled")
    assert [each["call_state"] for each in facts["left"]] == ["departed"]
    (tidied,) = await stage.facts(run.id, "run_tidied")
    assert tidied["cancelled"] == [f"{run.id}:1.1"]
    bank.receiver.release()
    call = await stage.house.wait(f"{run.id}:1.1", timeout_s=20)
    assert (call.state, bank.letters) == ("succeeded", 1)
    assert (await stage.runs.get(run.id)).state == "cancelled"


@driven_only
async def test_nothing_departs_after_a_cancel(open_stage: OpenStage, bank: Bank) -> None:
    """Fifty calls of one answer: those that had not left when the run was cancelled never do."""
    asked = [("credit", {"account": f"a{n}", "cents": 1}) for n in range(50)]
    stage = await open_stage(*bank.tools, agents=[agent(tools=TOOLS)], clerk=[calls(*asked), "ok"])
    bank.receiver.fault("hold_before_effect", collection="credits", times=50)
    driver = LocalDriver(stage.runs)
    run = await stage.runs.start("clerk", "go", by="ada")
    await driver.round()
    await bank.receiver.await_for_requests(16)
    await stage.all_runs[1].cancel(run.id, by="bob")
    bank.receiver.release()
    while driver.in_hand:  # noqa: ASYNC110 - the test waits for the task to end
        await asyncio.sleep(0.01)
    assert len(bank.receiver.requests("credits")) == 16
    (facts,) = await stage.facts(run.id, "run_cancelled")
    assert len(facts["left"]) == 16


async def test_cancelled_run_can_be_run_again(open_stage: OpenStage, bank: Bank) -> None:
    """A cancel is no result of any call: the rerun makes its own calls."""
    agents = [agent(tools=TOOLS, approvals={"credit": AgentApproval()})]
    stage = await open_stage(*bank.tools, agents=agents, clerk=[calls(CREDIT), "ok"])
    run = await stage.run()
    await stage.runs.cancel(run.id, by="bob")
    again = await stage.settled((await stage.runs.rerun(run.id, by="bob")).id)
    assert (again.state, again.record.attempt_no) == ("awaiting_approval", 2)
    await stage.house.approve(f"{again.id}:1.1", by="carol")
    assert (await stage.settled(again.id)).state == "succeeded"
    assert len(bank.credits) == 1


@on_sqlite
async def test_cancel_that_died_before_tidying_is_tidied_by_a_driver(
    open_stage: OpenStage, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the run is one commit; its held calls are refused by whoever finds that undone."""
    agents = [agent(tools=TOOLS, approvals={"credit": AgentApproval()})]
    stage = await open_stage(*bank.tools, agents=agents, clerk=[calls(CREDIT), "ok"])
    run = await stage.run()

    async def died(*_given: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(stage.runs, "tidy", died)
        with pytest.raises(KeyboardInterrupt):
            await stage.runs.cancel(run.id, by="bob")
    assert (await stage.house.get(f"{run.id}:1.1")).state == "held"
    await stage.settle()
    assert (await stage.house.get(f"{run.id}:1.1")).state == "refused"
