"""What a run may no longer do at its limits, and what it says of itself there."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from tests.support.runs import Bank, OpenStage, agent, calls, driven_only, on_sqlite
from tollhouse.models.port import ModelFailed, ModelRequest
from tollhouse.runs.agents import Limits

CREDIT = ("credit", {"account": "a1", "cents": 5})


@on_sqlite
async def test_nothing_is_sent_once_the_time_of_a_run_is_over(open_stage: OpenStage, bank: Bank) -> None:
    """What a model asks for after the end of the run's time waits for somebody to raise it."""

    def late(request: ModelRequest) -> Any:
        if not request.key.endswith(":1"):
            return "ok"
        stage.clock.advance(60.0)
        return calls(CREDIT)["call"]

    stage = await open_stage(*bank.tools, agents=[agent(tools=("credit",), limits=Limits(wall_s=30.0))], clerk=late)
    run = await stage.run()
    assert (run.state, (run.reason or {})["code"]) == ("limit_reached", "limit_wall_s")
    assert bank.credits == []
    await stage.runs.raise_limits(run.id, {"wall_s": 3600.0}, by="bob")
    assert (await stage.settled(run.id)).state == "succeeded"
    assert bank.credits == [("a1", 5)]


@on_sqlite
@driven_only
async def test_run_waits_for_a_model_no_longer_than_for_its_answer(open_stage: OpenStage, bank: Bank) -> None:
    """A wait for a model that was away is over once it has answered."""
    tried: list[str] = []

    def away_once(request: ModelRequest) -> Any:
        tried.append(request.key)
        if len(tried) == 1:
            raise ModelFailed("model_unreachable", "away", transient=True)
        return calls(CREDIT)["call"]

    stage = await open_stage(*bank.tools, agents=[agent(tools=("credit",), limits=Limits(turns=1))], clerk=away_once)
    run = await stage.run()
    assert [w.kind for w in run.waiting] == ["time"]
    await stage.after(10.0)
    run = await stage.runs.get(run.id)
    assert (run.state, run.waiting) == ("limit_reached", ())


@driven_only
async def test_rerun_has_the_limits_of_its_source(open_stage: OpenStage, bank: Bank) -> None:
    """What a start had tightened stays so when it is run again, and no rerun has more than its agent."""
    agents = [agent(tools=("credit",), limits=Limits(turns=5, cost=Decimal(3)))]
    stage = await open_stage(*bank.tools, agents=agents, clerk=[calls(CREDIT), "ok"])
    run = await stage.run(limits={"turns": 1})
    assert run.state == "limit_reached"
    again = await stage.runs.rerun(run.id, by="bob", key="again", effects="repeat")
    assert again.limits == Limits(turns=1, cost=Decimal(3))
    assert (await stage.runs.rerun(run.id, by="bob", key="again", effects="repeat")).id == again.id
    await stage.settle()
    await stage.runs.raise_limits(again.id, {"turns": 50}, by="bob")
    assert (await stage.settled(again.id)).state == "succeeded"
    third = await stage.runs.rerun(again.id, by="bob", effects="repeat")
    assert third.limits == Limits(turns=5, cost=Decimal(3))
