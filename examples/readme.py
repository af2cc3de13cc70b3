import asyncio

from tollhouse import CallContext, Tollhouse, did_not_happen, external, happened, tool
from tollhouse.errors import InDoubt

bank = {}  # stands for a payment provider: what really happened there, by idempotency key


async def find_refund(idempotency_key):
    return happened(bank[idempotency_key]) if idempotency_key in bank else did_not_happen("no such refund")


@tool(external(), reconcile=find_refund)
async def refund(order: str, cents: int, ctx: CallContext) -> str:
    bank[ctx.idempotency_key] = f"{cents} cents for order {order}"
    raise ConnectionError("the reply was lost")


async def main():
    async with Tollhouse.open("sqlite:///tollhouse.db", tools=[refund]) as house:
        try:
            await house.call(refund, {"order": "7", "cents": 2500}, key="order-7:refund")
        except InDoubt as doubt:
            print(doubt)
        outcome = await house.call(refund, {"order": "7", "cents": 2500}, key="order-7:refund")
        print(outcome.state, outcome.value, outcome.replayed, len(bank))


asyncio.run(main())
