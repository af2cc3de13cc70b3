"""What wakes a run beside a change of state, and what its calls may not do once it went on without them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.houses import until
from tests.support.runs import Bank, OpenStage, agent, calls, driven_only, on_sqlite
from tollhouse import did_not_happen, external, tool, write
from tollhouse.models.port import ModelFailed, ModelRequest
from tollhouse.runs.agents import AgentApproval, Verifier

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


@driven_only
@on_sqlite
@pytest.mark.parametrize("who", ["clerk", "judge"])
async def test_wake_does_not_end_the_wait_for_a_provider(open_stage: OpenStage, who: str) -> None:
    """What moves meanwhile is no reason to ask a provider that wants to be left alone, nor one more failure."""
    asked: list[str] = []

    def busy(request: ModelRequest) -> str:
        asked.append(request.key)
        if len(asked) == 1:
            raise ModelFailed("model_rate_limited", "slow down", transient=True, retry_after_s=600.0)
        return '{"pass": true}'

    scripts: dict[str, Any] = {"clerk": "five", "judge": ['{"pass": true}'], who: busy}
    scripts["clerk"] = ["five"] if who == "judge" else busy
    agents = [agent(verifier=Verifier("scripted:judge", "Look."))]
    stage = await open_stage(agents=agents, **scripts)
    run = await stage.run()
    due_at_us = run.record.due_at_us
    for _ in range(10):
        await stage.runs.store.wake(stage.runs.tenant, run.id)
        run = await stage.settled(run.id)
    assert (run.state, run.record.due_at_us, len(asked)) == ("awaiting_time", due_at_us, 1)
    await stage.after(601)
    assert (await stage.runs.get(run.id)).state == "succeeded"
