"""The contract tests notice every bad tool for its own reason, and let good ones pass."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from tollhouse import CallContext, Tool, dedup, did_not_happen, external, happened, read, tool
from tollhouse.testing.bad_tools import BAD_TOOLS
from tollhouse.testing.contract_tests import BREACHES, assert_guarantee, assert_tool_contract, check_tool_contract

ARGUMENTS = {"account_id": "a1", "cents": 100}


def keyed(url: str) -> Tool[Any]:
    """A tool whose receiver recognises the key."""

    @tool(external(dedup=dedup.by_key(hours=24)))
    async def charge(account_id: str, cents: int, ctx: CallContext) -> Any:
        """Charge an account."""
        response = await ctx.http.post(f"{url}/v1/charges", json={"account": account_id, "cents": cents})
        return response.raise_for_status().json()

    return charge


def unkeyed_with_hook(url: str) -> Tool[Any]:
    """A tool with a look-up and a compensation, whose receiver knows no keys."""

    async def look(record: Any, ctx: Any = None) -> Any:
        async with httpx2.AsyncClient(base_url=url, timeout=5) as client:
            found = (await client.get("/v1/charges", params={"key": record.idempotency_key})).raise_for_status().json()
        return happened(found[0], reference=found[0]["id"]) if found else did_not_happen("no such charge")

    async def undo(record: Any, ctx: CallContext) -> Any:
        response = await ctx.http.post(f"{url}/v1/voids", json={"charge": record.result["id"]})
        return response.raise_for_status().json()

    @tool(external(departs="at_confirm", rejects=[422]), reconcile=look, compensate=undo)
    async def charge(account_id: str, cents: int, ctx: CallContext) -> Any:
        """Charge an account."""
        response = await ctx.http.post(f"{url}/v1/charges", json={"account": account_id, "cents": cents})
        return response.raise_for_status().json()

    return charge


def sync(url: str) -> Tool[Any]:
    """A ``def`` tool."""

    @tool(external(departs="at_confirm"))
    def charge(account_id: str, cents: int, ctx: CallContext) -> Any:
        """Charge an account."""
        response = ctx.http_sync.post(f"{url}/v1/charges", json={"account": account_id, "cents": cents})
        return response.raise_for_status().json()

    return charge


def reading(url: str) -> Tool[Any]:
    """A tool that only looks."""

    @tool(read())
    async def charges(account_id: str, cents: int, ctx: CallContext) -> Any:
        """The charges of an account."""
        return (await ctx.http.get(f"{url}/v1/charges")).raise_for_status().json()

    return charges


def test_a_good_read_passes() -> None:
    """It takes no effect, and nobody holds that against it; it is hit by the faults like any other."""
    report = assert_tool_contract(reading, ARGUMENTS)
    assert {result.name: result.state for result in report.results}["refused_500"] == "failed"


@pytest.mark.parametrize("make", [keyed, unkeyed_with_hook, sync])
def test_a_good_tool_passes(make: Callable[[str], Tool[Any]]) -> None:
    """A tool that keeps its contract gets its report, every scenario run."""
    report = assert_tool_contract(make, ARGUMENTS)
    assert report.passed
    assert {result.state for result in report.results} >= {"succeeded", "in_doubt"}


@pytest.mark.parametrize("code", BAD_TOOLS)
async def test_a_bad_tool_fails_for_its_own_reason(code: str) -> None:
    """Each bad tool is told the promise it breaks, and no other."""
    make, arguments = BAD_TOOLS[code]
    report = await check_tool_contract(make, arguments)
    assert code in report.codes, str(report)
    assert report.codes <= {code, *_CONSEQUENCES.get(code, ())}, str(report)
    assert BREACHES[code].broken in str(report)


_CONSEQUENCES = {"key_not_forwarded": ("dedup_untrue",), "sends_before_confirm": ("wrong_not_sent",)}
"""The same mistake, seen twice: without its key a repeat takes effect again; what left early is taken for not sent."""


def pauses_before_it_retries(url: str) -> Tool[Any]:
    """Retries as provider SDKs do: after a pause that is longer than any request here takes."""

    @tool(external())
    async def charge(account_id: str, cents: int, ctx: CallContext) -> Any:
        """Charge an account."""
        body = {"account": account_id, "cents": cents}
        response = await ctx.http.post(f"{url}/v1/charges", json=body)
        if response.is_error:
            await asyncio.sleep(1)
            response = await ctx.http.post(f"{url}/v1/charges", json=body)
        return response.raise_for_status().json()

    return charge


def sends_twice_at_once(url: str) -> Tool[Any]:
    """Hedges: sends two requests alike, and takes the answer that is there first."""

    @tool(external())
    async def charge(account_id: str, cents: int, ctx: CallContext) -> Any:
        """Charge an account."""
        body = {"account": account_id, "cents": cents}
        both = await asyncio.gather(*(ctx.http.post(f"{url}/v1/charges", json=body) for _ in range(2)))
        return both[0].raise_for_status().json()

    return charge


def has_a_hook_that_creates(url: str) -> Tool[Any]:
    """Its look-up makes what it does not find: a second sender, past every gate."""

    async def look(record: Any) -> Any:
        async with httpx2.AsyncClient(base_url=url, timeout=5) as client:
            found = (await client.get("/v1/charges", params={"key": record.idempotency_key})).json()
            return happened(found[0] if found else (await client.post("/v1/charges", json={})).json())

    @tool(external(), reconcile=look)
    async def charge(account_id: str, cents: int, ctx: CallContext) -> Any:
        """Charge an account."""
        response = await ctx.http.post(f"{url}/v1/charges", json={"account": account_id, "cents": cents})
        return response.raise_for_status().json()

    return charge


def a_read_that_writes(url: str) -> Tool[Any]:
    """Declared a read, since it hardly changes anything."""

    @tool(read())
    async def charge(account_id: str, cents: int) -> Any:
        """Look, and leave a note of it."""
        async with httpx2.AsyncClient(base_url=url, timeout=5) as client:
            return (await client.post("/v1/notes", json={"seen": account_id})).raise_for_status().json()

    return charge


def stamps_each_request(url: str) -> Tool[Any]:
    """Puts the time of each attempt into a request that the key says is the same."""

    @tool(external(dedup=dedup.by_key(hours=24)))
    async def charge(account_id: str, cents: int, ctx: CallContext) -> Any:
        """Charge an account."""
        body = {"account": account_id, "cents": cents, "at": time.time_ns()}
        return (await ctx.http.post(f"{url}/v1/charges", json=body)).raise_for_status().json()

    return charge


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (a_read_that_writes, "read_writes"),
        (stamps_each_request, "body_changes"),
        (pauses_before_it_retries, "own_retries"),
        (sends_twice_at_once, "own_retries"),
        (has_a_hook_that_creates, "hook_writes"),
    ],
)
async def test_what_is_bad_in_a_way_that_hides_is_noticed_too(make: Callable[[str], Tool[Any]], code: str) -> None:
    """Neither a pause, nor doing it always, nor doing it only where there is nothing keeps a bad tool from notice."""
    report = await check_tool_contract(make, ARGUMENTS)
    assert report.codes == {code}, str(report)


def test_a_broken_promise_is_an_assertion_error_that_reads_well() -> None:
    """The table names scenario, promise, what was seen and the remedy."""
    make, arguments = BAD_TOOLS["own_retries"]
    with pytest.raises(AssertionError, match=r"own_retries \(in reset_before\): It sends more than once"):
        assert_tool_contract(make, arguments)


def test_a_weaker_guarantee_than_stated_fails() -> None:
    """Every way in which a tool can guarantee less is named."""
    good = unkeyed_with_hook("http://127.0.0.1:1")
    assert_guarantee(good, sends="once", settles_itself=True, fenced=True, compensable=True)

    @tool(external())
    def bare() -> None:
        """Do something."""

    with pytest.raises(AssertionError) as failed:
        assert_guarantee(bare, sends="keyed", settles_itself=True, fenced=True, approved=True, compensable=True)
    for part in ("'once', not 'keyed'", "waits for a person", "at_confirm", "approve", "no compensation"):
        assert part in str(failed.value)


def test_a_read_is_sent_as_a_read() -> None:
    """A read guarantees what reads do."""

    @tool(read())
    def look() -> None:
        """Look."""

    assert_guarantee(look, sends="read")
