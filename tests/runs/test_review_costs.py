"""What a model was paid for is never forgotten, and what it said is never lost, when the store is away afterwards."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from tests.support.runs import OpenStage, Stage, agent, driven_only, on_sqlite
from tollhouse.errors import StoreUnavailable
from tollhouse.ledger.run_record import RunWrite, RunWritten
from tollhouse.models.port import ModelFailed, ModelReply, ModelRequest, RequestAttempt
from tollhouse.runs.agents import Verifier

VERIFIER = Verifier("scripted:judge", "Be strict.")


class Paid:
    """A model whose answers are given in turn, each at a dollar; an exception is a failure that cost as much."""

    def __init__(self, *answers: str | Exception) -> None:
        self.answers, self.asked = list(answers), 0

    async def ask(self, request: ModelRequest, on_text: Any = None) -> ModelReply:
        answer = self.answers[min(self.asked, len(self.answers) - 1)]
        self.asked += 1
        if isinstance(answer, Exception):
            raise answer
        return ModelReply(answer, (), "stop", "m", (ATTEMPT,))

    async def close(self) -> None:
        pass


ATTEMPT = RequestAttempt("m", "2026-01-01T00:00:00Z", 0.1, 1, 1, None, Decimal(1))


def failed() -> ModelFailed:
    """A request that was sent, billed and not answered."""
    return ModelFailed("model_stream_cut", "It broke off.", transient=True, attempts=(ATTEMPT,))


def away_at(stage: Stage, monkeypatch: pytest.MonkeyPatch, *kinds: str) -> Callable[[], int]:
    """Have the store fail once for each of these events; how many of them are still to fail."""
    left, store = list(kinds), stage.runs.store
    write_run = store.write_run

    async def write(write: RunWrite) -> RunWritten:
        for event in write.events:
            if event.kind in left:
                left.remove(event.kind)
                raise StoreUnavailable("away")
        return await write_run(write)

    monkeypatch.setattr(store, "write_run", write)
    return lambda: len(left)


@driven_only
@on_sqlite
@pytest.mark.parametrize("verdicts", [("ok",), (failed(), "ok")], ids=["answered", "failed first"])
async def test_verdict_that_could_not_be_recorded_at_once_is_not_asked_for_again(
    open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch, verdicts: tuple[Any, ...]
) -> None:
    """The verifier is asked once for each answer, and every request to it is billed."""
    stage = await open_stage(agents=[agent(verifier=VERIFIER)], clerk=["unused"])
    passes = [each if isinstance(each, Exception) else '{"pass": true}' for each in verdicts]
    model = stage.runs._shared.model = Paid("five", *passes)
    to_fail = away_at(stage, monkeypatch, "output_verified", *(["model_failed"] if len(verdicts) > 1 else []))
    run = await stage.run()
    if len(verdicts) > 1:
        assert run.state == "awaiting_time"
        stage.clock.advance(10)
        run = await stage.settled(run.id)
    assert (run.state, to_fail(), model.asked) == ("succeeded", 0, len(passes) + 1)
    assert run.spent.cost == len(passes) + 1


@driven_only
@on_sqlite
async def test_failure_that_could_not_be_recorded_at_once_is_billed(
    open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that failed while the store was away is on record with what it cost, and was made once."""
    stage = await open_stage(agents=[agent()], clerk=["unused"])
    model = stage.runs._shared.model = Paid(failed(), "ok")
    to_fail = away_at(stage, monkeypatch, "model_failed")
    run = await stage.run()
    assert (run.state, to_fail(), model.asked, run.spent.cost) == ("awaiting_time", 0, 1, Decimal(1))
    await stage.after(10)
    run = await stage.runs.get(run.id)
    assert (run.state, model.asked, run.spent.cost) == ("succeeded", 2, Decimal(2))


@driven_only
@on_sqlite
async def test_only_failures_in_a_row_end_a_run(open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer of the verifier ends a row of failures, and what was waited for is over."""
    seen: list[Any] = []
    stage = await open_stage(agents=[agent(verifier=VERIFIER)], clerk=["unused"])
    stage.runs._shared.model = Paid("five", failed(), '{"pass": false, "problem": "no"}', "six", '{"pass": true}')
    store = stage.runs.store
    write_run = store.write_run

    async def write(write: RunWrite) -> RunWritten:
        written = await write_run(write)
        if any(event.kind == "output_verified" for event in write.events):
            seen.append(await stage.runs.get(write.record.id))
        return written

    monkeypatch.setattr(store, "write_run", write)
    run = await stage.run()
    stage.clock.advance(10)
    run = await stage.settled(run.id)
    assert run.state == "succeeded"
    assert [(each.waiting, each.body.failures) for each in seen] == [((), 0)] * 2
