"""Lists and readings: whole, in pages that neither lose nor repeat, and honest about what they cover."""

from __future__ import annotations

import base64
import json
from typing import Any

import httpx
import pytest

from tests.api.conftest import Serve, Served, called, problem
from tests.api.shop import Shop
from tests.support.houses import POSTGRES
from tollhouse.api import overview
from tollhouse.api.models import Call, CallAnswer, ToolShown
from tollhouse.house.as_json import call_as_json, tool_as_json

both_stores = pytest.mark.parametrize("shared_store_url", ["sqlite", POSTGRES], indirect=True)


async def credits(client: httpx.AsyncClient, number: int) -> list[str]:
    """Calls that succeeded; their keys, newest first."""
    keys = [f"k{n}" for n in range(number)]
    for key in keys:
        await called(client, "credit", {"account_id": "a", "amount_cents": 1}, key)
    return keys[::-1]


async def pages(client: httpx.AsyncClient, path: str, member: str, **query: Any) -> list[list[Any]]:
    """Every page of a list."""
    found: list[list[Any]] = []
    cursor: dict[str, str] = {}
    while True:
        page = (await client.get(path, params={**query, **cursor})).json()
        found.append(page[member])
        if page["next"] is None:
            return found
        cursor = {"cursor": page["next"]}


@both_stores
async def test_pages_hold_every_call_once_newest_first(client: httpx.AsyncClient) -> None:
    """Also where calls come in between."""
    keys = await credits(client, 7)
    found = await pages(client, "/v1/calls", "calls", limit=3)
    assert [len(page) for page in found] == [3, 3, 1]
    assert [call["key"] for page in found for call in page] == keys
    first = (await client.get("/v1/calls", params={"limit": 7})).json()
    assert first["next"] is None
    half = (await client.get("/v1/calls", params={"limit": 3})).json()
    await called(client, "credit", {"account_id": "a", "amount_cents": 1}, "new")
    rest = (await client.get("/v1/calls", params={"limit": 7, "cursor": half["next"]})).json()
    assert [call["key"] for call in rest["calls"]] == keys[3:]


async def test_lists_are_filtered(client: httpx.AsyncClient) -> None:
    """By state, tool, scope and open contradictions."""
    await credits(client, 2)
    await called(client, "lost", {"item": "x"}, "lost", scope="s")
    for query, keys in (
        ({"state": "in_doubt"}, ["lost"]),
        ({"tool": "credit"}, ["k1", "k0"]),
        ({"scope": "s"}, ["lost"]),
        ({"scope": "other"}, []),
        ({"contradicted": "true"}, []),
        ({}, ["lost", "k1", "k0"]),
    ):
        found = (await client.get("/v1/calls", params=query)).json()["calls"]
        assert [call["key"] for call in found] == keys


def renamed(cursor: str, name: str) -> str:
    """The cursor with another name in it, as somebody could make it who reads what it is made of."""
    number, _, digest = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    return base64.urlsafe_b64encode(json.dumps([number, name, digest]).encode()).decode().rstrip("=")


async def test_foreign_and_made_up_cursors_are_told(client: httpx.AsyncClient) -> None:
    """A cursor of another list, of other filters, or of nobody's making is refused, never followed."""
    await credits(client, 3)
    cursor = (await client.get("/v1/calls", params={"limit": 1})).json()["next"]
    for path, query in (
        ("/v1/calls", {"cursor": cursor, "state": "succeeded"}),
        ("/v1/approvals", {"cursor": cursor}),
        ("/v1/calls/k0/events", {"cursor": cursor}),
        ("/v1/costs", {"cursor": cursor}),
        ("/v1/calls", {"cursor": cursor[:-4] + "AAAA"}),
        ("/v1/calls", {"cursor": "x"}),
        ("/v1/calls", {"cursor": ""}),
        ("/v1/calls", {"cursor": "WzEsMiwzXQ"}),
        ("/v1/calls", {"cursor": "é"}),
        ("/v1/calls", {"cursor": renamed(cursor, "\ud800")}),
        ("/v1/calls", {"cursor": renamed(cursor, "a\0b")}),
        ("/v1/calls", {"cursor": renamed(cursor, "x" * 301)}),
    ):
        problem(await client.get(path, params=query), 422, "invalid_cursor")
    problem(await client.get("/v1/calls", params={"cursor": "x" * 2000}), 422, "invalid_request")


async def test_call_is_shown_as_every_surface_shows_it(served: Served, client: httpx.AsyncClient) -> None:
    """The same document as the command line's; its history only on request."""
    await credits(client, 1)
    shown = (await client.get("/v1/calls/k0")).json()
    whole = (await client.get("/v1/calls/k0", params={"history": "1"})).json()
    expected = call_as_json(await served.house.get("k0"))
    assert whole == expected
    assert shown == {name: value for name, value in expected.items() if name != "history"}
    Call.model_validate(whole, strict=True)


async def test_etag_is_the_version(client: httpx.AsyncClient) -> None:
    """Who has that version already hears 304."""
    await credits(client, 1)
    answer = await client.get("/v1/calls/k0")
    tag = answer.headers["etag"]
    assert tag == f'"{answer.json()["version"]}"'
    unchanged = await client.get("/v1/calls/k0", headers={"If-None-Match": f'"1", {tag}'})
    assert (unchanged.status_code, unchanged.headers["etag"], unchanged.content) == (304, tag, b"")
    assert (await client.get("/v1/calls/k0", headers={"If-None-Match": '"1"'})).status_code == 200


async def test_history_comes_in_pages_oldest_first(client: httpx.AsyncClient) -> None:
    """Each line once, as the call's own history has it."""
    await credits(client, 1)
    found = await pages(client, "/v1/calls/k0/events", "events", limit=1)
    whole = (await client.get("/v1/calls/k0", params={"history": "1"})).json()
    assert [len(page) for page in found] == [1, 1]
    assert [line for page in found for line in page] == whole["history"]
    problem(await client.get("/v1/calls/none/events"), 404, "unknown_call")


async def test_tools_are_shown_to_who_may_see_them(serve: Serve, shop: Shop) -> None:
    """A tool that the house hides from a principal is not in the list, not found, and not callable."""
    settings = {"visible": lambda principal, name: principal == "ada" or name == "balance"}
    served = await serve(*shop.tools, keys=True, settings=settings)
    ada, eve = await served.of("ada"), await served.of("eve")
    names = [tool["name"] for tool in (await ada.get("/v1/tools")).json()["tools"]]
    assert names == [tool.name for tool in served.house.tools]
    assert [tool["name"] for tool in (await eve.get("/v1/tools")).json()["tools"]] == ["balance"]
    shown = (await ada.get("/v1/tools/credit")).json()
    assert shown == tool_as_json(next(tool for tool in shop.tools if tool.name == "credit"))
    ToolShown.model_validate(shown, strict=True)
    problem(await eve.get("/v1/tools/credit"), 404, "unknown_tool")
    problem(await called(eve, "credit", {"account_id": "a", "amount_cents": 1}, "k"), 404, "unknown_tool")


async def test_answers_are_what_the_documents_describe(client: httpx.AsyncClient) -> None:
    """Every kind of answer to a call fits its description."""
    for name, arguments in (
        ("credit", {"account_id": "a", "amount_cents": 1}),
        ("lost", {"item": "x"}),
        ("build", {"item": "x"}),
        ("rejected", {"item": "x"}),
        ("delete", {"path": "/a"}),
    ):
        answer = (await called(client, name, arguments, f"{name}-1")).json()
        CallAnswer.model_validate(answer, strict=True)
        assert set(answer) == set(CallAnswer.model_fields)


async def test_approvals_say_what_is_asked_and_who_has_voted(guarded: Served) -> None:
    """Held calls only, newest first, in pages, with votes and expiry."""
    agent, ada = await guarded.of("agent"), await guarded.of("ada")
    for number in range(3):
        await called(agent, "wire", {"amount_cents": number}, f"w{number}")
    await called(agent, "credit", {"account_id": "a", "amount_cents": 1}, "k")
    await ada.post("/v1/calls/w1/approve")
    found = [one for page in await pages(ada, "/v1/approvals", "approvals", limit=2) for one in page]
    assert [one["key"] for one in found] == ["w2", "w1", "w0"]
    assert [[vote["by"] for vote in one["votes"]] for one in found] == [[], ["ada"], []]
    assert {(one["quorum"], tuple(one["approvers"]), one["requested_by"]) for one in found} == {
        (2, ("ada", "bob"), "agent")
    }
    assert all(one["expires_at"] > one["asked_at"] for one in found)
    assert [one["may_decide"] for one in (await agent.get("/v1/approvals")).json()["approvals"]] == [False] * 3


async def test_costs_are_summed_by_day_and_tool(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown costs are counted, never taken for zero; what one answer does not cover the next one does."""
    await credits(client, 3)
    await called(client, "rejected", {"item": "x"}, "r")
    whole = (await client.get("/v1/costs")).json()
    day = whole["costs"][0]["day"]
    by_tool = {cost["tool"]: (cost["cost"], cost["attempts"], cost["unpriced"]) for cost in whole["costs"]}
    assert by_tool == {"credit": ("1.5", 3, 0), "rejected": ("0", 1, 1)}
    assert (whole["calls"], whole["next"]) == (4, None)
    monkeypatch.setattr(overview, "COST_CALLS_MOST", 3)
    parts = await pages(client, "/v1/costs", "costs")
    assert sum(cost["attempts"] for part in parts for cost in part) == 4
    assert len(parts) == 2
    assert (await client.get("/v1/costs", params={"since": day, "tool": "credit"})).json()["calls"] == 3
    assert (await client.get("/v1/costs", params={"since": "9999-12-31"})).json() == {
        "costs": [], "calls": 0, "next": None
    }  # fmt: skip
    problem(await client.get("/v1/costs", params={"since": "yesterday"}), 422, "invalid_request")
