"""Agents as tools: a call whose effect is a run of another agent, from its start to the report of its end."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.runs import Bank, OpenStage, Stage, agent, calls
from tollhouse.ledger.run_record import RunQuery
from tollhouse.runs.agents import AgentApproval
from tollhouse.runs.ending import Ending
from tollhouse.runs.view import RunView

TOOLS = ("credit", "letter", "balance")
CREDIT = ("credit", {"account": "a1", "cents": 5})
PAY = ("agent_payer", {"input": "pay a1"})


async def family(open_stage: OpenStage, bank: Bank, *payer: object, **fields: object) -> Stage:
    """A clerk that may have a payer do something."""
    agents = [agent(agents=("payer",)), agent("payer", **{"tools": TOOLS, **fields})]
    return await open_stage(*bank.tools, agents=agents, clerk=[calls(PAY), "ok"], payer=list(payer))


async def child_of(stage: Stage, run: RunView) -> RunView:
    """The one child of a run."""
    (child,) = await stage.runs.list(RunQuery(parent_run_id=run.id))
    return child


async def heard(stage: Stage, run: RunView) -> Any:
    """What the run heard of its one call."""
    (result,) = await stage.results(run.id)
    return json.loads(result["text"])


async def test_child_succeeds_and_its_parent_hears_the_output(open_stage: OpenStage, bank: Bank) -> None:
    """The child has the call's own key, its parent's name in it, and its end is the result of the call."""
    stage = await family(open_stage, bank, calls(CREDIT), "paid")
    run = await stage.run()
    child = await child_of(stage, run)
    assert (run.state, child.state, bank.credits) == ("succeeded", "succeeded", [("a1", 5)])
    assert (child.record.parent_key, child.record.start_key) == (f"{run.id}:1.1",) * 2
    assert (child.record.requested_by, child.record.attempt_no) == ("ada", 1)
    (result,) = await stage.results(run.id)
    assert result["call_state"] == "succeeded"
    assert json.loads(result["text"]) == {"run": child.id, "state": "succeeded", "output": "paid", "reason": None}
    (tidied,) = await stage.facts(child.id, "run_tidied")
    assert tidied["told"] == f"{run.id}:1.1"


async def test_child_that_fails_is_told_as_what_it_is(open_stage: OpenStage, bank: Bank) -> None:
    """A run that failed happened: its parent hears state and reason, and decides."""
    stage = await family(open_stage, bank, {"fail": "model_refused_request"})
    run = await stage.run()
    assert run.state == "succeeded"
    told = await heard(stage, run)
    assert (told["state"], told["reason"]["code"]) == ("failed", "model_refused_request")


async def test_child_that_is_cancelled_lets_its_parent_go_on(open_stage: OpenStage, bank: Bank) -> None:
    """Cancelling a child ends the parent's wait."""
    stage = await family(open_stage, bank, calls(CREDIT), "paid", approvals={"credit": AgentApproval()})
    run = await stage.run()
    assert run.state == "awaiting_work"
    child = await child_of(stage, run)
    await stage.runs.cancel(child.id, by="bob", reason="not this one")
    run = await stage.settled(run.id)
    assert run.state == "succeeded"
    assert (await heard(stage, run))["state"] == "cancelled"
    assert bank.credits == []


async def test_cancelled_parent_cancels_its_children(open_stage: OpenStage, bank: Bank) -> None:
    """A cancel is passed on to every child that has not ended, down to its last call."""
    stage = await family(open_stage, bank, calls(CREDIT), "paid", approvals={"credit": AgentApproval()})
    run = await stage.run()
    child = await child_of(stage, run)
    await stage.runs.cancel(run.id, by="bob", reason="stop")
    await stage.settle()
    child = await stage.runs.get(child.id)
    assert child.state == "cancelled"
    assert run.id in (child.reason or {})["cause"]
    assert (await stage.house.get(f"{child.id}:1.1")).state == "refused"
    assert bank.credits == []


@pytest.mark.parametrize("end", ["succeeded", "cancelled"])
async def test_crash_between_the_end_of_a_child_and_its_report_strands_nobody(
    open_stage: OpenStage, bank: Bank, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """The end of a child is one commit, the report another: whoever finds it undone makes it."""
    stage = await family(open_stage, bank, calls(CREDIT), "paid", approvals={"credit": AgentApproval()})
    run = await stage.run()
    child = await child_of(stage, run)

    async def died(*_given: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Ending, "_tell_parent", died)
        if end == "cancelled":
            with pytest.raises(KeyboardInterrupt):
                await stage.runs.cancel(child.id, by="bob")
        else:
            await stage.house.approve(f"{child.id}:1.1", by="bob")
            drive = await stage.runs.claim((await stage.runs.get(child.id)).record)
            while (await drive.step()).kind == "continue":
                pass
    assert (await stage.runs.get(child.id)).state == end
    assert (await stage.runs.get(run.id)).state == "awaiting_work"
    assert (await stage.settled(run.id)).state == "succeeded"


async def test_look_up_finds_the_end_that_nobody_reported(open_stage: OpenStage, bank: Bank) -> None:
    """Should the report be lost for good, the call's own look-up finds the child by its key."""
    stage = await family(open_stage, bank, calls(CREDIT), "paid", approvals={"credit": AgentApproval()})
    run = await stage.run()
    child = await child_of(stage, run)
    await stage.house.approve(f"{child.id}:1.1", by="bob")
    drive = await stage.runs.claim(child.record)
    while (await drive.step()).kind == "continue":
        pass
    call = await stage.house.reconcile(f"{run.id}:1.1")
    assert call.state == "succeeded"
    assert (await stage.settled(run.id)).state == "succeeded"


async def test_same_call_never_starts_two(open_stage: OpenStage, bank: Bank) -> None:
    """A call that is sent again under its key finds the child that it started."""
    stage = await family(open_stage, bank, calls(CREDIT), "paid", approvals={"credit": AgentApproval()})
    run = await stage.run()
    child = await child_of(stage, run)
    again = await stage.runs.start(
        "payer", "pay a1", by="ada", key=f"{run.id}:1.1", parent_run_id=run.id, parent_key=f"{run.id}:1.1"
    )
    assert (again.id, again.started_before) == (child.id, True)
    assert len(await stage.runs.list(RunQuery(parent_run_id=run.id))) == 1


async def test_long_output_of_a_child_reaches_its_parent_whole(open_stage: OpenStage, bank: Bank) -> None:
    """What a child says is never cut, however long it is."""
    long = "x" * 200_000
    stage = await family(open_stage, bank, long)
    run = await stage.run()
    assert (await heard(stage, run))["output"] == long


async def test_child_that_cannot_be_started_is_told(open_stage: OpenStage, bank: Bank) -> None:
    """Input that no run can be made of is refused for certain, not left in doubt."""
    agents = [agent(agents=("payer",)), agent("payer", tools=TOOLS)]
    stage = await open_stage(
        *bank.tools, agents=agents, clerk=[calls(("agent_payer", {"input": "a\0b"})), "ok"], payer=["paid"]
    )
    run = await stage.run()
    assert run.state == "succeeded"
    assert [each["call_state"] for each in await stage.results(run.id)] == ["failed"]


async def test_children_side_by_side_each_report(open_stage: OpenStage, bank: Bank) -> None:
    """Several children of one answer run on their own, beside a call of the parent itself."""
    agents = [agent(agents=("payer",), tools=TOOLS), agent("payer", tools=TOOLS)]
    asked = calls(*(("agent_payer", {"input": f"pay {n}"}) for n in range(3)), CREDIT)
    stage = await open_stage(*bank.tools, agents=agents, clerk=[asked, "ok"], payer=[calls(CREDIT), "paid"])
    run = await stage.run()
    assert (run.state, len(bank.credits)) == ("succeeded", 4)
    assert [each["call_state"] for each in await stage.results(run.id)] == ["succeeded"] * 4
