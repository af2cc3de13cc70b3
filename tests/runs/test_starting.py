"""Starts, threads and reruns: the same start is one run, one run at a time in a thread, and no effect comes twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.runs import Bank, OpenStage, Stage, agent, assert_valid, calls, driven_only, on_sqlite
from tollhouse import did_not_happen, happened
from tollhouse.errors import (
    InvalidKey,
    InvalidSetting,
    NotEntitled,
    RunConflict,
    RunNotAllowed,
    ThreadBusy,
    UnknownAgent,
    UnknownRun,
)
from tollhouse.models.port import Ask, AssistantMessage, Message, ModelFailed, ModelRequest, ToolMessage, UserMessage
from tollhouse.runs.agents import AgentApproval, Limits
from tollhouse.runs.view import RunView

TOOLS = ("credit", "letter", "balance")
CREDIT = ("credit", {"account": "a1", "cents": 5})
LETTER = ("letter", {"to": "a1", "text": "hello"})


# case C16
async def test_same_start_attaches_to_the_run_that_is_there(open_stage: OpenStage, bank: Bank) -> None:
    """Before, while and after it runs, the same start returns the first run, and each step runs once."""
    agents = [agent(tools=TOOLS, approvals={"credit": AgentApproval()})]
    stage = await open_stage(*bank.tools, agents=agents, clerk=[calls(CREDIT), "ok"])
    start: dict[str, Any] = {"by": "ada", "key": "order-14"}
    both = await asyncio.gather(*(runs.start("clerk", "go", **start) for runs in stage.all_runs * 2))
    assert len({run.id for run in both}) == 1
    assert sum(not run.started_before for run in both) == 1
    run = await stage.settled(both[0].id)
    again = await stage.run(**start)
    assert (again.id, again.state) == (run.id, "awaiting_approval")
    await stage.house.approve(run.waiting[0].id, by="bob")
    await stage.settle()
    assert (await stage.runs.start("clerk", "go", **start)).started_before
    await stage.settle()
    assert (len(bank.credits), len(stage.model.requests)) == (1, 2)


async def test_another_start_under_the_key_is_a_conflict(open_stage: OpenStage) -> None:
    """A key names one start: another agent, input, thread or limit under it is refused, whatever its run came to."""
    stage = await open_stage(agents=[agent(), agent("other")], clerk=["ok"], other=["ok"])
    await stage.run(key="k", thread="t")
    for other in ({"input": "else"}, {"agent": "other"}, {"thread": "u"}, {"limits": {"turns": 1}}):
        with pytest.raises(RunConflict):
            await stage.runs.start(**{"agent": "clerk", "input": "go", "by": "ada", "key": "k", "thread": "t"} | other)
    with pytest.raises(RunConflict):
        await stage.runs.rerun((await stage.runs.list())[0].id, by="ada", key="k")


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"agent": "nobody"}, UnknownAgent),
        ({"agent": "no\0body"}, UnknownAgent),
        ({"agent": "\ud800"}, UnknownAgent),
        ({"agent_version": "\ud800" * 64}, UnknownAgent),
        ({"agent_version": "0" * 64}, UnknownAgent),
        ({"by": ""}, NotEntitled),
        ({"key": "no spaces"}, InvalidKey),
        ({"key": ""}, InvalidKey),
        ({"thread": ""}, InvalidSetting),
        ({"thread": "x" * 201}, InvalidSetting),
        ({"driver": "horse"}, InvalidSetting),
        ({"input": "a\0b"}, InvalidSetting),
        ({"input": "\ud800"}, InvalidSetting),
        ({"input": "x" * (4 * 1024 * 1024 + 1)}, InvalidSetting),
        ({"limits": {"turns": -1}}, InvalidSetting),
        ({"limits": {"speed": 1}}, InvalidSetting),
    ],
)
@driven_only
async def test_start_that_cannot_be_is_refused_by_name(
    open_stage: OpenStage, wrong: dict[str, Any], error: type[Exception]
) -> None:
    """Nothing is stored of a start that is refused."""
    stage = await open_stage(agents=[agent()], clerk=["ok"])
    with pytest.raises(error):
        await stage.runs.start(**{"agent": "clerk", "input": "go", "by": "ada"} | wrong)
    assert await stage.runs.list() == []


@driven_only
@pytest.mark.parametrize("run_id", ["", "run_1", "\ud800", "a\0b", "x" * 10_000])
async def test_run_that_cannot_be_is_not_known(open_stage: OpenStage, run_id: str) -> None:
    """An id that no store takes is one of no run."""
    stage = await open_stage(agents=[agent()], clerk=["ok"])
    with pytest.raises(UnknownRun):
        await stage.runs.get(run_id)
    with pytest.raises(UnknownRun):
        await stage.runs.cancel(run_id, by="bob")


async def test_version_of_an_agent_stays_that_of_the_start(open_stage: OpenStage, bank: Bank) -> None:
    """A run goes on with the version it was started with, whatever was published since."""
    from tollhouse.house.running import open_runs

    stage = await open_stage(
        *bank.tools, agents=[agent(tools=TOOLS, questions=True)], clerk=[calls(("ask_person", {"question": "?"})), "ok"]
    )
    run = await stage.run()
    newer = await open_runs(stage.house, {"clerk": agent(instructions="newer")}, stage.model)
    await stage.runs.answer(run.id, run.waiting[0].id, "me", by="bob")
    run = await stage.settled(run.id)
    assert (run.state, stage.model.requests[-1].instructions) == ("succeeded", "")
    started = await newer.start("clerk", "go", by="ada")
    assert started.record.agent_version == agent(instructions="newer").version
    older = await newer.rerun(run.id, by="ada")
    assert older.record.agent_version == run.record.agent_version


# -- threads ----------------------------------------------------------------------------------------------------


# case C22
async def test_two_starts_in_one_thread_lose_no_message(open_stage: OpenStage) -> None:
    """Of two starts at once one is refused by name; started after the other, it hears all that was said before."""
    stage = await open_stage(agents=[agent()], clerk=lambda request: f"reply to {request.messages[-1].text}")
    starts = [stage.all_runs[n % len(stage.all_runs)].start("clerk", f"m{n}", by="ada", thread="T") for n in range(4)]
    answers = await asyncio.gather(*starts, return_exceptions=True)
    (first,) = [each for each in answers if isinstance(each, RunView)]
    assert sum(isinstance(each, ThreadBusy) for each in answers) == 3
    await stage.settle()
    for n in range(5, 8):
        await stage.run(f"m{n}", thread="T")
    heard = [message.text for message in stage.model.requests[-1].messages]
    said = (await stage.facts(first.id, "run_started"))[0]["messages"][0]["text"]
    assert heard == [said, f"reply to {said}", "m5", "reply to m5", "m6", "reply to m6", "m7"]


async def test_start_that_was_slow_hears_the_run_that_came_between(
    open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was started, and ended, between another start's look at the thread and its commit is not lost."""
    stage = await open_stage(agents=[agent()], clerk=["ok"])
    await stage.run("first", thread="T")
    write_run = stage.runs.store.write_run

    async def slow(write: Any) -> Any:
        monkeypatch.undo()
        await stage.run("between", thread="T")
        return await write_run(write)

    monkeypatch.setattr(stage.runs.store, "write_run", slow)
    await stage.run("second", thread="T")
    await stage.run("third", thread="T")
    heard = [m.text for m in stage.model.requests[-1].messages if isinstance(m, UserMessage)]
    assert heard == ["first", "between", "second", "third"]


async def test_history_of_a_cancelled_run_stays_valid(open_stage: OpenStage, bank: Bank) -> None:
    """What a cancelled run had asked for gets an answer that says the truth, and the thread goes on."""
    agents = [agent(tools=TOOLS, approvals={"credit": AgentApproval()})]
    script = [calls(CREDIT, LETTER), "ok"]
    stage = await open_stage(*bank.tools, agents=agents, clerk=script)
    run = await stage.run("one", thread="T")
    await stage.runs.cancel(run.id, by="bob")
    again = await stage.run("two", thread="T")
    assert again.state == "awaiting_approval"
    messages = stage.model.requests[-1].messages
    assert_valid(messages)
    unanswered = [m for m in messages if getattr(m, "key", "").startswith(run.id)]
    assert [("Verify first" in m.text, getattr(m, "failed", None)) for m in unanswered] == [
        (True, True),
        (False, False),
    ]


async def test_messages_before_the_input_are_heard(open_stage: OpenStage) -> None:
    """A caller's own history stands before the input."""
    stage = await open_stage(agents=[agent()], clerk=["ok"])
    earlier = (UserMessage("hello"), AssistantMessage("hi"))
    await stage.run("and now?", messages=earlier)
    assert [m.text for m in stage.model.requests[-1].messages] == ["hello", "hi", "and now?"]


ASKED = AssistantMessage("", (Ask("k1", "credit", {}), Ask("k2", "credit", {})))


@driven_only
@on_sqlite
@pytest.mark.parametrize(
    "history",
    [
        (ASKED,),
        (ASKED, ToolMessage("k1", "credit", "ok")),
        (ToolMessage("k1", "credit", "ok"),),
        (ASKED, ToolMessage("k1", "credit", "ok"), ToolMessage("k1", "credit", "ok")),
        (AssistantMessage("", (Ask("k", "credit", {}), Ask("k", "credit", {}))),),
        (AssistantMessage("", (Ask("", "credit", {}),)), ToolMessage("", "credit", "ok")),
        (AssistantMessage("", (Ask("k", "cre\ud83dit", {}),)), ToolMessage("k", "credit", "ok")),
        (AssistantMessage("", (Ask("k", "credit", {"a": "\ud83d"}),)), ToolMessage("k", "credit", "ok")),
        (AssistantMessage("", (Ask("k", "credit", {"a": float("nan")}),)), ToolMessage("k", "credit", "ok")),
        (AssistantMessage("", (Ask("k", "credit", {"a": object()}),)), ToolMessage("k", "credit", "ok")),
        (AssistantMessage("", (Ask("k", "credit", {"a": "x" * 4 * 1024 * 1024}),)), ToolMessage("k", "credit", "ok")),
        (AssistantMessage("", provider={"a": "\ud83d"}),),
    ],
)
async def test_history_that_no_provider_accepts_is_refused(open_stage: OpenStage, history: tuple[Message, ...]) -> None:
    """A caller's messages whose calls and answers do not pair are refused before anything is stored."""
    stage = await open_stage(agents=[agent()], clerk=["ok"])
    with pytest.raises(InvalidSetting):
        await stage.run(messages=history)
    assert await stage.runs.list() == []
    paired = (ASKED, ToolMessage("k2", "credit", "ok"), ToolMessage("k1", "credit", "ok"))
    assert (await stage.run(messages=paired)).state == "succeeded"


# -- reruns -------------------------------------------------------------------------------------------------------


async def ended(open_stage: OpenStage, bank: Bank) -> tuple[Stage, RunView]:
    """A run that credited once, and failed; a rerun of it would end well."""
    failed: list[str] = []

    def fails_once(request: ModelRequest) -> Any:
        if request.key.endswith(":1"):
            return calls(CREDIT)["call"]
        if not failed:
            failed.append(request.key)
            raise ModelFailed("model_refused_request", "no", transient=False)
        return "ok"

    stage = await open_stage(*bank.tools, agents=[agent(tools=TOOLS)], clerk=fails_once)
    run = await stage.run("credit a1")
    assert (run.state, len(bank.credits)) == ("failed", 1)
    return stage, run


async def test_rerun_holds_what_its_lineage_did(open_stage: OpenStage, bank: Bank) -> None:
    """By default a twin of an effect waits for people, over any number of reruns."""
    stage, run = await ended(open_stage, bank)
    for number in (2, 3, 4):
        run = await stage.settled((await stage.runs.rerun(run.id, by="ada")).id)
        assert (run.state, run.record.attempt_no, run.body.effects) == ("awaiting_approval", number, "hold")
        call = await stage.house.get(run.waiting[0].id)
        assert "a rerun would repeat" in (call.raw.approval.reason if call.raw.approval else "")
        await stage.runs.cancel(run.id, by="ada")
    assert len(bank.credits) == 1


@driven_only
async def test_no_effect_is_too_far_back_to_be_seen(open_stage: OpenStage, bank: Bank) -> None:
    """A twin is held behind sixty reruns, and behind hundreds of calls of the same run."""
    many = [("credit", {"account": f"a{n}", "cents": 1}) for n in range(600)]

    def model(request: ModelRequest) -> Any:
        if request.messages[0].text == "many":
            return calls(*many)["call"] if request.key.endswith(":1") else "ok"
        return calls(CREDIT)["call"] if request.key.endswith(":1") else "ok"

    agents = [agent(tools=TOOLS, limits=Limits(calls=None))]
    stage = await open_stage(*bank.tools, agents=agents, clerk=model)
    run = await stage.run()
    for _ in range(60):
        run = await stage.runs.rerun(run.id, by="ada")
        await stage.runs.cancel(run.id, by="ada")
    run = await stage.settled((await stage.runs.rerun(run.id, by="ada")).id)
    assert (run.state, run.record.attempt_no, len(bank.credits)) == ("awaiting_approval", 62, 1)
    await stage.runs.cancel(run.id, by="ada")
    run = await stage.run("many")
    assert (run.state, len(bank.credits)) == ("succeeded", 601)
    run = await stage.settled((await stage.runs.rerun(run.id, by="ada")).id)
    assert (len(run.waiting), len(bank.credits)) == (600, 601)


async def test_rerun_that_reuses_answers_from_the_record_over_its_whole_lineage(
    open_stage: OpenStage, bank: Bank
) -> None:
    """A twin is found in the run before the run before, and its result is the recorded one."""
    stage, run = await ended(open_stage, bank)
    origin = run
    for _ in range(3):
        run = await stage.settled((await stage.runs.rerun(run.id, by="ada", effects="reuse")).id)
        assert run.state == "succeeded"
        (result,) = await stage.results(run.id)
        assert (result["reused"], result["replayed"]) == (f"{origin.id}:1.1", True)
        assert result["text"] == (await stage.results(origin.id))[0]["text"]
        assert (await stage.facts(run.id, "run_started"))[0]["effects"] == "reuse"
    assert len(bank.credits) == 1


async def test_rerun_that_repeats_does_so_by_a_recorded_choice(open_stage: OpenStage, bank: Bank) -> None:
    """`repeat` sends again, and says who wanted that."""
    stage, run = await ended(open_stage, bank)
    again = await stage.settled((await stage.runs.rerun(run.id, by="bob", effects="repeat")).id)
    assert (again.state, len(bank.credits)) == ("succeeded", 2)
    (facts,) = await stage.facts(again.id, "run_started")
    assert (facts["effects"], facts["by"], facts["source_run_id"]) == ("repeat", "bob", run.id)


@pytest.mark.parametrize("effects", ["hold", "reuse"])
async def test_rerun_beside_a_doubt_is_held(open_stage: OpenStage, bank: Bank, effects: Any) -> None:
    """What may have happened is neither repeated nor answered from: people look first."""
    agents = [agent(tools=TOOLS, on_in_doubt="fail")]
    stage = await open_stage(*bank.tools, agents=agents, clerk=[calls(LETTER), "ok"])
    bank.receiver.fault("close_after_effect", collection="letters")
    run = await stage.run()
    assert run.state == "failed"
    again = await stage.settled((await stage.runs.rerun(run.id, by="ada", effects=effects)).id)
    assert (again.state, bank.letters) == ("awaiting_approval", 1)
    answer = happened({"id": "x"}) if effects == "hold" else did_not_happen("nothing seen")
    await stage.house.resolve(f"{run.id}:1.1", answer, reason="looked", by="bob", force=True)
    await stage.house.approve(again.waiting[0].id, by="bob")
    assert (await stage.settled(again.id)).state == "succeeded"
    assert bank.letters == 2


async def test_other_arguments_and_reads_are_no_twins(open_stage: OpenStage, bank: Bank) -> None:
    """A rerun whose model asks for something else sends it; reads are made anew."""
    amounts = iter((5, 6))

    def ask(request: ModelRequest) -> Any:
        if request.key.endswith(":2"):
            return "ok"
        return [
            {"tool": "credit", "arguments": {"account": "a1", "cents": next(amounts)}},
            {"tool": "balance", "arguments": {"account": "zz"}},
        ]

    stage = await open_stage(*bank.tools, agents=[agent(tools=TOOLS)], clerk=ask)
    run = await stage.run()
    again = await stage.settled((await stage.runs.rerun(run.id, by="ada")).id)
    assert again.state == "succeeded"
    assert bank.credits == [("a1", 5), ("a1", 6)]
    assert [each["replayed"] for each in await stage.results(again.id)] == [False, False]


async def test_rerun_needs_an_end_and_a_run(open_stage: OpenStage) -> None:
    """A run that goes on cannot be run again; one at a limit can."""
    agents = [agent(questions=True, limits=Limits(turns=1))]
    stage = await open_stage(agents=agents, clerk=[calls(("ask_person", {"question": "?"})), "ok"])
    run = await stage.run("the input")
    with pytest.raises(RunNotAllowed):
        await stage.runs.rerun(run.id, by="ada")
    with pytest.raises(UnknownRun):
        await stage.runs.rerun("run_none", by="ada")
    await stage.runs.answer(run.id, run.waiting[0].id, "me", by="bob")
    run = await stage.settled(run.id)
    assert run.state == "limit_reached"
    again = await stage.runs.rerun(run.id, by="ada", key="again")
    assert (await stage.runs.rerun(run.id, by="ada", key="again")).id == again.id
    assert (await stage.facts(again.id, "run_started"))[0]["messages"] == [{"role": "user", "text": "the input"}]


async def test_rerun_in_a_thread_hears_what_its_source_heard(open_stage: OpenStage) -> None:
    """The rerun of a run continues what that one continued, beside the thread."""
    stage = await open_stage(agents=[agent()], clerk=["ok"])
    await stage.run("one", thread="T")
    second = await stage.run("two", thread="T")
    again = await stage.settled((await stage.runs.rerun(second.id, by="ada")).id)
    assert [m.text for m in stage.model.requests[-1].messages] == ["one", "ok", "two"]
    assert again.record.thread is None
