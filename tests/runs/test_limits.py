"""Limits stop a run honestly: in a clear state, with its reason, nothing cut off, and it may go on when raised."""

from __future__ import annotations

from decimal import Decimal

import pytest

from tests.support.runs import Bank, OpenStage, Stage, agent, calls, lose, on_sqlite
from tollhouse.errors import InvalidSetting, NotEntitled, RunNotAllowed
from tollhouse.runs.agents import Limits
from tollhouse.runs.view import RunView

TOOLS = ("credit",)


def credit(cents: int, **more: object) -> dict[str, object]:
    """A turn that credits."""
    return calls(("credit", {"account": "a1", "cents": cents}), **more)


async def stopped(stage: Stage, limit: str, **options: object) -> RunView:
    """A run that stands at that limit and says so."""
    run = await stage.run(**options)  # type: ignore[arg-type]
    assert (run.state, (run.reason or {}).get("code")) == ("limit_reached", f"limit_{limit}")
    assert [facts["limit"] for facts in await stage.facts(run.id, "limit_reached")] == [limit]
    return run


async def test_turns_stop_the_run_and_raising_lets_it_go_on(open_stage: OpenStage, bank: Bank) -> None:
    """After its last turn the run has done all that was asked, and asks no more until somebody raises the limit."""
    agents = [agent(tools=TOOLS, limits=Limits(turns=2))]
    stage = await open_stage(*bank.tools, agents=agents, clerk=[credit(1), credit(2), credit(3), "ok"])
    run = await stopped(stage, "turns")
    assert (run.spent.turns, bank.credits) == (2, [("a1", 1), ("a1", 2)])
    await stage.settle()
    assert len(stage.model.requests) == 2
    await stage.runs.raise_limits(run.id, {"turns": 3}, by="bob")
    assert (await stage.settled(run.id)).state == "limit_reached"
    await stage.runs.raise_limits(run.id, {"turns": 10}, by="bob")
    run = await stage.settled(run.id)
    assert (run.state, run.reason, run.limits.turns) == ("succeeded", None, 10)
    assert [facts["by"] for facts in await stage.facts(run.id, "limits_raised")] == ["bob", "bob"]
    assert len(bank.credits) == 3


async def test_calls_limit_leaves_asks_open(open_stage: OpenStage, bank: Bank) -> None:
    """An answer that asks for more calls than are left sends none of them; raised, all of them run, once."""
    agents = [agent(tools=TOOLS, limits=Limits(calls=2))]
    four = calls(*(("credit", {"account": "a1", "cents": n}) for n in range(1, 4)))
    stage = await open_stage(*bank.tools, agents=agents, clerk=[four, "ok"])
    run = await stopped(stage, "calls")
    assert (bank.credits, await stage.results(run.id)) == ([], [])
    await stage.runs.raise_limits(run.id, {"calls": None}, by="bob")
    run = await stage.settled(run.id)
    assert run.state == "succeeded"
    assert sorted(bank.credits) == [("a1", 1), ("a1", 2), ("a1", 3)]


@pytest.mark.parametrize(
    ("limit", "most", "raised"), [("tokens", 100, 200), ("cost", Decimal("0.50"), Decimal("1.50"))]
)
async def test_what_models_use_up_stops_the_run(
    open_stage: OpenStage, bank: Bank, limit: str, most: object, raised: object
) -> None:
    """Tokens and dollars of all attempts count; the answer that went over is kept, and its calls have run."""
    script = [credit(1, tokens=[50, 10], cost="0.3"), credit(2, tokens=[50, 10], cost="0.3"), "ok"]
    agents = [agent(tools=TOOLS, limits=Limits(**{limit: most}))]  # type: ignore[arg-type]
    stage = await open_stage(*bank.tools, agents=agents, clerk=script)
    run = await stopped(stage, limit)
    assert (run.spent.input_tokens, run.spent.output_tokens, run.spent.cost) == (100, 20, Decimal("0.6"))
    assert len(bank.credits) == 2
    await stage.runs.raise_limits(run.id, {limit: raised}, by="bob")
    assert (await stage.settled(run.id)).state == "succeeded"


@on_sqlite
async def test_wall_time_stops_a_run_that_waits(open_stage: OpenStage) -> None:
    """The clock runs on while a run is paused; what it waited for is still there when the time is raised."""
    agents = [agent(questions=True, limits=Limits(wall_s=100.0))]
    stage = await open_stage(agents=agents, clerk=[calls(("ask_person", {"question": "Who?"})), "ok"])
    run = await stage.run()
    assert run.state == "awaiting_answer"
    await stage.after(101)
    run = await stage.runs.get(run.id)
    assert (run.state, (run.reason or {})["code"]) == ("limit_reached", "limit_wall_s")
    with pytest.raises(RunNotAllowed):
        await stage.runs.answer(run.id, f"{run.id}:1.1", "me", by="bob")
    await stage.runs.raise_limits(run.id, {"wall_s": 1000.0}, by="bob")
    run = await stage.settled(run.id)
    assert run.state == "awaiting_answer"
    await stage.runs.answer(run.id, run.waiting[0].id, "me", by="bob")
    assert (await stage.settled(run.id)).state == "succeeded"


@on_sqlite
async def test_wait_for_a_model_ends_with_the_run_s_time(open_stage: OpenStage) -> None:
    """A model that is away keeps a run no longer than its time."""
    agents = [agent(limits=Limits(wall_s=1.0))]
    stage = await open_stage(agents=agents, clerk=[{"fail": "model_timeout"}])
    run = await stage.run()
    await stage.after(1.01)
    run = await stage.runs.get(run.id)
    assert (run.reason or {})["code"] == "limit_wall_s"


# case C91
async def test_what_was_spent_is_counted_once_whatever_is_recovered(open_stage: OpenStage, bank: Bank) -> None:
    """Every attempt of a model request counts once, failed ones too, however often the run changes hands."""
    stage = await open_stage(
        *bank.tools, agents=[agent(tools=TOOLS)],
        clerk=[credit(1, tokens=[40, 20], cost="0.60"), {"say": "ok", "tokens": [1, 1], "cost": "0.01"}],
    )  # fmt: skip
    started = await stage.runs.start("clerk", "go", by="ada")
    for _ in range(2):
        drive = await stage.runs.claim((await stage.runs.get(started.id)).record)
        await drive.step()
        await lose(stage.house)
        assert (await stage.runs.get(started.id)).spent.cost == Decimal("0.60")
    run = await stage.settled(started.id)
    assert (run.state, run.spent.cost, run.spent.calls) == ("succeeded", Decimal("0.61"), 1)
    attempts = [a for facts in await stage.facts(run.id, "model_answered") for a in facts["attempts"]]
    assert sum(Decimal(a["cost"]) for a in attempts) == run.spent.cost
    assert len(bank.credits) == 1


async def test_failed_requests_are_billed(open_stage: OpenStage) -> None:
    """An attempt that was not answered cost what it cost."""
    script = [{"fail": "model_refused_request", "tokens": [7, 0], "cost": "0.05"}]
    stage = await open_stage(agents=[agent()], clerk=script)
    run = await stage.run()
    assert (run.state, run.spent.cost, run.spent.input_tokens) == ("failed", Decimal("0.05"), 7)


async def test_a_start_may_tighten_limits_only(open_stage: OpenStage, bank: Bank) -> None:
    """Limits of a start are the smaller of its own and the agent's; nonsense is refused by name."""
    agents = [agent(tools=TOOLS, limits=Limits(turns=5, calls=10))]
    stage = await open_stage(*bank.tools, agents=agents, clerk=[credit(1), credit(2), "ok"])
    run = await stopped(stage, "turns", limits={"turns": 1, "calls": 1000})
    assert (run.limits.turns, run.limits.calls) == (1, 10)
    for wrong in ({"turns": 0}, {"turns": None}, {"turn": 5}, {"cost": "x"}, {"tokens": 1.5}, {"wall_s": float("inf")}):
        with pytest.raises(InvalidSetting):
            await stage.runs.raise_limits(run.id, wrong, by="bob")
    with pytest.raises(NotEntitled):
        await stage.runs.raise_limits(run.id, {"turns": 9}, by="")
    await stage.runs.raise_limits(run.id, {"turns": 9}, by="bob")
    await stage.settle()
    with pytest.raises(RunNotAllowed):
        await stage.runs.raise_limits(run.id, {"turns": 99}, by="bob")
