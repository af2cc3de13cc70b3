"""Who may use the API: keys with scopes, an end and an owner, never shown again; and loopback without keys."""

from __future__ import annotations

import logging
import re
import sqlite3
from pathlib import Path

import httpx
import pytest

from tests.api.conftest import Serve, Served, called, problem
from tests.api.shop import Shop
from tests.support.houses import POSTGRES, OpenHouse
from tollhouse.api import auth
from tollhouse.api.app import create_app
from tollhouse.api.auth import KeyAccess, OpenAccess, access_of
from tollhouse.api.server import serving
from tollhouse.errors import InvalidSetting
from tollhouse.house.access import KeyRing, Scope, digest_of, opens
from tollhouse.ledger.run_record import AccessKey

both_stores = pytest.mark.parametrize("shared_store_url", ["sqlite", POSTGRES], indirect=True)
CREDIT = {"account_id": "a1", "amount_cents": 2500}


# -- tokens --------------------------------------------------------------------------------------------------------


async def test_request_without_a_valid_key_is_401(guarded: Served) -> None:
    """Missing, malformed and unknown keys are answered alike, with how to authenticate."""
    client = await guarded.client()
    unknown = "Bearer thk_0123456789abcdef_" + "A" * 43
    short, long = "Bearer thk_0123456789abcdef_short", "Bearer " + "x" * 5000
    for shown in (None, "", "Bearer", "Bearer thk_", short, "Basic dXNlcjpwYXNz", unknown, long):
        headers = {} if shown is None else {"Authorization": shown}
        answer = await client.get("/v1/calls", headers=headers)
        problem(answer, 401, "not_authenticated")
        assert answer.headers["www-authenticate"].startswith("Bearer")


async def test_wrong_secret_and_unknown_id_are_told_in_the_same_words(guarded: Served) -> None:
    """Nothing tells whether an id exists."""
    key, token = await guarded.keys.create("ada", [Scope.CALLS_READ])
    wrong = f"thk_{key.id}_{'A' * 43}"
    unknown = f"thk_{'0' * 16}_{token[-43:]}"
    answers = [await (await guarded.client(shown)).get("/v1/calls") for shown in (wrong, unknown)]
    details = {problem(answer, 401, "not_authenticated")["detail"] for answer in answers}
    assert len(details) == 1


def test_unknown_id_costs_a_comparison_too() -> None:
    """The secret is compared with nobody's digest where there is no key, and never opens anything."""
    assert not opens(None, "A" * 43)
    key = AccessKey("t", "id", digest_of("B" * 43), "ada", ("admin",), 0)
    assert not opens(key, "A" * 43)
    assert opens(key, "B" * 43)


async def test_two_authorization_headers_are_no_key(guarded: Served) -> None:
    """Nobody could say which of them was meant."""
    _, token = await guarded.keys.create("ada", [Scope.ADMIN])
    client = await guarded.client()
    twice = [("Authorization", f"Bearer {token}"), ("Authorization", f"Bearer {token}")]
    problem(await client.get("/v1/calls", headers=twice), 401, "not_authenticated")


@pytest.mark.parametrize(
    ("scope", "allowed"),
    [
        (Scope.CALLS_READ, {"GET /v1/calls"}),
        (Scope.CALLS_WRITE, {"POST /v1/tools/credit/calls", "POST /v1/calls/none/cancel"}),
        (Scope.CALLS_DECIDE, {"POST /v1/calls/none/approve"}),
        (Scope.RUNS_READ, set[str]()),
        (Scope.ADMIN, {"GET /v1/calls", "POST /v1/tools/credit/calls", "POST /v1/calls/none/cancel"}),
    ],
)
async def test_key_allows_what_its_scopes_say_and_nothing_else(
    guarded: Served, scope: Scope, allowed: set[str]
) -> None:
    """A path whose scope the key lacks answers 403 and names the scope; *admin* stands for all."""
    client = await guarded.of("ada", scope)
    for request in ("GET /v1/calls", "POST /v1/tools/credit/calls", "POST /v1/calls/none/cancel"):
        method, path = request.split()
        answer = await client.request(method, path)
        if request in allowed:
            assert answer.status_code not in (401, 403), answer.text
        else:
            assert "scope calls:" in problem(answer, 403, "not_authorized")["detail"]


async def test_who_may_not_is_told_before_anything_is_read(guarded: Served) -> None:
    """A body that is no JSON, from nobody: 401, not 422."""
    client = await guarded.client()
    for path in ("/v1/tools/credit/calls", "/v1/calls/k/deny"):
        problem(await client.post(path, content=b"{"), 401, "not_authenticated")


@both_stores
async def test_expired_key_is_401(guarded: Served) -> None:
    """A key ends by itself at its time, also for a server that remembers it."""
    _, token = await guarded.keys.create("ada", [Scope.CALLS_READ], expires_s=0.3)
    client = await guarded.client(token)
    assert (await client.get("/v1/calls")).status_code == 200
    while (answer := await client.get("/v1/calls")).status_code == 200:
        continue
    assert "expired" in problem(answer, 401, "not_authenticated")["detail"]


async def test_revoked_key_is_401_once_the_server_looks_again(guarded: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A revocation by another process is noticed when the remembered key is read anew."""
    key, token = await guarded.keys.create("ada", [Scope.CALLS_READ])
    client = await guarded.client(token)
    assert (await client.get("/v1/calls")).status_code == 200
    await guarded.keys.revoke(key.id)
    assert (await client.get("/v1/calls")).status_code == 200, "remembered for a moment"
    monkeypatch.setattr(auth, "REREAD_S", 0.0)
    assert "revoked" in problem(await client.get("/v1/calls"), 401, "not_authenticated")["detail"]


async def test_key_of_another_tenant_is_unknown_here(guarded: Served) -> None:
    """A key is bound to its tenant."""
    _, token = await KeyRing(guarded.house.store, "somebody-else").create("ada", [Scope.ADMIN])
    problem(await (await guarded.client(token)).get("/v1/calls"), 401, "not_authenticated")


@both_stores
async def test_caller_is_the_principal_of_the_key(guarded: Served) -> None:
    """`requested_by` is who showed the key; a body cannot name somebody else."""
    agent = await guarded.of("billing-agent")
    await called(agent, "credit", CREDIT, "k")
    assert (await agent.get("/v1/calls/k")).json()["requested_by"] == "billing-agent"
    problem(await called(agent, "credit", CREDIT, "k2", by="ada"), 422, "invalid_request")


async def test_keys_remembered_are_bounded(guarded: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made-up ids fill no memory."""
    monkeypatch.setattr(auth, "REMEMBERED_MOST", 5)
    client = await guarded.client()
    for number in range(12):
        shown = {"Authorization": f"Bearer thk_{number:016x}_{'A' * 43}"}
        problem(await client.get("/v1/calls", headers=shown), 401, "not_authenticated")
    access = guarded.app.state.access
    assert isinstance(access, KeyAccess)
    assert len(access._remembered) == 5


# -- nothing leaks -------------------------------------------------------------------------------------------------


async def test_secret_and_arguments_appear_in_no_log_error_or_ledger(
    guarded: Served, shop: Shop, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """A canary in the token and one in the arguments: neither comes out of the server, whatever goes wrong."""
    caplog.set_level(logging.DEBUG)
    key, token = await guarded.keys.create("ada", [Scope.CALLS_WRITE])
    secret, canary = token[-43:], "CANARY-4f1b"
    client = await guarded.client(token)
    told = [
        (await called(client, "credit", {"account_id": canary, "amount_cents": canary}, "k1")).text,
        (await called(client, "nothing", {"x": canary}, "k2")).text,
        (await called(client, "rejected", {"item": 1, "other": canary}, "k3")).text,
        (await client.get("/v1/calls")).text,
        (await client.get("/v1/nothing", params={"token": token})).text,
        (await client.post("/v1/tools/credit/calls", content=f'{{"{canary}'.encode())).text,
        (await client.get("/v1/calls", headers={"Authorization": f"Basic {token}"})).text,
    ]
    await called(client, "credit", {"account_id": canary, "amount_cents": 1}, "k4")
    logged = "\n".join(f"{record.getMessage()} {record.__dict__}" for record in caplog.records if _ours(record))
    for text in (*told, logged):
        assert secret not in text
        assert canary not in text
    assert shop.effects == [{"account_id": canary, "amount_cents": 1}]
    with sqlite3.connect(tmp_path / "ledger.db") as ledger:
        kept = "\n".join(ledger.iterdump())
    ledger.close()
    assert key.secret_digest in kept
    assert secret not in kept


def _ours(record: logging.LogRecord) -> bool:
    """What the server's process would log; the test's own client and event loop are not it."""
    return record.name.startswith(("tollhouse", "uvicorn", "fastapi", "starlette"))


async def test_defect_is_a_500_that_says_nothing_of_its_cause(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An exception that nobody foresaw: a problem with the request's id, a log line without the message."""

    async def fail(*_: object, **__: object) -> None:
        raise RuntimeError("CANARY-4f1b in a message")

    monkeypatch.setattr(served.house, "call", fail)
    monkeypatch.setattr(served.house, "get", fail)
    client = await served.client()
    for answer in (await called(client, "credit", CREDIT, "k"), await client.get("/v1/calls/k")):
        told = problem(answer, 500, "error")
        assert (told["sent"], "CANARY" in answer.text) == ("maybe", False)
        assert "defect" in told["title"]
    failed = [record for record in caplog.records if record.getMessage().startswith("request_failed")]
    assert len(failed) == 2
    assert all("RuntimeError" in record.getMessage() for record in failed)
    assert "CANARY" not in caplog.text


# -- open on loopback ----------------------------------------------------------------------------------------------


async def test_server_without_keys_binds_to_loopback_only(open_house: OpenHouse, shop: Shop) -> None:
    """Beyond loopback anybody could do everything, so it is refused, with what to do."""
    app = create_app(await open_house(*shop.tools))
    for host in ("0.0.0.0", "::"):
        with pytest.raises(InvalidSetting, match=r"tollhouse keys create"):
            async with serving(app, host, 0):
                pass


async def test_server_without_keys_says_so(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    """One warning at start."""
    assert any("access_open" in record.getMessage() for record in caplog.get_records("setup"))


async def test_keys_are_asked_for_as_soon_as_there_is_one_at_start(open_house: OpenHouse, shop: Shop) -> None:
    """A server is open while its tenant never had a key; that all of them ended does not open it again."""
    house = await open_house(*shop.tools)
    assert isinstance(await access_of(house), OpenAccess)
    ring = KeyRing(house.store, house.tenant)
    key, _ = await ring.create("ada", [Scope.ADMIN])
    assert isinstance(await access_of(house), KeyAccess)
    await ring.revoke(key.id)
    assert isinstance(await access_of(house), KeyAccess)
    assert await ring.revoke(key.id) == await ring.get(key.id), "a second revocation changes nothing"


async def test_first_key_closes_a_server_that_runs(
    open_house: OpenHouse, shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever makes a key is safe with it, whichever servers were open; the document of the API says so, too."""
    monkeypatch.setattr(auth, "REREAD_S", 0.0)
    house = await open_house(*shop.tools)
    app = create_app(house, access=await access_of(house))
    async with serving(app, port=0) as url, httpx.AsyncClient(base_url=url, trust_env=False) as client:
        assert (await client.get("/v1/calls")).status_code == 200
        assert "securitySchemes" not in (await client.get("/openapi.json")).json()["components"]
        _, token = await KeyRing(house.store, house.tenant).create("ada", [Scope.CALLS_READ])
        problem(await client.get("/v1/calls"), 401, "not_authenticated")
        mine = {"Authorization": f"Bearer {token}"}
        assert (await client.get("/v1/calls", headers=mine)).status_code == 200
        problem(await client.post("/v1/calls/none/cancel", headers=mine), 403, "not_authorized")
        assert "securitySchemes" in (await client.get("/openapi.json")).json()["components"]
    assert "access_closed" in caplog.text


async def test_server_with_keys_may_serve_everywhere(serve: Serve, open_house: OpenHouse, shop: Shop) -> None:
    """With keys any address is fine."""
    house = await open_house(*shop.tools)
    async with serving(create_app(house, access=KeyAccess(house)), "0.0.0.0", 0) as url:
        assert re.fullmatch(r"http://0\.0\.0\.0:\d+", url)


# -- making keys ---------------------------------------------------------------------------------------------------


async def test_key_needs_a_principal_known_scopes_and_a_sensible_end(guarded: Served) -> None:
    """A name that can stand on the record; a mistyped scope would allow something else than was meant."""
    for principal in ("", " ", "ada ", "a\nb", "a\0b", "x" * 201):
        with pytest.raises(InvalidSetting):
            await guarded.keys.create(principal, [Scope.ADMIN])
    for scopes in ([], ["everything"], ["calls:read", "calls:rread"]):
        with pytest.raises(InvalidSetting, match=r"calls:read"):
            await guarded.keys.create("ada", scopes)
    for expires_s in (0.0, -1.0, float("nan"), float("inf"), 1e12):
        with pytest.raises(InvalidSetting):
            await guarded.keys.create("ada", [Scope.ADMIN], expires_s=expires_s)
    assert await guarded.keys.list() == []
