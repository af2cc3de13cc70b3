"""The demo's tools, written as a shop's developer would write them against a billing service of somebody else.

Every process of the demo opens its house with these; ``tollhouse check --tools tollhouse.demo.tools`` prints what each
of them promises.
"""

import os
from dataclasses import dataclass
from typing import Any

import httpx2

from tollhouse import (
    Answer,
    Asked,
    CallContext,
    Deny,
    Pass,
    RecordedCall,
    dedup,
    destructive,
    did_not_happen,
    external,
    happened,
    tool,
)

BILLING_VARIABLE = "TOLLHOUSE_DEMO_BILLING"
"""The environment variable that names the billing service, as ``http://host:port``."""

REFUND_LIMIT_CENTS = 50_000
ABSENT_AFTER_S = 0.5
"""On one machine a request is never half a second late; a real receiver deserves the default of a minute."""


@dataclass(frozen=True)
class Receipt:
    """What the billing service answers: its own id of the entry in its book."""

    id: str


async def find_refund(record: RecordedCall) -> Answer:
    """Look, and change nothing: is there a refund under this call's key?"""
    async with httpx2.AsyncClient(timeout=5.0, trust_env=False) as client:
        reply = await client.get(f"{_billing()}/v1/refunds", params={"key": record.idempotency_key})
    reply.raise_for_status()
    found = reply.json()
    if not found:
        return did_not_happen("the billing service has no refund under this key")
    return happened(Receipt(found[0]["id"]), reference=found[0]["id"])


async def void_refund(original: RecordedCall, ctx: CallContext) -> Receipt:
    """Take a refund back."""
    return await _post(ctx, "voids", {"refund": original.result.id})


@tool(
    external(departs="at_confirm", attempt_timeout_s=20.0, absent_after_s=ABSENT_AFTER_S),
    reconcile=find_refund,
    compensate=void_refund,
)
async def refund(order: str, amount_cents: int, ctx: CallContext) -> Receipt:
    """Give a customer money back. The service does not recognise a repeat, but it can be asked what it did."""
    return await _post(ctx, "refunds", {"order": order, "amount_cents": amount_cents})


@tool(external(departs="at_confirm", attempt_timeout_s=20.0, dedup=dedup.by_key(hours=24)))
async def pay_invoice(invoice: str, amount_cents: int, ctx: CallContext) -> Receipt:
    """Pay a supplier. The service recognises the key of a repeat for a day."""
    return await _post(ctx, "payments", {"invoice": invoice, "amount_cents": amount_cents})


@tool(external(departs="at_confirm", attempt_timeout_s=20.0))
async def send_letter(to: str, ctx: CallContext) -> Receipt:
    """Have a letter posted. The service recognises no repeat and offers no look-up: only a person can find out."""
    return await _post(ctx, "letters", {"to": to})


@tool(destructive(departs="at_confirm", attempt_timeout_s=20.0))
async def close_account(account: str, ctx: CallContext) -> Receipt:
    """Close a customer's account for good, once a person other than the requester has agreed."""
    return await _post(ctx, "closures", {"account": account})


class RefundLimit:
    """A gate of the shop's own: no refund above the limit leaves, whoever asks."""

    name = "refund_limit"

    def check(self, asked: Asked) -> Pass | Deny:
        if asked.tool.name == refund.name and asked.arguments["amount_cents"] > REFUND_LIMIT_CENTS:
            return Deny(f"refunds end at {REFUND_LIMIT_CENTS / 100:.2f}", code="over_limit")
        return Pass()


TOOLS = [refund, pay_invoice, send_letter, close_account]
GATES = [RefundLimit()]


async def _post(ctx: CallContext, collection: str, body: dict[str, Any]) -> Receipt:
    reply = await ctx.http.post(f"{_billing()}/v1/{collection}", json=body)
    reply.raise_for_status()
    return Receipt(reply.json()["id"])


def _billing() -> str:
    return os.environ[BILLING_VARIABLE]
