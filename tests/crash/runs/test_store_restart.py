"""The database server dies in the middle of runs: they wait for it and go on, and nothing happens twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from tests.crash.runs.conftest import Drive
from tests.crash.runs.office import Office, office, opened, questions
from tests.crash.runs.watching import finished
from tollhouse import State
from tollhouse.testing.postgres import PostgresServer
from tollhouse.testing.receiver import Receiver

pytestmark = [pytest.mark.crash, pytest.mark.postgres]

MakeOffice = Callable[..., Office]


@pytest.fixture
def make_office(private_postgres: PostgresServer, receiver: Receiver, house_tenant: str, temporal: str) -> MakeOffice:
    """Describes an office over the test's own server."""
    return office_over(private_postgres, receiver, house_tenant, temporal)


def office_over(server: PostgresServer, receiver: Receiver, tenant: str, temporal: str) -> MakeOffice:
    """Describes an office over that server."""
    return partial(office, server.url, receiver, tenant, temporal=temporal)


async def test_server_that_is_killed_under_a_run_delays_it_only(
    drive: Drive, private_postgres: PostgresServer, receiver: Receiver, make_office: MakeOffice
) -> None:
    """Killed while a run is inside its model request, then while another is inside its tool: both finish, once."""
    place = make_office(settings={"store_wait_s": 20.0, "lease_s": 30.0})
    driver = await drive(place)
    for held in ("questions", "credits"):
        receiver.fault("hold_after_effect", collection=held)
        run = await driver.begin(held)
        await receiver.await_for_effects(1, collection=held, key=_key_of(held, place.tenant, run["id"]))
        await asyncio.to_thread(private_postgres.kill)
        receiver.release()
        await asyncio.to_thread(private_postgres.start)
        async with opened(place, drives=False) as mine:
            await finished(mine.runs, run["id"])
            assert questions(receiver, run["id"]) == {1: 1, 2: 1}
            call = await mine.house.get(f"{run['id']}:1.1")
            assert (call.state, len(call.attempts)) == (State.SUCCEEDED, 1)
    assert len(receiver.requests("credits", method="POST")) == 2


def _key_of(collection: str, tenant: str, run_id: str) -> str:
    return f"{run_id}:1" if collection == "questions" else f"{tenant}:{run_id}:1.1"


async def test_server_and_driver_that_die_together_lose_nothing(
    drive: Drive, private_postgres: PostgresServer, receiver: Receiver, make_office: MakeOffice
) -> None:
    """Whatever was committed is there after both came back; the doubt about the call ends by evidence."""
    receiver.fault("hold_after_effect", collection="credits")
    place = make_office()
    driver = await drive(place)
    run = await driver.begin()
    await receiver.await_for_effects(1, collection="credits")
    await asyncio.to_thread(private_postgres.kill)
    await driver.kill()
    await asyncio.to_thread(private_postgres.start)
    async with opened(place) as mine:
        await finished(mine.runs, run["id"])
        assert (await mine.house.get(f"{run['id']}:1.1")).settlements[0].by == "hook:credit"
    assert len(receiver.requests("credits", method="POST")) == 1
