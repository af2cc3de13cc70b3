"""A tool of a server under test: it sends to the receiver that the environment names, and can be looked up there."""

import os

import httpx2

from tollhouse import Answer, CallContext, RecordedCall, did_not_happen, external, happened, tool

RECEIVER = "TEST_RECEIVER"


async def find(record: RecordedCall) -> Answer:
    """What the receiver has under the call's key."""
    async with httpx2.AsyncClient(trust_env=False) as client:
        found = (await client.get(f"{os.environ[RECEIVER]}/v1/credits/by-key/{record.idempotency_key}")).json()
    return happened(found[0]["id"], found[0]["id"]) if found else did_not_happen("not there")


@tool(external(departs="at_confirm", absent_after_s=0.2), reconcile=find)
async def credit(account: str, ctx: CallContext) -> str:
    """Credit an account."""
    response = await ctx.http.post(f"{os.environ[RECEIVER]}/v1/credits", json={"account": account})
    return str(response.raise_for_status().json()["id"])


TOOLS = [credit]
