"""A payment provider in one file, so that you can open its book. It knows nothing of Tollhouse."""

import json
from pathlib import Path

BOOK = Path("provider.jsonl")


def entries():
    """Every credit that really happened."""
    return [json.loads(line) for line in BOOK.read_text().splitlines()] if BOOK.exists() else []


def find(key):
    """The credit that was issued under this idempotency key, or None."""
    return next((entry for entry in entries() if entry["key"] == key), None)


def credit(key, account, cents, *, lose_reply=False):
    """Issue a credit. With ``lose_reply`` it is issued all the same, and the caller never hears of it."""
    entry = {"id": f"cr_{len(entries()) + 1}", "key": key, "account": account, "cents": cents}
    with BOOK.open("a") as book:
        book.write(json.dumps(entry) + "\n")
    if lose_reply:
        raise ConnectionError("the connection died before the reply")
    return entry["id"]
