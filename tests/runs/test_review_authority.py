"""Who must agree to a call of a run, whatever way it comes to be asked about again."""

from __future__ import annotations

import pytest

from tests.support.runs import Bank, OpenStage, Stage, agent, calls, driven_only
from tollhouse import Rejected, destructive, tool
from tollhouse.errors import InvalidSetting, NotEntitled
from tollhouse.ledger.run_record import RunQuery
from tollhouse.runs.agents import AgentApproval

ASK = ("ask_person", {"question": "What now?"})


async def looked_at(stage: Stage, key: str) -> None:
    """Have the services look until they took up what was approved."""
    while (await stage.house.get(key)).state == "ready":
        await stage.house.services.round()


@driven_only
async def test_retried_call_still_needs_those_whom_the_agent_names(open_stage: OpenStage) -> None:
    """A new round asks what the contract asks; whoever agrees to that does not stand for the agent's approvers."""
    closed: list[str] = []

    @tool(destructive())
    async def close(account: str) -> str:
        """Close an account; the first try is turned down."""
        closed.append(account)
        if len(closed) == 1:
            raise Rejected("not today")
        return "closed"

    needs = {"close": AgentApproval(approvers=("boss",))}
    agents = [agent(tools=("close",), approvals=needs, questions=True)]
    stage = await open_stage(close, agents=agents, clerk=[calls(("close", {"account": "a1"})), calls(ASK), "ok"])
    run = await stage.run()
    key = run.waiting[0].id
    with pytest.raises(NotEntitled):
        await stage.house.approve(key, by="eve")
    await stage.house.approve(key, by="boss")
    assert (await stage.settled(run.id)).state == "awaiting_answer"
    await stage.house.retry(key, by="eve", reason="again")
    await stage.house.approve(key, by="eve")
    await looked_at(stage, key)
    assert ((await stage.house.get(key)).state, len(closed)) == ("held", 1)
    with pytest.raises(NotEntitled):
        await stage.house.approve(key, by="eve")
    await stage.house.approve(key, by="boss")
    await looked_at(stage, key)
    assert ((await stage.house.get(key)).state, len(closed)) == ("succeeded", 2)


@driven_only
async def test_nobody_starts_decides_or_says_what_no_store_takes(open_stage: OpenStage) -> None:
    """A name of spaces is none, and half a character is no word: both are refused before anything is written."""
    stage = await open_stage(agents=[agent(questions=True)], clerk=[calls(ASK), "ok"])
    with pytest.raises(NotEntitled):
        await stage.runs.start("clerk", "go", by="  ")
    run = await stage.run()
    for words in ("half \ud83d", "nothing\0", 5):
        with pytest.raises(InvalidSetting):
            await stage.runs.answer(run.id, run.waiting[0].id, words, by="bob")  # type: ignore[arg-type]
        with pytest.raises(InvalidSetting):
            await stage.runs.cancel(run.id, by="bob", reason=words)  # type: ignore[arg-type]
    assert (await stage.runs.get(run.id)).version == run.version


@driven_only
async def test_nobody_is_said_to_have_cancelled_what_the_end_of_a_run_did(open_stage: OpenStage, bank: Bank) -> None:
    """Who cancels a run is named there; its calls and children name the run, and never the one who started it."""
    agents = [agent(agents=("payer",)), agent("payer", tools=("credit",), approvals={"credit": AgentApproval()})]
    script = {
        "clerk": [calls(("agent_payer", {"input": "pay"})), "ok"],
        "payer": [calls(("credit", {"account": "a1", "cents": 5})), "ok"],
    }
    stage = await open_stage(*bank.tools, agents=agents, **script)
    run = await stage.run()
    (child,) = await stage.runs.list(RunQuery(parent_run_id=run.id))
    await stage.runs.cancel(run.id, by="bob", reason="stop")
    (cancelled,) = await stage.facts(child.id, "run_cancelled")
    assert cancelled["by"] == run.id
    call = await stage.house.get(f"{child.id}:1.1")
    (told,) = [event.facts for event in call.history if event.kind == "cancelled"]
    assert told["by"] == child.id
