import asyncio
import sqlite3

from tollhouse import Tollhouse, external, tool
from tollhouse.errors import StoreUnavailable


@tool(external())
async def refund(order: str) -> str:
    """Refund an order."""
    return f"re_{order}"


async def main():
    async with Tollhouse.open("sqlite:///tollhouse.db", tools=[refund], store_wait_s=0.3) as house:
        other = sqlite3.connect("tollhouse.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")  # somebody holds the write lock of the ledger
        try:
            # <catch>
            await house.call(refund, {"order": "7"}, key="order-7:refund")
        except StoreUnavailable as away:
            print(away.code, "| sent:", away.sent)
            # </catch>
        other.execute("ROLLBACK")
        outcome = await house.call(refund, {"order": "7"}, key="order-7:refund")
        print(outcome.state, outcome.value)


asyncio.run(main())
