import asyncio

import httpx2

from tollhouse import Tollhouse, destructive, external, tool
from tollhouse.api.app import create_app
from tollhouse.api.auth import access_of
from tollhouse.api.server import serving
from tollhouse.house.access import KeyRing


@tool(external())
async def issue_credit(account_id: str, amount_cents: int) -> str:
    """Credit an account, and return the credit's id."""
    return f"cr-{account_id}"


@tool(destructive())
async def delete_account(account_id: str) -> str:
    """Delete an account, once a person agrees."""
    return f"{account_id} is gone"


# <serve>
async def main():
    async with Tollhouse.open("sqlite:///tollhouse.db", tools=[issue_credit, delete_account]) as house:
        keys = KeyRing(house.store, house.tenant)  # what `tollhouse keys create` does
        _, agents_key = await keys.create("billing-agent", ["calls:read", "calls:write"])
        _, adas_key = await keys.create("ada", ["calls:read", "calls:decide"])
        app = create_app(house, access=await access_of(house))
        async with serving(app, "127.0.0.1", 0) as url:
            await use(url, agents_key, adas_key)


# </serve>


async def use(url, agents_key, adas_key):
    agent = httpx2.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {agents_key}"})
    ada = httpx2.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {adas_key}"})
    async with agent, ada:
        # <call>
        credit = {"arguments": {"account_id": "a1", "amount_cents": 2500}}
        for _ in range(2):  # the second as if no answer had come
            answer = await agent.post(
                "/v1/tools/issue_credit/calls", json=credit, headers={"Idempotency-Key": "order-7:refund"}
            )
            print(answer.status_code, answer.json()["result"], answer.headers.get("Idempotent-Replayed"))
        # </call>
        # <held>
        wish = {"arguments": {"account_id": "a1"}}
        held = await agent.post("/v1/tools/delete_account/calls", json=wish, headers={"Idempotency-Key": "close-a1"})
        print(held.status_code, held.json()["state"], held.headers["Location"], held.headers["Retry-After"])
        # </held>
        # <approve>
        asked = (await ada.get("/v1/approvals")).json()["approvals"][0]
        print(asked["tool"], asked["arguments"], "wanted by", asked["requested_by"])
        shown = {"If-Match": f'"{asked["version"]}"'}
        own = await agent.post("/v1/calls/close-a1/approve", headers=shown)
        print(own.status_code, own.json()["code"])
        approved = await ada.post("/v1/calls/close-a1/approve", json={"reason": "asked for by phone"}, headers=shown)
        late = await ada.post("/v1/calls/close-a1/deny", json={"reason": "changed my mind"}, headers=shown)
        print(approved.status_code, late.status_code, late.json()["code"])
        # </approve>
        done = await agent.post("/v1/tools/delete_account/calls", json=wish, headers={"Idempotency-Key": "close-a1"})
        print(done.status_code, done.json()["result"])


asyncio.run(main())
