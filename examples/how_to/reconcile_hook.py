import asyncio
import os
from pathlib import Path

import httpx2

from tollhouse import CallContext, Tollhouse, did_not_happen, external, happened, tool
from tollhouse.errors import InDoubt
from tollhouse.testing.receiver import Receiver


# <hook>
async def find_refund(idempotency_key):
    async with httpx2.AsyncClient(base_url=os.environ["PROVIDER"], timeout=10) as client:
        response = await client.get("/v1/refunds", params={"key": idempotency_key})
    response.raise_for_status()  # a refusal is no evidence: the error counts as unknown
    found = response.json()
    if found:
        return happened(found[0]["id"], reference=found[0]["id"])
    return did_not_happen({"asked": str(response.url), "found": 0})


@tool(external(departs="at_confirm", absent_after_s=120), reconcile=find_refund)
async def refund(order: str, cents: int, ctx: CallContext) -> str:
    """Refund an order, and return the refund's id."""
    response = await ctx.http.post(f"{os.environ['PROVIDER']}/v1/refunds", json={"order": order, "cents": cents})
    return response.raise_for_status().json()["id"]


# </hook>


async def main():
    with Receiver.start(Path("book.jsonl")) as provider:
        os.environ["PROVIDER"] = provider.url
        provider.fault("close_after_effect")  # the effect happens, the reply does not come
        async with Tollhouse.open("sqlite:///tollhouse.db", tools=[refund]) as house:
            try:
                await house.call(refund, {"order": "7", "cents": 2500}, key="order-7:refund")
            except InDoubt as doubt:
                print(doubt.code)
            call = await house.wait("order-7:refund")
            print(call.state, "found by", call.settlements[-1].by)
        print(len(provider.effects("refunds")), "refund at the provider")


if __name__ == "__main__":
    asyncio.run(main())
