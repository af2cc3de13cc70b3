import asyncio
import os
from pathlib import Path

from tollhouse import CallContext, Tollhouse, external, tool
from tollhouse.testing.receiver import Receiver


# <tools>
async def void_charge(result: str, ctx: CallContext) -> str:
    """Void the charge that the original call returned."""
    response = await ctx.http.post(f"{os.environ['PROVIDER']}/v1/voids", json={"charge": result})
    return response.raise_for_status().json()["id"]


@tool(external(departs="at_confirm"), compensate=void_charge)
async def charge(order: str, cents: int, ctx: CallContext) -> str:
    """Charge for an order, and return the charge's id."""
    response = await ctx.http.post(f"{os.environ['PROVIDER']}/v1/charges", json={"order": order, "cents": cents})
    return response.raise_for_status().json()["id"]


# </tools>


async def main():
    with Receiver.start(Path("book.jsonl")) as provider:
        os.environ["PROVIDER"] = provider.url
        async with Tollhouse.open("sqlite:///tollhouse.db", tools=[charge]) as house:
            await house.call(charge, {"order": "7", "cents": 2500}, key="order-7:charge")
            # <undo>
            undone = await house.compensate("order-7:charge", by="ada", reason="the order was cancelled")
            print(undone.key, undone.state)
            print((await house.get("order-7:charge")).state)
            # </undo>
        print(len(provider.effects("charges")), "charge,", len(provider.effects("voids")), "void")


asyncio.run(main())
