"""What wakes a run beside a change of state, and what its calls may not do once it went on without them."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.houses import until
from tests.support.runs import Bank, OpenStage, agent, calls, driven_only
from tollhouse import did_not_happen, external, tool, write
from tollhouse.runs.agents import AgentApproval

CREDIT = ("credit", {"account": "a1", "cents": 5})


@driven_only
async def test_upholding_a_contradiction_lets_the_run_go_on(open_stage: OpenStage) -> None:
    """A decision that leaves a call in the state it has still ends what its run waits for."""
    go_on = asyncio.Event()

    @tool(write(attempt_timeout_s=0.5))
    async def slow() -> str:
        """Take longer than it may."""
        await go_on.wait()
        return "it did"

    stage = await open_stage(slow, agents=[agent(tools=("slow",))], clerk=[calls(("slow", {})), "ok"])
    run = await stage.run()
    key = f"{run.id}:1.1"
    assert run.state == "awaiting_reconciliation"
    await stage.house.resolve(key, did_not_happen("nothing there"), reason="looked", by="bob", force=True)
    go_on.set()
    await until(stage.house, key, lambda call: call.contradicted)
    assert (await stage.settled(run.id)).state == "awaiting_reconciliation"
    await stage.house.uphold(key, by="bob", reason="that was another one")
    assert (await stage.settled(run.id)).state == "succeeded"


@tool(external(), name="credit")
async def credit_of_another_release(account: str, cents: int, currency: str) -> str:
    """Credit an account in some currency."""
    return f"{account} {cents} {currency}"


def no_vault(_tool: str) -> dict[str, str]:
    """Secrets that cannot be had."""
    raise OSError("the vault is away")


@driven_only
@pytest.mark.parametrize("why", ["secrets", "arguments", "tool"])
async def test_call_that_the_model_heard_a_no_of_is_not_sent_later(open_stage: OpenStage, bank: Bank, why: str) -> None:
    """An approved call that cannot go from this process is given up before the model hears that nothing was sent."""
    agents = [agent(tools=("credit",), approvals={"credit": AgentApproval()})]
    stage = await open_stage(*bank.tools, agents=agents, clerk=[calls(CREDIT), "ok"])
    run = await stage.run()
    key = run.waiting[0].id
    tools = {"secrets": [bank.credit], "arguments": [credit_of_another_release], "tool": [bank.letter]}[why]
    settings = {"secrets": no_vault} if why == "secrets" else {}
    other = await open_stage(*tools, agents=agents, settings=settings, clerk=[calls(CREDIT), "ok"])
    await stage.house.approve(key, by="bob")
    assert (await other.settled(run.id)).state == "succeeded"
    (result,) = await stage.results(run.id)
    assert (result["failed"], result["call_state"]) == (True, "refused")
    assert (await stage.house.get(key)).state == "refused"
    await stage.house.services.round()
    assert bank.credits == []
