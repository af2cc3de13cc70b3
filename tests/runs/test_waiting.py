"""What a run waits for: approvals, answers, moments, long work; in any order, reminded, expired, never stranded."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.runs import Bank, OpenStage, agent, calls, driven_only, on_sqlite
from tollhouse import Accepted, Answer, CallContext, destructive, did_not_happen, external, happened, tool, write
from tollhouse.errors import CallConflict, NotAllowed, NotEntitled, RunNotAllowed, UnknownQuestion
from tollhouse.models.port import ModelRequest
from tollhouse.runs.agents import AgentApproval
from tollhouse.runs.view import run_as_json

TOOLS = ("credit", "letter", "balance")
CREDIT = ("credit", {"account": "a1", "cents": 5})
LETTER = ("letter", {"to": "a1", "text": "hello"})
ASK = ("ask_person", {"question": "How much?"})
WAIT = ("wait", {"seconds": 3600})
NEEDS = {"credit": AgentApproval(), "letter": AgentApproval()}


# case C01
async def test_sibling_of_a_question_runs_once(open_stage: OpenStage, bank: Bank) -> None:
    """A call beside a question runs at once and only once; the answer continues the question alone."""
    stage = await open_stage(*bank.tools, agents=[agent(tools=TOOLS, questions=True)], clerk=[calls(CREDIT, ASK), "ok"])
    run = await stage.run()
    assert (run.state, [w.kind for w in run.waiting]) == ("awaiting_answer", ["answer"])
    assert bank.credits == [("a1", 5)]
    await stage.runs.answer(run.id, run.waiting[0].id, "five", by="bob")
    run = await stage.settled(run.id)
    assert run.state == "succeeded"
    assert bank.credits == [("a1", 5)]
    assert [each["text"] for each in await stage.results(run.id)][1] == "five"


# case C05
async def test_resuming_in_any_way_continues_at_the_open_call(open_stage: OpenStage, bank: Bank) -> None:
    """An approval, another wake and a driver that looks again all continue at the call that waits."""
    agents = [agent(tools=TOOLS, approvals={"letter": AgentApproval()})]
    stage = await open_stage(*bank.tools, agents=agents, clerk=[calls(CREDIT), calls(LETTER), "ok"])
    run = await stage.run()
    assert run.state == "awaiting_approval"
    await stage.runs.store.wake(stage.runs.tenant, run.id)
    await stage.settle()
    assert (await stage.runs.get(run.id)).state == "awaiting_approval"
    await stage.house.approve(run.waiting[0].id, by="bob")
    assert (await stage.settled(run.id)).state == "succeeded"
    assert (len(bank.credits), bank.letters) == (1, 1)
    assert (await stage.kinds(run.id)).count("model_answered") == 3


# case C79
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_parallel_approvals_are_answered_in_any_order(
    open_stage: OpenStage, bank: Bank, order: tuple[int, int]
) -> None:
    """Each call that waits has an id of its own, and each decision reaches its own call."""
    agents = [agent(tools=TOOLS, approvals=NEEDS)]
    stage = await open_stage(*bank.tools, agents=agents, clerk=[calls(CREDIT, LETTER), "ok"])
    run = await stage.run()
    waiting = run.waiting
    assert [w.id for w in waiting] == [f"{run.id}:1.1", f"{run.id}:1.2"]
    await stage.house.approve(waiting[order[0]].id, by="bob")
    run = await stage.settled(run.id)
    assert [w.id for w in run.waiting] == [waiting[order[1]].id]
    assert (len(bank.credits), bank.letters) == ((1, 0) if order[0] == 0 else (0, 1))
    await stage.house.deny(waiting[order[1]].id, by="bob", reason="no")
    run = await stage.settled(run.id)
    assert run.state == "succeeded"
    results = await stage.results(run.id)
    assert [each["call_state"] for each in results] == (
        ["succeeded", "refused"] if order[0] == 0 else ["refused", "succeeded"]
    )


# case C79
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_parallel_questions_are_answered_in_any_order(open_stage: OpenStage, order: tuple[int, int]) -> None:
    """Two answers given before the run takes up either one both arrive, each at its own question."""
    asked = calls(ASK, ("ask_person", {"question": "To whom?"}))
    stage = await open_stage(agents=[agent(questions=True)], clerk=[asked, "ok"])
    run = await stage.run()
    said = ("five", "ada")
    for place in order:
        await stage.runs.answer(run.id, run.waiting[place].id, said[place], by="bob")
    run = await stage.settled(run.id)
    assert run.state == "succeeded"
    assert [each["text"] for each in await stage.results(run.id)] == ["five", "ada"]


async def test_answer_is_checked(open_stage: OpenStage) -> None:
    """An unknown question, a question answered before and a run that has ended refuse an answer by name."""
    stage = await open_stage(agents=[agent(questions=True)], clerk=[calls(ASK), "ok"])
    run = await stage.run()
    with pytest.raises(UnknownQuestion):
        await stage.runs.answer(run.id, f"{run.id}:1.9", "five", by="bob")
    with pytest.raises(NotEntitled):
        await stage.runs.answer(run.id, run.waiting[0].id, "five", by="")
    await stage.runs.answer(run.id, run.waiting[0].id, "five", by="bob")
    with pytest.raises(UnknownQuestion):
        await stage.runs.answer(run.id, run.waiting[0].id, "six", by="bob")
    run = await stage.settled(run.id)
    with pytest.raises(RunNotAllowed):
        await stage.runs.answer(run.id, f"{run.id}:1.1", "five", by="bob")
    assert [facts["text"] for facts in await stage.facts(run.id, "question_answered")] == ["five"]


@driven_only
async def test_question_is_seen_and_answered_while_a_sibling_runs(open_stage: OpenStage) -> None:
    """A question is there to be answered at once, however long the calls beside it take."""
    go_on = asyncio.Event()

    @tool(write())
    async def slow() -> str:
        """Take long."""
        await go_on.wait()
        return "slept"

    stage = await open_stage(
        slow, agents=[agent(tools=("slow",), questions=True)], clerk=[calls(("slow", {}), ASK), "ok"]
    )
    run = await stage.runs.start("clerk", "go", by="ada")
    with stage.runs.bus.subscribe(run.id) as moves:
        driving = asyncio.create_task(stage.settle())
        while not (seen := await stage.runs.get(run.id)).waiting:
            await moves.get()
    assert seen.state == "running"
    answered = await stage.runs.answer(run.id, seen.waiting[0].id, "five", by="bob")
    assert (answered.waiting, run_as_json(answered)["waiting"]) == ((), [])
    go_on.set()
    await driving
    run = await stage.runs.get(run.id)
    assert run.state == "succeeded"
    assert [each["text"] for each in await stage.results(run.id)] == ["slept", "five"]


@driven_only
async def test_answer_in_the_moment_of_the_pause_is_taken_up(
    open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer between the driver's look at the question and its pause does not wait for the question to expire."""
    two = calls(ASK, ("ask_person", {"question": "To whom?"}))
    stage = await open_stage(agents=[agent(questions=True)], clerk=[two, "ok"])
    run = await stage.run()
    first, second = (w.id for w in run.waiting)
    await stage.runs.answer(run.id, first, "five", by="bob")
    store = stage.runs.store
    write_run = store.write_run

    async def meanwhile(write):  # type: ignore[no-untyped-def]
        if write.record.state == "awaiting_answer" and write.record.id == run.id:
            monkeypatch.undo()
            await stage.runs.answer(run.id, second, "ada", by="bob")
        return await write_run(write)

    monkeypatch.setattr(store, "write_run", meanwhile)
    run = await stage.settled(run.id)
    assert run.state == "succeeded"
    assert [each["text"] for each in await stage.results(run.id)] == ["five", "ada"]


@driven_only
async def test_question_that_was_taken_up_waits_for_nobody(
    open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the model thinks about the answer the run shows no question, and takes no second answer to it."""
    stage = await open_stage(agents=[agent(questions=True)], clerk=[calls(ASK), "ok"])
    run = await stage.run()
    await stage.runs.answer(run.id, run.waiting[0].id, "five", by="bob")
    looked = []
    store = stage.runs.store
    write_run = store.write_run

    async def looking(write):  # type: ignore[no-untyped-def]
        if write.record.state == "succeeded":
            looked.append((await stage.runs.get(run.id)).waiting)
            with pytest.raises(UnknownQuestion):
                await stage.runs.answer(run.id, run.waiting[0].id, "six", by="bob")
        return await write_run(write)

    monkeypatch.setattr(store, "write_run", looking)
    assert (await stage.settled(run.id)).state == "succeeded"
    assert looked == [()]


@on_sqlite
async def test_question_is_reminded_of_once_and_expires(open_stage: OpenStage) -> None:
    """Half-way to its end people are reminded, once; at its end the model hears that nobody answered."""
    agents = [agent(questions=True, question_expires_s=1000.0)]
    stage = await open_stage(agents=agents, clerk=[calls(ASK), "ok"])
    run = await stage.run()
    await stage.after(400)
    assert not await stage.facts(run.id, "reminded")
    await stage.after(150)
    await stage.after(100)
    (reminded,) = await stage.facts(run.id, "reminded")
    assert reminded["ids"] == [run.waiting[0].id]
    await stage.after(400)
    run = await stage.runs.get(run.id)
    assert run.state == "succeeded"
    (result,) = await stage.results(run.id)
    assert (result["code"], result["failed"]) == ("question_expired", True)


@on_sqlite
async def test_timer_ends_by_itself(open_stage: OpenStage, bank: Bank) -> None:
    """A run that waits for a moment is rows only until then, and goes on by itself; its sibling ran at once."""
    agents = [agent(tools=TOOLS, timers=True)]
    stage = await open_stage(*bank.tools, agents=agents, clerk=[calls(WAIT, CREDIT), "ok"])
    run = await stage.run()
    assert (run.state, bank.credits) == ("awaiting_time", [("a1", 5)])
    await stage.after(3500)
    assert (await stage.runs.get(run.id)).state == "awaiting_time"
    await stage.after(101)
    assert (await stage.runs.get(run.id)).state == "succeeded"
    assert len(bank.credits) == 1


async def test_state_of_several_waits_is_that_of_the_first_kind(open_stage: OpenStage, bank: Bank) -> None:
    """A run that waits for an approval, an answer and a moment awaits the approval, and lists all three."""
    agents = [agent(tools=TOOLS, approvals=NEEDS, questions=True, timers=True)]
    stage = await open_stage(*bank.tools, agents=agents, clerk=[calls(WAIT, ASK, CREDIT), "ok"])
    run = await stage.run()
    assert (run.state, [w.kind for w in run.waiting]) == ("awaiting_approval", ["time", "answer", "approval"])
    await stage.house.deny(f"{run.id}:1.3", by="bob", reason="no")
    run = await stage.settled(run.id)
    assert (run.state, [w.kind for w in run.waiting]) == ("awaiting_answer", ["time", "answer"])


async def test_contract_and_agent_both_ask_and_the_requester_never_approves(open_stage: OpenStage, bank: Bank) -> None:
    """What the agent's file wants holds beside the tool's contract; who asked for the run cannot agree to it."""

    @tool(destructive())
    async def drop(table: str) -> str:
        """Drop a table."""
        return f"dropped {table}"

    agents = [agent(tools=("drop", "credit"), approvals={"drop": AgentApproval(quorum=2), "credit": AgentApproval()})]
    stage = await open_stage(drop, *bank.tools, agents=agents, clerk=[calls(("drop", {"table": "t"}), CREDIT), "ok"])
    run = await stage.run()
    with pytest.raises(NotEntitled):
        await stage.house.approve(f"{run.id}:1.1", by="ada")
    await stage.house.approve(f"{run.id}:1.1", by="bob")
    run = await stage.settled(run.id)
    assert [w.id for w in run.waiting] == [f"{run.id}:1.1", f"{run.id}:1.2"]
    await stage.house.approve(f"{run.id}:1.1", by="carol")
    await stage.house.approve(f"{run.id}:1.2", by="carol")
    assert (await stage.settled(run.id)).state == "succeeded"
    assert bank.credits == [("a1", 5)]


# case C77
async def test_edit_changes_what_runs_and_the_approval_says_nothing_of_arguments(
    open_stage: OpenStage, bank: Bank
) -> None:
    """What runs is the stored call: as the person edited it, whatever the model had asked for."""
    agents = [agent(tools=TOOLS, approvals=NEEDS)]
    stage = await open_stage(*bank.tools, agents=agents, clerk=[calls(CREDIT), "ok"])
    run = await stage.run()
    key = run.waiting[0].id
    edited = await stage.house.edit(key, {"account": "a1", "cents": 3}, by="bob")
    await stage.house.approve(key, by="carol", digest=edited.raw.digest)
    assert (await stage.settled(run.id)).state == "succeeded"
    assert bank.credits == [("a1", 3)]
    with pytest.raises(CallConflict):
        await stage.house.call("letter", {"to": "x", "text": "y"}, key=key)


# case C76
async def test_approval_is_bound_to_the_arguments_it_was_given_for(open_stage: OpenStage, bank: Bank) -> None:
    """A model that asks again with other arguments needs another approval; the first one is spent by its own call."""

    def changing(request: ModelRequest) -> object:
        turn = int(request.key.split(":")[1])
        return [calls(LETTER)["call"], [{"tool": "letter", "arguments": {"to": "a1", "text": "changed"}}], "ok"][
            turn - 1
        ]

    agents = [agent(tools=TOOLS, approvals=NEEDS)]
    stage = await open_stage(*bank.tools, agents=agents, clerk=changing)
    run = await stage.run()
    shown = (await stage.house.get(run.waiting[0].id)).raw.digest
    await stage.house.edit(run.waiting[0].id, {"to": "a1", "text": "other"}, by="bob")
    with pytest.raises(NotAllowed):
        await stage.house.approve(run.waiting[0].id, by="carol", digest=shown)
    assert (await stage.settled(run.id)).state == "awaiting_approval"
    await stage.house.approve(run.waiting[0].id, by="carol")
    run = await stage.settled(run.id)
    assert (run.state, [w.id for w in run.waiting]) == ("awaiting_approval", [f"{run.id}:2.1"])
    assert [effect.body["text"] for effect in bank.receiver.effects("letters")] == ["other"]


# case C83
async def test_approval_serves_one_call_of_one_agent(open_stage: OpenStage, bank: Bank) -> None:
    """An approved call runs once and is not asked about again; the next one, and another agent's, are."""
    agents = [agent(tools=TOOLS, approvals=NEEDS), agent("other", tools=TOOLS, approvals=NEEDS)]
    same = [calls(CREDIT), calls(CREDIT), "ok"]
    stage = await open_stage(*bank.tools, agents=agents, clerk=same, other=[calls(CREDIT), "ok"])
    run = await stage.run()
    await stage.house.approve(run.waiting[0].id, by="bob")
    run = await stage.settled(run.id)
    assert (run.state, [w.id for w in run.waiting]) == ("awaiting_approval", [f"{run.id}:2.1"])
    other = await stage.run(agent="other")
    assert other.state == "awaiting_approval"
    assert bank.credits == [("a1", 5)]


@on_sqlite
async def test_approval_expires_and_the_run_goes_on(open_stage: OpenStage, bank: Bank) -> None:
    """At the end of its time an approval that nobody gave is a refusal; the model hears it and the run ends."""
    agents = [agent(tools=TOOLS, approvals={"credit": AgentApproval(expires_s=100.0)})]
    stage = await open_stage(*bank.tools, agents=agents, clerk=[calls(CREDIT), "ok"])
    run = await stage.run()
    await stage.after(60)
    assert await stage.facts(run.id, "reminded")
    await stage.after(60)
    run = await stage.runs.get(run.id)
    assert run.state == "succeeded"
    assert [each["call_state"] for each in await stage.results(run.id)] == ["refused"]
    assert bank.credits == []


# case H11
async def test_approval_by_a_process_that_drives_nothing_wakes_the_run(open_stage: OpenStage, bank: Bank) -> None:
    """The decision and the run's wake are one commit: nobody needs to live on to carry the news."""
    agents = [agent(tools=TOOLS, approvals=NEEDS)]
    stage = await open_stage(*bank.tools, agents=agents, clerk=[calls(CREDIT), "ok"])
    run = await stage.run()
    assert await stage.runs.store.runs_to_take(stage.runs.tenant, "local", 10) == []
    await stage.houses[-1].approve(run.waiting[0].id, by="bob")
    taken = await stage.runs.store.runs_to_take(stage.runs.tenant, "local", 10)
    assert [record.id for record in taken] == [run.id]
    assert (await stage.settled(run.id)).state == "succeeded"
    assert bank.credits == [("a1", 5)]


@pytest.mark.parametrize("answer", [happened({"id": "j1"}), did_not_happen("failed", job_status="failed")])
async def test_long_work_wakes_the_run_that_waits_for_it(open_stage: OpenStage, bank: Bank, answer: Answer) -> None:
    """Work that a receiver took on keeps the run waiting, in no process, until its end is reported."""

    @tool(external(accepts=True, job_deadline_s=3600))
    async def render(ctx: CallContext) -> object:
        """Take long, elsewhere."""
        job = (await ctx.http.post(f"{bank.receiver.url}/v1/jobs", json={})).json()
        raise Accepted(job["id"])

    agents = [agent(tools=(*TOOLS, "render"))]
    stage = await open_stage(render, *bank.tools, agents=agents, clerk=[calls(("render", {}), CREDIT), "ok"])
    run = await stage.run()
    assert (run.state, run.record.owner, len(bank.credits)) == ("awaiting_work", None, 1)
    (job,) = bank.receiver.effects("jobs")
    await stage.house.report(f"{run.id}:1.1", answer, reference=job.id)
    run = await stage.settled(run.id)
    assert (run.state, len(bank.receiver.effects("jobs"))) == ("succeeded", 1)
    expected = "succeeded" if answer.finding == "happened" else "failed"
    assert (await stage.results(run.id))[0]["call_state"] == expected


@driven_only
@on_sqlite
async def test_answer_in_the_moment_a_question_expires_is_heard(
    open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever was told that the answer is taken is not told later that nobody answered."""
    agents = [agent(questions=True, question_expires_s=1000.0)]
    stage = await open_stage(agents=agents, clerk=[calls(ASK), "ok"])
    run = await stage.run()
    store = stage.runs.store
    write_run = store.write_run

    async def meanwhile(write):  # type: ignore[no-untyped-def]
        if any(event.kind == "calls_settled" for event in write.events):
            monkeypatch.undo()
            await stage.runs.answer(run.id, run.waiting[0].id, "five", by="bob")
        return await write_run(write)

    monkeypatch.setattr(store, "write_run", meanwhile)
    await stage.after(1001)
    run = await stage.runs.get(run.id)
    (result,) = await stage.results(run.id)
    assert (run.state, result["text"], result["failed"]) == ("succeeded", "five", False)
    assert [facts["text"] for facts in await stage.facts(run.id, "question_answered")] == ["five"]
