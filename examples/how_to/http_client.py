import asyncio
import os
from pathlib import Path

import httpx2

from tollhouse import CallContext, Tollhouse, external, guard, tool
from tollhouse.errors import CallFailed, CallNotSent
from tollhouse.testing.receiver import Receiver


# <http>
@tool(external(departs="at_confirm", rejects=[402, 422]))
async def charge(order: str, cents: int, ctx: CallContext) -> str:
    """Charge for an order, and return the charge's id."""
    response = await ctx.http.post(f"{os.environ['PROVIDER']}/v1/charges", json={"order": order, "cents": cents})
    return response.raise_for_status().json()["id"]


# </http>


# <guard>
@tool(external(departs="at_confirm", rejects=[402, 422]))
async def ship(order: str, ctx: CallContext) -> str:
    """Order the parcel service, and return the parcel's id."""
    async with guard(httpx2.AsyncClient(base_url=os.environ["PROVIDER"], headers={"X-Shop": "7"}), ctx) as client:
        response = await client.post("/v1/parcels", json={"order": order})
        return response.raise_for_status().json()["id"]


# </guard>


async def main():
    with Receiver.start(Path("book.jsonl")) as provider:
        async with Tollhouse.open("sqlite:///tollhouse.db", tools=[charge, ship]) as house:
            # <outcomes>
            try:
                os.environ["PROVIDER"] = "http://127.0.0.1:9"  # nobody listens there
                await house.call(charge, {"order": "7", "cents": 2500}, key="order-7:charge")
            except CallNotSent as proof:
                print(proof.code, "| sent:", proof.sent)
            os.environ["PROVIDER"] = provider.url
            outcome = await house.call(charge, {"order": "7", "cents": 2500}, key="order-7:charge")
            print(outcome.state, "| attempts:", outcome.attempts)
            # </outcomes>
            provider.fault("error_before_effect", status=402)
            try:
                await house.call(charge, {"order": "8", "cents": 900}, key="order-8:charge")
            except CallFailed as failed:
                print(failed.code, "| sent:", failed.sent)
            await house.call(ship, {"order": "7"}, key="order-7:ship")
        for seen in provider.requests():
            print(seen.collection, seen.key)


asyncio.run(main())
