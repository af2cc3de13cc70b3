import asyncio

import provider

from tollhouse import CallContext, RecordedCall, Tollhouse, did_not_happen, external, happened, tool
from tollhouse.errors import InDoubt


async def find_credit(record: RecordedCall):
    """Look, and change nothing: is there a credit under the key that the provider was given?"""
    entry = provider.find(record.idempotency_key)
    return happened(entry["id"]) if entry else did_not_happen("no credit under this key")


@tool(external(), reconcile=find_credit)
async def issue_credit(account: str, cents: int, ctx: CallContext) -> str:
    """Credit an account with an amount in cents."""
    return provider.credit(ctx.idempotency_key, account, cents, lose_reply=True)


async def main():
    async with Tollhouse.open("sqlite:///tollhouse.db", tools=[issue_credit]) as house:
        try:
            await house.call(issue_credit, {"account": "a1", "cents": 400}, key="order-9:credit")
        except InDoubt as doubt:
            print(doubt.code)
        call = await house.wait("order-9:credit")
        print(call.state, call.result)
        for line in call.history:
            print(line.seq, line.kind, line.facts.get("via", ""))
    print(len(provider.entries()), "credits at the provider")


asyncio.run(main())
