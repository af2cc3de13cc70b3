"""What goes wrong, and what the model hears of it: failing tools, doubts, garbage, models that do not answer."""

from __future__ import annotations

import itertools

import pytest

from tests.support.runs import Bank, OpenStage, Stage, agent, calls, on_sqlite
from tollhouse import CallContext, NotSent, Rejected, did_not_happen, external, happened, read, tool, write
from tollhouse.models.port import Ask, ModelReply, ModelRequest, ToolMessage
from tollhouse.runs.advance import MODEL_FAILURES_MOST

TOOLS = ("credit", "letter", "balance")
CREDIT = ("credit", {"account": "a1", "cents": 5})
LETTER = ("letter", {"to": "a1", "text": "hello"})


@tool(external())
async def refuse() -> None:
    """What is refused for certain."""
    raise Rejected("the account is closed")


@tool(read())
async def lookup() -> str:
    """A look-up that fails."""
    raise RuntimeError("no such record")


@tool(write(departs="at_confirm"))
async def unsent(ctx: CallContext) -> None:
    """What never leaves."""
    raise NotSent("the printer is off")


# case C08
async def test_model_that_refuses_after_a_tool_succeeded_repeats_nothing(open_stage: OpenStage, bank: Bank) -> None:
    """The run fails with what the model said; a rerun that reuses answers the first call from the record."""
    script = [calls(CREDIT), {"fail": "model_refused_request", "times": 1, "say": "done"}]
    stage = await open_stage(*bank.tools, agents=[agent(tools=TOOLS)], clerk=script)
    run = await stage.run()
    assert (run.state, (run.reason or {})["code"]) == ("failed", "model_refused_request")
    assert len(bank.credits) == 1
    again = await stage.settled((await stage.runs.rerun(run.id, by="bob", effects="reuse")).id)
    assert again.record.source_run_id == run.id
    assert len(bank.credits) == 1
    (result,) = await stage.results(again.id)
    assert (result["reused"], result["call_state"]) == (f"{run.id}:1.1", "succeeded")


# case C10
async def test_late_failure_replays_no_earlier_effect(open_stage: OpenStage, bank: Bank) -> None:
    """A step that ends in doubt leaves the steps before it alone: they are recorded, and the doubt is visible."""
    script = [calls(CREDIT), calls(("credit", {"account": "a1", "cents": 6})), calls(LETTER), "ok"]
    stage = await open_stage(*bank.tools, agents=[agent(tools=TOOLS)], clerk=script)
    bank.receiver.fault("reset_after_effect", collection="letters")
    run = await stage.run()
    assert (run.state, run.waiting[0].id) == ("awaiting_reconciliation", f"{run.id}:3.1")
    assert (len(bank.credits), bank.letters) == (2, 1)
    await stage.house.resolve(run.waiting[0].id, happened({"id": "x"}), reason="seen", by="bob")
    assert (await stage.settled(run.id)).state == "succeeded"
    assert (len(bank.credits), bank.letters) == (2, 1)


# case H10
async def test_failing_sibling_drops_nothing(open_stage: OpenStage, bank: Bank) -> None:
    """A call that succeeds and one that raises, side by side, both have their outcome; neither is repeated."""
    agents = [agent(tools=(*TOOLS, "lookup", "refuse"))]
    script = [calls(CREDIT, ("lookup", {}), ("refuse", {})), "ok"]
    stage = await open_stage(*bank.tools, lookup, refuse, agents=agents, clerk=script)
    run = await stage.run()
    assert run.state == "succeeded"
    results = await stage.results(run.id)
    assert [(each["call_state"], each["failed"]) for each in results] == [
        ("succeeded", False), ("failed", True), ("failed", True),
    ]  # fmt: skip
    assert len(bank.credits) == 1
    assert len(await stage.house.list()) == 3


# case C95
async def test_tool_error_that_the_model_mends_undoes_nothing(open_stage: OpenStage, bank: Bank) -> None:
    """An error that an agent can mend ends nothing: what was done stays done, and no compensation runs."""
    tries = [0]

    @tool(external(), compensate=None)
    async def ship() -> str:
        """Fails once."""
        tries[0] += 1
        if tries[0] == 1:
            raise Rejected("no such address")
        return "shipped"

    agents = [agent(agents=("payer", "shipper")), agent("payer", tools=TOOLS), agent("shipper", tools=("ship",))]
    stage = await open_stage(
        *bank.tools, ship, agents=agents,
        clerk=[calls(("agent_payer", {"input": "pay"})), calls(("agent_shipper", {"input": "ship"})), "done"],
        payer=[calls(CREDIT), "paid"], shipper=[calls(("ship", {})), calls(("ship", {})), "shipped"],
    )  # fmt: skip
    run = await stage.run()
    assert (run.state, tries, bank.credits) == ("succeeded", [2], [("a1", 5)])
    assert not [call for call in await stage.house.list() if call.state == "compensated"]


async def test_tool_error_may_end_the_run(open_stage: OpenStage, bank: Bank) -> None:
    """`on_tool_error: fail` ends the run with what the tool said; its siblings keep their own outcome."""
    agents = [agent(tools=(*TOOLS, "refuse"), on_tool_error="fail")]
    stage = await open_stage(*bank.tools, refuse, agents=agents, clerk=[calls(CREDIT, ("refuse", {})), "ok"])
    run = await stage.run()
    assert (run.state, (run.reason or {})["code"]) == ("failed", "call_failed")
    assert "the account is closed" in (run.reason or {})["cause"]
    assert (await stage.house.get(f"{run.id}:1.2")).state == "failed"


async def test_what_was_never_sent_is_given_up_and_told(open_stage: OpenStage) -> None:
    """Proof that nothing left is told to the model, and the call is closed so that nobody sends it later."""
    stage = await open_stage(unsent, agents=[agent(tools=("unsent",))], clerk=[calls(("unsent", {})), "ok"])
    run = await stage.run()
    assert run.state == "succeeded"
    (result,) = await stage.results(run.id)
    assert (result["call_state"], result["failed"]) == ("refused", True)


# -- doubts ----------------------------------------------------------------------------------------------------


async def doubtful(open_stage: OpenStage, bank: Bank, on_in_doubt: str, *script: object) -> Stage:
    """A stage whose first letter takes effect without an answer."""
    agents = [agent(tools=TOOLS, on_in_doubt=on_in_doubt)]
    stage = await open_stage(*bank.tools, agents=agents, clerk=[calls(LETTER, CREDIT), *script])
    bank.receiver.fault("close_after_effect", collection="letters")
    return stage


@pytest.mark.parametrize("finding", [happened({"id": "x"}), did_not_happen("nothing in the book")])
async def test_doubt_pauses_the_run_until_it_is_settled(open_stage: OpenStage, bank: Bank, finding: object) -> None:
    """A run waits for what is in doubt while its siblings end, and goes on by itself with what is found."""
    stage = await doubtful(open_stage, bank, "pause", "ok")
    run = await stage.run()
    assert (run.state, [w.id for w in run.waiting]) == ("awaiting_reconciliation", [f"{run.id}:1.1"])
    await stage.house.resolve(run.waiting[0].id, finding, reason="looked", by="bob", force=True)  # type: ignore[arg-type]
    run = await stage.settled(run.id)
    assert run.state == "succeeded"
    states = [each["call_state"] for each in await stage.results(run.id)]
    assert states == ["succeeded" if finding == happened({"id": "x"}) else "failed", "succeeded"]
    assert (bank.letters, len(bank.credits)) == (1, 1)


async def test_model_is_told_the_truth_about_a_doubt_and_its_repeat_is_held(open_stage: OpenStage, bank: Bank) -> None:
    """`tell_model` says that the outcome is unknown, never that it failed; asking again while it is open is held."""
    stage = await doubtful(open_stage, bank, "tell_model", calls(LETTER), "ok")
    run = await stage.run()
    told = (await stage.results(run.id))[0]
    assert (told["call_state"], told["code"], told["failed"]) == ("in_doubt", "call_in_doubt", True)
    assert "unknown" in told["text"]
    assert "Do not call it again" in told["text"]
    assert (run.state, [w.id for w in run.waiting]) == ("awaiting_approval", [f"{run.id}:2.1"])
    assert (await stage.house.get(f"{run.id}:2.1")).raw.repeat_of == f"{run.id}:1.1"
    assert bank.letters == 1
    await stage.house.deny(f"{run.id}:2.1", by="bob", reason="it was sent")
    assert (await stage.settled(run.id)).state == "succeeded"
    assert bank.letters == 1


async def test_doubt_may_end_the_run(open_stage: OpenStage, bank: Bank) -> None:
    """`fail` ends the run, names the doubt, and leaves it open for people."""
    stage = await doubtful(open_stage, bank, "fail", "ok")
    run = await stage.run()
    assert (run.state, (run.reason or {})["code"]) == ("failed", "call_in_doubt")
    assert (await stage.house.get(f"{run.id}:1.1")).state == "in_doubt"


# -- what models send --------------------------------------------------------------------------------------------


async def test_garbage_unknown_and_forbidden_calls_are_answered(open_stage: OpenStage, bank: Bank) -> None:
    """Arguments that are no object or do not fit, and tools that are unknown or not allowed, send nothing."""
    asked = (
        Ask("", "credit", None, raw='{"account": "a1"'),
        Ask("", "credit", {"account": "a1"}),
        Ask("", "no_such_tool", {}),
        Ask("", "letter", {"to": "x", "text": "y"}),
        Ask("", "ask_person", {"question": "May I?"}),
        Ask("", "wait", {"seconds": 5}),
    )

    def garbage(request: ModelRequest) -> object:
        return asked if request.key.endswith(":1") else "ok"

    stage = await open_stage(*bank.tools, agents=[agent(tools=("credit",))], clerk=garbage)
    run = await stage.run()
    assert run.state == "succeeded"
    results = await stage.results(run.id)
    assert [each["code"] for each in results] == [
        "invalid_arguments", "invalid_arguments", "tool_not_allowed", "tool_not_allowed",
        "tool_not_allowed", "tool_not_allowed",
    ]  # fmt: skip
    assert all(each["call_state"] is None and each["failed"] for each in results)
    assert (bank.credits, bank.letters, bank.receiver.requests()) == ([], 0, [])


@pytest.mark.parametrize("arguments", [{}, {"question": ""}, {"question": 5}, {"question": "x" * 10_001}])
async def test_question_that_is_none_is_answered(open_stage: OpenStage, arguments: dict[str, object]) -> None:
    """A question without a text never waits."""
    stage = await open_stage(agents=[agent(questions=True)], clerk=[calls(("ask_person", arguments)), "ok"])
    run = await stage.run()
    assert run.state == "succeeded"
    assert [each["code"] for each in await stage.results(run.id)] == ["invalid_arguments"]


# case H05
async def test_ids_that_a_provider_leaves_out_swallow_no_payment(open_stage: OpenStage, bank: Bank) -> None:
    """Two answers with one call each and no ids are two rows and two effects."""
    stage = await open_stage(*bank.tools, agents=[agent(tools=TOOLS)], clerk=_payments(None))
    run = await stage.run()
    assert (run.state, bank.credits) == ("succeeded", [("a1", 10), ("a1", 20)])
    assert {call.key for call in await stage.house.list()} == {f"{run.id}:1.1", f"{run.id}:2.1"}


# case C35
async def test_ids_that_a_provider_repeats_keep_every_round_paired(open_stage: OpenStage, bank: Bank) -> None:
    """Rounds whose calls all have the same ids keep their own results; the history stays one that providers accept."""

    def rounds(request: ModelRequest) -> object:
        turn = int(request.key.split(":")[1])
        if turn == 3:
            return "ok"
        return [Ask("", "credit", {"account": f"r{turn}", "cents": n + 1}, provider_id=f"search:{n}") for n in range(6)]

    stage = await open_stage(*bank.tools, agents=[agent(tools=TOOLS)], clerk=rounds)
    run = await stage.run()
    assert run.state == "succeeded"
    answers = [m for m in await stage.conversation(run.id) if isinstance(m, ToolMessage)]
    assert len(answers) == len({m.key for m in answers}) == 12
    assert all(f'"account": "r{m.key.rpartition(":")[2][0]}"' in m.text for m in answers)
    assert len(bank.credits) == 12


def _payments(provider_id: str | None) -> object:
    def pay(request: ModelRequest) -> object:
        turn = int(request.key.split(":")[1])
        arguments = {"account": "a1", "cents": 10 * turn}
        return "ok" if turn == 3 else [Ask("", "credit", arguments, provider_id=provider_id)]

    return pay


async def test_model_that_declines_ends_the_run_and_says_so(open_stage: OpenStage) -> None:
    """A provider's refusal is no output."""
    stage = await open_stage(agents=[agent()], clerk=lambda _r: ModelReply("no", (), "refused", "m", ()))
    run = await stage.run()
    assert (run.state, (run.reason or {})["code"]) == ("failed", "model_declined")


# -- models that do not answer ------------------------------------------------------------------------------------


@on_sqlite
async def test_transient_failures_are_waited_out_longer_each_time(open_stage: OpenStage) -> None:
    """A run whose model is away waits, longer each time, and fails only after a bounded number of tries."""
    stage = await open_stage(agents=[agent()], clerk=[{"fail": "model_server_error"}])
    run = await stage.run()
    waits = []
    while run.state == "awaiting_time":
        assert run.record.due_at_us is not None
        waits.append(run.record.due_at_us - run.record.updated_at_us)
        await stage.after(400)
        run = await stage.runs.get(run.id)
    assert (run.state, (run.reason or {})["code"]) == ("failed", "model_server_error")
    assert len(waits) == MODEL_FAILURES_MOST - 1
    assert all(later > earlier for earlier, later in itertools.pairwise(waits[:6]))
    assert len(stage.model.requests) == MODEL_FAILURES_MOST


@on_sqlite
async def test_model_that_comes_back_ends_the_wait(open_stage: OpenStage) -> None:
    """After a failure the very same question is asked again, and a later failure begins with a short wait anew."""
    script = [{"fail": "model_timeout", "times": 2, "call": [{"tool": "lookup", "arguments": {}}]}, "ok"]
    stage = await open_stage(lookup, agents=[agent(tools=("lookup",))], clerk=script)
    run = await stage.run()
    for _ in range(2):
        assert run.state == "awaiting_time"
        await stage.after(10)
        run = await stage.runs.get(run.id)
    assert run.state == "succeeded"
    assert run.body.failures == 0
    assert [request.key for request in stage.model.requests] == [f"{run.id}:1"] * 3 + [f"{run.id}:2"]


@on_sqlite
async def test_provider_is_left_alone_for_as_long_as_it_asks(open_stage: OpenStage) -> None:
    """A `Retry-After` longer than the run's own pause is kept to."""
    from tollhouse.models.port import ModelFailed

    def busy(_request: ModelRequest) -> object:
        raise ModelFailed("model_rate_limited", "slow down", transient=True, retry_after_s=600.0)

    stage = await open_stage(agents=[agent()], clerk=busy)
    run = await stage.run()
    assert run.record.due_at_us is not None
    assert run.record.due_at_us - run.record.updated_at_us >= 600_000_000 - 1_000_000


@pytest.mark.parametrize("code", ["model_refused_request", "model_not_authorized", "model_unknown"])
async def test_permanent_failure_ends_the_run_at_once(open_stage: OpenStage, code: str) -> None:
    """What no waiting can mend fails the run with the model's own code."""
    stage = await open_stage(agents=[agent()], clerk=[{"fail": code}])
    run = await stage.run()
    assert (run.state, (run.reason or {})["code"]) == ("failed", code)
    assert len(stage.model.requests) == 1
