"""The tools of a small shop, in a module that a worker can load too. The provider's book is a file."""

import json
from pathlib import Path

from tollhouse import CallContext, did_not_happen, external, happened, tool

BOOK = Path("provider.jsonl")


def _entries():
    return [json.loads(line) for line in BOOK.read_text().splitlines()] if BOOK.exists() else []


async def find_refund(idempotency_key):
    found = next((entry for entry in _entries() if entry["key"] == idempotency_key), None)
    return happened(found["id"]) if found else did_not_happen("no refund under this key")


@tool(external(), reconcile=find_refund)
def refund(order: str, cents: int, ctx: CallContext) -> str:
    """Refund an order; the reply is always lost."""
    with BOOK.open("a") as book:
        book.write(json.dumps({"id": f"re_{order}", "key": ctx.idempotency_key, "cents": cents}) + "\n")
    raise ConnectionError("the reply was lost")


@tool(external())
async def send_letter(to: str, text: str) -> None:
    """Send a letter. Nobody can be asked whether it was posted."""
    raise TimeoutError("the post office did not answer")
