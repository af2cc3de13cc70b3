"""Kills around what people do: an approval, an answer, a denial is never lost, taken twice, or left without effect."""

from __future__ import annotations

from typing import Any

import pytest

from tests.crash.process import Answered
from tests.crash.runs.conftest import Drive, MakeOffice
from tests.crash.runs.office import Office, Opened, credit_of, effects_of, opened, questions
from tests.crash.runs.process import Driver
from tests.crash.runs.watching import begun, finished, kinds, side_by_side, slow_on_postgres, sound, stands, until
from tollhouse import Tollhouse
from tollhouse.runs.agents import Limits
from tollhouse.runs.view import RunView
from tollhouse.testing.receiver import Receiver

pytestmark = [pytest.mark.crash, slow_on_postgres]

DELETE = ("delete_account", {"account": "a1"})
ASK = ("ask_person", {"question": "How much?"})
GUARDED = {"tests.crash.tools:credits": {"hooks": True}, "tests.crash.tools:guarded": {"hooks": True}}


async def waiting(drive: Drive, office: Office, state: str) -> tuple[Driver, str, str]:
    """A process whose run waits for a person; the run's id, and that of what it waits for."""
    driver = await drive(office)
    run = await driver.begin()
    async with opened(office, drives=False) as mine:
        waits = await stands(mine.runs, run["id"], state)
        return driver, waits.id, waits.waiting[0].id


# case H11
async def test_approval_while_no_process_drives_is_enough(
    drive: Drive, make_office: MakeOffice, receiver: Receiver
) -> None:
    """The driver is dead, a person agrees by way of the ledger alone: the next process finishes the run by itself."""
    office = make_office(((DELETE,),), tools=GUARDED)
    driver, run_id, key = await waiting(drive, office, "awaiting_approval")
    await driver.kill()
    async with Tollhouse.open(office.store, tenant=office.tenant, tools=[], background=False) as house:
        await house.approve(key, by="bob")
    async with opened(office) as mine:
        await finished(mine.runs, run_id)
        assert questions(receiver, run_id) == {1: 1, 2: 1}
    assert len(receiver.effects("deletions")) == 1


# case H11
# case C76
async def test_killed_approval_strands_nothing(drive: Drive, make_office: MakeOffice, receiver: Receiver) -> None:
    """Killed right before its commit, an approval was not given; right after, the run goes on without another word."""

    async def approved(point: str) -> None:
        office = make_office(((DELETE,),), tools=GUARDED, name=point)
        driver, run_id, key = await waiting(drive, office, "awaiting_approval")
        await driver.kill()
        desk = await drive(office, {"point": point}, drives=False)
        _ = desk.ask("house.approve", key, by="bob")
        await desk.until_dead()
        async with opened(office) as mine:
            if point == "before_decision":
                assert (await stands(mine.runs, run_id, "awaiting_approval")).waiting[0].id == key
                await mine.house.approve(key, by="bob")
            await finished(mine.runs, run_id)
            assert questions(receiver, run_id) == {1: 1, 2: 1}
            assert (await mine.house.get(key)).history[1].kind == "approved"

    await side_by_side(("before_decision", "after_decision"), approved)
    assert len(receiver.effects("deletions")) == 2


# case H11
async def test_process_that_dies_over_an_approved_call_leaves_it_to_the_next(
    drive: Drive, make_office: MakeOffice, receiver: Receiver
) -> None:
    """The wake was noted with the decision; it is forgotten only by a process that has claimed the run."""

    async def killed(point: str) -> None:
        office = make_office(((DELETE,), *credit_of(point)), tools=GUARDED, name=point)
        driver, run_id, key = await waiting(drive, office, "awaiting_approval")
        await driver.ask("lay_out", point=point)
        async with Tollhouse.open(office.store, tenant=office.tenant, tools=[], background=False) as house:
            await house.approve(key, by="bob")
        await driver.until_dead()
        async with opened(office) as mine:
            await _finished_with_approvals(mine, run_id)
        assert effects_of(receiver, point) == (1, 1)

    points = ("before_run_claim", "after_run_claim", "before_forget", "after_forget", "before_calls_settled")
    await side_by_side(points, killed)
    assert len(receiver.effects("deletions")) == len(points)


async def _finished_with_approvals(mine: Opened, run_id: str) -> None:
    """The run once it has ended. A call that the dead process began and did not send is asked for, and held, anew."""

    def moved(run: RunView) -> bool:
        return run.record.finished or run.state == "awaiting_approval"

    while (run := await until(mine.runs, run_id, moved)).state == "awaiting_approval":
        call = await mine.house.get(run.waiting[0].id)
        if call.state == "held":
            await mine.house.approve(call.key, by="bob")
    await finished(mine.runs, run_id)


async def test_denied_while_nobody_drives_is_told_to_the_model(drive: Drive, make_office: MakeOffice) -> None:
    """The run does not hang on a call that will never run; it hears of it and goes on, here until its last turn."""
    office = make_office(((DELETE,),), tools=GUARDED, limits=Limits(turns=2))
    driver, run_id, key = await waiting(drive, office, "awaiting_approval")
    await driver.kill()
    async with Tollhouse.open(office.store, tenant=office.tenant, tools=[], background=False) as house:
        await house.deny(key, by="bob", reason="no")
    async with opened(office) as mine:
        # The planned model asks once more, as some do; that waits for people again.
        await until(mine.runs, run_id, lambda run: bool(run.waiting) and run.waiting[0].id != key)
        (told,) = await sound(mine.runs, run_id)
        assert (told["key"], told["call_state"], told["failed"]) == (key, "refused", True)


# case C01
async def test_killed_answer_is_given_or_not_and_never_half(
    drive: Drive, make_office: MakeOffice, receiver: Receiver
) -> None:
    """Killed right before its commit, the question stands open; right after, the run goes on. Its sibling ran once."""

    async def answered(point: str) -> None:
        (credit,) = credit_of(point)
        office = make_office(((*credit, ASK),), name=point)
        driver, run_id, question = await waiting(drive, office, "awaiting_answer")
        await driver.kill()
        desk = await drive(office, {"point": point}, drives=False)
        _ = desk.ask("runs.answer", run_id, question, "five", by="bob")
        await desk.until_dead()
        async with opened(office) as mine:
            if point == "before_answer":
                await mine.runs.answer(run_id, question, "five", by="bob")
            await finished(mine.runs, run_id)
            results = await sound(mine.runs, run_id)
            assert [each["call_state"] for each in results] == ["succeeded", None]
            assert results[1]["text"] == "five"
        assert effects_of(receiver, point) == (1, 1)

    await side_by_side(("before_answer", "after_answer"), answered)


# case C01
# case C07
async def test_sibling_of_a_question_runs_once_wherever_its_driver_dies(
    drive: Drive, make_office: MakeOffice, receiver: Receiver
) -> None:
    """A side effect beside a question: its row answers for it, whether or not the run had heard of it by then."""

    async def killed(point: str) -> None:
        (credit,) = credit_of(point)
        office = make_office(((*credit, ASK),), name=point)
        driver = await drive(office, {"point": point})
        _ = driver.begin()
        await driver.until_dead()
        async with opened(office) as mine:
            run = await stands(mine.runs, (await begun(mine)).id, "awaiting_answer")
            await mine.runs.answer(run.id, run.waiting[0].id, "five", by="bob")
            await finished(mine.runs, run.id)
        assert effects_of(receiver, point) == (1, 1)

    points = ("after_outcome", "before_calls_settled", "after_calls_settled", "before_run_wait", "after_run_wait")
    await side_by_side(points, killed)


# case C01
async def test_process_that_dies_over_an_answer_leaves_it_to_the_next(
    drive: Drive, make_office: MakeOffice, receiver: Receiver
) -> None:
    """The answer is in the run's row until the run has taken it up; its sibling does not run again."""

    async def killed(point: str) -> None:
        (credit,) = credit_of(point)
        office = make_office(((*credit, ASK),), name=point)
        driver, run_id, question = await waiting(drive, office, "awaiting_answer")
        await driver.ask("lay_out", point=point)
        async with opened(office, drives=False) as mine:
            await mine.runs.answer(run_id, question, "five", by="bob")
        await driver.until_dead()
        async with opened(office) as mine:
            await finished(mine.runs, run_id)
            assert (await kinds(mine.runs, run_id)).count("question_answered") == 1
        assert effects_of(receiver, point) == (1, 1)

    points = ("before_run_claim", "after_run_claim", "before_calls_settled", "after_calls_settled")
    await side_by_side(points, killed)


async def test_second_answer_to_the_killed_one_is_refused(drive: Drive, make_office: MakeOffice) -> None:
    """Whoever cannot know whether the answer was given asks again, and hears that it was."""
    office = make_office(((ASK,),))
    driver, run_id, question = await waiting(drive, office, "awaiting_answer")
    await driver.kill()
    desk = await drive(office, {"point": "after_answer"}, drives=False)
    _ = desk.ask("runs.answer", run_id, question, "five", by="bob")
    await desk.until_dead()
    other: Any = await drive(office, drives=False)
    with pytest.raises(Answered) as refused:
        await other.ask("runs.answer", run_id, question, "six", by="eve")
    assert refused.value.code == "unknown_question"
    async with opened(office) as mine:
        await finished(mine.runs, run_id)
        assert [each["text"] for each in await sound(mine.runs, run_id)] == ["five"]


async def test_interrupted_read_is_read_again(drive: Drive, make_office: MakeOffice, receiver: Receiver) -> None:
    """A read is never in doubt, so its run never waits: the next process reads, or has what was recorded."""

    async def killed(point: str) -> None:
        plan = ((("count_credits", {"account": "a1"}),),)
        office = make_office(plan, tools={"tests.crash.tools:reading": {}}, name=point)
        driver = await drive(office, {"point": point})
        _ = driver.begin()
        await driver.until_dead()
        async with opened(office) as mine:
            run = await finished(mine.runs, (await begun(mine)).id)
            (told,) = await sound(mine.runs, run.id)
            assert (told["text"], told["failed"], told["replayed"]) == ("0", False, point == "after_record")

    await side_by_side(("inside_before_send", "before_record", "after_record"), killed)
