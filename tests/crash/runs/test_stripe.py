"""An agent that refunds at a payment provider which ignores keys, killed everywhere: a duplicate would show there."""

from __future__ import annotations

import asyncio

import httpx2
import pytest

from tests.crash.listening import eventually
from tests.crash.runs.conftest import Drive, MakeOffice
from tests.crash.runs.office import opened
from tests.crash.runs.watching import begun, bundles, finished, side_by_side
from tests.recipes.conftest import stripe_port
from tests.recipes.test_recipes import a_charge, stripe
from tollhouse.testing.proxy import Proxy

__all__ = ["stripe_port"]
pytestmark = [pytest.mark.crash, pytest.mark.parametrize("shared_store_url", ["sqlite"], indirect=True)]

POINTS = (
    "after_run_start", "after_run_claim", "after_model", "after_model_answer",
    "before_departure", "after_departure", "before_function", "after_function", "before_outcome", "after_outcome",
    "before_calls_settled", "after_calls_settled", "before_run_end", "after_run_end",
)  # fmt: skip


def refunded(client: httpx2.Client, charge: str) -> list[int]:
    """The refunds of a charge, as the provider has them."""
    refunds = client.get("/v1/refunds", params={"charge": charge}).json()["data"]
    return [each["amount"] for each in refunds]


@pytest.mark.parametrize("points", bundles(POINTS, 7))
async def test_killed_agent_refunds_once(
    drive: Drive, make_office: MakeOffice, stripe_port: int, points: list[str]
) -> None:
    """Wherever its process dies, the provider has one refund of the charge in the end, and the run finishes."""
    with stripe(stripe_port) as client:

        async def killed(point: str) -> None:
            charge = a_charge(client)
            plan = ((("refund", {"charge": charge, "cents": 300}),),)
            provider = {"provider": f"http://127.0.0.1:{stripe_port}"}
            office = make_office(plan, name=point, tools={"tests.crash.runs.tools:card_refund": provider})
            driver = await drive(office, {"point": point})
            _ = driver.begin()
            await driver.until_dead()
            async with opened(office) as mine:
                await finished(mine.runs, (await begun(mine)).id)
            assert refunded(client, charge) == [300]

        await side_by_side(points, killed)


async def test_agent_that_dies_while_the_provider_works_refunds_once(
    drive: Drive, make_office: MakeOffice, stripe_port: int
) -> None:
    """The refund is made, its reply is on the way, the process is gone: the next one finds the refund by its key."""
    with Proxy("127.0.0.1", stripe_port) as slow, stripe(stripe_port) as client:
        charge = a_charge(client)
        plan = ((("refund", {"charge": charge, "cents": 300}),),)
        provider = {"provider": f"http://127.0.0.1:{slow.port}"}
        office = make_office(plan, tools={"tests.crash.runs.tools:card_refund": provider})
        slow.set_delay(to_client_ms=60_000)
        driver = await drive(office)
        run = await driver.begin()
        await eventually(lambda: asyncio.to_thread(lambda: bool(refunded(client, charge))))
        await driver.kill()
        slow.cut()
        slow.set_delay(to_client_ms=0)
        async with opened(office) as mine:
            await finished(mine.runs, run["id"])
            assert (await mine.house.get(f"{run['id']}:1.1")).settlements[0].by == "hook:refund"
        assert refunded(client, charge) == [300]
