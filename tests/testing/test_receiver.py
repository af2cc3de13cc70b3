"""The faulty receiver does what its table of faults says, and its book can be trusted."""

from __future__ import annotations

import ast
import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

import tollhouse.testing.receiver as package
from tollhouse.testing.receiver import Fault, Receiver, read_effects
from tollhouse.testing.receiver.book import Book

CREDIT = {"reference": "order-7", "amount_cents": 2500}

# fault, options, effects, what the client sees: a status or an error
IMMEDIATE: list[tuple[str, dict[str, Any], int, int | type[Exception]]] = [
    ("close_before_effect", {}, 0, httpx.RemoteProtocolError),
    ("reset_before_effect", {}, 0, httpx.ReadError),
    ("close_after_effect", {}, 1, httpx.RemoteProtocolError),
    ("reset_after_effect", {}, 1, httpx.ReadError),
    ("close_after_reply", {}, 1, 201),
    ("truncated_body", {}, 1, httpx.RemoteProtocolError),
    ("truncated_chunks", {}, 1, httpx.RemoteProtocolError),
    ("slow_drip", {"seconds": 0.0}, 1, 201),
    ("garbage", {}, 1, 201),
    ("not_utf8", {}, 1, 201),
    ("wrong_shape", {}, 1, 201),
    ("huge_body", {"size_bytes": 3_000_000}, 1, 201),
    ("delay_before_effect", {"seconds": 0.01}, 1, 201),
    ("delay_after_effect", {"seconds": 0.01}, 1, 201),
    *(("error_before_effect", {"status": status}, 0, status) for status in (500, 409, 401, 402, 422)),
    *(("error_after_effect", {"status": status}, 1, status) for status in (500, 502, 504)),
    ("rate_limited", {}, 0, 429),
    ("redirect", {}, 0, 302),
]
HELD = ("hold_before_effect", "hold_after_effect")


@pytest.fixture
def client(receiver: Receiver) -> Iterator[httpx.Client]:
    """A plain client that repeats nothing and follows nothing."""
    with httpx.Client(base_url=receiver.url, timeout=10.0) as client:
        yield client


def post(client: httpx.Client, collection: str = "credits", key: str | None = "k1") -> httpx.Response:
    """Ask for a credit."""
    headers = {} if key is None else {"Idempotency-Key": key}
    return client.post(f"/v1/{collection}", json=CREDIT, headers=headers)


def test_every_fault_is_tried() -> None:
    """No row of the table is without a test of what it does."""
    assert {row[0] for row in IMMEDIATE} | set(HELD) == {fault.value for fault in Fault}
    assert all(fault.sentence.endswith(".") for fault in Fault)


@pytest.mark.parametrize(("fault", "options", "effects", "seen"), IMMEDIATE)
def test_fault_shows_the_client_one_thing_and_the_book_another(
    receiver: Receiver,
    client: httpx.Client,
    fault: str,
    options: dict[str, Any],
    effects: int,
    seen: int | type[Exception],
) -> None:
    """One request is seen; whether it took effect is what the row says, whatever the client learns."""
    receiver.fault(fault, **options)
    if isinstance(seen, int):
        assert post(client).status_code == seen
    else:
        with pytest.raises(seen):
            post(client)
    assert len(receiver.requests()) == 1
    assert len(receiver.effects("credits", key="k1")) == effects
    assert post(client, key="k2").status_code == 201, "the fault is used up"


def test_unused_receiver_answers_with_the_effect(receiver: Receiver, client: httpx.Client) -> None:
    """Without a fault, the reply tells what the book holds."""
    reply = post(client)
    (effect,) = receiver.effects()
    assert reply.status_code == 201
    assert reply.json()["id"] == effect.id
    assert (effect.collection, effect.key, effect.reference, effect.body) == (
        "credits",
        "k1",
        "order-7",
        CREDIT,
    )


@pytest.mark.parametrize(("fault", "effects"), [("hold_before_effect", 0), ("hold_after_effect", 1)])
def test_held_request_waits_for_its_release(receiver: Receiver, client: httpx.Client, fault: str, effects: int) -> None:
    """A held request has arrived and is not answered; released, it goes on."""
    receiver.fault(fault)
    with ThreadPoolExecutor(1) as threads:
        reply = threads.submit(post, client)
        receiver.wait_for_requests(1)
        assert len(receiver.effects()) == effects
        assert not reply.done()
        receiver.release()
        assert reply.result().status_code == 201
    assert len(receiver.effects()) == 1


def test_delayed_request_takes_effect_after_its_sender_gave_up(receiver: Receiver, client: httpx.Client) -> None:
    """What is under way cannot be called back: a client's timeout says nothing about the effect."""
    receiver.fault("hold_before_effect")
    with pytest.raises(httpx.ReadTimeout):
        client.post("/v1/credits", json=CREDIT, timeout=0.1)
    client.close()
    assert receiver.effects() == []
    receiver.release()
    assert len(receiver.wait_for_effects(1)) == 1


@pytest.mark.parametrize(
    ("fault", "problem"),
    [("garbage", ValueError), ("not_utf8", UnicodeDecodeError), ("wrong_shape", TypeError)],
)
def test_broken_reply_cannot_be_read_as_an_effect(
    receiver: Receiver, client: httpx.Client, fault: str, problem: type[Exception]
) -> None:
    """The status says created and the body is not what the client expects."""
    receiver.fault(fault)
    reply = post(client)
    with pytest.raises(problem):
        reply.json()["id"]


def test_huge_reply_is_valid_json_of_the_asked_size(receiver: Receiver, client: httpx.Client) -> None:
    """Only its size is wrong."""
    receiver.fault("huge_body", size_bytes=2_000_000)
    reply = post(client)
    assert len(reply.content) == 2_000_000
    assert set(reply.json()) == {"filler"}


def test_refusals_name_when_and_where(receiver: Receiver, client: httpx.Client) -> None:
    """429 carries Retry-After, a redirect its Location."""
    receiver.fault("rate_limited", retry_after_s=7)
    receiver.fault("redirect", status=307, location="/v1/other")
    assert post(client).headers["Retry-After"] == "7"
    moved = post(client)
    assert (moved.status_code, moved.headers["Location"]) == (307, "/v1/other")


def test_drip_outlasts_a_client_that_only_times_single_reads(receiver: Receiver, client: httpx.Client) -> None:
    """Each byte comes in time, and the whole does not: the sender leaves with the effect done."""
    receiver.fault("slow_drip", seconds=0.02)
    with client.stream("POST", "/v1/credits", json=CREDIT, timeout=1.0) as reply:
        first = next(reply.iter_raw())
    assert first.startswith(b"{")
    assert len(first) < 50
    assert len(receiver.effects()) == 1


def test_faults_apply_to_what_they_name_oldest_first(receiver: Receiver, client: httpx.Client) -> None:
    """Collection, key, method and count narrow a fault; each request takes one."""
    receiver.fault("error_before_effect", status=500, collection="credits", times=2)
    receiver.fault("error_before_effect", status=502, key="k9")
    receiver.fault("error_before_effect", status=503, method="GET")
    assert post(client, "emails", "k1").status_code == 201
    assert [post(client).status_code for _ in range(3)] == [500, 500, 201]
    assert post(client, key="k9").status_code == 502
    assert [client.get("/v1/credits").status_code for _ in range(2)] == [503, 200]


@pytest.mark.parametrize(
    "wrong", [{"fault": "no_such"}, {"fault": "garbage", "seconds": 1}, {"fault": "garbage", "times": 0}]
)
def test_fault_that_does_not_exist_is_refused(receiver: Receiver, wrong: dict[str, Any]) -> None:
    """A misspelt fault would make a test pass for the wrong reason."""
    with pytest.raises(ValueError, match=r"no_such|seconds|times"):
        receiver.fault(**wrong)


def test_unkeyed_collection_shows_a_duplicate(receiver: Receiver, client: httpx.Client) -> None:
    """By default a key protects nothing, so that a second effect is visible."""
    post(client)
    post(client)
    assert [effect.key for effect in receiver.effects()] == ["k1", "k1"]


def test_keyed_collection_recognises_a_repetition(receiver: Receiver, client: httpx.Client) -> None:
    """The same key and body get the first answer, marked; another body is refused; no key protects nothing."""
    receiver.mode("credits", keyed=True)
    receiver.fault("reset_after_effect")
    with pytest.raises(httpx.ReadError):
        post(client)
    again = client.post(
        "/v1/credits", content=b'{"amount_cents":2500, "reference":"order-7"}', headers={"Idempotency-Key": "k1"}
    )
    other = client.post("/v1/credits", json={"amount_cents": 1}, headers={"Idempotency-Key": "k1"})
    assert (again.status_code, again.headers["Idempotent-Replayed"]) == (201, "true")
    assert again.json()["id"] == receiver.effects()[0].id
    assert other.status_code == 422
    assert len(receiver.effects()) == 1
    assert "Idempotent-Replayed" not in post(client, key=None).headers
    assert "Idempotent-Replayed" not in post(client, "emails").headers


def test_keyed_collection_forgets_keys_after_their_time(receiver: Receiver, client: httpx.Client) -> None:
    """Beyond the window, a repetition is a second effect."""
    receiver.mode("credits", keyed=True, remembers_s=0.0)
    post(client)
    post(client)
    assert len(receiver.effects()) == 2


def test_late_request_with_a_known_key_is_answered_from_the_book(receiver: Receiver, client: httpx.Client) -> None:
    """The key counts when the effect is due, not when the request arrived."""
    receiver.mode("credits", keyed=True)
    receiver.fault("hold_before_effect")
    with ThreadPoolExecutor(1) as threads:
        late = threads.submit(post, client)
        receiver.wait_for_requests(1)
        assert "Idempotent-Replayed" not in post(client).headers
        receiver.release()
        assert late.result().headers["Idempotent-Replayed"] == "true"
    assert len(receiver.effects()) == 1


def test_look_ups_find_effects_by_key_reference_and_id(receiver: Receiver, client: httpx.Client) -> None:
    """An effect is found by each of its names, in its collection only; what is absent is an empty list."""
    made = post(client).json()
    assert client.get("/v1/credits", params={"key": "k1"}).json() == [made]
    assert client.get("/v1/credits/by-key/k1").json() == [made]
    assert client.get("/v1/credits", params={"reference": "order-7"}).json() == [made]
    assert client.get(f"/v1/credits/{made['id']}").json() == made
    assert client.get("/v1/credits", params={"key": "k2"}).json() == []
    assert client.get("/v1/emails", params={"key": "k1"}).json() == []
    assert client.get("/v1/credits/credits-0").status_code == 404


def test_collection_may_offer_no_look_up(receiver: Receiver, client: httpx.Client) -> None:
    """A refusal to look up is no statement about the effect."""
    receiver.mode("emails", lookup=False)
    post(client, "emails")
    assert client.get("/v1/emails", params={"key": "k1"}).status_code == 405


def test_long_work_is_accepted_and_ends_as_told(receiver: Receiver, client: httpx.Client) -> None:
    """202 with an id; its status is queued until the test says otherwise."""
    accepted = post(client, "jobs")
    where = accepted.headers["Location"]
    assert (accepted.status_code, accepted.json()["status"]) == (202, "queued")
    receiver.finish_job(accepted.json()["id"], "done", {"pages": 3})
    assert client.get(where).json()["status"] == "done"
    assert client.get("/v1/jobs/by-key/k1").json()[0]["result"] == {"pages": 3}
    with pytest.raises(ValueError, match="status"):
        receiver.finish_job(accepted.json()["id"], "nearly")
    with pytest.raises(ValueError, match="not found"):
        receiver.finish_job("jobs-0")


def test_sends_are_counted_apart_from_effects(receiver: Receiver, client: httpx.Client) -> None:
    """Every request is in the log with what it carried, in one sequence with the effects."""
    receiver.fault("error_before_effect")
    post(client)
    post(client)
    first, second = receiver.requests("credits", method="POST", key="k1")
    (effect,) = receiver.effects()
    assert (first.body, first.body_sha256) == (second.body, second.body_sha256) == (CREDIT, effect.body_sha256)
    assert first.headers["content-type"] == "application/json"
    assert first.connection == second.connection
    assert first.sequence < second.sequence < effect.sequence
    assert receiver.requests("emails") == []


def test_reply_and_silent_close_break_the_next_use_of_the_connection(receiver: Receiver) -> None:
    """A pooled connection may be dead: the request on it never reached the service."""
    receiver.fault("close_after_reply")
    with socket.create_connection(("127.0.0.1", receiver.port)) as raw:
        raw.sendall(b"POST /v1/credits HTTP/1.1\r\nHost: x\r\n\r\n")
        received = b"".join(iter(lambda: raw.recv(4096), b""))
    assert received.startswith(b"HTTP/1.1 201 ")
    assert b"close" not in received.lower().split(b"\r\n\r\n")[0]
    assert len(receiver.requests()) == 1


def test_sender_that_leaves_in_mid_body_is_seen_without_effect(receiver: Receiver) -> None:
    """Half a request is a send, and no effect."""
    with socket.create_connection(("127.0.0.1", receiver.port)) as raw:
        raw.sendall(b'POST /v1/credits HTTP/1.1\r\nContent-Length: 100\r\n\r\n{"half')
    (request,) = receiver.wait_for_requests(1)
    assert (request.complete, request.body) == (False, '{"half')
    assert receiver.effects() == []


def test_chunked_body_is_read_whole(receiver: Receiver, client: httpx.Client) -> None:
    """A streaming client sends chunks; they are one body."""
    client.post("/v1/credits", content=iter([b'{"a": ', b"1}"]))
    assert receiver.effects()[0].body == {"a": 1}


@pytest.mark.parametrize(
    "head",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/2\r\n\r\n",
        b"POST /v1/credits HTTP/1.1\r\nContent-Length: many\r\n\r\n",
        b"POST /v1/credits HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
        b"POST /v1/credits HTTP/1.1\r\nX: " + b"y" * 70_000 + b"\r\n\r\n",
    ],
)
def test_what_is_no_request_is_refused(receiver: Receiver, head: bytes) -> None:
    """The connection gets a 400 and ends; the service goes on."""
    with socket.create_connection(("127.0.0.1", receiver.port)) as raw:
        raw.sendall(head)
        assert raw.recv(4096).startswith(b"HTTP/1.1 400 ")
    assert receiver.effects() == []


def test_body_that_is_no_json_takes_no_effect(receiver: Receiver, client: httpx.Client) -> None:
    """It is refused, and kept in the log as it came."""
    assert client.post("/v1/credits", content=b"\xff{").status_code == 400
    assert receiver.requests()[0].body == "\xff{"
    assert receiver.effects() == []


def test_book_survives_a_kill(tmp_path: Path) -> None:
    """What was answered is in the file; a restarted service has its effects, sends, modes and jobs."""
    book = tmp_path / "book.jsonl"
    with Receiver.start(book) as receiver, httpx.Client(base_url=receiver.url) as client:
        receiver.mode("credits", keyed=True)
        post(client)
        job = post(client, "jobs").json()["id"]
        receiver.finish_job(job, "failed")
        before = receiver.effects(), receiver.requests()
        receiver.kill()
        assert read_effects(book) == before[0]
        receiver.restart()
        assert (receiver.effects(), receiver.requests()) == before
        with httpx.Client(base_url=receiver.url) as fresh:
            assert post(fresh).headers["Idempotent-Replayed"] == "true"
            assert fresh.get(f"/v1/jobs/{job}").json()["status"] == "failed"


def test_effect_is_synced_to_disk_before_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line is in the file when it is synced, and the effect known only after that."""
    path = tmp_path / "book.jsonl"
    book = Book.load(path)
    really_sync, synced = os.fsync, []

    def sync(file: int) -> None:
        synced.append((len(read_effects(path)), len(book.effects)))
        really_sync(file)

    monkeypatch.setattr(os, "fsync", sync)
    book.add_effect("credits", "k1", CREDIT, "")
    book.close()
    assert synced == [(1, 0)]
    assert book.effects == read_effects(path)


def test_half_a_line_at_the_end_of_the_book_is_dropped(tmp_path: Path) -> None:
    """A crash in the middle of a write leaves no effect, and no book that cannot be read."""
    book = tmp_path / "book.jsonl"
    with Receiver.start(book) as receiver:
        httpx.post(f"{receiver.url}/v1/credits", json=CREDIT)
        effects = receiver.effects()
        receiver.kill()
        with book.open("ab") as file:
            file.write(b'{"kind": "effect", "seq')
        receiver.restart()
        httpx.post(f"{receiver.url}/v1/credits", json=CREDIT)
        assert receiver.effects()[:1] == effects
        assert len(receiver.effects()) == len(read_effects(book)) == 2


def test_reset_forgets_everything_and_cuts_held_requests(receiver: Receiver, client: httpx.Client) -> None:
    """No effect, fault or mode of one test reaches the next."""
    receiver.mode("credits", keyed=True)
    receiver.fault("hold_before_effect")
    with ThreadPoolExecutor(1) as threads:
        held = threads.submit(post, client)
        receiver.wait_for_requests(1)
        receiver.fault("garbage")
        receiver.reset()
        with pytest.raises(httpx.ReadError):
            held.result()
    assert receiver.effects() == []
    assert receiver.requests() == []
    assert [post(client).json()["key"] for _ in range(2)] == ["k1", "k1"]
    assert len(receiver.effects()) == 2


def test_waiting_ends_with_the_count_or_says_how_far_it_got(receiver: Receiver, client: httpx.Client) -> None:
    """A wait is woken by what it waits for, and names what was missing."""
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(receiver.wait_for_effects, 2, collection="credits")
        for collection in ("credits", "emails", "credits"):
            post(client, collection)
        assert len(waiting.result()) == 2
    with pytest.raises(TimeoutError, match="1 of 2"):
        receiver.wait_for_requests(2, collection="emails", timeout_s=0.05)


async def test_waiting_leaves_the_event_loop_free(receiver: Receiver) -> None:
    """The sender may run on the loop that waits."""
    async with httpx.AsyncClient(base_url=receiver.url) as client:
        requests, effects, _ = await asyncio.gather(
            receiver.await_for_requests(1),
            receiver.await_for_effects(1, collection="credits"),
            client.post("/v1/credits", json=CREDIT),
        )
    assert len(requests) == len(effects) == 1


@pytest.mark.crash
def test_receiver_may_be_paused(receiver: Receiver) -> None:
    """A stopped process accepts and does not answer; what it was sent counts once it goes on."""
    receiver.pause()
    try:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{receiver.url}/v1/credits", json=CREDIT, timeout=0.1)
    finally:
        receiver.resume()
    assert len(receiver.wait_for_effects(1)) == 1


@pytest.mark.crash
def test_receiver_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    """A killed test run leaves no receiver behind."""
    program = (
        "import sys; from pathlib import Path; from tollhouse.testing.receiver import Receiver;"
        "r = Receiver.start(Path(sys.argv[1])); print(r.url, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, tmp_path / "book.jsonl"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        assert parent.stderr is not None
        url = parent.stdout.readline().strip()
        assert httpx.get(f"{url}/book").json() == []
        parent.kill()
        assert parent.stderr.read() == "", "both have standard error open, so it ends with the last of them"
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/book")


def test_command_line_announces_the_port(tmp_path: Path) -> None:
    """One line on standard output, and the same number in the file if one is named."""
    port_file = tmp_path / "port"
    command = [sys.executable, "-m", "tollhouse.testing.receiver", "--book", str(tmp_path / "book.jsonl")]
    with subprocess.Popen(
        [*command, "--port", "0", "--port-file", str(port_file)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        port = int(port_file.read_text())
        assert line == f"listening 127.0.0.1:{port}\n"
        assert httpx.get(f"http://127.0.0.1:{port}/book").json() == []
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130


def test_receiver_that_cannot_start_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A book in a folder that does not exist is an error of the caller."""
    with pytest.raises(RuntimeError, match="did not start"):
        Receiver.start(tmp_path / "missing" / "book.jsonl")
    assert "FileNotFoundError" in capfd.readouterr().err


def test_receiver_depends_on_the_standard_library_alone() -> None:
    """The witness shares no code with what it judges, and starts fast."""
    for path in Path(package.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level != 1:
                names = [str(node.module)]
            else:
                continue
            assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names, path.name
