"""The final answer: its schema with bounded repair, answers cut off, and a verifier's second look."""

from __future__ import annotations

import pytest

from tests.support.runs import OpenStage, agent, calls
from tollhouse import read, tool
from tollhouse.models.port import ModelReply, ModelRequest, UserMessage
from tollhouse.runs.agents import Limits, Verifier

SCHEMA = {
    "type": "object",
    "properties": {"sum": {"type": "integer", "minimum": 0}},
    "required": ["sum"],
    "additionalProperties": False,
}
VERIFIER = Verifier("scripted:judge", "Check the sum.")


async def test_structured_answer_is_kept_as_json(open_stage: OpenStage) -> None:
    """An answer that follows the schema is the output, also inside a code fence."""
    stage = await open_stage(agents=[agent(output_schema=SCHEMA)], clerk=['```json\n{"sum": 5}\n```'])
    run = await stage.run()
    assert (run.state, run.output) == ("succeeded", {"sum": 5})


@pytest.mark.parametrize("empty", ["[]", "{}", "0", '""', "null", "false"])
async def test_empty_outputs_are_outputs(open_stage: OpenStage, empty: str) -> None:
    """An empty value is what it is, not the absence of one."""
    stage = await open_stage(agents=[agent(output_schema={"enum": [[], {}, 0, "", None, False]})], clerk=[empty])
    run = await stage.run()
    assert run.state == "succeeded"
    assert run.output == {"[]": [], "{}": {}, "0": 0, '""': "", "null": None, "false": False}[empty]


async def test_wrong_answer_is_repaired_within_bounds(open_stage: OpenStage) -> None:
    """The model hears what is wrong, and its corrected answer counts."""
    script = ["five", '{"sum": -1}', '{"sum": 5}']
    stage = await open_stage(agents=[agent(output_schema=SCHEMA)], clerk=script)
    run = await stage.run()
    assert (run.state, run.output) == ("succeeded", {"sum": 5})
    rejected = await stage.facts(run.id, "output_verified")
    assert [(facts["check"], facts["passed"]) for facts in rejected] == [("schema", False)] * 2
    assert "not JSON" in rejected[0]["text"]
    assert "minimum" in rejected[1]["text"] or "-1" in rejected[1]["text"]


async def test_answer_that_stays_wrong_fails_the_run(open_stage: OpenStage) -> None:
    """Repair is bounded; the run then fails and says what was wrong."""
    stage = await open_stage(agents=[agent(output_schema=SCHEMA, output_repairs=1)], clerk=["a", "b", '{"sum": 5}'])
    run = await stage.run()
    assert (run.state, (run.reason or {})["code"]) == ("failed", "output_invalid")
    assert len(stage.model.requests) == 2


async def test_answer_that_was_cut_off_is_no_output(open_stage: OpenStage) -> None:
    """An answer that ended at its greatest length is asked for again, shorter, within the same bounds."""

    def long(request: ModelRequest) -> object:
        cut = ModelReply("once upon a", (), "length", "m", ())
        return cut if len(request.messages) == 1 else "short"

    stage = await open_stage(agents=[agent()], clerk=long)
    run = await stage.run()
    assert (run.state, run.output) == ("succeeded", "short")
    assert "cut off" in stage.heard()

    always = ModelReply("once upon a", (), "length", "m", ())
    stage = await open_stage(agents=[agent("teller")], teller=lambda _request: always)
    run = await stage.run(agent="teller")
    assert (run.state, (run.reason or {})["code"]) == ("failed", "output_invalid")


async def test_verifier_passes(open_stage: OpenStage) -> None:
    """What the verifier passes is the output; its request is billed to the run."""
    judge = [{"say": '{"pass": true}', "tokens": [3, 1]}]
    stage = await open_stage(agents=[agent(verifier=VERIFIER)], clerk=["5"], judge=judge)
    run = await stage.run("2 + 3")
    assert (run.state, run.output, run.spent.input_tokens) == ("succeeded", "5", 3)
    asked = stage.model.requests[-1].messages[0]
    assert isinstance(asked, UserMessage)
    assert "2 + 3" in asked.text
    assert asked.text.endswith("5")


async def test_verifier_rejects_and_the_model_corrects(open_stage: OpenStage) -> None:
    """The model hears what the verifier found; its repairs of the schema do not use up the verifier's rounds."""

    def judge(request: ModelRequest) -> str:
        return '{"pass": true}' if '"sum": 5' in request.messages[0].text else '{"pass": false, "problem": "off by 1"}'

    agents = [agent(verifier=VERIFIER, output_schema=SCHEMA)]
    stage = await open_stage(agents=agents, clerk=["six", '{"sum": 6}', '{"sum": 5}'], judge=judge)
    run = await stage.run()
    assert (run.state, run.output) == ("succeeded", {"sum": 5})
    checked = [(f["check"], f["passed"], f["text"]) for f in await stage.facts(run.id, "output_verified")]
    assert [each[:2] for each in checked] == [("schema", False), ("verifier", False), ("verifier", True)]
    assert checked[1][2] == "off by 1"


@pytest.mark.parametrize(
    "verdict", ['{"pass": false, "problem": "wrong"}', "looks good to me", "[]", '{"pass', '{"pass": "false"}']
)
async def test_verifier_that_never_passes_fails_the_run(open_stage: OpenStage, verdict: str) -> None:
    """Nothing passes unseen: a verdict that cannot be read is no pass."""
    stage = await open_stage(agents=[agent(verifier=VERIFIER)], clerk=["5", "6", "7"], judge=lambda _r: verdict)
    run = await stage.run()
    assert (run.state, (run.reason or {})["code"]) == ("failed", "output_rejected")
    assert [request.model for request in stage.model.requests].count("scripted:clerk") == 2


async def test_verifier_that_fails_for_good_fails_the_run(open_stage: OpenStage) -> None:
    """Without its verdict there is no output."""
    stage = await open_stage(agents=[agent(verifier=VERIFIER)], clerk=["5"], judge=[{"fail": "model_unknown"}])
    run = await stage.run()
    assert (run.state, (run.reason or {})["code"]) == ("failed", "model_unknown")


async def test_limits_hold_for_the_verifier_too(open_stage: OpenStage) -> None:
    """A run that used up its tokens asks nobody; raised, the same answer is verified."""
    clerk = [{"say": "5", "tokens": [90, 20]}]
    agents = [agent(verifier=VERIFIER, limits=Limits(tokens=100))]
    stage = await open_stage(agents=agents, clerk=clerk, judge=['{"pass": true}'])
    run = await stage.run()
    assert ((run.reason or {})["code"], len(stage.model.requests)) == ("limit_tokens", 1)
    await stage.runs.raise_limits(run.id, {"tokens": 1000}, by="bob")
    run = await stage.settled(run.id)
    assert (run.state, run.output) == ("succeeded", "5")


async def test_calls_beside_text_are_no_final_answer(open_stage: OpenStage) -> None:
    """An answer that asks for something is never checked against the schema."""

    @tool(read())
    async def two() -> int:
        """Two."""
        return 2

    turn = {**calls(("two", {})), "say": "let me see"}
    stage = await open_stage(two, agents=[agent(tools=("two",), output_schema=SCHEMA)], clerk=[turn, '{"sum": 2}'])
    run = await stage.run()
    assert (run.output, await stage.facts(run.id, "output_verified")) == ({"sum": 2}, [])
