"""Long work that the receiver accepted under a reference: polled, reported, or past its deadline."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.crash.listening import Heard, eventually, kinds
from tests.doubt.scenes import KEY, facts
from tests.support.houses import OpenHouse
from tollhouse import Accepted, RecordedCall, State, Tollhouse, did_not_happen, external, happened, tool, unknown
from tollhouse.contract.answers import Answer, JobStatus
from tollhouse.contract.terms import US
from tollhouse.contract.tool import Tool
from tollhouse.errors import CallFailed, Contradicted, InDoubt, InvalidSetting, NotAllowed, NotEntitled, UnknownCall


class Job:
    """Long work at a receiver, and the tool that begins it. ``answer``: what the receiver says of it."""

    def __init__(self) -> None:
        self.begun = self.polls = 0
        self.answer: Answer | Exception = unknown("still queued")

    def look(self, record: RecordedCall) -> Answer:
        """The look-up by reference."""
        assert record.reference == "job-7"
        self.polls += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def tool(self, *, polled: bool = True, raises: bool = False, **terms: Any) -> Tool[str]:
        """`export`: raises or returns :class:`Accepted`."""

        @tool(external(**{"accepts": True, "absent_after_s": 0.0, **terms}), reconcile=self.look if polled else None)
        async def export(month: str) -> str | Accepted:
            self.begun += 1
            accepted = Accepted("job-7")
            if raises:
                raise accepted
            return accepted

        return export


async def accepted(house: Tollhouse) -> None:
    """A call that was accepted."""
    outcome = await house.call("export", {"month": "may"}, key=KEY)
    assert (outcome.state, outcome.value, outcome.reference) == (State.ACCEPTED, None, "job-7")


@pytest.mark.parametrize("raises", [True, False])
async def test_accepted_call_returns_its_reference_and_is_not_begun_again(open_house: OpenHouse, raises: bool) -> None:
    """*Accepted* is an answer, not a doubt: the same key gives it again while the work goes on."""
    job = Job()
    house = await open_house(job.tool(raises=raises))
    await accepted(house)
    await accepted(house)
    assert job.begun == 1
    assert await kinds(house, KEY) == ["departed", "outcome"]


async def test_poll_settles_finished_work(open_house: OpenHouse) -> None:
    """The reconciler asks the look-up until it says that the work is done; no caller is needed."""
    job, heard = Job(), Heard()
    house = await open_house(job.tool(), background=True, every_s=0.05, on_event=heard)
    await accepted(house)

    async def polled() -> bool:
        return job.polls > 0

    await eventually(polled)
    assert (await house.get(KEY)).state is State.ACCEPTED
    job.answer = happened("export.csv")
    record = await house.wait(KEY, timeout_s=20)
    assert (record.state, record.result) == (State.SUCCEEDED, "export.csv")
    assert job.begun == 1


@pytest.mark.parametrize("status", ["cancelled", "failed", "never_queued"])
async def test_statement_about_the_job_settles_it_as_failed(open_house: OpenHouse, status: JobStatus) -> None:
    """The receiver's word on the job itself is evidence."""
    job = Job()
    house = await open_house(job.tool())
    await accepted(house)
    job.answer = did_not_happen("says the receiver", job_status=status)
    assert (await house.reconcile(KEY)).state is State.FAILED
    (settled,) = facts(await house.get(KEY), "settled")
    assert settled["job_status"] == status
    with pytest.raises(CallFailed):
        await house.call("export", {"month": "may"}, key=KEY)
    assert job.begun == 1


async def test_absence_is_no_evidence_about_long_work(open_house: OpenHouse) -> None:
    """That nothing is there yet is what accepted work looks like."""
    job = Job()
    house = await open_house(job.tool())
    await accepted(house)
    job.answer = did_not_happen("no file yet")
    assert (await house.reconcile(KEY)).state is State.ACCEPTED
    assert "statement about the job" in facts(await house.get(KEY), "looked_up")[0]["note"]


async def test_absence_is_no_evidence_in_a_doubt_of_a_tool_that_can_accept(open_house: OpenHouse) -> None:
    """Its reply may have been lost after the work was accepted, so the same holds for its doubts."""

    @tool(external(accepts=True, absent_after_s=0.0), reconcile=lambda _call: did_not_happen("no file yet"))
    async def export(month: str) -> str:
        raise ConnectionResetError("the reply was lost")

    house = await open_house(export)
    with pytest.raises(InDoubt):
        await house.call("export", {"month": "may"}, key=KEY)
    assert (await house.reconcile(KEY)).state is State.IN_DOUBT


async def test_deadline_turns_accepted_work_into_a_doubt(open_house: OpenHouse) -> None:
    """Nothing stays accepted for ever: past its deadline it is unknown, and everybody hears of it."""
    job, heard = Job(), Heard()
    house = await open_house(job.tool(job_deadline_s=0.4), background=True, every_s=0.05, on_event=heard)
    await accepted(house)
    await heard.until("doubt_appeared", key=KEY)
    record = await house.get(KEY)
    (passed,) = (line for line in record.history if line.kind == "deadline_passed")
    assert record.attempts[0].ended_at_us is not None
    assert passed.at_us >= record.attempts[0].ended_at_us + round(0.4 * US)
    job.answer = happened("export.csv")

    async def found() -> bool:  # the first time may join a look-up of the services that began before
        return (await house.reconcile(KEY)).state is State.SUCCEEDED

    await eventually(found)
    assert job.begun == 1


async def test_accepted_work_without_a_look_up_is_due_at_its_deadline(open_house: OpenHouse) -> None:
    """There is nothing to ask before, so no worker comes back to it again and again."""
    job = Job()
    house = await open_house(job.tool(polled=False, job_deadline_s=60.0), every_s=0.05)
    await accepted(house)

    async def due_at_the_end() -> bool:
        await house.services.round()
        record = await house.get(KEY)
        ended_us = record.attempts[0].ended_at_us
        return ended_us is not None and record.raw.due_at_us == ended_us + 60 * US

    await eventually(due_at_the_end)
    version = (await house.get(KEY)).version
    await house.services.round()
    assert (await house.get(KEY)).version == version


async def test_look_up_deployed_later_polls_work_that_was_accepted_before(open_house: OpenHouse) -> None:
    """A process that starts with the look-up adopts what waits, without waiting for the deadline."""
    job = Job()
    house = await open_house(job.tool(polled=False))
    await accepted(house)
    await asyncio.sleep(1.0)  # its first poll is due, and finds no look-up
    await house.services.round()
    job.answer = happened("export.csv")
    later = await open_house(job.tool(), background=True)
    assert (await later.wait(KEY, timeout_s=20)).result == "export.csv"


# -- callbacks -------------------------------------------------------------------------------------------


async def test_report_of_the_receiver_settles_its_work(open_house: OpenHouse) -> None:
    """The callback carries the reference under which the work was accepted; a waiter is woken."""
    house = await open_house(Job().tool())
    await accepted(house)
    waiting = asyncio.ensure_future(house.wait(KEY))
    record = await house.report(KEY, happened("export.csv"), reference="job-7")
    assert (record.state, record.result) == (State.SUCCEEDED, "export.csv")
    assert (await waiting).settlements[0].via == "callback"
    assert (await house.call("export", {"month": "may"}, key=KEY)).value == "export.csv"


async def test_report_that_the_work_failed_settles_it_as_failed(open_house: OpenHouse) -> None:
    """The receiver speaks about its own job, so no look-up need confirm it."""
    house = await open_house(Job().tool())
    await accepted(house)
    record = await house.report(KEY, did_not_happen("disk full", job_status="failed"), reference="job-7")
    assert record.state is State.FAILED


@pytest.mark.parametrize("reference", ["job-8", "", "job-77", "\ud800", 7])
async def test_report_under_another_reference_is_turned_away(open_house: OpenHouse, reference: Any) -> None:
    """Whoever does not know the reference is not the receiver."""
    house = await open_house(Job().tool())
    await accepted(house)
    with pytest.raises(NotEntitled):
        await house.report(KEY, happened("export.csv"), reference=reference)
    assert (await house.get(KEY)).state is State.ACCEPTED


async def test_report_may_give_the_reference_as_a_number(open_house: OpenHouse) -> None:
    """Receivers number their jobs, and JSON says so: accepted under 7, reported under 7."""
    job: Any = 7

    @tool(external(accepts=True))
    async def export(month: str) -> str | Accepted:
        return Accepted(job)

    house = await open_house(export)
    await house.call(export, {"month": "may"}, key=KEY)
    record = await house.report(KEY, happened("export.csv"), reference=job)
    assert (record.state, record.settlements[0].reference) == (State.SUCCEEDED, "7")


async def test_report_must_say_something_about_a_call_that_is_known(open_house: OpenHouse) -> None:
    """An unknown key and an empty statement are mistakes of the caller."""
    house = await open_house(Job().tool())
    await accepted(house)
    with pytest.raises(UnknownCall):
        await house.report("no-such-call", happened(), reference="job-7")
    with pytest.raises(InvalidSetting):
        await house.report(KEY, unknown(), reference="job-7")


async def test_report_against_a_decision_is_kept_and_contradicts(open_house: OpenHouse) -> None:
    """Late news does not move a settled call; it is evidence beside it, and a person must look."""
    heard = Heard()
    house = await open_house(Job().tool(), on_event=heard)
    await accepted(house)
    await house.resolve(KEY, did_not_happen(), by="ada", reason="given up", force=True)
    record = await house.report(KEY, happened("export.csv"), reference="job-7")
    assert (record.state, record.contradicted) == (State.FAILED, True)
    assert heard.of("contradiction_opened", key=KEY)
    with pytest.raises(Contradicted):
        await house.call("export", {"month": "may"}, key=KEY)
    overturned = await house.overturn(KEY, by="ada", reason="the receiver reported it")
    assert (overturned.state, overturned.result, overturned.contradicted) == (State.SUCCEEDED, "export.csv", False)


async def test_report_repeated_is_the_same_report(open_house: OpenHouse) -> None:
    """Receivers repeat their callbacks; the second says nothing new and opens nothing."""
    house = await open_house(Job().tool())
    await accepted(house)
    await house.report(KEY, happened("export.csv"), reference="job-7")
    again = await house.report(KEY, happened("export.csv"), reference="job-7")
    assert (again.state, again.contradicted) == (State.SUCCEEDED, False)
    assert again.version == (await house.report(KEY, happened("export.csv"), reference="job-7")).version


async def test_report_repeated_opens_nothing_that_a_person_closed_in_view_of_it(open_house: OpenHouse) -> None:
    """Whoever upheld a decision had heard it; another statement contradicts anew."""
    house = await open_house(Job().tool())
    await accepted(house)
    await house.resolve(KEY, happened("export.csv"), by="ada", reason="I have the file")
    failed = did_not_happen("disk full", job_status="failed")
    assert (await house.report(KEY, failed, reference="job-7")).contradicted
    await house.uphold(KEY, by="ada", reason="the file is whole")
    assert not (await house.report(KEY, failed, reference="job-7")).contradicted
    other = did_not_happen("taken back", job_status="cancelled")
    assert (await house.report(KEY, other, reference="job-7")).contradicted


async def test_bare_absence_in_a_report_is_no_evidence(open_house: OpenHouse) -> None:
    """A callback that does not say what became of the job settles nothing."""
    house = await open_house(Job().tool())
    await accepted(house)
    with pytest.raises(NotAllowed):
        await house.report(KEY, did_not_happen("no file"), reference="job-7")
    assert (await house.get(KEY)).state is State.ACCEPTED
