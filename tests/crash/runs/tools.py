"""Tools that only runs need; see :mod:`tests.crash.tools` for what a factory is."""

from __future__ import annotations

import os
import runpy
from dataclasses import replace
from typing import Any

import httpx2

from tests.crash.process import ROOT
from tests.crash.tools import SILENCE_S, Reach, found, nowhere, post
from tollhouse import CallContext, external, tool
from tollhouse.contract.answers import Answer
from tollhouse.contract.tool import Tool
from tollhouse.gate.view import RecordedCall


def shop(url: str, reach: Reach = nowhere, *, patience_s: float = 20.0) -> list[Tool[Any]]:
    """``refund`` and ``mark``, which can be looked up; ``notify``, which cannot; ``late``, which gets a token first.

    ``patience_s``: how long ``notify`` waits for an answer.
    """

    async def find_refund(record: RecordedCall) -> Answer:
        return await found(url, "refunds", record.idempotency_key)

    async def find_mark(record: RecordedCall) -> Answer:
        return await found(url, "marks", record.idempotency_key)

    @tool(external(departs="at_confirm", absent_after_s=SILENCE_S), reconcile=find_refund)
    async def refund(order: str, ctx: CallContext) -> str:
        """Refund an order."""
        return str((await post(ctx, url, "refunds", {"order": order}))["id"])

    @tool(external(departs="at_confirm", absent_after_s=SILENCE_S), reconcile=find_mark)
    async def mark(order: str, ctx: CallContext) -> str:
        """Mark an order as refunded."""
        return str((await post(ctx, url, "marks", {"order": order}))["id"])

    @tool(external(departs="at_confirm", attempt_timeout_s=patience_s, max_attempts=1))
    async def notify(order: str, ctx: CallContext) -> str:
        """Tell the customer."""
        created = await post(ctx, url, "notices", {"order": order})
        reach("inside_after_notice")
        return str(created["id"])

    @tool(external(departs="at_confirm", absent_after_s=SILENCE_S))
    async def late(order: str, ctx: CallContext) -> str:
        """Refund an order, after a look for a token."""
        async with httpx2.AsyncClient(trust_env=False, timeout=30.0) as client:
            (await client.get(f"{url}/v1/tokens")).raise_for_status()
        return str((await post(ctx, url, "refunds", {"order": order}))["id"])

    return [refund, mark, notify, late]


def card_refund(url: str, reach: Reach = nowhere, *, provider: str) -> list[Tool[Any]]:
    """``refund`` as the recipe for card refunds has it, at the payment provider that listens at ``provider``."""
    os.environ["STRIPE_URL"] = provider
    recipe = runpy.run_path(str(ROOT / "examples" / "recipes" / "card_refund.py"))
    refund: Tool[Any] = recipe["refund"]
    refund.terms = replace(refund.terms, absent_after_s=SILENCE_S)
    refund.contract_text = refund.terms.dumps()
    return [refund]
