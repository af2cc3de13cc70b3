import asyncio

from tollhouse import Tollhouse, approval, destructive, tool
from tollhouse.errors import Held, NotEntitled


@tool(destructive(approval=approval(quorum=1, expires_s=3600)))
async def close_account(account: str, reason: str) -> str:
    """Close an account for good."""
    return f"closed {account}"


async def main():
    async with Tollhouse.open("sqlite:///tollhouse.db", tools=[close_account], principal="agent-7") as house:
        # <hold>
        request = {"account": "a1", "reason": "the customer asked"}
        try:
            await house.call(close_account, request, key="a1:close")
        except Held as held:
            print(held.cause)
        # </hold>
        # <approve>
        try:
            await house.approve("a1:close", by="agent-7")
        except NotEntitled as refused:
            print(refused.cause)
        shown = await house.get("a1:close")
        await house.approve("a1:close", by="ada", version=shown.version)
        outcome = await house.call(close_account, request, key="a1:close")
        print(outcome.state, outcome.value)
        # </approve>
        # <edit>
        try:
            await house.call(close_account, {"account": "a2", "reason": "?"}, key="a2:close")
        except Held:
            await house.edit("a2:close", {"account": "a2", "reason": "fraud, case 31"}, by="ada")
        await house.approve("a2:close", by="grace")
        outcome = await house.call(close_account, {"account": "a2", "reason": "?"}, key="a2:close")
        print((await house.get("a2:close")).arguments)
        # </edit>


asyncio.run(main())
