import asyncio
import os
from pathlib import Path

import httpx2

from tollhouse import Accepted, CallContext, Tollhouse, did_not_happen, external, happened, tool, unknown
from tollhouse.testing.receiver import Receiver


# <tool>
async def poll_job(reference):
    async with httpx2.AsyncClient(base_url=os.environ["PROVIDER"], timeout=10) as client:
        job = (await client.get(f"/v1/jobs/{reference}")).raise_for_status().json()
    if job["status"] == "done":
        return happened(job["result"], reference=reference)
    if job["status"] == "failed":
        return did_not_happen("the provider says so", job_status="failed")
    return unknown(f"the job is {job['status']}")


@tool(external(departs="at_confirm", accepts=True, job_deadline_s=7200), reconcile=poll_job)
async def render_video(script: str, ctx: CallContext) -> dict:
    """Have a video rendered, which takes an hour."""
    response = await ctx.http.post(f"{os.environ['PROVIDER']}/v1/jobs", json={"script": script})
    raise Accepted(response.raise_for_status().json()["id"])


# </tool>


async def main():
    with Receiver.start(Path("book.jsonl")) as provider:
        os.environ["PROVIDER"] = provider.url
        async with Tollhouse.open("sqlite:///tollhouse.db", tools=[render_video]) as house:
            first = await house.call(render_video, {"script": "intro"}, key="video-1")
            print(first.state, first.value, first.reference is not None)
            # <callback>
            # In the handler of the provider's callback, with what it sent:
            call = await house.report("video-1", happened({"url": "video-1.mp4"}), reference=first.reference)
            print(call.state, call.result)
            # </callback>
            second = await house.call(render_video, {"script": "credits"}, key="video-2")
            provider.finish_job(second.reference, "done", {"url": "video-2.mp4"})
            call = await house.wait("video-2")
            print(call.state, call.result, "via", call.settlements[-1].via)


asyncio.run(main())
