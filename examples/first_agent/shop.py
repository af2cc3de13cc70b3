"""What the agent of a small shop may do. The payment provider is a file, so that you can open its book."""

import json
import os
import re
import signal
from pathlib import Path

from tollhouse import CallContext, did_not_happen, external, happened, read, tool

BOOK, PLUG = Path("provider.jsonl"), Path("pull-the-plug")


def entries():
    """Every refund that really happened."""
    return [json.loads(line) for line in BOOK.read_text().splitlines()] if BOOK.exists() else []


@tool(read())
def find_order(text: str) -> dict:
    """Find the order that a message is about."""
    found = re.search(r"\d+", text)
    return {"order": found.group(), "cents": 2500} if found else {"error": "no order is named"}


async def find_refund(idempotency_key):
    """Look, and change nothing: is there a refund under the key that the provider was given?"""
    found = next((entry for entry in entries() if entry["key"] == idempotency_key), None)
    return happened(found["id"]) if found else did_not_happen("no refund under this key")


@tool(external(), reconcile=find_refund)
def refund(order: str, cents: int, ctx: CallContext) -> str:
    """Refund an order."""
    entry = {"id": f"re_{len(entries()) + 1}", "order": order, "cents": cents, "key": ctx.idempotency_key}
    with BOOK.open("a") as book:
        book.write(json.dumps(entry) + "\n")
    if PLUG.exists():  # the worst moment: the provider has done it, and nobody has heard of it
        PLUG.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return entry["id"]
