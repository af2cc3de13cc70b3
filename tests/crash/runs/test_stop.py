"""SIGSTOP of the process that drives a run, for longer than its lease: another takes over, then the frozen one wakes.

The woken one has nothing to do with the run any more: what it was about to write is refused, what its model answered is
thrown away, and what it was about to send does not leave.
"""

from __future__ import annotations

import pytest

from tests.crash.runs.conftest import Drive, MakeOffice
from tests.crash.runs.office import credit_of, effects_of, opened, questions
from tests.crash.runs.watching import (
    begun,
    bundles,
    finished,
    kinds,
    side_by_side,
    slow_on_postgres,
    sound,
    stands,
    steps,
)
from tollhouse.testing.receiver import Receiver

pytestmark = [pytest.mark.crash, slow_on_postgres]

SHORT = {"lease_s": 1.0}

AT: dict[str, tuple[int, ...]] = {
    "before_run_claim": (1, 1),
    "after_run_claim": (1, 1),
    "before_model": (2, 1),
    "after_model": (2, 1),
    "before_model_answer": (2, 1),
    "after_model_answer": (1, 1),
    "before_departure": (1, 1),
    "after_departure": (1, 1, 1),
    "inside_before_send": (1, 1, 1),
    "inside_after_send": (1, 1),
    "before_outcome": (1, 1),
    "after_outcome": (1, 1),
    "before_calls_settled": (1, 1),
    "before_run_end": (1, 2),
}
"""How often the model is asked for each turn, by both processes: a woken one may still ask what it was about to ask."""


@pytest.mark.parametrize("points", bundles(AT, 7))
async def test_woken_driver_does_nothing_more(
    drive: Drive, make_office: MakeOffice, receiver: Receiver, points: list[str]
) -> None:
    """The run was finished by another process; not one event comes after that, and there is one effect."""

    async def woken(point: str) -> None:
        office = make_office(credit_of(point), name=point, settings=SHORT)
        frozen = await drive(office, {"point": point, "action": "stop"})
        _ = frozen.begin()
        await frozen.until_stopped()
        async with opened(office) as mine:
            run = await begun(mine)
            run = await finished(mine.runs, run.id)
            calls = {call.key: call.state for call in await mine.house.list(scope=run.id)}
            frozen.go_on()
            await frozen.close()
            assert (await mine.runs.get(run.id)).version == run.version
            results = await sound(mine.runs, run.id)
            assert [each["call_state"] for each in results][-1] == "succeeded"
            assert {call.key: call.state for call in await mine.house.list(scope=run.id)} == calls
            asked = questions(receiver, run.id)
            assert [asked[turn] for turn in sorted(asked)] == list(AT[point])
        assert effects_of(receiver, point) == (1, 1)

    await side_by_side(points, woken)


async def test_woken_driver_leaves_a_run_alone_that_waits(
    drive: Drive, make_office: MakeOffice, receiver: Receiver
) -> None:
    """The other process went on and waits for a person: the woken one neither goes on nor asks again."""

    async def woken(point: str) -> None:
        plan = (*credit_of(point), (("ask_person", {"question": "How was it?"}),))
        office = make_office(plan, name=point, settings=SHORT)
        frozen = await drive(office, {"point": point, "action": "stop"})
        _ = frozen.begin()
        await frozen.until_stopped()
        async with opened(office) as mine:
            run = await stands(mine.runs, (await begun(mine)).id, "awaiting_answer")
            before = await steps(mine.runs, run.id)
            frozen.go_on()
            await frozen.close()
            assert (await steps(mine.runs, run.id), (await mine.runs.get(run.id)).state) == (before, run.state)
            await mine.runs.answer(run.id, run.waiting[0].id, "good", by="bob")
            await finished(mine.runs, run.id)
            assert (await kinds(mine.runs, run.id)).count("question_answered") == 1
        assert effects_of(receiver, point) == (1, 1)

    points = ("before_model", "before_model_answer", "inside_after_send", "before_calls_settled")
    await side_by_side(points, woken)
