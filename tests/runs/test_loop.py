"""The loop of a run: models are asked, calls pass the gate, and the run finishes, however it is driven."""

from __future__ import annotations

from tests.support.runs import Bank, OpenStage, agent, calls
from tollhouse.models.port import ModelRequest

TOOLS = ("credit", "letter", "balance")


async def test_run_asks_calls_and_finishes(open_stage: OpenStage, bank: Bank) -> None:
    """A run with one write ends with the model's answer; the effect happened once."""
    script = [calls(("credit", {"account": "a1", "cents": 5})), "Credited {last}."]
    stage = await open_stage(*bank.tools, agents=[agent(tools=TOOLS)], clerk=script)
    run = await stage.run("credit a1")
    assert (run.state, run.reason) == ("succeeded", None)
    assert bank.credits == [("a1", 5)]
    assert await stage.kinds(run.id) == [
        "run_started", "model_answered", "calls_settled", "model_answered", "run_succeeded",
    ]  # fmt: skip


async def test_siblings_each_have_their_own_result(open_stage: OpenStage, bank: Bank) -> None:
    """Fifty calls of one answer are fifty rows with fifty results, paired with their asks."""
    asked = [("credit", {"account": f"a{n}", "cents": n + 1}) for n in range(50)]
    stage = await open_stage(*bank.tools, agents=[agent(tools=TOOLS)], clerk=[calls(*asked), "done"])
    run = await stage.run()
    assert run.state == "succeeded"
    assert sorted(bank.credits) == sorted((f"a{n}", n + 1) for n in range(50))
    results = await stage.results(run.id)
    assert [each["key"] for each in results] == [f"{run.id}:1.{n}" for n in range(1, 51)]
    assert all(f'"account": "a{n}"' in each["text"] for n, each in enumerate(results))


def by_turn(*turns: object) -> object:
    """A script by function: the answer to each turn."""

    def answer(request: ModelRequest) -> object:
        return turns[int(request.key.split(":")[1]) - 1]

    return answer
