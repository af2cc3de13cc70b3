"""A ticket in a system that knows no idempotency keys, found again by a reference of ours that it stores."""

import os

import httpx2

from tollhouse import CallContext, did_not_happen, external, happened, tool, unknown


async def find_ticket(idempotency_key):
    """Ask for tickets with our reference."""
    async with httpx2.AsyncClient(base_url=os.environ["TICKETS_URL"], timeout=10) as client:
        response = await client.get("/v1/tickets", params={"reference": idempotency_key})
    found = response.raise_for_status().json()
    if any(ticket["body"]["reference"] != idempotency_key for ticket in found):
        return unknown("the search does not go by our reference")  # one that is ignored finds everything
    if found:
        return happened(found[0]["id"], reference=found[0]["id"])
    return did_not_happen("no ticket has our reference")


async def close_ticket(record, ctx: CallContext):
    """Undo a ticket: close it as opened by mistake."""
    body = {"ticket": record.result, "why": "opened by mistake"}
    response = await ctx.http.post(f"{os.environ['TICKETS_URL']}/v1/closures", json=body)
    return response.raise_for_status().json()["id"]


@tool(external(departs="at_confirm", rejects=[422]), reconcile=find_ticket, compensate=close_ticket)
async def open_ticket(title: str, ctx: CallContext) -> str:
    """Open a ticket, and return its id."""
    body = {"title": title, "reference": ctx.idempotency_key}
    response = await ctx.http.post(f"{os.environ['TICKETS_URL']}/v1/tickets", json=body)
    return response.raise_for_status().json()["id"]
