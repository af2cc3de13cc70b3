"""Temporal workers that are killed, frozen and stopped under their runs: another goes on, and effects stay single."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from tests.crash.runs import test_kill, test_stop
from tests.crash.runs.conftest import MakeOffice, make_office
from tests.crash.runs.office import credit_of, effects_of
from tests.crash.runs.watching import begun, bundles, finished, side_by_side, sound
from tests.runs.temporal.worker import TemporalWorker, working
from tests.support.temporal import TemporalServer
from tollhouse.testing.receiver import Receiver

pytestmark = [pytest.mark.xdist_group("temporal"), pytest.mark.crash]

__all__ = ["make_office"]

SHORT = {"lease_s": 1.5}
KILLED = ["after_model", "inside_after_send", "before_calls_settled"]
STOPPED = ["inside_before_send"]

Work = Callable[..., Awaitable[TemporalWorker]]


def chosen(points: list[str], others: Any) -> list[Any]:
    """The points that `make test` tries; the others are slow."""
    slow = [
        pytest.param(*bundle.values, id=bundle.id, marks=pytest.mark.slow)
        for bundle in bundles([each for each in others if each not in points])
    ]
    return [pytest.param(points, id="some"), *slow]


@pytest.fixture
async def work() -> AsyncIterator[Work]:
    """Starts workers (see :meth:`TemporalWorker.work`); all are ended after the test."""
    started: list[TemporalWorker] = []

    async def start(*args: Any, **kwargs: Any) -> TemporalWorker:
        worker = await TemporalWorker.work(*args, **kwargs)
        started.append(worker)
        return worker

    yield start
    for worker in started:
        await worker.end()


@pytest.mark.parametrize("points", chosen(KILLED, test_kill.AT))
async def test_killed_worker_s_run_goes_on_elsewhere(
    work: Work, make_office: MakeOffice, receiver: Receiver, temporal_server: TemporalServer, points: list[str]
) -> None:
    """Within lease and heartbeat Temporal gives the run to another worker, which begins where the last commit ended."""

    async def killed(at: str) -> None:
        point, left = at.partition(" ")[0], test_kill.AT[at]
        office = make_office(credit_of(at), name=at.replace(" ", "-"), settings=SHORT)
        worker = await work(office, temporal_server.address, {"point": point, "nth": left.nth})
        _ = worker.begin()
        await worker.until_dead()
        async with working(office, temporal_server.address) as mine:
            run = await begun(mine)
            assert run.started_before is left.started
            await finished(mine.runs, run.id)
            states = [each["call_state"] for each in await sound(mine.runs, run.id)]
            assert states == ["failed", "succeeded"][left.doubt != "failed" :]
        assert effects_of(receiver, at) == (1, 1)

    await side_by_side(points, killed)


@pytest.mark.parametrize("points", chosen(STOPPED, test_stop.AT))
async def test_frozen_worker_has_no_second_effect_when_it_wakes(
    work: Work, make_office: MakeOffice, receiver: Receiver, temporal_server: TemporalServer, points: list[str]
) -> None:
    """Its heartbeat and its lease end while it stands still; another finishes the run, and it does nothing more."""

    async def frozen(point: str) -> None:
        office = make_office(credit_of(point), name=point, settings=SHORT)
        worker = await work(office, temporal_server.address, {"point": point, "action": "stop"})
        _ = worker.begin()
        await worker.until_stopped()
        async with working(office, temporal_server.address) as mine:
            run = await begun(mine)
            run = await finished(mine.runs, run.id)
            worker.go_on()
            await worker.close()
            assert (await mine.runs.get(run.id)).version == run.version
            await sound(mine.runs, run.id)
        assert effects_of(receiver, point) == (1, 1)

    await side_by_side(points, frozen)


async def test_deployment_hands_runs_over(
    work: Work, make_office: MakeOffice, receiver: Receiver, temporal_server: TemporalServer
) -> None:
    """A new worker comes, the old one gets SIGTERM inside its tool: it finishes the step, the new one does the rest."""
    office = make_office(credit_of("a1"))
    old = await work(office, temporal_server.address)
    receiver.fault("hold_after_effect", collection="credits")
    _ = old.begin()
    await receiver.await_for_requests(1, collection="credits", method="POST")
    async with working(office, temporal_server.address) as mine:
        ending = asyncio.create_task(old.terminate())
        await asyncio.sleep(0.2)  # a signal has no answer
        receiver.release()
        await ending
        run = await finished(mine.runs, (await begun(mine)).id)
        (result,) = await sound(mine.runs, run.id)
        claims = [await mine.runs.facts(each) for each in await mine.runs.events(run.id) if each.kind == "run_claimed"]
    assert [each["owner"] for each in claims] == [old.owner, mine.runs.owner_id]
    assert (result["call_state"], effects_of(receiver, "a1")) == ("succeeded", (1, 1))
