"""What wakes a run beside a change of state, and what its calls may not do once it went on without them."""

from __future__ import annotations

import asyncio

from tests.support.houses import until
from tests.support.runs import OpenStage, agent, calls, driven_only
from tollhouse import did_not_happen, tool, write


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
