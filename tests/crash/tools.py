"""Tools over the receiver, for houses in this process and in others: each kind of contract once.

A factory is named to a worker as ``tests.crash.tools:credits``; it gets the receiver's URL, ``reach`` (the tool's own
crash points) and options.
"""

import urllib.request
from collections.abc import Callable
from json import dumps, loads
from typing import Any

import httpx2

from tollhouse import (
    Accepted,
    CallContext,
    approval,
    dedup,
    destructive,
    did_not_happen,
    external,
    happened,
    read,
    tool,
)
from tollhouse.contract.answers import Answer
from tollhouse.contract.tool import Tool
from tollhouse.gate.view import RecordedCall

Reach = Callable[[str], None]
SILENCE_S = 0.2
"""Absence counts this long after nothing can be sent any more: short, since these tests wait for it."""


def nowhere(_point: str) -> None:
    """Crash points for a process that does not crash."""


def credits(url: str, reach: Reach = nowhere, *, hooks: bool = False) -> list[Tool[Any]]:
    """``credit`` (every send is checked), ``plain_credit`` (none is), and ``void``, which undoes a credit."""

    async def find(record: RecordedCall) -> Answer:
        return await found(url, "credits", record.idempotency_key)

    async def find_void(record: RecordedCall) -> Answer:
        return await found(url, "voids", record.idempotency_key)

    hook, void_hook = (find, find_void) if hooks else (None, None)

    @tool(external(departs="at_confirm", absent_after_s=SILENCE_S), reconcile=void_hook)
    async def void(key: str, ctx: CallContext) -> str:
        """Take a credit back."""
        created = await post(ctx, url, "voids", {"of": key})
        return str(created["id"])

    @tool(external(departs="at_confirm", absent_after_s=SILENCE_S), reconcile=hook, compensate=void)
    async def credit(account: str, cents: int, ctx: CallContext) -> str:
        """Credit an account; returns the receiver's id."""
        reach("inside_before_send")
        created = await post(ctx, url, "credits", {"account": account, "cents": cents})
        reach("inside_after_send")
        return str(created["id"])

    @tool(external(absent_after_s=SILENCE_S), reconcile=hook)
    def plain_credit(account: str, cents: int, ctx: CallContext) -> str:
        """Credit an account without asking whether it may still send."""
        reach("inside_before_send")
        created = post_plainly(url, "credits", {"account": account, "cents": cents}, ctx.idempotency_key)
        reach("inside_after_send")
        return str(created["id"])

    return [void, credit, plain_credit]


def keyed(url: str, reach: Reach = nowhere, *, hours: float = 1.0, margin_s: float = 1.0) -> list[Tool[Any]]:
    """``keyed_credit``, whose receiver recognises the key; no hook."""

    @tool(
        external(
            departs="at_confirm", dedup=dedup.by_key(hours=hours), resend_margin_s=margin_s, absent_after_s=SILENCE_S
        )
    )
    async def keyed_credit(account: str, cents: int, ctx: CallContext) -> str:
        """Credit an account at a receiver that recognises the key."""
        reach("inside_before_send")
        created = await post(ctx, url, "credits", {"account": account, "cents": cents})
        reach("inside_after_send")
        return str(created["id"])

    return [keyed_credit]


def guarded(url: str, reach: Reach = nowhere, *, expires_s: float = 3600.0, hooks: bool = False) -> list[Tool[Any]]:
    """``delete_account``: people must agree first, within ``expires_s``."""

    async def find(record: RecordedCall) -> Answer:
        return await found(url, "deletions", record.idempotency_key)

    @tool(
        destructive(departs="at_confirm", absent_after_s=SILENCE_S, approval=approval(expires_s=expires_s)),
        reconcile=find if hooks else None,
    )
    async def delete_account(account: str, ctx: CallContext) -> str:
        """Delete an account for ever."""
        reach("inside_before_send")
        created = await post(ctx, url, "deletions", {"account": account})
        reach("inside_after_send")
        return str(created["id"])

    return [delete_account]


def jobs(url: str, reach: Reach = nowhere) -> list[Tool[Any]]:
    """``export``, long work that the receiver accepts under its own id."""

    @tool(external(departs="at_confirm", accepts=True, absent_after_s=SILENCE_S))
    async def export(month: str, ctx: CallContext) -> Accepted:
        """Export a month."""
        reach("inside_before_send")
        created = await post(ctx, url, "jobs", {"month": month})
        reach("inside_after_send")
        return Accepted(str(created["id"]))

    return [export]


def reading(url: str, reach: Reach = nowhere) -> list[Tool[Any]]:
    """``count_credits``, a read."""

    @tool(read())
    async def count_credits(account: str, ctx: CallContext) -> int:
        """How many credits an account has had."""
        reach("inside_before_send")
        response = await ctx.http.get(f"{url}/v1/credits")
        return sum(each["body"]["account"] == account for each in response.json())

    return [count_credits]


async def post(ctx: CallContext, url: str, collection: str, body: dict[str, Any]) -> dict[str, Any]:
    """Send through the check; the receiver's answer."""
    response = await ctx.http.post(f"{url}/v1/{collection}", json=body)
    response.raise_for_status()
    created: dict[str, Any] = response.json()
    return created


def post_plainly(url: str, collection: str, body: dict[str, Any], key: str) -> dict[str, Any]:
    """Send around the check, as a library that knows nothing of it would."""
    headers = {"Content-Type": "application/json", "Idempotency-Key": key}
    request = urllib.request.Request(f"{url}/v1/{collection}", dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as response:
        created: dict[str, Any] = loads(response.read())
        return created


async def found(url: str, collection: str, key: str) -> Answer:
    """What the receiver's look-up by key says."""
    async with httpx2.AsyncClient(trust_env=False) as client:
        response = await client.get(f"{url}/v1/{collection}/by-key/{key}")
    response.raise_for_status()
    effects = response.json()
    return happened(effects[0]["id"], effects[0]["id"]) if effects else did_not_happen({"looked_for": key})
