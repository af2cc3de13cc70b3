"""People of the drill end what no process under way will."""

from __future__ import annotations

from pathlib import Path

import pytest

from tollhouse.testing.drill.people import bring_to_end
from tollhouse.testing.drill.stage import Stage
from tollhouse.testing.drill.stores import Stores
from tollhouse.testing.receiver import Receiver


@pytest.mark.crash
@pytest.mark.timeout(300)
@pytest.mark.parametrize("tool", ["odd", "credit"])
async def test_call_that_proved_unsent_is_asked_for_again(tmp_path: Path, tool: str) -> None:
    """A ready call is nobody's doubt; whoever wanted it asks again, in a process that has the tool."""
    async with Stores("sqlite", tmp_path) as stores, stores.ledger() as ledger:
        with Receiver.start(tmp_path / "book.jsonl") as receiver:
            stage = Stage(ledger, receiver, tmp_path)
            async with stage.open():
                case = stage.case(1, "test", "s1")
                case.facts |= {"tool": tool, "acts": []}
                async with stage.alone("first", only=[tool]) as worker:
                    worker.lay("inside_before_send", "stop", "s1")
                    await stage.call(worker, tool, "s1")
                assert stage.state("s1").state == "ready"
                assert await bring_to_end(stage, "s1")
                assert stage.state("s1").state == "succeeded"
            assert len(receiver.effects(reference="s1")) == 1
