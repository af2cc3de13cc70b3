"""The tools of the drill: each kind of contract once, over the faulty receiver.

Every tool obeys ``acts`` in its arguments: what its nth sending does beside sending (pause before, pause after, give up
on the answer, raise). So a script decides what a tool's own code does in whatever process it runs. The headers say
which attempt a request belongs to; the receiver's book keeps them.
"""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

import httpx2

from tollhouse import (
    CallContext,
    RecordedCall,
    dedup,
    destructive,
    did_not_happen,
    external,
    happened,
    read,
    tool,
    write,
)
from tollhouse.contract.answers import Accepted, Answer, unknown
from tollhouse.contract.tool import Tool

ATTEMPT_HEADER = "x-attempt"
SILENCE_S = 3.5
"""Absence counts this long after nothing can be sent any more; the drill's network is never slower than that."""
DELAY_MOST_S = 2.4
"""The slowest network of the drill: well inside :data:`SILENCE_S`."""
WINDOW_S, WINDOW_MARGIN_S = 3.0, 1.0
"""How long the collection ``windows`` recognises a key, and what the contract takes off for the network."""

Reach = Callable[[str, str], None]
Acts = list[dict[str, Any]]

KEYED = {"payments": None, "notices": None, "odds": None, "windows": WINDOW_S}
"""Collections that recognise a key, with the seconds for which they do (None: for ever)."""


class GaveUp(Exception):
    """The tool's own code failed after its request had left."""


class Shop:
    """Where the tools of one process send and look. See :func:`tools`."""

    def __init__(self, url: str, reach: Reach, hook_pause_s: float, blind: bool) -> None:
        self.url, self.reach = url, reach
        self._hook_pause_s, self._blind = hook_pause_s, blind

    def hook(self, collection: str) -> Callable[[RecordedCall], Any]:
        """The look-up of a collection."""

        async def find(record: RecordedCall) -> Answer:
            answer = unknown("no access") if self._blind else await _found(self.url, collection, record)
            await asyncio.sleep(self._hook_pause_s)
            return answer

        return find

    async def send(self, ctx: CallContext, collection: str, amount: int, acts: Acts) -> str:
        """Send through the check; the receiver's id."""
        return await _send(self.url, self.reach, ctx, collection, amount, acts)


def tools(url: str, reach: Reach, *, hook_pause_s: float = 0.0, blind: bool = False) -> dict[str, Tool[Any]]:
    """All tools by name. ``hook_pause_s``: look-ups answer that late here; ``blind``: they find nothing out here."""
    shop = Shop(url, reach, hook_pause_s, blind)
    made = (*_money(shop), *_keyed(shop), *_forgetful(shop), *_others(shop))
    return {each.name: each for each in made}


_CHECKED: dict[str, Any] = {"departs": "at_confirm", "absent_after_s": SILENCE_S, "attempt_timeout_s": 6.0}
_BY_KEY = dedup.by_key(hours=1.0)


def _money(shop: Shop) -> list[Tool[Any]]:
    @tool(external(**_CHECKED), reconcile=shop.hook("voids"))
    async def void(key: str, ctx: CallContext) -> str:
        """Take something back."""
        return await shop.send(ctx, "voids", 0, [])

    @tool(external(**_CHECKED, rejects=(409,)), reconcile=shop.hook("credits"), compensate=void)
    async def credit(amount: int, acts: Acts, ctx: CallContext) -> str:
        """Credit an account; every send is checked."""
        return await shop.send(ctx, "credits", amount, acts)

    @tool(external(absent_after_s=SILENCE_S, attempt_timeout_s=6.0), reconcile=shop.hook("transfers"))
    def transfer(amount: int, acts: Acts, ctx: CallContext) -> str:
        """Send around the check, in a thread, as a library that knows nothing of it would."""
        return _send_plainly(shop.url, shop.reach, ctx, "transfers", amount, acts)

    @tool(
        external(**{**_CHECKED, "attempt_timeout_s": 0.6}, dedup=dedup.natural, max_attempts=2),
        compensate=void,
    )
    async def set_limit(amount: int, acts: Acts, ctx: CallContext) -> str:
        """Set a value: harmless to repeat, impatient, and with no look-up."""
        return await shop.send(ctx, "settings", amount, acts)

    return [void, credit, transfer, set_limit]


def _keyed(shop: Shop) -> list[Tool[Any]]:
    @tool(external(**_CHECKED, dedup=_BY_KEY, resend_margin_s=10.0, max_attempts=2))
    async def pay(amount: int, acts: Acts, ctx: CallContext) -> str:
        """Pay at a receiver that recognises the key; no look-up."""
        return await shop.send(ctx, "payments", amount, acts)

    @tool(write(**_CHECKED, dedup=_BY_KEY, resend_margin_s=10.0), reconcile=shop.hook("notices"))
    async def notify(amount: int, acts: Acts, ctx: CallContext) -> str:
        """Write at a receiver that recognises the key and can be asked."""
        return await shop.send(ctx, "notices", amount, acts)

    return [pay, notify]


def _forgetful(shop: Shop) -> list[Tool[Any]]:
    """Tools of two directed plots: a key that is soon forgotten, and look-ups that differ by process."""
    soon: dict[str, Any] = {**_CHECKED, "absent_after_s": 0.3, "max_attempts": 2}

    @tool(external(**soon, dedup=dedup.by_key(hours=WINDOW_S / 3600), resend_margin_s=WINDOW_MARGIN_S))
    async def brief(amount: int, acts: Acts, ctx: CallContext) -> str:
        """Send where a key is forgotten after seconds."""
        return await shop.send(ctx, "windows", amount, acts)

    @tool(external(**soon, dedup=_BY_KEY, resend_margin_s=10.0), reconcile=shop.hook("odds"))
    async def odd(amount: int, acts: Acts, ctx: CallContext) -> str:
        """Send where some processes see more than others."""
        return await shop.send(ctx, "odds", amount, acts)

    return [brief, odd]


def _others(shop: Shop) -> list[Tool[Any]]:
    @tool(external(**{**_CHECKED, "attempt_timeout_s": 1.0}))
    async def letter(amount: int, acts: Acts, ctx: CallContext) -> str:
        """Have a letter posted: no key, no look-up, only people can tell."""
        return await shop.send(ctx, "letters", amount, acts)

    @tool(destructive(**_CHECKED, rejects=(409,)), reconcile=shop.hook("closures"))
    async def close_account(amount: int, acts: Acts, ctx: CallContext) -> str:
        """Close an account, once people have agreed."""
        return await shop.send(ctx, "closures", amount, acts)

    @tool(external(**_CHECKED, accepts=True, job_deadline_s=30.0), reconcile=_poll(shop.url))
    async def export(amount: int, acts: Acts, ctx: CallContext) -> str:
        """Long work, confirmed under a reference."""
        raise Accepted(await shop.send(ctx, "jobs", amount, acts))

    @tool(read())
    async def count(ctx: CallContext) -> int:
        """How many credits there are: a read, which is never in doubt."""
        shop.reach("inside_before_send", ctx.key)
        reply = await ctx.http.get(f"{shop.url}/v1/credits")
        reply.raise_for_status()
        return len(reply.json())

    return [letter, close_account, export, count]


COLLECTIONS = {
    "credit": "credits",
    "transfer": "transfers",
    "pay": "payments",
    "notify": "notices",
    "set_limit": "settings",
    "letter": "letters",
    "close_account": "closures",
    "export": "jobs",
    "brief": "windows",
    "odd": "odds",
    "void": "voids",
}
"""Where each tool has its effect."""


def _body(ctx: CallContext, collection: str, amount: int) -> dict[str, Any]:
    """Where the receiver recognises keys, the bytes are equal; elsewhere each attempt shows in its effect."""
    body: dict[str, Any] = {"reference": ctx.key, "amount": amount}
    return body if collection in KEYED else {**body, "attempt": _attempt_id(ctx)}


def _attempt_id(ctx: CallContext) -> str:
    attempt: str = getattr(ctx, "attempt_id", "")
    return attempt


def _act(ctx: CallContext, acts: Acts) -> dict[str, Any]:
    return acts[ctx.attempt - 1] if ctx.attempt <= len(acts) else {}


async def _send(url: str, reach: Reach, ctx: CallContext, collection: str, amount: int, acts: Acts) -> str:
    act = _act(ctx, acts)
    await asyncio.sleep(act.get("before", 0.0))
    reach("inside_before_send", ctx.key)
    reply = await ctx.http.post(
        f"{url}/v1/{collection}",
        json=_body(ctx, collection, amount),
        headers={ATTEMPT_HEADER: _attempt_id(ctx)},
        **({"timeout": act["patience"]} if "patience" in act else {}),
    )
    reply.raise_for_status()
    created = str(reply.json()["id"])
    reach("inside_after_send", ctx.key)
    await asyncio.sleep(act.get("after", 0.0))
    if act.get("fails"):
        raise GaveUp("the tool's own code failed")
    return created


def _send_plainly(url: str, reach: Reach, ctx: CallContext, collection: str, amount: int, acts: Acts) -> str:
    act = _act(ctx, acts)
    time.sleep(act.get("before", 0.0))
    reach("inside_before_send", ctx.key)
    headers = {
        "Content-Type": "application/json",
        "Idempotency-Key": ctx.idempotency_key,
        ATTEMPT_HEADER: _attempt_id(ctx),
    }
    body = json.dumps(_body(ctx, collection, amount)).encode()
    request = urllib.request.Request(f"{url}/v1/{collection}", body, headers)  # noqa: S310 (a loopback URL of ours)
    with urllib.request.urlopen(request, timeout=act.get("patience", 6.0)) as reply:  # noqa: S310
        created = str(json.loads(reply.read())["id"])
    reach("inside_after_send", ctx.key)
    if act.get("fails"):
        raise GaveUp("the tool's own code failed")
    return created


async def _look_up(url: str, collection: str, record: RecordedCall) -> list[Mapping[str, Any]]:
    async with httpx2.AsyncClient(trust_env=False, timeout=10.0) as client:
        reply = await client.get(f"{url}/v1/{collection}/by-key/{record.idempotency_key}")
    reply.raise_for_status()
    found: list[Mapping[str, Any]] = reply.json()
    return found


async def _found(url: str, collection: str, record: RecordedCall) -> Answer:
    effects = await _look_up(url, collection, record)
    if effects:
        return happened(effects[0]["id"], effects[0]["id"])
    return did_not_happen({"looked_for": record.idempotency_key})


def _poll(url: str) -> Callable[[RecordedCall], Any]:
    async def poll(record: RecordedCall) -> Answer:
        jobs = await _look_up(url, "jobs", record)
        for job in jobs:
            if job["status"] == "done":
                return happened(job["id"], job["id"])
        # A round of its own queued each of them, so that one which was cancelled says nothing about the others.
        if jobs and all(job["status"] == "cancelled" for job in jobs) and record.reference in (None, jobs[-1]["id"]):
            return did_not_happen(jobs[-1]["id"], job_status="cancelled")
        return unknown("still under way, or not there")

    return poll
