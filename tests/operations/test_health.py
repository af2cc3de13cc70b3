"""What a worker says of itself, and that it says it in time whatever the store does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.operations.scenes import TOOLS, fill
from tollhouse import Tollhouse
from tollhouse.errors import InvalidSetting, StoreUnavailable
from tollhouse.operations.health import PROBE_S, address_of, serving
from tollhouse.operations.metrics import METRICS
from tollhouse.testing.postgres import PostgresServer

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "operate" / "watch-workers.md"


async def fetched(address: str, path: str, method: str = "GET") -> tuple[int, str]:
    """Status and body."""

    def fetch() -> tuple[int, str]:
        asked = urllib.request.Request(f"http://{address}{path}", method=method)
        try:
            with urllib.request.urlopen(asked, timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    return await asyncio.to_thread(fetch)


def values_of(text: str) -> dict[str, float]:
    """Samples by name with labels; every line is a comment or a sample."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z_]+(\{[^}]*\})? \S+", line) for line in lines), text
    return {name: float(value) for name, value in (line.split(" ") for line in lines)}


@contextlib.asynccontextmanager
async def watched(url: str, **settings: Any) -> AsyncIterator[tuple[Tollhouse, str]]:
    """A house and the address at which it is watched."""
    usual: dict[str, Any] = {"tools": TOOLS, "background": False, "grace_s": 0.0}
    async with (
        Tollhouse.open(url, **{**usual, **settings}) as house,
        serving(house, url, "default", "127.0.0.1:0") as address,
    ):
        yield house, address


async def test_metrics_tell_what_stands_in_the_ledger(house_store_url: str) -> None:
    """Calls by state, the oldest doubt, leases, rounds and commits."""
    async with watched(house_store_url) as (house, address):
        await fill(house)
        await house.services.round()
        assert await fetched(address, "/healthz") == (
            200,
            '{"status": "ok", "checks": {"store": true, "lease": true, "rounds": true}}\n',
        )
        status, text = await fetched(address, "/metrics")
        assert (await fetched(address, "/metrics", "HEAD")) == (200, "")
        assert (await fetched(address, "/other"))[0] == 404
        assert (await fetched(address, "/metrics", "POST"))[0] == 405
    values = values_of(text)
    assert status == 200
    assert values['tollhouse_calls{state="succeeded"}'] == 4
    assert values['tollhouse_calls{state="in_doubt"}'] == 1
    assert values['tollhouse_calls{state="held"}'] == 0
    assert 0 < values["tollhouse_oldest_doubt_age_seconds"] < 600
    assert 0 < values["tollhouse_lease_remaining_seconds"] <= 30
    assert values["tollhouse_owners_live"] == values["tollhouse_rounds_total"] == values["tollhouse_store_up"] == 1
    assert values["tollhouse_store_commits_total"] >= 13
    assert {name.partition("{")[0] for name in values} == {metric.name for metric in METRICS}


async def test_large_counters_move_by_one(tmp_path: Path) -> None:
    """A rate is a difference of counters, so every digit of them is told."""
    async with watched(f"sqlite:///{tmp_path}/ledger.db") as (house, address):
        for commits in (12_345_678, 12_345_679):
            house.store.counters.commits = commits
            _, text = await fetched(address, "/metrics")
            assert values_of(text)["tollhouse_store_commits_total"] == commits


@pytest.mark.postgres
async def test_probes_answer_in_time_when_the_store_is_gone(private_postgres: PostgresServer) -> None:
    """A stopped server makes the worker ill, not silent; what it knows of itself is still told."""
    async with watched(private_postgres.url, store_wait_s=0.5) as (_, address):
        assert (await fetched(address, "/healthz"))[0] == 200
        await asyncio.to_thread(private_postgres.stop, "immediate")
        began = time.monotonic()
        ill, told = await fetched(address, "/healthz"), await fetched(address, "/metrics")
        assert time.monotonic() - began < 2 * PROBE_S + 4  # the machine may be busy
        assert (ill[0], told[0], values_of(told[1])["tollhouse_store_up"]) == (503, 200, 0)
        await asyncio.to_thread(private_postgres.start)
        assert (await fetched(address, "/healthz"))[0] == 200


async def test_broken_requests_disturb_nobody(tmp_path: Path) -> None:
    """Rubbish and silence are dropped; the next request is answered."""
    async with watched(f"sqlite:///{tmp_path / 'ledger.db'}") as (_, address):
        for sent in (b"", b"\r\n\r\n", b"\xff" * 20_000, b"GET\r\n\r\n"):
            _reader, writer = await asyncio.open_connection(*address_of(address))
            writer.write(sent)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        assert (await fetched(address, "/healthz"))[0] == 200


@pytest.mark.parametrize("place", ["9100", "host:", ":9100", "host:99999", "host:x"])
def test_address_has_host_and_port(place: str) -> None:
    """A mistake is named before anything is opened."""
    with pytest.raises(InvalidSetting):
        address_of(place)


async def test_address_that_is_taken_is_told(tmp_path: Path) -> None:
    """Two workers do not share one."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    async with watched(url) as (house, address):
        with pytest.raises(StoreUnavailable):
            async with serving(house, url, "default", address):
                pass


def test_worker_serves_its_health(tmp_path: Path) -> None:
    """The line that says it is ready names the address."""
    command = [sys.executable, "-m", "tollhouse", "worker", "--health", "127.0.0.1:0", "--json"]
    command += ["--store", f"sqlite:///{tmp_path / 'ledger.db'}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as worker:
        try:
            assert worker.stdout is not None
            ready: dict[str, Any] = json.loads(worker.stdout.readline())
            status, text = asyncio.run(fetched(ready["health"], "/metrics"))
            assert (status, values_of(text)["tollhouse_store_up"]) == (200, 1)
        finally:
            worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0


def test_every_metric_is_documented_as_it_is() -> None:
    """The page's table has each name with its kind and its sentence, and no other."""
    row = re.compile(r"^\| `(tollhouse_\w+)`.*? \| (\w+) \| (.+?) \|$", re.MULTILINE)
    rows = set(row.findall(PAGE.read_text(encoding="utf-8")))
    assert rows == {(metric.name, metric.kind, metric.help) for metric in METRICS}
