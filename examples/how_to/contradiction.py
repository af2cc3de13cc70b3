import asyncio

from tollhouse import Tollhouse, did_not_happen, external, tool
from tollhouse.errors import Contradicted, InDoubt

reply, noticed = asyncio.Event(), asyncio.Event()


@tool(external(attempt_timeout_s=0.2))
async def refund(order: str) -> str:
    """Refund an order, at a provider that takes its time."""
    await reply.wait()
    return f"re_{order}"


def listen(kind, facts):
    if kind == "contradiction_opened":
        noticed.set()


async def main():
    async with Tollhouse.open("sqlite:///tollhouse.db", tools=[refund], on_event=listen) as house:
        try:
            await house.call(refund, {"order": "7"}, key="order-7:refund")
        except InDoubt as doubt:
            print(doubt.cause)
        call = await house.resolve(
            "order-7:refund", did_not_happen("not in the dashboard"), by="ada", reason="looked twice", force=True
        )
        print("settled by ada:", call.state)
        reply.set()  # the provider's answer arrives after all
        await noticed.wait()
        try:
            await house.call(refund, {"order": "7"}, key="order-7:refund")
        except Contradicted as contradicted:
            print(contradicted.code)
        # <overturn>
        call = await house.overturn("order-7:refund", by="grace", reason="the reply came at last: re_7 is in the books")
        print("overturned by grace:", call.state, call.result)
        # </overturn>


asyncio.run(main())
