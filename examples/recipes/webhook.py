"""Long work: the receiver accepts it under a reference, and calls back when it is done."""

import os

import httpx2

from tollhouse import Accepted, CallContext, did_not_happen, external, happened, tool, unknown


async def poll_export(record):
    """Ask about the job; that it is not found would be no evidence."""
    if record.reference is None:
        return unknown("the reply that names the job was lost")
    async with httpx2.AsyncClient(base_url=os.environ["EXPORTS_URL"], timeout=10) as client:
        response = await client.get(f"/v1/jobs/{record.reference}")
    return _finding(response.raise_for_status().json())


def _finding(job: dict):
    """What the receiver says about the job itself, asked or calling back."""
    if job["status"] == "done":
        return happened(job["result"], reference=job["id"])
    if job["status"] in ("failed", "cancelled"):
        return did_not_happen(job["status"], job_status=job["status"])
    return unknown(job["status"])


async def delete_export(record, ctx: CallContext):
    """Undo an export: have the receiver delete what it made."""
    response = await ctx.http.post(f"{os.environ['EXPORTS_URL']}/v1/deletions", json={"export": record.reference})
    return response.raise_for_status().json()["id"]


@tool(
    external(departs="at_confirm", accepts=True, job_deadline_s=3600),
    reconcile=poll_export,
    compensate=delete_export,
)
async def export(dataset: str, ctx: CallContext) -> str:
    """Export a dataset; returns where it is, once the receiver has made it."""
    response = await ctx.http.post(f"{os.environ['EXPORTS_URL']}/v1/jobs", json={"dataset": dataset})
    raise Accepted(response.raise_for_status().json()["id"])


async def on_callback(house, key: str, body: dict) -> None:
    """What your web handler does with the receiver's callback: the reference must be the one it was accepted under."""
    await house.report(key, _finding(body), reference=body["id"])
