import asyncio

import provider

from tollhouse import CallContext, Tollhouse, external, tool
from tollhouse.errors import InDoubt


@tool(external())
async def issue_credit(account: str, cents: int, ctx: CallContext) -> str:
    """Credit an account with an amount in cents."""
    return provider.credit(ctx.idempotency_key, account, cents, lose_reply=True)


async def main():
    async with Tollhouse.open("sqlite:///tollhouse.db", tools=[issue_credit]) as house:
        for _ in range(2):
            try:
                outcome = await house.call(issue_credit, {"account": "a1", "cents": 900}, key="order-8:credit")
                print(outcome.state, outcome.value)
            except InDoubt as doubt:
                print(doubt.code, "| was anything sent?", doubt.sent)
                print("told to the model:", doubt.for_model)
    print(len(provider.entries()), "credits at the provider")


asyncio.run(main())
