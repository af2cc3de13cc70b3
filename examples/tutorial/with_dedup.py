import asyncio

import provider

from tollhouse import CallContext, Tollhouse, dedup, external, tool


@tool(external(dedup=dedup.by_key(hours=24)))
async def issue_credit(account: str, cents: int, ctx: CallContext) -> str:
    """Credit an account with an amount in cents, at a provider that recognises a repeated key for a day."""
    known = provider.find(ctx.idempotency_key)
    if known is not None:
        return known["id"]
    return provider.credit(ctx.idempotency_key, account, cents, lose_reply=ctx.attempt == 1)


async def main():
    async with Tollhouse.open("sqlite:///tollhouse.db", tools=[issue_credit]) as house:
        outcome = await house.call(issue_credit, {"account": "a1", "cents": 150}, key="order-10:credit")
        print(outcome.state, outcome.value, "after", outcome.attempts, "attempts")
    print(len(provider.entries()), "credits at the provider")


asyncio.run(main())
