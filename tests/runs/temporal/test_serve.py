"""``tollhouse serve --driver temporal`` as a process: it drives through a real server, and says when that is away."""

from __future__ import annotations

import json
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.processes import TIMEOUT_S, tollhouse
from tests.cli.test_serve import ready, serving
from tests.support.temporal import TemporalServer

pytestmark = pytest.mark.xdist_group("temporal")


def asked(url: str) -> tuple[int, dict[str, Any]]:
    """Status and document of a GET."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused)


def until(url: str, holds: Callable[[int, dict[str, Any]], bool]) -> dict[str, Any]:
    """The document once this holds of it."""
    ends_s = time.monotonic() + TIMEOUT_S
    while not holds(*(answer := asked(url))):
        assert time.monotonic() < ends_s, answer
        time.sleep(0.1)
    return answer[1]


def test_server_drives_by_temporal_and_is_ready_only_while_that_is_there(tmp_path: Path) -> None:
    """The sample's run is a workflow; away, frozen and back are seen at once; SIGTERM ends it without a trace."""
    with (
        TemporalServer() as temporal,
        serving(tmp_path, "--json", "--driver", "temporal", "--temporal", temporal.address) as process,
    ):
        url = ready(process)["url"]
        runs = until(f"{url}/v1/runs", lambda _, found: [each["finished"] for each in found["runs"]] == [True])
        assert [(each["driver"], each["state"]) for each in runs["runs"]] == [("temporal", "succeeded")]
        until(f"{url}/readyz", lambda status, _: status == 200)
        temporal.freeze()
        found = until(f"{url}/readyz", lambda status, _: status == 503)
        assert [name for name, check in found["checks"].items() if not check["ok"]] == ["driver"]
        temporal.go_on()
        until(f"{url}/readyz", lambda status, _: status == 200)
        temporal.stop()
        until(f"{url}/readyz", lambda status, _: status == 503)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, "Traceback" in said) == (0, False)


def test_no_server_is_a_sentence(tmp_path: Path) -> None:
    """Whoever forgot to start it, or mistyped it, reads what to do."""
    store = f"sqlite:///{tmp_path / 'ledger.db'}"
    ran = tollhouse("serve", "--driver", "temporal", "--temporal", "127.0.0.1:1", "--store", store)
    assert ran.exit_code == 1
    assert "No Temporal server answers at 127.0.0.1:1.  [driver_unavailable]" in ran.stderr
    assert "--temporal HOST:PORT" in ran.stderr
    assert "Traceback" not in ran.stderr
