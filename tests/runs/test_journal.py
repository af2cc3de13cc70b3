"""The journal: facts of any size, kept whole, and a chain that holds; and lists that stay light."""

from __future__ import annotations

import json
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.runs import OpenStage, agent, calls
from tollhouse import read, tool
from tollhouse.ledger.change import Draft
from tollhouse.ledger.events import GENESIS, seal
from tollhouse.ledger.run_record import RunRecord
from tollhouse.models.port import Ask, ModelReply, ModelRequest
from tollhouse.runs.agents import Limits
from tollhouse.runs.body import Body, Spent, Waiting, body_of
from tollhouse.runs.journal import INLINE_CHARACTERS_MOST, _with_bodies, facts_of
from tollhouse.runs.reader import RunReader

LARGE = "ü" * (5 * 1024 * 1024 // 2)


@tool(read())
async def fetch(size: int) -> str:
    """A text of that many characters."""
    return "r" * size


async def test_texts_of_megabytes_are_kept_whole(open_stage: OpenStage) -> None:
    """Input, a tool's result, what the model said beside its calls and the output: all of them, to the last byte."""
    said = "s" * 5_000_000

    def model(request: ModelRequest) -> Any:
        asked = (Ask("", "fetch", {"size": 5_000_000}),)
        return ModelReply(said, asked, "calls", "m", ()) if request.key.endswith(":1") else LARGE

    stage = await open_stage(fetch, agents=[agent(tools=("fetch",))], clerk=model)
    text = "i" * 4_000_000
    run = await stage.run(text)
    assert (run.state, run.output == LARGE) == ("succeeded", True)
    texts = [message.text for message in stage.model.requests[-1].messages]
    assert texts == [text, said, "r" * 5_000_000]
    assert max(len(event.data) for event in await stage.events(run.id)) < INLINE_CHARACTERS_MOST
    (listed,) = await stage.runs.list()
    assert (listed.output, len(listed.record.body) < 10_000) == (None, True)
    alone = RunReader(stage.runs.store, stage.runs.tenant)
    assert (await alone.get(run.id)).output == LARGE


@pytest.mark.parametrize("name", ["$blob", "$$blob", "$$$blob", "$blobs", "blob"])
async def test_arguments_that_look_like_a_body_are_what_the_model_said(open_stage: OpenStage, name: str) -> None:
    """What a model sends can never name a kept body."""
    arguments = {"size": 1, "extra": {name: "0" * 64, "size": 1}}
    stage = await open_stage(fetch, agents=[agent(tools=("fetch",))], clerk=[calls(("fetch", arguments)), "ok"])
    run = await stage.run()
    (facts, _) = await stage.facts(run.id, "model_answered")
    assert facts["message"]["asks"][0]["arguments"] == arguments
    conversation: Any = await stage.conversation(run.id)
    assert conversation[1].asks[0].arguments == arguments


JSON = st.recursive(
    st.none() | st.integers(-5, 5) | st.text(max_size=3) | st.just("x" * (INLINE_CHARACTERS_MOST + 1)),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "size", "$blob", "$$blob", "$", "blob"]), inner, max_size=3)
    ),
    max_leaves=6,
)


class Bodies:
    """A store that has these bodies only."""

    def __init__(self, blobs: Any) -> None:
        self._blobs = {blob.digest: blob.data for blob in blobs}

    async def blob(self, _tenant: str, digest: str) -> bytes | None:
        return self._blobs.get(digest)


@given(st.dictionaries(st.sampled_from(["state", "text", "$blob"]), JSON, min_size=1, max_size=3))
async def test_facts_come_back_as_they_were(facts: dict[str, Any]) -> None:
    """Whatever a fact is, reading gives back what was written, long texts and odd names included."""
    drafts, blobs = _with_bodies([Draft("model_answered", facts)])
    (event,) = seal("run:r", 0, GENESIS, drafts, 1, "w")
    assert await facts_of(Bodies(blobs), "t", event) == facts  # type: ignore[arg-type]


def test_row_of_a_later_release_is_read() -> None:
    """A process of this release that meets a row of the next one passes over what it does not know, at any depth."""
    kept = json.loads(Body(waiting=(Waiting("time", "k", 1),)).text)
    for part in (kept, kept["limits"], kept["spent"], kept["waiting"][0]):
        part["tomorrow"] = {"any": "thing"}
    kept["by_children"] = {**kept["spent"], "input_tokens": 3}
    body = body_of(cast(RunRecord, SimpleNamespace(body=json.dumps(kept))))
    assert (body.limits, body.spent, body.waiting) == (Limits(), Spent(), (Waiting("time", "k", 1),))
    assert body.by_children == Spent(input_tokens=3)


def test_what_is_read_of_a_row_is_the_readers_own() -> None:
    """Rows are read often and kept read; whoever changes what it got changes nothing for the next reader."""
    row = cast(RunRecord, SimpleNamespace(body=Body(output={"sum": [1]}, reason={"code": "c"}).text))
    body = body_of(row)
    body.output["sum"].append(2)
    cast(dict[str, str], body.reason)["code"] = "d"
    assert body_of(row) == Body(output={"sum": [1]}, reason={"code": "c"})


@pytest.mark.parametrize("output", [[], {}, "", 0, False, {"cost": "1"}])
def test_row_keeps_every_output(output: object) -> None:
    """An empty one too; only what is not there is left out."""
    limits, spent = Limits(tokens=5, cost=Decimal("0.10")), Spent(1, 2, 3, 4, Decimal("1E-7"), 5, 6)
    full = Body(limits, spent, output=output, answers={"k": {}})
    row = cast(RunRecord, SimpleNamespace(body=full.text))
    assert body_of(row) == full
    assert json.loads(full.text)["spent"]["cost"] == "0.0000001"
