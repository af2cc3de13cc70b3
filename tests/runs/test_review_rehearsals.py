"""A rehearsal ends as the run would: what a run would not take for an answer is none there either."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.runs import OpenStage, agent, calls, driven_only
from tollhouse import Rejected, tool, write
from tollhouse.models.port import ModelReply, ModelRequest, UserMessage
from tollhouse.runs.agents import Limits, Verifier
from tollhouse.runs.rehearse import rehearse


class Ends:
    """A model whose answers end for these reasons in turn, and then as they should."""

    def __init__(self, *reasons: Any) -> None:
        self.reasons = list(reasons)

    async def ask(self, request: ModelRequest, on_text: Any = None) -> ModelReply:
        return ModelReply("ok", (), self.reasons.pop(0) if self.reasons else "stop", "m", ())

    async def close(self) -> None:
        pass


@driven_only
@pytest.mark.parametrize(("reason", "state", "turns"), [("refused", "failed", 1), ("length", "succeeded", 2)])
async def test_rehearsal_takes_no_answer_that_a_run_does_not(
    open_stage: OpenStage, reason: str, state: str, turns: int
) -> None:
    """An answer that the model declined fails it, and one that was cut off is asked for again."""
    stage = await open_stage(agents=[agent()], clerk=["ok"])
    run = await stage.run()
    stage.runs._shared.model = Ends(reason)
    played = await stage.runs.rehearse(run.id)
    assert (played.state, played.turns) == (state, turns)
    stage.runs._shared.model = Ends(reason)
    again = await stage.run()
    assert (again.state, again.spent.turns) == (state, turns)


@driven_only
async def test_rehearsal_asks_the_verifier(open_stage: OpenStage) -> None:
    """An answer that the verifier of the agent would send back does not pass a rehearsal."""
    stage = await open_stage(agents=[agent()], clerk=["ok"], judge=['{"pass": false, "problem": "too short"}'])
    run = await stage.run()
    stricter = agent(verifier=Verifier("scripted:judge", "Be strict.", rounds=0))
    played = await rehearse(stage.runs, run.id, stricter, stage.model)
    assert (played.state, played.reason) == ("failed", {"code": "output_rejected", "cause": "too short"})


@driven_only
async def test_verifier_judges_by_what_the_run_itself_was_asked(open_stage: OpenStage) -> None:
    """In a thread, or behind messages, the task is the run's own input and not the first thing anybody said."""
    seen: list[str] = []

    def judge(request: ModelRequest) -> str:
        seen.append(request.messages[0].text)
        return '{"pass": true}'

    agents = [agent(verifier=Verifier("scripted:judge", "Look."))]
    stage = await open_stage(agents=agents, clerk=lambda _request: "ok", judge=judge)
    await stage.run("the first thing", thread="t")
    run = await stage.run("the second thing", thread="t", messages=(UserMessage("by the way"),))
    await stage.runs.rehearse(run.id)
    assert ["the second thing" in text for text in seen] == [False, True, True]
    assert not any("by the way" in text for text in seen)


@driven_only
async def test_rehearsal_ends_where_a_failing_call_ends_a_run(open_stage: OpenStage) -> None:
    """The same agent that let a failed call end the run ends there again, and asks the model nothing more."""

    @tool(write())
    async def refuse() -> str:
        """Fail."""
        raise Rejected("no")

    agents = [agent(tools=("refuse",), on_tool_error="fail")]
    stage = await open_stage(refuse, agents=agents, clerk=[calls(("refuse", {})), "went on"])
    run = await stage.run()
    played = await stage.runs.rehearse(run.id)
    assert (played.state, played.reason, played.differences) == (run.state, run.reason, ())
    milder = await rehearse(stage.runs, run.id, agent(tools=("refuse",)), stage.model)
    assert (milder.state, [each.kind for each in milder.differences]) == ("succeeded", ["other_end"])


@driven_only
async def test_rehearsal_has_the_turns_that_the_run_was_given(open_stage: OpenStage) -> None:
    """A run whose limit people raised is rehearsed with what it had in the end, and ends as it did."""

    @tool(write())
    async def note() -> str:
        """Write something down."""
        return "noted"

    agents = [agent(tools=("note",), limits=Limits(turns=1))]
    stage = await open_stage(note, agents=agents, clerk=[calls(("note", {})), "ok"])
    run = await stage.run()
    assert run.state == "limit_reached"
    assert (await stage.runs.rehearse(run.id)).state == "limit_reached"
    await stage.runs.raise_limits(run.id, {"turns": 2}, by="bob")
    assert (await stage.settled(run.id)).state == "succeeded"
    played = await stage.runs.rehearse(run.id)
    assert (played.state, played.turns, played.differences) == ("succeeded", 2, ())
