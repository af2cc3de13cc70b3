"""Rehearsing a recorded run: the model runs again, tools answer from the record, nothing leaves."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.runs import Bank, OpenStage, agent, calls, driven_only
from tollhouse.errors import UnknownRun
from tollhouse.ledger.record import replace
from tollhouse.models.book import ModelBook
from tollhouse.models.port import AssistantMessage, ModelRequest, ToolMessage
from tollhouse.runs.rehearse import NO_RECORD, Rehearsal, rehearse
from tollhouse.runs.view import RunView

pytestmark = driven_only

CLERK = agent(tools=("credit", "balance"))
ASKED = {"account": "a1", "cents": 2500}


async def recorded(open_stage: OpenStage, bank: Bank, *turns: Any, **fields: Any) -> tuple[Any, RunView]:
    """A run that has ended, and its stage."""
    stage = await open_stage(*bank.tools, clerk=list(turns), agents=[replace(CLERK, **fields)])
    return stage, await stage.run("credit a1")


async def played(stage: Any, run_id: str, *turns: Any, **options: Any) -> Rehearsal:
    """The run rehearsed by the same agent with another script."""
    clerk = options.pop("clerk", CLERK)
    return await rehearse(stage.runs, run_id, clerk, ModelBook(scripts={"clerk": list(turns)}), **options)


TURNS = (calls(("credit", ASKED)), "done: {{ results.0 }}")


async def test_same_agent_does_the_same_and_nothing_leaves(open_stage: OpenStage, bank: Bank) -> None:
    """Tools answer what they answered; the receiver hears of nothing, and nothing is written."""
    stage, run = await recorded(open_stage, bank, *TURNS)
    requests, commits = len(bank.receiver.requests()), stage.house.store.counters.commits
    rehearsal = await stage.runs.rehearse(run.id)
    assert (rehearsal.state, rehearsal.differences, rehearsal.output) == ("succeeded", (), run.output)
    assert (rehearsal.turns, rehearsal.spent.calls) == (2, 1)
    assert len(bank.receiver.requests()) == requests
    assert stage.house.store.counters.commits == commits


async def test_model_hears_the_recorded_answers(open_stage: OpenStage, bank: Bank) -> None:
    """Under the keys of the rehearsal's own asks, so that its history is valid."""
    stage, run = await recorded(open_stage, bank, *TURNS)
    heard: list[ModelRequest] = []

    def script(request: ModelRequest) -> Any:
        heard.append(request)
        return [{"tool": "credit", "arguments": ASKED}] if len(heard) == 1 else "ok"

    await rehearse(stage.runs, run.id, CLERK, ModelBook(scripts={"clerk": script}))
    asked, answered = heard[1].messages[-2:]
    assert isinstance(asked, AssistantMessage)
    assert isinstance(answered, ToolMessage)
    assert answered.key == asked.asks[0].key
    assert answered.text == (await stage.results(run.id))[0]["text"]
    assert [tool.name for tool in heard[0].tools] == ["credit", "balance"]


async def test_other_arguments_are_a_difference_and_get_no_answer(open_stage: OpenStage, bank: Bank) -> None:
    """What the record cannot answer is said to be so, never guessed."""
    stage, run = await recorded(open_stage, bank, *TURNS)
    rehearsal = await played(stage, run.id, calls(("credit", {**ASKED, "cents": 9})), "{{ results.0 }}")
    (difference,) = rehearsal.differences
    assert (difference.kind, difference.turn) == ("other_arguments", 1)
    assert difference.recorded["arguments"] == ASKED
    assert difference.now["arguments"] == {**ASKED, "cents": 9}
    assert rehearsal.output == NO_RECORD


async def test_new_and_missing_calls_are_differences(open_stage: OpenStage, bank: Bank) -> None:
    """What is asked besides, and what is not asked any more."""
    stage, run = await recorded(open_stage, bank, *TURNS)
    rehearsal = await played(stage, run.id, calls(("balance", {"account": "a1"})), "done")
    assert [difference.kind for difference in rehearsal.differences] == ["new_call", "missing_call"]


async def test_same_call_twice_is_answered_once_for_each_in_the_record(open_stage: OpenStage, bank: Bank) -> None:
    """A recorded answer is given out once: a second payment would have been a second one."""
    stage, run = await recorded(open_stage, bank, *TURNS)
    rehearsal = await played(stage, run.id, calls(("credit", ASKED), ("credit", ASKED)), "done")
    assert [difference.kind for difference in rehearsal.differences] == ["new_call"]


async def test_other_end_is_a_difference(open_stage: OpenStage, bank: Bank) -> None:
    """A model that fails where it answered before, with what it came to."""
    stage, run = await recorded(open_stage, bank, *TURNS)
    rehearsal = await played(stage, run.id, TURNS[0], {"fail": "model_refused_request"})
    assert rehearsal.differences[-1].kind == "other_end"
    assert rehearsal.reason is not None
    assert (rehearsal.state, rehearsal.reason["code"]) == ("failed", "model_refused_request")


@pytest.mark.parametrize(("compare", "kinds"), [(None, []), (True, ["other_output"])])
async def test_free_text_may_read_otherwise_unless_it_is_compared(
    open_stage: OpenStage, bank: Bank, compare: bool | None, kinds: list[str]
) -> None:
    """No model says the same twice; what it did is what counts."""
    stage, run = await recorded(open_stage, bank, *TURNS)
    rehearsal = await played(stage, run.id, TURNS[0], "paid", compare_output=compare)
    assert [difference.kind for difference in rehearsal.differences] == kinds


async def test_structured_output_is_compared(open_stage: OpenStage, bank: Bank) -> None:
    """Whoever declares a schema reads the output by program."""
    schema = {"type": "object", "properties": {"paid": {"type": "integer"}}, "required": ["paid"]}
    stage, run = await recorded(open_stage, bank, '{"paid": 1}', output_schema=schema)
    clerk = replace(CLERK, output_schema=schema)
    assert (await played(stage, run.id, '{"paid": 1}', clerk=clerk)).differences == ()
    (difference,) = (await played(stage, run.id, '{"paid": 2}', clerk=clerk)).differences
    assert (difference.kind, difference.recorded, difference.now) == ("other_output", {"paid": 1}, {"paid": 2})


async def test_answer_that_breaks_the_schema_is_repaired_within_bounds(open_stage: OpenStage, bank: Bank) -> None:
    """As a run would do."""
    schema = {"type": "object", "required": ["paid"]}
    stage, run = await recorded(open_stage, bank, '{"paid": 1}', output_schema=schema)
    clerk = replace(CLERK, output_schema=schema, output_repairs=1)
    assert (await played(stage, run.id, "no JSON", '{"paid": 1}', clerk=clerk)).turns == 2
    failed = await played(stage, run.id, "no JSON", "nor this", clerk=clerk)
    assert failed.reason is not None
    assert failed.reason["code"] == "output_invalid"


async def test_endless_model_ends_at_the_limit_of_turns(open_stage: OpenStage, bank: Bank) -> None:
    """A rehearsal has the limits of the agent that plays."""
    stage, run = await recorded(open_stage, bank, *TURNS)
    clerk = replace(CLERK, limits=replace(CLERK.limits, turns=3))
    rehearsal = await played(stage, run.id, *[calls(("balance", {"account": "a1"}))] * 5, clerk=clerk)
    assert (rehearsal.turns, rehearsal.state) == (3, "limit_reached")


async def test_unknown_run_cannot_be_rehearsed(open_stage: OpenStage, bank: Bank) -> None:
    """With a code, as everywhere."""
    stage = await open_stage(*bank.tools, clerk=["x"], agents=[CLERK])
    with pytest.raises(UnknownRun):
        await stage.runs.rehearse("run_unknown")
