"""Each kind of fault once under runs that Temporal drives, for `make test`.

The tests are those of the other modules, at a few of their points. Over Temporal they are slow as a whole; see the
``temporal`` fixture.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.runs import (
    test_kill,
    test_lost_acks,
    test_people,
    test_rolling,
    test_seeds,
    test_stop,
    test_store_restart,
)
from tests.crash.runs.conftest import ON_TEMPORAL, Drive, MakeOffice
from tests.crash.runs.test_lost_acks import MakePlace, place
from tollhouse.testing.postgres import PostgresServer
from tollhouse.testing.receiver import Receiver

__all__ = ["place"]

pytestmark = [pytest.mark.crash, ON_TEMPORAL]

SQLITE = pytest.mark.parametrize("shared_store_url", ["sqlite"], indirect=True)
KILLED = ["after_model", "inside_after_send", "before_calls_settled"]
STOPPED = ["before_model_answer", "inside_before_send"]
LOST = ["run_claimed", "model_answered", "calls_settled", "run_succeeded"]


@pytest.fixture
def temporal(request: pytest.FixtureRequest) -> str:
    """Here runs are driven by Temporal."""
    address: str = request.getfixturevalue("temporal_server").address
    return address


@SQLITE
async def test_killed_process(drive: Drive, make_office: MakeOffice, receiver: Receiver) -> None:
    """In a model request, in a tool, between commits: another process goes on from the last commit."""
    await test_kill.test_killed_run_goes_on_and_finishes_with_one_effect(drive, make_office, receiver, KILLED)


@SQLITE
async def test_stopped_process(drive: Drive, make_office: MakeOffice, receiver: Receiver) -> None:
    """Beyond its lease and its heartbeat: woken, it does nothing more."""
    await test_stop.test_woken_driver_does_nothing_more(drive, make_office, receiver, STOPPED)


@SQLITE
@pytest.mark.parametrize("held", test_rolling.WHERE)
async def test_deployment_that_rolls(drive: Drive, make_office: MakeOffice, receiver: Receiver, held: str) -> None:
    """The old process is inside a tool, or inside a model request: it ends its step, the new one makes the next."""
    test = test_rolling.test_old_process_finishes_its_step_within_its_grace_and_hands_over
    await test(drive, make_office, receiver, held)


@SQLITE
async def test_two_drivers_on_one_run(drive: Drive, make_office: MakeOffice, receiver: Receiver) -> None:
    """One is frozen with the run in hand while the other goes on."""
    test = test_rolling.test_of_two_drivers_on_one_run_one_goes_on
    await test(drive, make_office, receiver, "before_model_answer")


@SQLITE
async def test_killed_approval(drive: Drive, make_office: MakeOffice, receiver: Receiver) -> None:
    """It is given or it is not, and the run goes on by itself."""
    await test_people.test_killed_approval_strands_nothing(drive, make_office, receiver)


@pytest.mark.postgres
async def test_killed_store(
    drive: Drive, private_postgres: PostgresServer, receiver: Receiver, house_tenant: str, temporal: str
) -> None:
    """Together with the process, under a tool: what was committed is there, and a doubt ends by evidence."""
    make_office = test_store_restart.office_over(private_postgres, receiver, house_tenant, temporal)
    test = test_store_restart.test_server_and_driver_that_die_together_lose_nothing
    await test(drive, private_postgres, receiver, make_office)


@pytest.mark.postgres
async def test_lost_acknowledgements(place: MakePlace, receiver: Receiver) -> None:
    """Of commits that were made: none is made again."""
    test = test_lost_acks.test_lost_acknowledgement_changes_nothing_of_a_run
    await test(place, receiver, "applied", LOST)


async def test_seed(tmp_path: Path, drive: Drive, temporal: str) -> None:
    """A random plan under random kills and stops."""
    await test_seeds.played(range(1), tmp_path, drive, temporal)
