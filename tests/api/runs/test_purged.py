"""A purged run over HTTP: its outline is shown, and whoever wants what was said in it hears by a code that it went."""

from __future__ import annotations

from typing import Any

from tests.api.conftest import problem
from tests.api.runs.conftest import ServeRuns, on_both_stores
from tests.api.runs.scenes import Says
from tollhouse.operations.purge_runs import purge_runs
from tollhouse.runs.proof.verify import read_bundle, verify


async def purged(serve_runs: ServeRuns) -> tuple[Any, str, int]:
    """A client, and a run that ended and was purged, with the number of its last event before that."""
    served = await serve_runs(Says("Done."))
    client = await served.client()
    run_id = await served.started(client, thread="t")
    await served.until(run_id, "succeeded")
    last = (await served.runs.get(run_id)).record.head_seq
    done = await purge_runs(served.house.store.url, served.house.tenant, older_than_s=-60.0)
    assert done.runs == {"succeeded": 1}
    return client, run_id, last


@on_both_stores
async def test_purged_run_is_shown_by_its_outline(serve_runs: ServeRuns) -> None:
    """Lists and the run itself have its state, and when it was purged; nothing of its output."""
    client, run_id, _ = await purged(serve_runs)
    shown = (await client.get(f"/v1/runs/{run_id}")).json()
    assert (shown["state"], shown["output"], shown["finished"]) == ("succeeded", None, True)
    assert shown["purged_at"] is not None
    (listed,) = (await client.get("/v1/runs")).json()["runs"]
    assert listed["purged_at"] == shown["purged_at"]


async def test_purged_run_is_gone_by_a_code(serve_runs: ServeRuns) -> None:
    """Its stream, a rerun and a rehearsal are refused with 410; whoever had everything is told to stay away."""
    client, run_id, last = await purged(serve_runs)
    for query in ("", "?format=ag-ui", "?after=1"):
        problem(await client.get(f"/v1/runs/{run_id}/events{query}"), 410, "run_purged")
    for seen in (last, last + 1):
        response = await client.get(f"/v1/runs/{run_id}/events", headers={"Last-Event-ID": str(seen)})
        assert response.status_code == 204
    again = await client.post(f"/v1/runs/{run_id}/rerun", json={}, headers={"Idempotency-Key": "again"})
    problem(again, 410, "run_purged")
    problem(await client.post(f"/v1/runs/{run_id}/rehearse", json={}), 410, "run_purged")


async def test_proof_of_a_purged_run_passes(serve_runs: ServeRuns) -> None:
    """It names what was erased."""
    client, run_id, last = await purged(serve_runs)
    verdict = verify(read_bundle((await client.get(f"/v1/runs/{run_id}/proof")).text))
    assert (verdict.result, len(verdict.erased)) == ("pass", last)


async def test_thread_goes_on_over_http(serve_runs: ServeRuns) -> None:
    """A further run of the thread starts as ever."""
    client, _, _ = await purged(serve_runs)
    body = {"agent": "helper", "input": "And now?", "thread": "t"}
    response = await client.post("/v1/runs", json=body, headers={"Idempotency-Key": "next"})
    assert response.status_code == 201
