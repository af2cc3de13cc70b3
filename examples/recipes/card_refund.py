"""A card refund at a provider that ignores idempotency keys: the ledger alone keeps it at one."""

import os

import httpx2

from tollhouse import CallContext, did_not_happen, external, happened, tool


def _provider() -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=os.environ["STRIPE_URL"], auth=("sk_test_12345", ""), timeout=10)


async def find_refund(charge, idempotency_key):
    """The refund carries our key as metadata, so it can be told from any other refund of the charge."""
    async with _provider() as client:
        params, more = {"charge": charge, "limit": 100}, True
        while more:  # absence is known only from the last page
            page = (await client.get("/v1/refunds", params=params)).raise_for_status().json()
            for refund in page["data"]:
                if refund["metadata"].get("key") == idempotency_key:
                    return happened(refund["id"], reference=refund["id"])
                params["starting_after"] = refund["id"]
            more = page["has_more"]
    return did_not_happen({"charge": charge, "searched": "refunds by metadata"})


async def charge_again(record, ctx: CallContext):
    """Undo a refund: charge the same customer the same amount."""
    async with _provider() as client:
        charge = (await client.get(f"/v1/charges/{record.arguments['charge']}")).raise_for_status().json()
    body = {"amount": record.arguments["cents"], "currency": charge["currency"], "customer": charge["customer"]}
    response = await ctx.http.post(f"{os.environ['STRIPE_URL']}/v1/charges", data=body, auth=("sk_test_12345", ""))
    return response.raise_for_status().json()["id"]


@tool(external(departs="at_confirm", rejects=[400, 402, 404]), reconcile=find_refund, compensate=charge_again)
async def refund(charge: str, cents: int, ctx: CallContext) -> str:
    """Refund part of a charge, and return the refund's id."""
    response = await ctx.http.post(
        f"{os.environ['STRIPE_URL']}/v1/refunds",
        data={"charge": charge, "amount": cents, "metadata[key]": ctx.idempotency_key},
        auth=("sk_test_12345", ""),
    )
    return response.raise_for_status().json()["id"]
