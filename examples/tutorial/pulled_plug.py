import asyncio
import os
import signal

import provider

from tollhouse import CallContext, RecordedCall, Tollhouse, did_not_happen, external, happened, tool


async def find_credit(record: RecordedCall):
    entry = provider.find(record.idempotency_key)
    return happened(entry["id"]) if entry else did_not_happen("no credit under this key")


@tool(external(), reconcile=find_credit)
async def issue_credit(account: str, cents: int, ctx: CallContext) -> str:
    """Credit an account, and die before anybody hears of it."""
    provider.credit(ctx.idempotency_key, account, cents)
    os.kill(os.getpid(), signal.SIGKILL)


async def main():
    async with Tollhouse.open("sqlite:///tollhouse.db", tools=[issue_credit], lease_s=2.0) as house:
        outcome = await house.call(issue_credit, {"account": "a1", "cents": 700}, key="order-11:credit")
        print(outcome.state, outcome.value, "replayed" if outcome.replayed else "sent now")
    print(len(provider.entries()), "credits at the provider")


asyncio.run(main())
