"""``tollhouse serve`` as a process: it starts with nothing, is killed and stopped, and its runs finish exactly once."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Ran, Run
from tests.cli.processes import ROOT, TIMEOUT_S, command, environment, first_line, line_with
from tests.cli.serve_tools import RECEIVER
from tollhouse.testing.receiver import Receiver, read_effects

pytestmark = pytest.mark.crash

FILE = """\
version: 1
tools: [tests.cli.serve_tools]
scripts:
  clerk:
    - call: [{tool: credit, arguments: {account: a1}}]
    - say: Credited.
agents:
  clerk: {model: scripted:clerk, tools: [credit]}
"""


@contextmanager
def serving(
    folder: Path, *arguments: str, port: int = 0, env: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A server with that folder as its own, no key and no way out to a network; it is gone afterwards."""
    shut = {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9", "ALL_PROXY": "http://127.0.0.1:9"}
    wanted = {name: value for name, value in environment().items() if not name.endswith("_API_KEY")}
    process = subprocess.Popen(
        [*command("serve"), "--listen", f"127.0.0.1:{port}", "--lease-s", "2", *arguments],
        cwd=folder,
        env={**wanted, **shut, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ready(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What a server with ``--json`` says once it is ready."""
    told: dict[str, Any] = json.loads(first_line(process))
    assert told["event"] == "serve_ready"
    return told


def get(url: str | urllib.request.Request) -> Any:
    """The JSON that is answered there."""
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=30) as response:
        return json.loads(response.read())


def ended(url: str, run_id: str | None = None) -> dict[str, Any]:
    """The one run of the server, or the one named, once it has ended."""
    until = time.monotonic() + TIMEOUT_S
    while time.monotonic() < until:
        runs = get(f"{url}/v1/runs")["runs"]
        found = [run for run in runs if run["finished"] and run_id in (None, run["id"])]
        if found:
            (run,) = found
            return dict(run)
        time.sleep(0.05)
    raise TimeoutError(f"no run ended: {get(f'{url}/v1/runs')}")


def refused(folder: Path, *arguments: str) -> Ran:
    """What a server says that does not start."""
    done = subprocess.run(
        [*command("serve"), *arguments],
        cwd=folder,
        env=environment(),
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())


# -- the sample ----------------------------------------------------------------------------------------------------


def test_serve_in_an_empty_folder_needs_nothing_and_says_where_to_look(tmp_path: Path) -> None:
    """No file, no key, no network: it makes what it needs, and what it prints is true."""
    with serving(tmp_path) as server:
        assert server.stdout is not None
        lines = [server.stdout.readline().rstrip() for _ in range(11)]
        assert lines[0].startswith("Tollhouse serves at http://127.0.0.1:")
        url = lines[0].split()[3]
        shown = "\n".join(lines)
        listing = "tollhouse runs list --store sqlite:///tollhouse.db\n"
        for words in (
            "sqlite:///tollhouse.db",
            "no tollhouse.yaml",
            "At its first start",
            listing,
            f"curl {url}/v1/runs",
        ):
            assert words in shown
        run = ended(url)
        assert (run["agent"], run["state"]) == ("refunds", "succeeded")
        assert get(f"{url}/readyz")["status"] == "ready"
        server.send_signal(signal.SIGTERM)
        _, err = server.communicate(timeout=TIMEOUT_S)
    assert server.returncode == 0
    assert "Traceback" not in err
    assert len(read_effects(tmp_path / "tollhouse.db.sample-book")) == 1


def test_sample_that_is_killed_again_and_again_finishes_once(tmp_path: Path) -> None:
    """SIGKILL right when the run has begun and a little later; every start after that repeats nothing."""
    for pause_s in (0.0, 0.15, 0.3):
        with serving(tmp_path, "--json") as server:
            ready(server)
            time.sleep(pause_s)
    for _ in range(2):
        with serving(tmp_path, "--json") as server:
            url = ready(server)["url"]
            assert ended(url)["state"] == "succeeded"
            server.send_signal(signal.SIGTERM)
            assert server.wait(timeout=TIMEOUT_S) == 0
    (effect,) = read_effects(tmp_path / "tollhouse.db.sample-book")
    assert effect.collection == "refunds"


# -- agents of one's own, killed at a moment that a test chooses --------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with an agents' file."""
    folder = tmp_path / "place"
    folder.mkdir()
    (folder / "tollhouse.yaml").write_text(FILE)
    return folder


def begin(run: Run, place: Path) -> str:
    """A run that is queued for whoever drives; its id."""
    at = ("--store", f"sqlite:///{place / 'tollhouse.db'}", "--file", str(place / "tollhouse.yaml"))
    started = run("runs", "start", "clerk", "go", "--by", "ada", "--key", "k", *at, "--json")
    assert started.exit_code == 0, started
    return str(started.json["id"])


# case H07
def test_server_that_is_killed_inside_a_tool_is_followed_by_one_that_settles_and_finishes(
    run: Run, place: Path, receiver: Receiver
) -> None:
    """The effect happened, nobody heard: the next server looks it up, tells the model, and ends the run."""
    receiver.fault("hold_after_effect", collection="credits")
    env = {RECEIVER: receiver.url}
    with serving(place, "--json", env=env) as server:
        ready(server)
        run_id = begin(run, place)
        receiver.wait_for_effects(1, timeout_s=TIMEOUT_S)
        server.kill()
        server.wait()
    with serving(place, "--json", env=env) as server:
        url = ready(server)["url"]
        assert ended(url, run_id)["state"] == "succeeded"
        (call,) = get(f"{url}/v1/calls")["calls"]
        assert call["state"] == "succeeded"
    assert len(receiver.requests("credits", method="POST")) == 1


# case H07
def test_server_that_is_terminated_inside_a_tool_waits_for_it_and_hands_over(
    run: Run, place: Path, receiver: Receiver
) -> None:
    """SIGTERM lets the tool come back within the grace; the next server goes on with what is recorded."""
    receiver.fault("hold_after_effect", collection="credits")
    env = {RECEIVER: receiver.url}
    with serving(place, "--json", "--grace-s", "30", env=env) as server:
        ready(server)
        run_id = begin(run, place)
        receiver.wait_for_effects(1, timeout_s=TIMEOUT_S)
        server.send_signal(signal.SIGTERM)
        line_with(server, "serve_stopping")
        receiver.release()
        assert server.wait(timeout=TIMEOUT_S) == 0
    with serving(place, "--json", env=env) as server:
        url = ready(server)["url"]
        assert ended(url, run_id)["state"] == "succeeded"
    assert len(receiver.requests("credits", method="POST")) == 1


def test_server_that_stops_takes_no_run_while_it_waits_for_a_request(run: Run, place: Path, receiver: Receiver) -> None:
    """From the first signal on runs are for others, however long the requests that are under way take."""
    receiver.fault("hold_after_effect", collection="credits")
    with serving(place, "--json", "--grace-s", "30", env={RECEIVER: receiver.url}) as server:
        asked = urllib.request.Request(
            f"{ready(server)['url']}/v1/tools/credit/calls",
            json.dumps({"arguments": {"account": "a9"}}).encode(),
            {"Content-Type": "application/json", "Idempotency-Key": "direct"},
        )
        with ThreadPoolExecutor() as others:
            answer = others.submit(get, asked)
            receiver.wait_for_effects(1, timeout_s=TIMEOUT_S)
            server.send_signal(signal.SIGTERM)
            line_with(server, "serve_stopping")
            run_id = begin(run, place)
            time.sleep(1.0)
            receiver.release()
            assert answer.result(TIMEOUT_S)["state"] == "succeeded"
        assert server.wait(timeout=TIMEOUT_S) == 0
    shown = run("runs", "show", run_id, "--store", f"sqlite:///{place / 'tollhouse.db'}", "--json")
    assert (shown.json["state"], shown.json["last_seq"]) == ("queued", 1)


def test_new_server_beside_the_old_one_disturbs_nothing(run: Run, place: Path, receiver: Receiver) -> None:
    """A deployment that rolls: the run of the old one stays its own until it ends, well beyond its lease."""
    receiver.fault("hold_after_effect", collection="credits")
    env = {RECEIVER: receiver.url}
    with serving(place, "--json", env=env) as old, serving(place, "--json", env=env) as new:
        ready(old)
        run_id = begin(run, place)
        receiver.wait_for_effects(1, timeout_s=TIMEOUT_S)
        url = ready(new)["url"]
        time.sleep(3.0)
        assert get(f"{url}/v1/runs/{run_id}")["state"] == "running"
        receiver.release()
        assert ended(url, run_id)["state"] == "succeeded"
    assert len(receiver.requests("credits", method="POST")) == 1


# -- what it refuses -----------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere loopback has one address")
def test_address_of_loopback_that_was_named_is_answered_to(tmp_path: Path) -> None:
    """What it prints is true for every address that it may be told to listen at."""
    with serving(tmp_path, "--json", "--listen", "127.0.0.2:0") as server:
        assert get(f"{ready(server)['url']}/healthz") == {"status": "ok"}


@pytest.mark.parametrize("listen", ["8787", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000", ""])
def test_listen_that_is_no_address_is_a_mistake_of_usage(tmp_path: Path, listen: str) -> None:
    """Told before anything is made."""
    told = refused(tmp_path, "--listen", listen)
    assert told.exit_code == 2
    assert "HOST:PORT" in told.stderr
    assert list(tmp_path.iterdir()) == []


def test_port_in_use_is_said_and_nothing_hangs(tmp_path: Path) -> None:
    """A sentence, an exit code, no traceback."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        told = refused(tmp_path, "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert told.exit_code != 0
    assert "Traceback" not in told.stderr
    assert str(taken) not in told.stderr
    assert "127.0.0.1" in told.stderr


def test_unknown_driver_is_named(tmp_path: Path) -> None:
    """With those that there are."""
    told = refused(tmp_path, "--driver", "gods", "--listen", "127.0.0.1:0")
    assert told.exit_code == 2
    assert "local, temporal or none" in told.stderr


def test_tools_without_a_file_are_served_with_the_calls_alone(tmp_path: Path, receiver: Receiver) -> None:
    """Tools that are named are offered, and no sample is started in their place."""
    env = {RECEIVER: receiver.url, "PYTHONPATH": str(ROOT)}
    with serving(tmp_path, "--json", "--tools", "tests.cli.serve_tools", env=env) as server:
        told = ready(server)
        assert (told["tools"], told["sample"]) == (["credit"], False)
        assert get(f"{told['url']}/v1/runs")["runs"] == []
