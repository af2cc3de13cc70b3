"""What fails after effects happened, and is then killed too: nothing that was done is done again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.crash.runs.conftest import Drive, MakeOffice
from tests.crash.runs.office import Office, credit_of, effects_of, opened, questions
from tests.crash.runs.watching import begun, finished, kinds, side_by_side, slow_on_postgres, sound, stands, until
from tollhouse import State, happened
from tollhouse.ledger.run_record import RunQuery
from tollhouse.runs.agents import Agent
from tollhouse.testing.receiver import Receiver

pytestmark = [pytest.mark.crash, slow_on_postgres]

REFUND, MARK, NOTIFY = (("refund", {"order": "7"}), ("mark", {"order": "7"}), ("notify", {"order": "7"}))
PLANS = {"in turn": ((REFUND,), (MARK,), (NOTIFY,)), "side by side": ((REFUND, MARK, NOTIFY),)}


async def credited(drive: Drive, office: Office) -> str:
    """The id of a run whose driver died right after the credit of its first turn was on record."""
    driver = await drive(office, {"point": "after_calls_settled"})
    _ = driver.begin()
    await driver.until_dead()
    async with opened(office, drives=False) as mine:
        return (await begun(mine)).id


# case C08
async def test_model_that_refuses_after_a_tool_succeeded_repeats_nothing_when_killed(
    drive: Drive, make_office: MakeOffice, receiver: Receiver
) -> None:
    """The next model request answers 400, and its process dies before or after that is on record."""

    async def killed(point: str) -> None:
        office = make_office(credit_of(point), name=point)
        run_id = await credited(drive, office)
        receiver.fault("error_before_effect", collection="questions", key=f"{run_id}:2", status=400, times=2)
        second = await drive(office, {"point": point})
        await second.until_dead()
        async with opened(office) as mine:
            run = await finished(mine.runs, run_id, "failed")
            assert (run.reason or {})["code"] == "model_refused_request"
            again = await mine.runs.rerun(run_id, by="ada", effects="reuse")
            await finished(mine.runs, again.id)
            (told,) = await sound(mine.runs, again.id)
            assert (told["reused"], told["call_state"]) == (f"{run_id}:1.1", "succeeded")
        assert effects_of(receiver, point) == (1, 1)

    await side_by_side(
        ("after_model", "before_model_failure", "after_model_failure", "before_tidy", "after_tidy"), killed
    )


# case C08
async def test_model_that_is_away_for_a_while_is_asked_again_by_the_next_process(
    drive: Drive, make_office: MakeOffice, receiver: Receiver
) -> None:
    """The run waits for its moment in rows only; whoever is there then goes on from the recorded call."""
    office = make_office()
    run_id = await credited(drive, office)
    receiver.fault("error_before_effect", collection="questions", key=f"{run_id}:2", status=503)
    second = await drive(office, {"point": "after_model_failure"})
    await second.until_dead()
    async with opened(office) as mine:
        await stands(mine.runs, run_id, "awaiting_time")
        await finished(mine.runs, run_id)
        assert (await kinds(mine.runs, run_id)).count("model_failed") == 1
        assert questions(receiver, run_id) == {1: 1, 2: 2}
    assert len(receiver.requests("credits", method="POST")) == 1


# case C10
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("by", ["timeout", "kill"])
async def test_late_doubt_replays_no_earlier_effect(
    drive: Drive, make_office: MakeOffice, receiver: Receiver, plan: str, by: str
) -> None:
    """Refund, mark, notify; notify has its effect and is not heard of: it is in doubt, the others stay done."""
    patience_s = 1.0 if by == "timeout" else 20.0
    office = make_office(PLANS[plan], tools={"tests.crash.runs.tools:shop": {"patience_s": patience_s}})
    receiver.fault("hold_after_effect", collection="notices")
    driver = await drive(office)
    run_id = (await driver.begin())["id"]
    for each in ("refunds", "marks", "notices"):
        await receiver.await_for_effects(1, collection=each)
    if by == "kill":
        await driver.kill()
    key = f"{run_id}:{'3.1' if plan == 'in turn' else '1.3'}"
    async with opened(office) as mine:
        await until(mine.runs, run_id, lambda run: [(w.kind, w.id) for w in run.waiting] == [("reconciliation", key)])
        if by == "timeout":
            await driver.kill()
        assert ((await mine.house.get(key)).tool, (await mine.house.get(key)).state) == ("notify", State.IN_DOUBT)
        await mine.house.resolve(key, happened("n-1"), by="bob", reason="the customer has it")
        await finished(mine.runs, run_id)
        assert {each["call_state"] for each in await sound(mine.runs, run_id)} == {"succeeded"}
    assert [len(receiver.requests(each, method="POST")) for each in ("refunds", "marks", "notices")] == [1, 1, 1]


async def test_long_work_outlives_its_driver(drive: Drive, make_office: MakeOffice, receiver: Receiver) -> None:
    """The receiver accepted the work; the run waits for it in rows only, and its report wakes whoever is there."""
    office = make_office(((("export", {"month": "May"}),),), tools={"tests.crash.tools:jobs": {}})
    driver = await drive(office)
    run = await driver.begin()
    async with opened(office, drives=False) as mine:
        key = (await stands(mine.runs, run["id"], "awaiting_work")).waiting[0].id
        await driver.kill()
        desk = await drive(office, {"point": "after_callback"}, drives=False)
        job = receiver.effects("jobs")[0].id
        _ = desk.ask("house.report", key, {"happened": "file"}, reference=job)
        await desk.until_dead()
    async with opened(office) as mine:
        await finished(mine.runs, run["id"])
    assert len(receiver.effects("jobs")) == 1


async def test_child_run_is_one_wherever_its_parents_driver_dies(
    drive: Drive, make_office: MakeOffice, receiver: Receiver
) -> None:
    """A run whose tool is another agent's run: the child is started once, and its end reaches the parent's call."""

    async def killed(at: str) -> None:
        point, _, nth = at.partition(" ")
        office = with_child(make_office((), name=at.replace(" ", "-")), at)
        driver = await drive(office, {"point": point, "nth": int(nth or 1)})
        _ = driver.begin()
        await driver.until_dead()
        async with opened(office) as mine:
            run = await begun(mine)
            await finished(mine.runs, run.id)
            (child,) = await mine.runs.list(RunQuery(parent_run_id=run.id))
            await finished(mine.runs, child.id)
        assert effects_of(receiver, at) == (1, 1)

    points = ("before_run_start 2", "after_run_start 2", "after_outcome 1", "before_run_end 1", "after_run_end 1")
    await side_by_side((*points, "before_callback 1", "after_callback 1", "before_tidy 1", "after_tidy 1"), killed)


def with_child(office: Office, account: str) -> Office:
    """The same office, whose clerk has another agent do the credit."""
    teller = Agent(name="teller", model="scripted:teller", tools=("credit",))
    clerk = replace(office.agents["clerk"][0], agents=("teller",))
    plan = ((("agent_teller", {"input": "credit it"}),),)
    return replace(office, agents={"clerk": (clerk, plan), "teller": (teller, credit_of(account))})
