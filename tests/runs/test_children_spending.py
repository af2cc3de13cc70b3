"""What children spend counts for their parent: once, whatever became of them, and within what it has left."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from tests.support.runs import Bank, OpenStage, Stage, agent, calls, driven_only
from tollhouse import Rejected, external, tool
from tollhouse.errors import RunNotAllowed
from tollhouse.ledger.run_record import RunQuery
from tollhouse.models.port import Model, ModelReply, ModelRequest, OnText
from tollhouse.runs.agents import AgentApproval, Limits
from tollhouse.runs.body import Spent
from tollhouse.runs.view import RunView

PAY = ("agent_payer", {"input": "pay"})
HIRE = ("agent_hirer", {"input": "have it paid"})
CREDIT = ("credit", {"account": "a1", "cents": 5})


def used(turn: Any, dollars: str = "1.5") -> dict[str, Any]:
    """A turn of 20 input and 10 output tokens at that price."""
    told = {"say": turn} if isinstance(turn, str) else turn
    return {**told, "tokens": [20, 10], "cost": dollars}


class SilentAboutCost:
    """A provider that gives the payer no figures, and the hirer's second answer no price."""

    def __init__(self, inner: Model) -> None:
        self._inner = inner

    async def ask(self, request: ModelRequest, on_text: OnText | None = None) -> ModelReply:
        reply = await self._inner.ask(request, on_text)
        (attempt,) = reply.attempts
        if request.model == "scripted:payer":
            attempt = replace(attempt, input_tokens=None, output_tokens=None, cost=None)
        elif request.model == "scripted:hirer" and request.key.endswith(":2"):
            attempt = replace(attempt, cost=None)
        return replace(reply, attempts=(attempt,))

    async def close(self) -> None:
        await self._inner.close()


@tool(external())
async def refused() -> str:
    """Refused by its receiver, always."""
    raise Rejected("never")


async def child_of(stage: Stage, run: RunView) -> RunView:
    """The one child of a run."""
    (child,) = await stage.runs.list(RunQuery(parent_run_id=run.id))
    return child


async def told_by_journal(stage: Stage, run_id: str) -> list[dict[str, Any]]:
    """What the journal of a run says that its children spent."""
    return [each["spent"] for each in await stage.results(run_id) if "spent" in each]


async def test_parent_counts_tokens_and_cost_of_its_child(open_stage: OpenStage, bank: Bank) -> None:
    """Both are in the sum and shown apart; turns and calls of a child are its own; the journal says the same."""
    agents = [agent(agents=("payer",)), agent("payer", tools=("credit",))]
    script = [used(calls(CREDIT)), used("paid")]
    stage = await open_stage(*bank.tools, agents=agents, clerk=[used(calls(PAY)), used("ok", "0.25")], payer=script)
    run = await stage.run()
    assert run.by_children == Spent(2, 1, 40, 20, Decimal("3.0"))
    assert run.spent == Spent(2, 1, 80, 40, Decimal("4.75"))
    (told,) = await told_by_journal(stage, run.id)
    assert (told["cost"], told["input_tokens"], told["turns"]) == ("3.0", 40, 2)
    child = await child_of(stage, run)
    assert (child.spent, child.by_children) == (run.by_children, Spent())


async def test_child_that_went_over_stops_its_parent(open_stage: OpenStage, bank: Bank) -> None:
    """The limit of an agent holds for all it has others do; raised, the parent goes on and pays for no child twice."""
    agents = [agent(agents=("payer",), limits=Limits(cost=Decimal(3))), agent("payer")]
    script = {"clerk": [used(calls(PAY), "1"), used("ok", "1")], "payer": [used("paid", "2")]}
    stage = await open_stage(*bank.tools, agents=agents, **script)
    run = await stage.run()
    assert (run.state, (run.reason or {})["code"], run.spent.cost) == ("limit_reached", "limit_cost", Decimal(3))
    (reached,) = await stage.facts(run.id, "limit_reached")
    assert (reached["spent"]["cost"], reached["spent"]["by_children"]["cost"]) == ("3", "2")
    await stage.runs.raise_limits(run.id, {"cost": 10}, by="bob")
    run = await stage.settled(run.id)
    assert (run.state, run.spent.cost, run.by_children.cost) == ("succeeded", Decimal(4), Decimal(2))


async def test_unknown_cost_of_a_child_stays_unknown(open_stage: OpenStage, bank: Bank) -> None:
    """A price that nobody knows is counted as such in every generation."""
    agents = [agent(agents=("hirer",)), agent("hirer", agents=("payer",)), agent("payer")]
    script = {
        "clerk": [used(calls(HIRE)), used("ok")],
        "hirer": [used(calls(PAY)), used("ok")],
        "payer": [used("paid")],
    }
    stage = await open_stage(*bank.tools, agents=agents, **script)
    stage.model._inner = SilentAboutCost(stage.model._inner)
    run = await stage.run()
    assert (run.by_children.unpriced, run.by_children.unmeasured) == (2, 1)
    assert (run.spent.unpriced, run.spent.unmeasured, run.spent.cost) == (2, 1, Decimal("4.5"))
    assert [each["unpriced"] for each in await told_by_journal(stage, run.id)] == [2]


@pytest.mark.parametrize("end", ["failed", "cancelled"])
async def test_child_without_an_output_counts_all_the_same(open_stage: OpenStage, bank: Bank, end: str) -> None:
    """What was spent is spent: by a child that failed or was cancelled, and by its own that it did not wait for."""
    agents = [
        agent(agents=("hirer",)),
        agent(
            "hirer",
            agents=("payer",),
            tools=("refused",),
            on_tool_error="fail",
            approvals={"refused": AgentApproval()},
        ),
        agent("payer", tools=("credit",), approvals={"credit": AgentApproval()}),
    ]
    script = {
        "clerk": [used(calls(HIRE), "1"), used("ok", "1")],
        "hirer": [used(calls(PAY, ("refused", {})), "1")],
        "payer": [used(calls(CREDIT), "1")],
    }
    stage = await open_stage(*bank.tools, refused, agents=agents, **script)
    run = await stage.run()
    child = await child_of(stage, run)
    assert (await child_of(stage, child)).state == "awaiting_approval"
    if end == "cancelled":
        await stage.runs.cancel(child.id, by="bob", reason="not this one")
    else:
        await stage.house.approve(f"{child.id}:1.2", by="bob")
    run = await stage.settled(run.id)
    child = await stage.runs.get(child.id)
    assert (run.state, child.state) == ("succeeded", end)
    grandchild = await child_of(stage, child)
    assert child.spent.cost == Decimal(1) + grandchild.spent.cost
    assert run.by_children == child.body.own.plus(grandchild.spent)
    assert (child.body.own.cost, run.spent.cost) == (Decimal(1), Decimal(2) + child.spent.cost)


async def test_run_that_ends_before_its_child_counts_it_too(open_stage: OpenStage, bank: Bank) -> None:
    """A cancel settles no call any more; what the children had spent is written down as the run is tidied."""
    agents = [
        agent(agents=("payer",)),
        agent("payer", tools=("credit",), approvals={"credit": AgentApproval()}),
    ]
    stage = await open_stage(*bank.tools, agents=agents, clerk=[used(calls(PAY))], payer=[used(calls(CREDIT))])
    run = await stage.run()
    assert run.spent.cost == Decimal("1.5")
    await stage.runs.cancel(run.id, by="bob", reason="stop")
    run = await stage.settled(run.id)
    assert (run.spent.cost, run.by_children.cost) == (Decimal("3.0"), Decimal("1.5"))
    (tidied,) = await stage.facts(run.id, "run_tidied")
    assert tidied["by_children"]["cost"] == "1.5"


async def test_child_starts_with_no_more_than_is_left(open_stage: OpenStage, bank: Bank) -> None:
    """Tokens and dollars of a child are what its parent has left, where its own agent does not allow less."""
    agents = [
        agent(agents=("payer",), limits=Limits(cost=Decimal(5), tokens=100)),
        agent("payer", limits=Limits(cost=Decimal(50), tokens=40)),
    ]
    stage = await open_stage(*bank.tools, agents=agents, clerk=[used(calls(PAY)), used("ok")], payer=[used("paid")])
    run = await stage.run()
    child = await child_of(stage, run)
    assert (child.limits.cost, child.limits.tokens, child.limits.turns) == (Decimal("3.5"), 40, 25)
    assert run.state == "succeeded"


async def test_child_stopped_at_what_was_left_goes_on_when_raised(open_stage: OpenStage, bank: Bank) -> None:
    """It waits at its limit as any run; its parent waits for it, and hears its end."""
    agents = [agent(agents=("payer",), limits=Limits(cost=Decimal(2))), agent("payer", tools=("credit",))]
    script = [used(calls(CREDIT)), used("paid")]
    stage = await open_stage(*bank.tools, agents=agents, clerk=[used(calls(PAY)), used("ok")], payer=script)
    run = await stage.run()
    child = await child_of(stage, run)
    assert (run.state, child.state, child.limits.cost) == ("awaiting_work", "limit_reached", Decimal("0.5"))
    await stage.runs.raise_limits(child.id, {"cost": 5}, by="bob")
    run = await stage.settled(run.id)
    assert (run.state, run.spent.cost) == ("limit_reached", Decimal("4.5"))


async def test_nothing_left_starts_no_child(open_stage: OpenStage, bank: Bank) -> None:
    """An answer that used everything up sends none of its calls to another agent before somebody raises the limit."""
    agents = [agent(agents=("payer",), tools=("credit",), limits=Limits(tokens=30)), agent("payer")]
    asked = used(calls(PAY, CREDIT))
    stage = await open_stage(*bank.tools, agents=agents, clerk=[asked, used("ok")], payer=[used("paid")])
    run = await stage.run()
    assert (run.state, (run.reason or {})["code"]) == ("limit_reached", "limit_tokens")
    assert (await stage.runs.list(RunQuery(parent_run_id=run.id)), bank.credits) == ([], [])
    await stage.runs.raise_limits(run.id, {"tokens": 1000}, by="bob")
    run = await stage.settled(run.id)
    assert (run.state, run.by_children.tokens, bank.credits) == ("succeeded", 30, [("a1", 5)])


async def test_child_approved_after_all_was_spent_is_refused(open_stage: OpenStage, bank: Bank) -> None:
    """What had waited for people while a sibling used everything up is not started; its parent hears why."""
    agents = [
        agent(agents=("payer", "hirer"), limits=Limits(cost=Decimal(3)), approvals={"agent_hirer": AgentApproval()}),
        agent("payer"),
        agent("hirer"),
    ]
    script = {
        "clerk": [used(calls(PAY, HIRE)), used("ok")],
        "payer": [used("paid")],
        "hirer": [used("hired")],
    }
    stage = await open_stage(*bank.tools, agents=agents, **script)
    run = await stage.run()
    assert (run.state, run.spent.cost) == ("awaiting_approval", Decimal(3))
    await stage.house.approve(f"{run.id}:1.2", by="bob")
    run = await stage.settled(run.id)
    _, refused = await stage.results(run.id)
    assert (refused["call_state"], refused["failed"]) == ("failed", True)
    assert "nothing left of its limit of cost" in refused["text"]
    assert (run.state, len(await stage.runs.list(RunQuery(parent_run_id=run.id)))) == ("limit_reached", 1)


@driven_only
async def test_child_that_stands_is_found_though_nothing_is_left(open_stage: OpenStage, bank: Bank) -> None:
    """The same start again finds its run, whatever was spent meanwhile; another one is refused."""
    agents = [agent(agents=("payer",), limits=Limits(cost=Decimal(3))), agent("payer")]
    stage = await open_stage(*bank.tools, agents=agents, clerk=[used(calls(PAY))], payer=[used("paid", "2")])
    run = await stage.run()
    child = await child_of(stage, run)

    async def start(key: str) -> RunView:
        return await stage.runs.start("payer", "pay", by="ada", key=key, parent_run_id=run.id, parent_key=key)

    assert (await start(f"{run.id}:1.1")).id == child.id
    with pytest.raises(RunNotAllowed):
        await start(f"{run.id}:1.2")


async def test_reused_child_costs_nothing_new(open_stage: OpenStage, bank: Bank) -> None:
    """A rerun that answers from the record has not had the work done again."""
    agents = [agent(agents=("payer",)), agent("payer")]
    stage = await open_stage(*bank.tools, agents=agents, clerk=[used(calls(PAY)), used("ok")], payer=[used("paid")])
    run = await stage.run()
    again = await stage.runs.rerun(run.id, by="bob", effects="reuse")
    again = await stage.settled(again.id)
    assert (again.state, again.by_children, again.spent.cost) == ("succeeded", Spent(), Decimal("3.0"))
    assert await told_by_journal(stage, again.id) == []
