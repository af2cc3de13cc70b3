import asyncio
import json

import httpx2

from tollhouse import Tollhouse, destructive, tool
from tollhouse.api.app import create_app
from tollhouse.api.auth import access_of
from tollhouse.api.server import serving
from tollhouse.house.access import KeyRing
from tollhouse.house.running import open_runs
from tollhouse.models.book import ModelBook
from tollhouse.runs.agents import Agent
from tollhouse.runs.drivers.local import LocalDriver


@tool(destructive())
async def close_account(account: str) -> str:
    """Close an account for ever."""
    return f"closed {account}"


AGENT = Agent(name="desk", model="scripted:desk", tools=("close_account",), questions=True)
SCRIPT = [
    {
        "call": [
            {"tool": "close_account", "arguments": {"account": "a1"}},
            {"tool": "ask_person", "arguments": {"question": "Shall we write to her?"}},
        ]
    },
    "The account is closed.",
]


async def main():
    async with Tollhouse.open("sqlite:///streams.db", tools=[close_account]) as house:
        keys = KeyRing(house.store, house.tenant)
        _, desk = await keys.create("desk", ["runs:read", "runs:write"])
        _, ada = await keys.create("ada", ["runs:read", "runs:write", "calls:decide"])
        runs = await open_runs(house, {"desk": AGENT}, ModelBook(scripts={"desk": SCRIPT}))
        driver = LocalDriver(runs)
        driver.start()
        app = create_app(house, runs=runs, access=await access_of(house))
        async with serving(app, port=0) as url, client_of(url, desk) as starter, client_of(url, ada) as decider:
            await use(starter, decider)
            await use_ag_ui(starter, decider)
        await driver.stop()


def client_of(url, key):
    return httpx2.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=30)


# <follow>
async def follow(client, run_id, seen):
    """Print what happens to a run after ``seen``, until it ends or waits; how far that was, and its state."""
    headers = {"Last-Event-ID": str(seen)}
    async with client.stream("GET", f"/v1/runs/{run_id}/events", headers=headers) as response:
        kind = state = None
        async for line in response.aiter_lines():
            name, _, value = line.partition(": ")
            if name == "event":
                kind = value
            elif name == "data" and kind != "text":
                event = json.loads(value)
                seen, state = event["seq"], event["facts"]["state"]
                print(seen, kind, state)
                if state == "awaiting_approval":
                    break
    return seen, state


# </follow>


async def use(starter, decider):
    # <start>
    start = {"agent": "desk", "input": "Close a1."}
    started = await starter.post("/v1/runs", json=start, headers={"Idempotency-Key": "ticket-17"})
    run_id = started.json()["id"]
    seen, state = await follow(starter, run_id, 0)
    # </start>
    # <answer>
    asked = (await decider.get("/v1/questions")).json()["questions"][0]
    print(asked["text"])
    await decider.post(f"/v1/runs/{run_id}/questions/{asked['id']}/answer", json={"text": "Yes."})
    await decider.post(f"/v1/calls/{run_id}:1.1/approve")
    while state not in ("succeeded", "failed", "cancelled"):
        seen, state = await follow(starter, run_id, seen)
    # </answer>


async def use_ag_ui(starter, decider):
    # <ag-ui>
    message = {"id": "m1", "role": "user", "content": "Close a1."}
    request = {"threadId": "ticket-18", "runId": "first", "messages": [message]}
    events = await ag_ui(starter, request)
    interrupts = events[-1]["outcome"]["interrupts"]
    # </ag-ui>
    # <resume>
    answers = {"tool_call": {"approved": True}, "input_required": {"answer": "Yes."}}
    resume = [{"interruptId": i["id"], "status": "resolved", "payload": answers[i["reason"]]} for i in interrupts]
    events = await ag_ui(decider, {**request, "runId": "second", "resume": resume})
    print(events[-1]["outcome"], events[-1]["result"])
    # </resume>


async def ag_ui(client, request):
    async with client.stream("POST", "/v1/ag-ui", json=request) as response:
        lines = [line async for line in response.aiter_lines()]
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    print(" ".join(e["type"] for e in events if e["type"].startswith(("RUN", "TOOL", "TEXT"))))
    return events


asyncio.run(main())
