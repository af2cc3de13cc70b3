"""What a model says that no store or schema takes as it is: recorded once, billed once, and answered."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from tests.support.runs import Bank, OpenStage, agent, calls, driven_only
from tollhouse import tool, write
from tollhouse.errors import StoreUnavailable
from tollhouse.ledger.run_record import RunWrite, RunWritten
from tollhouse.models.port import Ask, ModelReply, ModelRequest, RequestAttempt, message_as_json
from tollhouse.runs.agents import AgentApproval
from tollhouse.runs.view import run_as_json

ANY_JSON = {"type": ["object", "array"]}
DEEP, LESS_DEEP = ("[" * levels + "]" * levels for levels in (100_000, 300))


class Talker:
    """A model that says these texts in turn, each at a price."""

    def __init__(self, *replies: ModelReply) -> None:
        self.replies, self.asked = list(replies), 0

    async def ask(self, request: ModelRequest, on_text: Any = None) -> ModelReply:
        self.asked += 1
        return self.replies[min(self.asked, len(self.replies)) - 1]

    async def close(self) -> None:
        pass


def said(text: str, *asks: Ask) -> ModelReply:
    """One answer that cost a dollar."""
    attempt = RequestAttempt("m", "2026-01-01T00:00:00Z", 0.1, 1, 1, None, Decimal(1))
    return ModelReply(text, asks, "calls" if asks else "stop", "m", (attempt,))


@driven_only
@pytest.mark.parametrize(
    "text",
    [DEEP, LESS_DEEP, '{"a": NaN}', '{"a": 1e999}', '{"a": -Infinity}'],
    ids=["deep", "less deep", "nan", "inf", "-inf"],
)
async def test_answer_that_is_no_json_is_repaired_and_billed(open_stage: OpenStage, text: str) -> None:
    """What Python reads and JSON does not know is no answer: the model hears so, and each answer counts once."""
    stage = await open_stage(agents=[agent(output_schema=ANY_JSON)], clerk=["unused"])
    talker = Talker(said(text), said('{"a": 1}'))
    stage.runs._shared.model = talker
    run = await stage.run()
    assert (run.state, run.output, talker.asked) == ("succeeded", {"a": 1}, 2)
    assert (run.spent.cost, run.spent.turns) == (Decimal(2), 2)
    json.dumps(run_as_json(run), allow_nan=False)


@driven_only
@pytest.mark.parametrize("schema", [None, ANY_JSON], ids=["text", "json"])
async def test_half_a_character_in_an_answer_is_kept_or_replaced(open_stage: OpenStage, schema: Any) -> None:
    """A lone surrogate, as an answer that was cut in the middle of an emoji has, neither strands nor fails a run."""
    stage = await open_stage(agents=[agent(output_schema=schema)], clerk=["unused"])
    talker = Talker(said("half \ud83d" if schema is None else '{"a": "half \\ud83d"}'))
    stage.runs._shared.model = talker
    run = await stage.run()
    assert (run.state, talker.asked, run.spent.cost) == ("succeeded", 1, Decimal(1))
    assert run.output == ("half \ufffd" if schema is None else {"a": "half \ufffd"})


@driven_only
async def test_half_a_character_in_a_call_is_told(open_stage: OpenStage, bank: Bank) -> None:
    """Arguments and names of tools that are no text are refused, and the run goes on."""
    stage = await open_stage(*bank.tools, agents=[agent(tools=("credit",))], clerk=["unused"])
    asks = (
        Ask("", "credit", {"account": "\ud83d", "cents": 5}),
        Ask("", "cre\ud83dit", {}),
        Ask("", "credit", None, raw="\ud83d"),
    )
    talker = Talker(said("", *asks), said("ok"))
    stage.runs._shared.model = talker
    run = await stage.run()
    assert (run.state, talker.asked, bank.credits) == ("succeeded", 2, [])
    assert [each["failed"] for each in await stage.results(run.id)] == [True] * 3
    json.dumps([message_as_json(each) for each in await stage.conversation(run.id)], ensure_ascii=False).encode()


@driven_only
async def test_half_a_character_in_a_result_reaches_the_model_as_text(open_stage: OpenStage) -> None:
    """What a provider could not be sent is shown as what it is."""

    @tool(write())
    async def cut(whole: bool) -> Any:
        """Answer with half an emoji."""
        return "half \ud83d" if whole else {"a": "half \ud83d"}

    script = [calls(("cut", {"whole": True}), ("cut", {"whole": False})), "ok"]
    stage = await open_stage(cut, agents=[agent(tools=("cut",))], clerk=script)
    run = await stage.run()
    assert run.state == "succeeded"
    for result in await stage.results(run.id):
        assert result["text"].encode()


async def test_model_hears_that_a_person_changed_its_call(open_stage: OpenStage, bank: Bank) -> None:
    """A result is told with what the call ran with where that is not what the model asked for, and reused so."""
    agents = [agent(tools=("credit",), approvals={"credit": AgentApproval()})]
    credit = ("credit", {"account": "a1", "cents": 5})
    stage = await open_stage(*bank.tools, agents=agents, clerk=[calls(credit), "ok"])
    run = await stage.run()
    key = run.waiting[0].id
    edited = await stage.house.edit(key, {"account": "a1", "cents": 3}, by="bob")
    await stage.house.approve(key, by="carol", digest=edited.raw.digest)
    assert (await stage.settled(run.id)).state == "succeeded"
    again = await stage.settled((await stage.runs.rerun(run.id, by="ada", effects="reuse")).id)
    for each in (run, again):
        (result,) = await stage.results(each.id)
        assert '{"account": "a1", "cents": 3}' in result["text"]
    assert bank.credits == [("a1", 3)]


@driven_only
async def test_answer_that_could_not_be_recorded_at_once_is_not_asked_for_again(
    open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that is away after the model answered costs no second answer, and the first is billed."""
    stage = await open_stage(agents=[agent()], clerk=["unused"])
    talker = Talker(said("one"), said("two"))
    stage.runs._shared.model = talker
    store, away = stage.runs.store, ["once", "twice"]
    write_run = store.write_run

    async def write(write: RunWrite) -> RunWritten:
        if away and any(event.kind == "model_answered" for event in write.events):
            away.pop()
            raise StoreUnavailable("away")
        return await write_run(write)

    monkeypatch.setattr(store, "write_run", write)
    run = await stage.run()
    assert (run.state, run.output, talker.asked, run.spent.cost) == ("succeeded", "one", 1, Decimal(1))
