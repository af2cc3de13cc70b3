"""SIGKILL at every point of a run's life: another process takes it over, and it finishes as if nothing had been."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.crash.process import Gone
from tests.crash.runs.conftest import Drive, MakeOffice
from tests.crash.runs.office import credit_of, effects_of, opened, questions
from tests.crash.runs.watching import begun, bundles, finished, side_by_side, sound
from tollhouse.testing.receiver import Receiver

pytestmark = pytest.mark.crash


class Left(NamedTuple):
    """What a kill leaves. ``asked``: how often the model is asked for each turn by all processes together.

    ``doubt``: the state of the call that was in doubt, by evidence; None: there was none.
    """

    asked: tuple[int, ...] = (1, 1)
    doubt: str | None = None
    nth: int = 1
    started: bool = True


AT: dict[str, Left] = {
    "before_run_start": Left(started=False),
    "after_run_start": Left(),
    "before_run_claim": Left(),
    "after_run_claim": Left(),
    "before_model": Left(),
    "after_model": Left((2, 1)),
    "before_model_answer": Left((2, 1)),
    "after_model_answer": Left(),
    "before_departure": Left(),
    "after_departure": Left((1, 1, 1), "failed"),
    "before_function": Left((1, 1, 1), "failed"),
    "inside_before_send": Left((1, 1, 1), "failed"),
    "inside_after_send": Left(doubt="succeeded"),
    "after_function": Left(doubt="succeeded"),
    "before_outcome": Left(doubt="succeeded"),
    "after_outcome": Left(),
    "before_calls_settled": Left(),
    "after_calls_settled": Left(),
    "before_model again": Left(nth=2),
    "after_model again": Left((1, 2), nth=2),
    "before_run_end": Left((1, 2)),
    "after_run_end": Left(),
}
"""The effect is one everywhere: what did not happen is asked for again, what did is never."""


@pytest.mark.parametrize("points", bundles(AT))
async def test_killed_run_goes_on_and_finishes_with_one_effect(
    drive: Drive, make_office: MakeOffice, receiver: Receiver, points: list[str]
) -> None:
    """Whatever was under way, the next process begins where the last commit ended, and doubts end by evidence."""

    async def killed(at: str) -> None:
        point, left = at.partition(" ")[0], AT[at]
        office = make_office(credit_of(at), name=at.replace(" ", "-"))
        driver = await drive(office, {"point": point, "nth": left.nth})
        _ = driver.begin()
        await driver.until_dead()
        assert driver.reached == [point]
        async with opened(office) as mine:
            run = await begun(mine)
            assert run.started_before is left.started
            await finished(mine.runs, run.id)
            results = await sound(mine.runs, run.id)
            call = await mine.house.get(f"{run.id}:1.1")
            assert [each["call_state"] for each in results] == ["failed", "succeeded"][left.doubt != "failed" :]
            assert (call.state, bool(call.settlements)) == (left.doubt or "succeeded", left.doubt is not None)
            assert tuple(questions(receiver, run.id).values()) == left.asked
        assert effects_of(receiver, at) == (1, 1)

    await side_by_side(points, killed)


async def test_run_that_was_never_started_is_reported_gone(drive: Drive, make_office: MakeOffice) -> None:
    """A caller whose process died has no answer; the same start under the same key is the way to ask."""
    driver = await drive(make_office(), {"point": "after_run_start"})
    with pytest.raises(Gone):
        await driver.begin()
    async with opened(make_office()) as mine:
        assert (await begun(mine)).started_before
