"""Several processes over one store: deployments that roll, two drivers on one run, and a lease that is kept."""

from __future__ import annotations

import asyncio

import pytest

from tests.crash.listening import eventually
from tests.crash.process import Answered
from tests.crash.runs.conftest import Drive, MakeOffice
from tests.crash.runs.office import CREDIT, opened, questions
from tests.crash.runs.watching import begun, finished, kinds, slow_on_postgres, sound, stands, steps, until
from tollhouse import State
from tollhouse.gate.context import COMMIT_IS_CHECK_US
from tollhouse.testing.receiver import Receiver

pytestmark = [pytest.mark.crash, slow_on_postgres]

SHORT = {"lease_s": 1.0}
LOOKS_S = 2.5
"""How long the other process may look on: well beyond the lease of 1 s."""
AT_ONCE_S = 2 * COMMIT_IS_CHECK_US / 1_000_000
"""Beyond this a send does not follow its departure at once."""
WHERE = ["credits", "questions"]
"""Where the old process is held: inside a tool, and inside a model request."""


# case H07
# case C02
@pytest.mark.parametrize("held", WHERE)
async def test_new_process_leaves_a_living_one_its_run(
    drive: Drive, make_office: MakeOffice, receiver: Receiver, held: str
) -> None:
    """However long its step takes, the heartbeat says that the old one lives: the run ends as if it were alone."""
    receiver.fault("hold_after_effect", collection=held)
    office = make_office(settings=SHORT)
    old = await drive(office)
    run = await old.begin()
    await receiver.await_for_effects(1, collection=held)
    new = await drive(office)
    async with opened(office) as mine:
        await asyncio.sleep(LOOKS_S)
        record = (await mine.runs.get(run["id"])).record
        assert (record.state, record.owner) == ("running", old.owner)
        receiver.release()
        await finished(mine.runs, run["id"])
        calls = [await mine.house.get(key) for key in (f"{run['id']}:1.1",)]
        assert [(len(call.attempts), call.attempts[0].lost) for call in calls] == [(1, None)]
        claims = [e.facts["owner"] for e in await mine.runs.events(run["id"]) if e.kind == "run_claimed"]
        assert claims == [old.owner]
        assert questions(receiver, run["id"]) == {1: 1, 2: 1}
    await new.terminate()
    assert len(receiver.effects("credits")) == 1


# case H07
@pytest.mark.parametrize("held", WHERE)
async def test_old_process_finishes_its_step_within_its_grace_and_hands_over(
    drive: Drive, make_office: MakeOffice, receiver: Receiver, held: str
) -> None:
    """SIGTERM takes no new steps: what is under way is recorded, then the new process goes on at once."""
    receiver.fault("hold_after_effect", collection=held)
    office = make_office()
    old = await drive(office, grace_s=20.0)
    run = await old.begin()
    await receiver.await_for_effects(1, collection=held)
    new = await drive(office)
    ending = asyncio.ensure_future(old.terminate())
    await asyncio.sleep(0.3)
    receiver.release()
    await ending
    async with opened(office, drives=False) as mine:
        await finished(mine.runs, run["id"])
        assert questions(receiver, run["id"]) == {1: 1, 2: 1}
        owners = [e.facts["owner"] for e in await mine.runs.events(run["id"]) if e.kind == "run_claimed"]
        assert owners == [old.owner, new.owner]
        assert (await mine.house.get(f"{run['id']}:1.1")).state is State.SUCCEEDED
    assert len(receiver.requests("credits", method="POST")) == 1


# case H07
@pytest.mark.parametrize("held", WHERE)
async def test_old_process_is_cut_off_after_its_grace_and_loses_nothing(
    drive: Drive, make_office: MakeOffice, receiver: Receiver, held: str
) -> None:
    """Its tool is in doubt and is looked up; its model request is asked again. The effect is one."""
    receiver.fault("hold_after_effect", collection=held)
    office = make_office()
    old = await drive(office, grace_s=0.2)
    run = await old.begin()
    await receiver.await_for_effects(1, collection=held)
    new = await drive(office)
    await old.terminate()
    async with opened(office, drives=False) as mine:
        await finished(mine.runs, run["id"])
        assert questions(receiver, run["id"]) == {1: 1 if held == "credits" else 2, 2: 1}
        call = await mine.house.get(f"{run['id']}:1.1")
        assert (call.state, bool(call.settlements)) == (State.SUCCEEDED, held == "credits")
    await new.terminate()
    assert len(receiver.requests("credits", method="POST")) == 1


# case C17
@pytest.mark.parametrize(
    "point", ["before_run_claim", "after_run_claim", "before_model_answer", "before_calls_settled"]
)
async def test_of_two_drivers_on_one_run_one_goes_on(
    drive: Drive, make_office: MakeOffice, receiver: Receiver, point: str
) -> None:
    """Two processes take one run, with one answer that came in: each event is written by the one that holds it."""
    office = make_office(((CREDIT, ("ask_person", {"question": "How much?"})),), settings=SHORT)
    first = await drive(office)
    run_id = (await first.begin())["id"]
    async with opened(office, drives=False) as mine:
        run = await stands(mine.runs, run_id, "awaiting_answer")
        await first.ask("lay_out", point=point, action="stop")
        await mine.runs.answer(run_id, run.waiting[0].id, "five", by="bob")
        await first.until_stopped()
        second = await drive(office)
        await finished(mine.runs, run_id)
        first.go_on()
        await first.close()
        results = await sound(mine.runs, run_id)
        assert [each["text"] for each in results][1] == "five"
        assert await steps(mine.runs, run_id) == [
            "run_started", "model_answered", "calls_settled", "question_answered", "calls_settled", "model_answered",
            "run_succeeded",
        ]  # fmt: skip
    await second.terminate()
    assert len(receiver.effects("credits")) == 1


# case C16
# case C17
async def test_many_runs_between_two_drivers_are_each_driven_once(
    drive: Drive, make_office: MakeOffice, receiver: Receiver
) -> None:
    """Both look for the same runs at the same time, and both start the same ones: claims decide, and starts are one."""
    office, count = make_office(), 12
    drivers = [await drive(office), await drive(office)]
    started = await asyncio.gather(*(driver.begin(f"key-{n}") for n in range(count) for driver in drivers))
    ids = {run["id"] for run in started}
    assert len(ids) == count
    async with opened(office, drives=False) as mine:
        for run_id in ids:
            await finished(mine.runs, run_id)
            history = [event.kind for event in await mine.runs.events(run_id)]
            assert history.count("run_claimed") == 1
            assert questions(receiver, run_id) == {1: 1, 2: 1}
    assert len(receiver.effects("credits")) == count


# case C58
async def test_cancel_from_elsewhere_reaches_a_tool_before_it_sends(
    drive: Drive, make_office: MakeOffice, receiver: Receiver
) -> None:
    """The tool awaits a token when another process cancels the run: what it does with the token never leaves."""
    receiver.fault("hold_before_effect", collection="tokens", method="GET")
    plan = ((("late", {"order": "7"}),),)
    office = make_office(plan, tools={"tests.crash.runs.tools:shop": {}})
    driver = await drive(office)
    run = await driver.begin()
    await receiver.await_for_requests(1, collection="tokens")
    await asyncio.sleep(AT_ONCE_S)  # a send that follows its departure at once asks no further
    async with opened(office, drives=False) as mine:
        cancelled = await mine.runs.cancel(run["id"], by="bob", reason="not needed")
        assert cancelled.state == "cancelled"
        receiver.release()
        await driver.close()
        await sound(mine.runs, run["id"])
        call = await mine.house.get(f"{run['id']}:1.1")
        assert call.state not in (State.SUCCEEDED, State.DEPARTED)
        assert not any(attempt.running for attempt in call.attempts)
        assert (await mine.runs.get(run["id"])).state == "cancelled"
    assert receiver.requests("refunds") == []


# case C58
async def test_cancel_says_what_had_left_already(drive: Drive, make_office: MakeOffice, receiver: Receiver) -> None:
    """A call whose request is out cannot be taken back: the cancel names it, and its outcome is still found out."""
    receiver.fault("hold_after_effect", collection="credits")
    office = make_office()
    driver = await drive(office)
    run = await driver.begin()
    await receiver.await_for_effects(1, collection="credits")
    async with opened(office) as mine:
        await mine.runs.cancel(run["id"], by="bob", reason="not needed")
        (told,) = [e.facts["left"] for e in await mine.runs.events(run["id"]) if e.kind == "run_cancelled"]
        assert [(each["key"], each["tool"]) for each in told] == [(f"{run['id']}:1.1", "credit")]
        await driver.kill()

        async def settled() -> bool:
            return (await mine.house.get(f"{run['id']}:1.1")).state is State.SUCCEEDED

        await eventually(settled)
        assert (await mine.runs.get(run["id"])).state == "cancelled"
    assert len(receiver.requests("credits", method="POST")) == 1


async def test_killed_cancel_is_tidied_up_by_the_next_process(
    drive: Drive, make_office: MakeOffice, receiver: Receiver
) -> None:
    """The run is cancelled in one commit; its held call is refused by whoever finds that undone."""
    plan = ((("delete_account", {"account": "a1"}),),)
    office = make_office(plan, tools={"tests.crash.tools:guarded": {}})
    driver = await drive(office)
    run = await driver.begin()
    async with opened(office, drives=False) as mine:
        await stands(mine.runs, run["id"], "awaiting_approval")
    await driver.kill()
    desk = await drive(office, {"point": "after_run_end"}, drives=False)
    _ = desk.ask("runs.cancel", run["id"], by="bob", reason="no")
    await desk.until_dead()
    async with opened(office) as mine:
        await until(mine.runs, run["id"], lambda run: run.record.due_at_us is None)
        assert (await kinds(mine.runs, run["id"]))[-2:] == ["run_cancelled", "run_tidied"]
        assert (await mine.house.get(f"{run['id']}:1.1")).state is State.REFUSED
    with pytest.raises(Answered) as refused:
        await (await drive(office, drives=False)).ask("house.approve", f"{run['id']}:1.1", by="bob")
    assert refused.value.code == "not_allowed"
    assert receiver.effects("deletions") == []


async def test_start_that_was_killed_and_repeated_in_two_places_is_one_run(
    drive: Drive, make_office: MakeOffice, receiver: Receiver
) -> None:
    """Nobody heard of the start; both who ask again under its key get the one run."""
    office = make_office()
    lost = await drive(office, {"point": "after_run_start"}, drives=False)
    _ = lost.begin()
    await lost.until_dead()
    driver = await drive(office)
    async with opened(office, drives=False) as mine:
        there, here = await asyncio.gather(driver.begin(), begun(mine))
        assert (there["id"], there["started_before"], here.started_before) == (here.id, True, True)
        await finished(mine.runs, here.id)
    assert len(receiver.effects("credits")) == 1
