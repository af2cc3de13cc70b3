"""`/healthz`, `/readyz`, `/metrics`: honest about each thing the process needs, and never slow about it."""

from __future__ import annotations

import asyncio

import pytest

from tests.api.conftest import Serve, Served, problem
from tests.api.shop import Shop
from tests.support.houses import interfering
from tollhouse.house import vitals
from tollhouse.operations import health as health_module
from tollhouse.operations.metrics import METRICS


async def test_ready_process_says_so_of_each_thing(served: Served) -> None:
    """Store, lease and rounds; no key is needed."""
    answer = await (await served.client()).get("/readyz")
    assert answer.status_code == 200
    assert answer.json()["status"] == "ready"
    assert {name: check["ok"] for name, check in answer.json()["checks"].items()} == {
        "store": True, "lease": True, "rounds": True
    }  # fmt: skip


async def test_store_that_hangs_is_told_within_the_time_of_a_probe(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """503, with the store named; the process itself is still alive."""

    async def hang(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(health_module, "PROBE_S", 0.2)
    monkeypatch.setattr(health_module.Health, "_signs", hang)
    client = await served.client()
    answer = await client.get("/readyz")
    assert (answer.status_code, answer.json()["status"]) == (503, "not_ready")
    assert {name for name, check in answer.json()["checks"].items() if not check["ok"]} == {"store"}
    assert (await client.get("/healthz")).status_code == 200
    assert "tollhouse_store_up 0" in (await client.get("/metrics")).text


async def test_store_that_fails_as_nobody_foresaw_is_told_as_well(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A probe that raises is an answer, too: 503 with the store named, no defect of the server's."""

    async def fail(*_: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(health_module.Health, "_signs", fail)
    answer = await (await served.client()).get("/readyz")
    assert (answer.status_code, answer.json()["checks"]["store"]["ok"]) == (503, False)


async def test_lease_that_ended_makes_it_unready(serve: Serve, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that may not depart anything takes no work."""
    served = await serve(*shop.tools, settings={"interfering": True, "lease_s": 0.3})
    client = await served.client()
    assert (await client.get("/readyz")).status_code == 200
    interfering(served.house).lose_renewals = True
    while (answer := await client.get("/readyz")).status_code == 200:
        continue
    assert answer.json()["checks"]["lease"]["ok"] is False
    interfering(served.house).lose_renewals = False


async def test_services_that_make_no_rounds_make_it_unready(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Doubts would stay."""
    monkeypatch.setattr(health_module, "ROUND_AGE_MOST_S", -1.0)
    served.house.services.last_round_local_us = 0
    assert vitals.vitals_of(served.house).last_round_age_s is not None
    answer = await (await served.client()).get("/readyz")
    assert (answer.status_code, answer.json()["checks"]["rounds"]["ok"]) == (503, False)


async def test_every_further_probe_is_asked_and_bounded(
    serve: Serve, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that fails, and one that hangs, are told by their names; the others stand."""
    monkeypatch.setattr("tollhouse.api.operations.PROBE_S", 0.2)

    async def fine() -> bool:
        return True

    async def broken() -> bool:
        raise RuntimeError("no")

    async def hangs() -> bool:
        await asyncio.Event().wait()
        return True

    served = await serve(*shop.tools, probes={"fine": fine, "broken": broken, "hangs": hangs})
    answer = await (await served.client()).get("/readyz")
    assert answer.status_code == 503
    assert {name for name, check in answer.json()["checks"].items() if not check["ok"]} == {"broken", "hangs"}


async def test_metrics_are_for_who_may_see_calls(guarded: Served) -> None:
    """Health is open to everybody; numbers of calls are not, where keys are asked for."""
    nobody, ada = await guarded.client(), await guarded.of("ada", "calls:read")
    assert (await nobody.get("/healthz")).status_code == (await nobody.get("/readyz")).status_code == 200
    problem(await nobody.get("/metrics"), 401, "not_authenticated")
    answer = await ada.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert all(f"# TYPE {metric.name} " in answer.text for metric in METRICS if "round_age" not in metric.name)


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
async def test_balancers_may_ask_without_a_body(served: Served, path: str) -> None:
    """HEAD answers as GET does."""
    answer = await (await served.client()).head(path)
    assert (answer.status_code, answer.content) == (200, b"")


async def test_closed_house_is_told(served: Served) -> None:
    """A process about to stop is neither ready nor healthy, and calls hear that nothing was sent."""
    client = await served.client()
    await served.house.close()
    assert (await client.get("/healthz")).status_code == 503
    told = problem(await client.post("/v1/tools/credit/calls", json={}), 503, "house_closed")
    assert told["sent"] == "no"
