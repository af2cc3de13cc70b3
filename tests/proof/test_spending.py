"""A proof adds up what was spent: by the answers of models, and by the children whose ends are on record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.proof.scenes import bundle_of_run, forged, signer_of
from tests.support.runs import Bank, OpenStage, Stage, agent, calls, driven_only, on_sqlite
from tollhouse.runs.proof.bundle import Bundle
from tollhouse.runs.proof.verify import verify

PAY = ("agent_payer", {"input": "pay"})


async def bundle_of_parent(open_stage: OpenStage, bank: Bank, signer: Any) -> tuple[Stage, Bundle]:
    """The proof of a run that had another agent do something."""
    agents = [agent(agents=("payer",)), agent("payer")]
    script: dict[str, Any] = {
        "clerk": [calls(PAY, cost="1", tokens=[20, 10]), {"say": "ok", "cost": "0.5"}],
        "payer": [{"say": "paid", "cost": "2", "tokens": [4, 3]}],
    }
    stage = await open_stage(*bank.tools, agents=agents, **script)
    run = await stage.run()
    return stage, await bundle_of_run(stage.house, run.id, signer)


@driven_only
async def test_spending_of_children_is_proven(open_stage: OpenStage, bank: Bank, tmp_path: Path) -> None:
    """What the row says was spent is what its events add up to, children included."""
    _, bundle = await bundle_of_parent(open_stage, bank, signer_of(tmp_path))
    verdict = verify(bundle)
    assert (verdict.result, verdict.problems) == ("pass", ())
    assert not [note for note in verdict.notes if "earlier release" in note]


@on_sqlite
@driven_only
async def test_row_that_forgets_what_a_child_spent_fails(open_stage: OpenStage, bank: Bank, tmp_path: Path) -> None:
    """Whoever holds the key and rewrites the sum is told that the events add up to another."""
    signer = signer_of(tmp_path)
    _, bundle = await bundle_of_parent(open_stage, bank, signer)

    def forget(each: Bundle) -> None:
        (row,) = each["contents"]["runs"]
        body = json.loads(row["body"])
        body["spent"]["cost"] = "1.5"
        del body["by_children"]
        row["body"] = json.dumps(body, separators=(",", ":"))

    verdict = verify(forged(bundle, forget, signer))
    assert verdict.result == "fail"
    assert "The row says that $1.5 were spent; its events add up to $3.5." in [each.what for each in verdict.problems]
