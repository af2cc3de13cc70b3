"""Whatever a client sends, it gets a stable code and a sentence, and the server stands."""

from __future__ import annotations

import asyncio
import json
import resource
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.api.conftest import Serve, Served, called, problem
from tests.api.shop import Shop
from tollhouse.api import server as server_module

JSON = {"Content-Type": "application/json"}
CALLS = "/v1/tools/credit/calls"
CREDIT = {"account_id": "a1", "amount_cents": 2500}


async def sent(
    client: httpx.AsyncClient, content: Any, headers: dict[str, str] | None = None, path: str = CALLS
) -> httpx.Response:
    """A body sent as it is, under a key that is new to the path."""
    return await client.post(path, content=content, headers={"Idempotency-Key": "k", **JSON, **(headers or {})})


# -- bodies --------------------------------------------------------------------------------------------------------

BODIES = {
    "empty": b"",
    "no JSON": b"{",
    "two documents": b"{}{}",
    "an array": b"[]",
    "null": b"null",
    "a string": b'"arguments"',
    "arguments that are no object": b'{"arguments": [1]}',
    "an unknown member": b'{"argument": {}}',
    "a member twice": b'{"arguments": {}, "arguments": {"account_id": "b"}}',
    "an argument twice": b'{"arguments": {"account_id": "a", "account_id": "b", "amount_cents": 1}}',
    "NaN": b'{"arguments": {"account_id": "a", "amount_cents": NaN}}',
    "an infinity": b'{"arguments": {"account_id": "a", "amount_cents": -Infinity}}',
    "no UTF-8": b'{"arguments": {"account_id": "\xff\xfe", "amount_cents": 1}}',
    "UTF-16": '{"arguments": {}}'.encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf{}",
    "too deep": b'{"arguments":{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
    "a number without end": b'{"arguments": {"account_id": "a", "amount_cents": ' + b"9" * 10_000 + b"}}",
    "a scope with NUL": b'{"arguments": {"account_id": "a", "amount_cents": 1}, "scope": "a\\u0000b"}',
    "a lone surrogate as scope": b'{"arguments": {"account_id": "a", "amount_cents": 1}, "scope": "\\ud800"}',
    "wait as a word": b'{"arguments": {"account_id": "a", "amount_cents": 1}, "wait": "no"}',
    "no attempts": b'{"arguments": {"account_id": "a", "amount_cents": 1}, "max_attempts": 0}',
    "a time that is none": b'{"arguments": {"account_id": "a", "amount_cents": 1}, "deadline_s": 1e999}',
}


async def test_body_that_is_not_what_is_described_is_422(client: httpx.AsyncClient, shop: Shop) -> None:
    """Nothing is sent, nothing is stored, and the key stays free, whatever came under it."""
    for what, body in BODIES.items():
        answer = await sent(client, body)
        assert answer.json()["code"] in ("invalid_request", "invalid_arguments", "invalid_setting"), what
        problem(answer, 422, answer.json()["code"])
    assert shop.effects == []
    assert (await called(client, "credit", CREDIT, "k")).json()["state"] == "succeeded"


async def test_any_text_may_be_an_argument_or_is_told(client: httpx.AsyncClient, shop: Shop) -> None:
    """What JSON can carry reaches the tool as it was, or is refused before anything is sent; never a 500."""
    for number, text in enumerate(("\0", "\ud800", "\uffff", "a\0b", "😀" * 100)):
        shop.effects.clear()
        body = json.dumps({"arguments": {"account_id": text, "amount_cents": 1}}).encode()
        answer = await sent(client, body, {"Idempotency-Key": f"text-{number}"})
        if answer.status_code == 200:
            assert shop.effects == [{"account_id": text, "amount_cents": 1}]
        else:
            problem(answer, 422, "invalid_arguments")
            assert shop.effects == []


async def test_body_of_another_kind_is_415(client: httpx.AsyncClient) -> None:
    """Also what a web page could send without asking first."""
    form, parts = "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"
    for kind in ("text/plain", form, parts, "", "application/xml"):
        for path in (CALLS, "/v1/calls/k/deny"):
            problem(await sent(client, b"{}", {"Content-Type": kind}, path), 415, "unsupported_media_type")


async def test_json_in_another_charset_is_415(client: httpx.AsyncClient) -> None:
    """JSON is UTF-8."""
    utf_16 = {"Content-Type": "application/json; charset=utf-16"}
    problem(await sent(client, '{"arguments": {}}'.encode("utf-16"), utf_16), 415, "unsupported_media_type")
    utf_8 = {"Content-Type": 'application/json; Charset="UTF-8"'}
    assert (await sent(client, json.dumps({"arguments": CREDIT}).encode(), utf_8)).status_code == 200


# -- sizes and times -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [CALLS, "/v1/calls/k/deny", "/v1/nothing"])
async def test_50_mb_body_is_413_and_costs_no_memory(client: httpx.AsyncClient, shop: Shop, path: str) -> None:
    """A body that announces its size is thrown away unread; the client hears the answer."""
    size = 50 * 1024 * 1024
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    chunk = b" " * 65536
    answer = await sent(client, _chunks(chunk, size), {"Content-Length": str(size)}, path)
    problem(answer, 413, "request_too_large")
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
    assert grown_kb < 25 * 1024, "half of the body would show"
    assert shop.effects == []


@pytest.mark.parametrize("path", [CALLS, "/v1/calls/k/deny"])
async def test_50_mb_stream_is_413(client: httpx.AsyncClient, path: str) -> None:
    """A body that announces nothing is counted as it comes."""
    problem(await sent(client, _chunks(b" " * 65536, 50 * 1024 * 1024), {}, path), 413, "request_too_large")
    assert (await client.get("/healthz")).status_code == 200


async def _chunks(chunk: bytes, size: int) -> AsyncIterator[bytes]:
    for _ in range(size // len(chunk)):
        yield chunk


async def test_body_that_never_ends_is_408(serve: Serve, shop: Shop) -> None:
    """A client that stops in the middle of its body is not waited for."""
    served = await serve(*shop.tools, body_timeout_s=0.2)
    reader, writer = await connected(served)
    writer.write(head(CALLS, "Content-Type: application/json", "Idempotency-Key: k", "Content-Length: 10") + b"{")
    assert b" 408 " in await reader.readline()
    assert b"request_timed_out" in await reader.read()
    writer.close()


@pytest.mark.parametrize("path", [CALLS, "/v1/calls/k/deny"])
async def test_client_that_goes_away_in_its_body_is_no_defect(
    served: Served, shop: Shop, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    """Nothing of such a request is used; the log has a line for it and no error."""
    caplog.set_level("INFO", "tollhouse.api")
    _, writer = await connected(served)
    writer.write(head(path, "Content-Type: application/json", "Idempotency-Key: k", "Content-Length: 100") + b"{")
    await writer.drain()
    writer.close()
    while "'status': 499" not in caplog.text:  # noqa: ASYNC110 - the log is what tells
        await asyncio.sleep(0.01)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    assert shop.effects == []


async def test_client_that_asks_first_need_not_send_what_is_too_large(served: Served) -> None:
    """`Expect: 100-continue` is answered with 413 before a byte of the body."""
    reader, writer = await connected(served)
    lines = ("Content-Type: application/json", f"Content-Length: {50 * 1024 * 1024}", "Expect: 100-continue")
    writer.write(head(CALLS, *lines))
    assert b" 413 " in await reader.readline()
    assert b"request_too_large" in await reader.read()
    writer.close()


async def test_arguments_beyond_their_bound_are_told(serve: Serve, shop: Shop) -> None:
    """A server that takes larger bodies still keeps arguments within the ledger's bound."""
    served = await serve(*shop.tools, body_most=4 * 1024 * 1024)
    long = {"account_id": "x" * (2 * 1024 * 1024), "amount_cents": 1}
    problem(await called(await served.client(), "credit", long, "k"), 422, "invalid_arguments")


async def connected(served: Served) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that speaks for itself."""
    host, _, port = served.url.removeprefix("http://").partition(":")
    return await asyncio.open_connection(host, int(port))


def head(path: str, *lines: str, method: str = "POST") -> bytes:
    """The head of a request."""
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *lines, "", ""]).encode("latin-1")


async def test_head_beyond_its_bound_is_400(served: Served) -> None:
    """Headers that do not end: the connection is closed, and memory is not filled."""
    for line in (b"X-Long: " + b"a" * 200_000, b"X-More: a\r\n" * 20_000):
        reader, writer = await connected(served)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n" + line)
        assert b" 400 " in await reader.readline()
        writer.close()


async def test_head_that_never_ends_is_not_waited_for(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that says nothing, or says it by the byte, is closed after its time."""
    monkeypatch.setattr(server_module, "HEAD_TIMEOUT_S", 0.1)
    for first in (b"", b"GET /healthz HT"):
        reader, writer = await connected(served)
        writer.write(first)
        assert await reader.read() == b""
        writer.close()


async def test_bytes_that_are_no_http_are_400(served: Served) -> None:
    """And the server goes on."""
    reader, writer = await connected(served)
    writer.write(b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n")
    assert b" 400 " in await reader.readline()
    writer.close()
    assert (await (await served.client()).get("/healthz")).status_code == 200


# -- keys and paths ------------------------------------------------------------------------------------------------


async def test_key_that_is_none_is_422(client: httpx.AsyncClient, shop: Shop) -> None:
    """Too long, of other characters, or empty; the text repeats at most its beginning."""
    body = json.dumps({"arguments": CREDIT}).encode()
    for key in ("", "-x", "a b", "a/b", "k" * 201, "k" * 60_000, "ключ", '""'):
        headers = httpx.Headers([(b"content-type", b"application/json"), (b"idempotency-key", key.encode())])
        told = problem(await client.post(CALLS, content=body, headers=headers), 422, "invalid_key")
        assert len(told["detail"]) < 300
    assert shop.effects == []


async def test_two_keys_are_422(client: httpx.AsyncClient, shop: Shop) -> None:
    """Nobody could say which of them was meant."""
    two = [*JSON.items(), ("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
    answer = await client.post(CALLS, content=json.dumps({"arguments": CREDIT}).encode(), headers=two)
    problem(answer, 422, "invalid_key")
    assert shop.effects == []


async def test_path_with_a_key_that_is_none_is_422(client: httpx.AsyncClient) -> None:
    """The same rule in the path."""
    for key in ("%00", "%FF", "a%20b", "k" * 5000, "%E2%82%AC", "..%2e"):
        for method, rest in (("GET", ""), ("GET", "/events"), ("POST", "/approve")):
            problem(await client.request(method, f"/v1/calls/{key}{rest}"), 422, "invalid_key")


async def test_tool_of_a_strange_name_is_not_found(client: httpx.AsyncClient) -> None:
    """Whatever stands in the path."""
    for name in ("%00", "%FF", "x" * 5000, "%E2%82%AC"):
        problem(await called(client, name, {}, "k"), 404, "unknown_tool")
        problem(await client.get(f"/v1/tools/{name}"), 404, "unknown_tool")


async def test_unknown_path_is_404_and_unknown_method_405_with_what_is_allowed(client: httpx.AsyncClient) -> None:
    """Problems of routing are problem documents as well."""
    for path in ("/", "/v1", "/v1/calls/", "/v1/calls/a%2Fb", "/v2/calls", "/docs"):
        problem(await client.get(path), 404, "unknown_route")
    for method, path, allowed in (
        ("DELETE", "/v1/calls/k", "GET"),
        ("PUT", "/v1/calls", "GET"),
        ("GET", "/v1/calls/k/approve", "POST"),
        ("PATCH", CALLS, "POST"),
        ("DELETE", "/healthz", "GET, HEAD"),
        ("TRACE", "/v1/tools", "GET"),
    ):
        answer = await client.request(method, path)
        problem(answer, 405, "method_not_allowed")
        assert answer.headers["allow"] == allowed


async def test_query_that_is_not_what_is_described_is_422(client: httpx.AsyncClient) -> None:
    """With the parameter's name."""
    wrong = {
        "limit": ("0", "501", "x"),
        "state": ("lost",),
        "tool": ("", "a%00b"),
        "scope": ("x" * 201,),
        "contradicted": ("perhaps",),
    }
    for name, values in wrong.items():
        for value in values:
            told = problem(await client.get(f"/v1/calls?{name}={value}"), 422, "invalid_request")
            assert name in told["path"]


# -- where a request comes from ------------------------------------------------------------------------------------


async def test_open_server_answers_to_names_of_loopback_only(client: httpx.AsyncClient) -> None:
    """So that no page reaches it under a name of its own that was made to lead here; ports may be forwarded."""
    for host in ("evil.example", "127.0.0.1.evil.example", "localhost@evil.example", "", "a b"):
        problem(await client.get("/v1/calls", headers={"Host": host}), 421, "wrong_host")
    for host in ("localhost", "LOCALHOST:1234", "127.0.0.1:80", "[::1]:8080"):
        assert (await client.get("/v1/calls", headers={"Host": host})).status_code == 200


async def test_server_answers_to_the_names_it_is_given(serve: Serve, shop: Shop) -> None:
    """`hosts` names them; with keys and without it any will do."""
    named = await (await serve(*shop.tools, hosts={"tolls.example"})).client()
    assert (await named.get("/healthz", headers={"Host": "tolls.example"})).status_code == 200
    problem(await named.get("/healthz", headers={"Host": "localhost"}), 421, "wrong_host")
    guarded = await (await serve(*shop.tools, keys=True)).client()
    assert (await guarded.get("/healthz", headers={"Host": "anything.example"})).status_code == 200


async def test_web_page_of_another_origin_is_refused(client: httpx.AsyncClient, shop: Shop) -> None:
    """No page may call a tool or decide, and no answer lets a browser share anything with one."""
    for origin in ("https://evil.example", "null", "http://127.0.0.1:1"):
        answer = await called_from(client, origin)
        problem(answer, 421, "wrong_host")
        assert not any(name.startswith("access-control") for name in answer.headers)
    preflight = await client.options(CALLS, headers={"Access-Control-Request-Method": "POST"})
    problem(preflight, 405, "method_not_allowed")
    own = f"http://{client.base_url.netloc.decode()}"
    assert (await called_from(client, own)).status_code == 200
    assert len(shop.effects) == 1


async def test_pages_of_the_origins_named_may_use_it(serve: Serve, shop: Shop) -> None:
    """A browser is told so for these origins, before the request and with the answer; for no others."""
    page, other = "https://app.example", "https://app.example.evil"
    client = await (await serve(*shop.tools, origins={page})).client()
    asks = {"Origin": page, "Access-Control-Request-Method": "POST"}
    preflight = await client.options(CALLS, headers=asks)
    assert preflight.status_code == 204
    assert "Idempotency-Key" in preflight.headers["access-control-allow-headers"]
    for answer in (preflight, await called_from(client, page), await client.get("/nothing", headers={"Origin": page})):
        assert answer.headers["access-control-allow-origin"] == page
        assert answer.headers["vary"] == "Origin"
        assert "access-control-allow-credentials" not in answer.headers
    problem(await called_from(client, other), 421, "wrong_host")
    problem(await client.options(CALLS, headers={**asks, "Origin": other}), 421, "wrong_host")
    assert len(shop.effects) == 1


async def called_from(client: httpx.AsyncClient, origin: str) -> httpx.Response:
    """A call as a page of that origin would send it."""
    return await sent(client, json.dumps({"arguments": CREDIT}).encode(), {"Origin": origin})


async def test_every_answer_carries_the_headers_that_protect_it(client: httpx.AsyncClient) -> None:
    """Answers and problems alike; the client's own request id comes back where it is fit to."""
    for path in ("/v1/calls", "/healthz", "/nothing", "/v1/calls?limit=0", "/openapi.json"):
        answer = await client.get(path, headers={"X-Request-Id": "req-1"})
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["cache-control"] in ("no-store", "no-cache")
        assert answer.headers["x-request-id"] == "req-1"
        assert "server" not in answer.headers
    strange = await client.get("/healthz", headers={"X-Request-Id": "a b\tc"})
    assert strange.headers["x-request-id"] != "a b\tc"
