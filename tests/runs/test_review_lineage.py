"""What a rerun would repeat, wherever in a family of runs it was done; and children that outlive their parent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.houses import until
from tests.support.runs import Bank, OpenStage, Stage, agent, calls, driven_only
from tollhouse import Rejected, happened, tool, write
from tollhouse.errors import InvalidSetting, RunNotAllowed
from tollhouse.gate.verdicts import Asked, Hold, Pass
from tollhouse.ledger.run_record import RunQuery
from tollhouse.models.port import ModelFailed, ModelRequest
from tollhouse.operations.purge import purge
from tollhouse.runs import journal
from tollhouse.runs.agents import AgentApproval, Limits
from tollhouse.runs.lineage import RunCheck
from tollhouse.runs.view import RunView

TOOLS = ("credit", "letter", "balance")
CREDIT = ("credit", {"account": "a1", "cents": 5})


async def family(open_stage: OpenStage, bank: Bank, first: Any, second: Any) -> tuple[Stage, RunView]:
    """A clerk, with a payer below it, that did ``first`` and failed; a rerun of it does ``second`` and ends well."""
    seen: list[str] = []

    def clerk(request: ModelRequest) -> Any:
        run, _, turn = request.key.partition(":")
        if turn == "1":
            seen.append(run)
            return calls(first if len(seen) == 1 else second)["call"]
        if run == seen[0]:
            raise ModelFailed("model_refused_request", "no", transient=False)
        return "ok"

    agents = [agent(agents=("payer",), tools=TOOLS), agent("payer", tools=TOOLS)]
    payer = [calls(CREDIT), "paid"]
    stage = await open_stage(*bank.tools, agents=agents, clerk=clerk, payer=payer)
    run = await stage.run()
    assert (run.state, len(bank.credits)) == ("failed", 1)
    return stage, run


def pay(how: str) -> tuple[str, dict[str, str]]:
    """The payer asked in some words: models seldom choose the same twice."""
    return "agent_payer", {"input": how}


@pytest.mark.parametrize(
    ("first", "second"),
    [(pay("pay a1"), pay("please pay a1")), (pay("pay a1"), CREDIT), (CREDIT, pay("pay a1"))],
    ids=["by children of both", "by a child first", "by a child again"],
)
async def test_rerun_holds_what_any_run_of_the_family_did(
    open_stage: OpenStage, bank: Bank, first: Any, second: Any
) -> None:
    """An effect of an agent that was run by the run, or by its rerun, counts like one of their own."""
    stage, run = await family(open_stage, bank, first, second)
    again = await stage.settled((await stage.runs.rerun(run.id, by="ada")).id)
    assert again.state in ("awaiting_approval", "awaiting_work")
    assert len(bank.credits) == 1
    children = await stage.runs.list(RunQuery(parent_run_id=again.id))
    (held,) = [waiting.id for each in (again, *children) for waiting in each.waiting if waiting.kind == "approval"]
    await stage.house.approve(held, by="bob")
    assert (await stage.settled(again.id)).state == "succeeded"
    assert len(bank.credits) == 2


@driven_only
async def test_rerun_that_repeats_lets_its_children_repeat(open_stage: OpenStage, bank: Bank) -> None:
    """The recorded choice holds for everything that the rerun has done for it."""
    stage, run = await family(open_stage, bank, pay("pay a1"), pay("please pay a1"))
    again = await stage.settled((await stage.runs.rerun(run.id, by="ada", effects="repeat")).id)
    assert (again.state, len(bank.credits)) == ("succeeded", 2)


@driven_only
async def test_twin_is_found_among_any_number_of_calls(
    open_stage: OpenStage, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run with more calls of a tool than one page has does not hide the first of them."""
    monkeypatch.setattr(journal, "CALLS_PAGE", 1)
    script = [calls(CREDIT), calls(("credit", {"account": "a2", "cents": 7})), {"fail": "model_refused_request"}]
    stage = await open_stage(*bank.tools, agents=[agent(tools=TOOLS)], clerk=script)
    run = await stage.run()
    assert (run.state, len(bank.credits)) == ("failed", 2)
    again = await stage.settled((await stage.runs.rerun(run.id, by="ada")).id)
    assert (again.state, len(bank.credits)) == ("awaiting_approval", 2)


@driven_only
async def test_rerun_beside_a_call_that_people_may_still_approve_is_held(open_stage: OpenStage, bank: Bank) -> None:
    """What waits for people in a run that stands at a limit may yet be sent, so its twin waits for them, too."""
    agents = [agent(tools=TOOLS, limits=Limits(turns=1), approvals={"letter": AgentApproval()})]
    letter = ("letter", {"to": "a1", "text": "hello"})
    stage = await open_stage(*bank.tools, agents=agents, clerk=[calls(letter), "ok"])
    run = await stage.run(limits={"wall_s": 1.0})
    assert run.state == "awaiting_approval"
    while run.state != "limit_reached":
        run = await stage.settled(run.id)
    again = await stage.settled((await stage.runs.rerun(run.id, by="ada")).id)
    call = await stage.house.get(again.waiting[0].id)
    assert call.raw.approval is not None
    assert f"would repeat {run.id}:1.1" in call.raw.approval.reason


@driven_only
async def test_run_that_was_run_again_is_not_let_go_on(open_stage: OpenStage, bank: Bank) -> None:
    """Of a run at its limit and a rerun of it only one goes on: each would do what the other does."""
    agents = [agent(tools=TOOLS, limits=Limits(calls=1))]
    stage = await open_stage(*bank.tools, agents=agents, clerk=[calls(CREDIT, ("balance", {"account": "a1"})), "ok"])
    run = await stage.run()
    assert run.state == "limit_reached"
    again = await stage.runs.rerun(run.id, by="ada")
    with pytest.raises(RunNotAllowed, match=again.id):
        await stage.runs.raise_limits(run.id, {"calls": 5}, by="bob")


@driven_only
async def test_child_that_starts_while_its_parent_is_cancelled_ends_with_it(
    open_stage: OpenStage, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that was about to start a child starts one after the cancel looked for children: it sends nothing."""
    agents = [agent(agents=("payer",)), agent("payer", tools=TOOLS)]
    script = {"clerk": [calls(pay("pay a1")), "ok"], "payer": [calls(CREDIT), "paid"]}
    stage = await open_stage(*bank.tools, agents=agents, **script)
    for runs in stage.all_runs:

        async def start(*given: Any, _start: Any = runs.start, **options: Any) -> RunView:
            if parent := options.get("parent_run_id"):
                await stage.runs.cancel(parent, by="bob", reason="stop")
            started: RunView = await _start(*given, **options)
            return started

        monkeypatch.setattr(runs, "start", start)
    run = await stage.run()
    (child,) = await stage.runs.list(RunQuery(parent_run_id=run.id))
    assert (run.state, child.state) == ("cancelled", "cancelled")
    assert bank.credits == []


@driven_only
async def test_nothing_of_a_cancelled_run_s_children_departs(
    open_stage: OpenStage, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that nobody has cancelled yet sends nothing once its parent is cancelled."""
    agents = [agent(agents=("payer",)), agent("payer", tools=TOOLS, approvals={"credit": AgentApproval()})]
    script = {"clerk": [calls(pay("pay a1")), "ok"], "payer": [calls(CREDIT), "paid"]}
    stage = await open_stage(*bank.tools, agents=agents, **script)
    run = await stage.run()
    (child,) = await stage.runs.list(RunQuery(parent_run_id=run.id))

    async def died(*_given: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(stage.runs, "tidy", died)
        with pytest.raises(KeyboardInterrupt):
            await stage.runs.cancel(run.id, by="bob")
    await stage.house.approve(f"{child.id}:1.1", by="bob")
    drive = await stage.runs.claim((await stage.runs.get(child.id)).record)
    await drive.step()
    assert bank.credits == []
    assert (await stage.house.get(f"{child.id}:1.1")).state == "refused"


@driven_only
async def test_rerun_that_reuses_a_purged_result_says_so(
    open_stage: OpenStage, bank: Bank, shared_store_url: str, house_tenant: str
) -> None:
    """The model hears that it took effect and that its result is gone; the run goes on."""
    failed: list[str] = []

    def clerk(request: ModelRequest) -> Any:
        if request.key.endswith(":1"):
            return calls(CREDIT)["call"]
        if not failed:
            failed.append(request.key)
            raise ModelFailed("model_refused_request", "no", transient=False)
        return "ok"

    stage = await open_stage(*bank.tools, agents=[agent(tools=TOOLS)], clerk=clerk)
    run = await stage.run()
    await purge(shared_store_url, house_tenant, older_than_s=0.0)
    again = await stage.settled((await stage.runs.rerun(run.id, by="ada", effects="reuse")).id)
    assert (again.state, len(bank.credits)) == ("succeeded", 1)
    (result,) = await stage.results(again.id)
    assert (result["call_state"], result["reused"], result["failed"]) == ("succeeded", f"{run.id}:1.1", True)
    assert "purged" in result["text"]


@driven_only
async def test_agent_is_not_run_again_beside_a_run_of_it_that_may_have_begun(
    open_stage: OpenStage, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that asks an agent for the same again, while the first time is in doubt, waits for people."""
    agents = [agent(agents=("payer",), on_in_doubt="tell_model"), agent("payer", tools=TOOLS)]
    script = {"clerk": [calls(pay("pay a1")), calls(pay("pay a1")), "ok"], "payer": [calls(CREDIT), "paid"]}
    stage = await open_stage(*bank.tools, agents=agents, **script)
    start = stage.runs.start

    async def breaks_off(*given: Any, **options: Any) -> RunView:
        started: RunView = await start(*given, **options)
        if str(options.get("key")).endswith(":1.1"):
            raise OSError("the answer was lost")
        return started

    monkeypatch.setattr(stage.runs, "start", breaks_off)
    run = await stage.run()
    assert run.state == "awaiting_approval"
    assert [waiting.id for waiting in run.waiting] == [f"{run.id}:2.1"]
    assert len(bank.credits) == 1


@driven_only
async def test_retried_call_of_a_run_that_failed_may_run_an_agent(open_stage: OpenStage, bank: Bank) -> None:
    """A named person's retry has its effect, though the run that had asked for it has failed."""
    refused: list[str] = []
    agents = [agent(agents=("payer",), on_tool_error="fail"), agent("payer", tools=TOOLS)]
    script = {"clerk": [calls(pay("pay a1")), "ok"], "payer": [calls(CREDIT), "paid"]}
    stage = await open_stage(*bank.tools, agents=agents, **script)
    start = stage.runs.start

    async def busy_once(*given: Any, **options: Any) -> RunView:
        if options.get("parent_key") and not refused:
            refused.append("once")
            raise InvalidSetting("not now")
        started: RunView = await start(*given, **options)
        return started

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage.runs, "start", busy_once)
        run = await stage.run()
        assert run.state == "failed"
        await stage.house.retry(f"{run.id}:1.1", by="bob", reason="it may be paid now")
        while (await stage.house.get(f"{run.id}:1.1")).state == "ready":
            await stage.house.services.round()
        await stage.settle()
    assert len(bank.credits) == 1


@driven_only
async def test_contradicted_result_is_not_reused(open_stage: OpenStage) -> None:
    """What is on record as done and as not done is neither answered from nor repeated: people look first."""
    go_on = asyncio.Event()

    @tool(write(attempt_timeout_s=0.5))
    async def slow() -> str:
        """Take longer than it may, and turn out not to have done it."""
        await go_on.wait()
        raise Rejected("it was not done")

    stage = await open_stage(slow, agents=[agent(tools=("slow",))], clerk=[calls(("slow", {})), "ok"])
    run = await stage.run()
    key = f"{run.id}:1.1"
    await stage.house.resolve(key, happened("done"), reason="seen", by="bob", force=True)
    go_on.set()
    await until(stage.house, key, lambda call: call.contradicted)
    await stage.runs.cancel(run.id, by="bob")
    again = await stage.settled((await stage.runs.rerun(run.id, by="ada", effects="reuse")).id)
    assert again.state == "awaiting_approval"
    call = await stage.house.get(again.waiting[0].id)
    assert call.raw.approval is not None
    assert key in call.raw.approval.reason


@pytest.mark.parametrize("effects", ["hold", "reuse"])
async def test_rerun_sees_what_another_rerun_of_the_same_run_did(
    open_stage: OpenStage, bank: Bank, effects: Any
) -> None:
    """Two people run the same run again: the second rerun does not repeat unseen what only the first one did."""
    failed: list[str] = []

    def clerk(request: ModelRequest) -> Any:
        if not failed:
            failed.append(request.key)
            raise ModelFailed("model_refused_request", "no", transient=False)
        return calls(pay("pay a1"), CREDIT)["call"] if request.key.endswith(":1") else "ok"

    agents = [agent(agents=("payer",), tools=TOOLS), agent("payer", tools=TOOLS)]
    payer = [calls(("credit", {"account": "a2", "cents": 7})), "paid"]
    stage = await open_stage(*bank.tools, agents=agents, clerk=clerk, payer=payer)
    run = await stage.run()
    assert (run.state, bank.credits) == ("failed", [])
    first = await stage.settled((await stage.runs.rerun(run.id, by="ada")).id)
    assert (first.state, len(bank.credits)) == ("succeeded", 2)
    second = await stage.settled((await stage.runs.rerun(run.id, by="bob", effects=effects)).id)
    assert second.state == ("awaiting_approval" if effects == "hold" else "succeeded")
    assert len(bank.credits) == 2


async def test_call_that_people_changed_is_a_twin_by_what_was_asked_and_by_what_ran(
    open_stage: OpenStage, bank: Bank
) -> None:
    """What the model asked for first and what was sent instead are both held in a rerun."""
    other = ("credit", {"account": "a1", "cents": 3})
    agents = [agent(tools=TOOLS, approvals={"credit": AgentApproval()})]
    seen: list[str] = []

    def clerk(request: ModelRequest) -> Any:
        if not request.key.endswith(":1"):
            return "ok"
        seen.append(request.key)
        return calls(CREDIT)["call"] if len(seen) == 1 else calls(CREDIT, other)["call"]

    stage = await open_stage(*bank.tools, agents=agents, clerk=clerk)
    run = await stage.run()
    edited = await stage.house.edit(run.waiting[0].id, other[1], by="bob")
    await stage.house.approve(run.waiting[0].id, by="carol", digest=edited.raw.digest)
    assert (await stage.settled(run.id)).state == "succeeded"
    again = await stage.settled((await stage.runs.rerun(run.id, by="ada")).id)
    reasons = [(await stage.house.get(each.id)).raw.approval.reason for each in again.waiting]  # type: ignore[union-attr]
    assert len(reasons) == 2
    assert all(f"would repeat {run.id}:1.1" in reason for reason in reasons)


@driven_only
async def test_child_that_starts_while_its_parent_fails_ends_with_it(
    open_stage: OpenStage, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that was about to start a child starts one after the end of its run looked for children: none goes on."""

    @tool(write())
    async def refuse() -> str:
        """Fail."""
        raise Rejected("no")

    agents = [agent(agents=("payer",), tools=("refuse",), on_tool_error="fail"), agent("payer", tools=TOOLS)]
    script = {"clerk": [calls(pay("pay a1"), ("refuse", {})), "ok"], "payer": [calls(CREDIT), "paid"]}
    stage = await open_stage(*bank.tools, refuse, agents=agents, **script)
    late = asyncio.Event()
    for runs in stage.all_runs:

        async def start(*given: Any, _start: Any = runs.start, **options: Any) -> RunView:
            if options.get("parent_run_id"):
                await late.wait()
            started: RunView = await _start(*given, **options)
            return started

        monkeypatch.setattr(runs, "start", start)
    run = await stage.run()
    assert (run.state, run.record.due_at_us) == ("failed", None)
    late.set()
    await until(stage.house, f"{run.id}:1.1", lambda call: call.state not in ("departed", "in_doubt"))
    await stage.settle()
    (child,) = await stage.runs.list(RunQuery(parent_run_id=run.id))
    assert (child.state, bank.credits) == ("cancelled", [])


async def test_rerun_reuses_no_run_of_an_agent_that_failed(open_stage: OpenStage, bank: Bank) -> None:
    """A child that failed because something was away is not what is answered from: people decide, and it runs anew."""
    failed: list[str] = []

    def payer(request: ModelRequest) -> Any:
        if not failed:
            failed.append(request.key)
            raise ModelFailed("model_refused_request", "no", transient=False)
        return calls(CREDIT)["call"] if request.key.endswith(":1") else "paid"

    agents = [agent(agents=("payer",)), agent("payer", tools=TOOLS)]
    clerk = [calls(pay("pay a1")), "{{ results.0.state }}"]
    stage = await open_stage(*bank.tools, agents=agents, clerk=clerk, payer=payer)
    run = await stage.run()
    assert (run.output, bank.credits) == ("failed", [])
    again = await stage.settled((await stage.runs.rerun(run.id, by="ada", effects="reuse")).id)
    assert again.state == "awaiting_approval"
    await stage.house.approve(again.waiting[0].id, by="bob")
    again = await stage.settled(again.id)
    assert (again.output, len(bank.credits)) == ("succeeded", 1)
    third = await stage.settled((await stage.runs.rerun(again.id, by="ada", effects="reuse")).id)
    assert (third.output, len(bank.credits)) == ("succeeded", 1)


async def test_call_that_waits_for_people_is_not_answered_from_the_record_meanwhile(
    open_stage: OpenStage, bank: Bank
) -> None:
    """A held call of a rerun that reuses stays the question that it is, so that no yes is given to what is over."""
    letter = ("letter", {"to": "a1", "text": "hello"})
    agents = [agent(tools=TOOLS, on_in_doubt="fail")]
    stage = await open_stage(*bank.tools, agents=agents, clerk=[calls(letter), "ok"])
    bank.receiver.fault("close_after_effect", collection="letters")
    run = await stage.run()
    again = await stage.settled((await stage.runs.rerun(run.id, by="ada", effects="reuse")).id)
    assert (run.state, again.state) == ("failed", "awaiting_approval")
    await stage.house.resolve(f"{run.id}:1.1", happened({"id": "x"}), reason="seen", by="bob", force=True)
    await stage.runs.store.wake(stage.runs.tenant, again.id)
    again = await stage.settled(again.id)
    assert (again.state, bank.letters) == ("awaiting_approval", 1)
    await stage.house.deny(again.waiting[0].id, by="bob", reason="it was sent")
    again = await stage.settled(again.id)
    assert (again.state, bank.letters) == ("succeeded", 1)
    (result,) = await stage.results(again.id)
    assert (result["call_state"], "reused" in result) == ("refused", False)


@driven_only
async def test_of_two_reruns_the_later_waits_for_the_earlier_and_not_both_for_each_other(
    open_stage: OpenStage, bank: Bank
) -> None:
    """A call that only waits for people is no reason against sending again what was asked for before it."""
    failed: list[str] = []

    def clerk(request: ModelRequest) -> Any:
        if not failed:
            failed.append(request.key)
            raise ModelFailed("model_refused_request", "no", transient=False)
        return calls(("letter", {"to": "a1", "text": "hello"}))["call"] if request.key.endswith(":1") else "ok"

    stage = await open_stage(*bank.tools, agents=[agent(tools=TOOLS)], clerk=clerk)
    run = await stage.run()
    bank.receiver.fault("close_after_effect", collection="letters")
    earlier, later = [await stage.settled((await stage.runs.rerun(run.id, by=by)).id) for by in ("ada", "bob")]
    assert (earlier.state, later.state) == ("awaiting_reconciliation", "awaiting_approval")

    async def verdict(of: RunView) -> Any:
        call = (await stage.house.get(f"{of.id}:1.1")).raw
        asked = Asked(call.tenant, "ada", bank.letter, call.key, {}, of.id, call.digest, 1)
        return await RunCheck(stage.runs.store).check(asked)

    assert isinstance(await verdict(earlier), Pass)
    assert isinstance(await verdict(later), Hold)
    await stage.house.approve(later.waiting[0].id, by="carol")
    assert (await stage.settled(later.id)).state == "succeeded"
    assert isinstance(await verdict(earlier), Hold)
