"""The demo as its users run it, and a demo that goes wrong on purpose: the harness must notice."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tollhouse.cli.app import app
from tollhouse.demo.job import Job
from tollhouse.demo.play import report_of
from tollhouse.demo.processes import DemoStopped, Worker
from tollhouse.demo.report import Place
from tollhouse.demo.scenes import PLAIN, SCENARIOS, an_ordinary_morning
from tollhouse.demo.stage import Line, open_stage
from tollhouse.demo.tools import BILLING_VARIABLE

pytestmark = [pytest.mark.crash, pytest.mark.skipif(os.name != "posix", reason="the demo kills by SIGKILL")]


def run_demo(*options: str) -> subprocess.CompletedProcess[str]:
    """The command as a user types it, its output piped."""
    command = [sys.executable, "-m", "tollhouse", "demo", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)


def refund_around_the_gate(wire_key: str) -> None:
    """What no tool may do: a request at the billing service that passed no gate."""
    billing = urlsplit(os.environ[BILLING_VARIABLE])
    connection = http.client.HTTPConnection(billing.netloc, timeout=10)
    connection.request("POST", "/v1/refunds", "{}", {"Idempotency-Key": wire_key, "Connection": "close"})
    assert connection.getresponse().status == 201
    connection.close()


def place_in(folder: Path) -> Place:
    """A ledger, a book and a log in a folder of the test's."""
    return Place(folder, f"sqlite:///{folder / 'ledger.db'}", "default", ours=True)


def nobody(_line: Line) -> None:
    """Nobody listens to the story."""


def test_the_demo_passes_its_own_verdict() -> None:
    """Killed at every bad moment: nothing doubled or lost, no doubt left, every scenario ended as it must."""
    done = run_demo("--json")
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert (told["duplicates"], told["lost"], told["in_doubt"], told["disagreements"]) == (0, 0, 0, 0)
    assert (told["calls"], told["effects"], told["kills"]) == (11, 10, 4)
    assert told["doubts_seen"] >= 4
    assert told["passed"] is True
    assert {scenario["key"]: scenario["settled_by"] for scenario in told["scenarios"]} == {
        "order-1:refund": "its reply",
        "order-2:refund": "refund_limit",
        "order-3:refund": "compensation",
        "order-3:refund:compensate": "its reply",
        "order-4:refund": "its reply",
        "order-5:refund": "hook:refund",
        "invoice-6:pay": "a resend",
        "customer-7:letter": "ada",
        "customer-8:close": "its reply",
        "order-9:refund": "bob",
        "order-10:refund": "its reply",
    }
    assert [scenario.key for scenario in SCENARIOS] == [scenario["key"] for scenario in told["scenarios"]]


@pytest.mark.slow
@pytest.mark.postgres
def test_the_demo_runs_on_a_ledger_of_yours_and_tells_where_it_is(postgres_url: str) -> None:
    """``--store`` takes any store, in a tenant of its own; ``--keep`` names what to look at, but no URL of yours."""
    done = run_demo("--store", postgres_url, "--keep")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "calls 11 / effects 10 / duplicates 0 / lost 0 / in doubt 0" in done.stdout
    assert "TOLLHOUSE_STORE=URL TOLLHOUSE_TENANT=demo-" in done.stdout
    assert postgres_url not in done.stdout
    (book,) = {word for word in done.stdout.split() if word.endswith("book.jsonl")}
    assert Path(book).exists()
    for each in Path(book).parent.iterdir():
        each.unlink()
    Path(book).parent.rmdir()


def test_a_store_that_cannot_be_opened_is_a_users_mistake() -> None:
    """One JSON object with a stable code, no traceback, and the exit code of a mistake."""
    done = run_demo("--json", "--store", "mysql://somewhere")
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["code"] == "store_url_invalid"
    assert "Traceback" not in done.stderr


async def test_effects_around_the_gate_are_noticed(tmp_path: Path) -> None:
    """A second effect under a call's key is a duplicate, one under no call's key is lost."""
    async with open_stage(place_in(tmp_path), nobody) as stage:
        await an_ordinary_morning(stage)
        assert (await report_of(stage, None)).verdict.findings == []
        refund_around_the_gate(stage.wire_key(PLAIN.key))
        refund_around_the_gate(stage.wire_key("nobody:asked"))
        report = await report_of(stage, None)
    assert (report.verdict.duplicates, report.verdict.lost) == (1, 1)
    assert not report.passed
    assert report.rows[-1].line is None


def test_a_failed_demo_exits_with_1_and_keeps_its_records(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sabotaged while it runs, the command says what is wrong, where to look, and fails."""
    told = sabotaged(monkeypatch)
    assert app(["demo"], standalone_mode=False) == 1
    assert told == [PLAIN.key]
    shown = capsys.readouterr().out
    assert "duplicates 1 /" in shown
    assert "Effects under a key that had one already: 1." in shown
    (book,) = {Path(word) for word in shown.split() if word.endswith("book.jsonl")}
    assert book.exists()
    for each in book.parent.iterdir():
        each.unlink()
    book.parent.rmdir()


def sabotaged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let the first thing that the demo tells be followed by the same effect once more; returns whose it was."""
    import tollhouse.cli.demo as command

    tell: Callable[..., None] = command._tell
    doubled: list[str] = []

    def tell_and_double(screen: object, line: Line) -> None:
        tell(screen, line)
        if line.key and not doubled:
            doubled.append(line.key)
            refund_around_the_gate(f"default:{line.key}")

    monkeypatch.setattr(command, "_tell", tell_and_double)
    return doubled


async def test_a_worker_that_is_not_killed_stops_the_story(tmp_path: Path) -> None:
    """The demo counts a kill only where the process died of SIGKILL, and waits for nothing a dead one will not say."""
    place = place_in(tmp_path)
    worker = await Worker.start(Job(place.store, place.tenant, 15.0), place.log)
    with pytest.raises(DemoStopped, match="ended before it told 'asks'"):
        await worker.heard("asks")
    with pytest.raises(DemoStopped, match="ended with 0"):
        await worker.killed()
    await worker.close()


async def test_a_worker_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    """Its standard input is the parent's word that it lives; at its end the worker stops by itself."""
    place = place_in(tmp_path)
    worker = await Worker.start(Job(place.store, place.tenant, 15.0, serve=True), place.log)
    await worker.close()
    with pytest.raises(DemoStopped, match="ended with 0"):
        await worker.killed()
