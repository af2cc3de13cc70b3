import asyncio

import provider

from tollhouse import CallContext, Tollhouse, external, tool


@tool(external())
async def issue_credit(account: str, cents: int, ctx: CallContext) -> str:
    """Credit an account with an amount in cents."""
    return provider.credit(ctx.idempotency_key, account, cents)


async def main():
    async with Tollhouse.open("sqlite:///tollhouse.db", tools=[issue_credit]) as house:
        for _ in range(2):
            outcome = await house.call(issue_credit, {"account": "a1", "cents": 2500}, key="order-7:credit")
            print(outcome.state, outcome.value, "replayed" if outcome.replayed else "sent now")
    print(len(provider.entries()), "credit at the provider")


asyncio.run(main())
