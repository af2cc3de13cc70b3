"""Marking a ledger as restored from a backup, and ending that. Called by ``tollhouse db restored``.

The mark ends every owner in the same transaction, so that no process departs anything before it has begun a new
incarnation, and has read the mark with it. The end reaches running processes with their next renewal.
"""

from __future__ import annotations

import json

from tollhouse.errors import NotEntitled
from tollhouse.stores import RESTORED, open_raw

ENDED = "restored_ended"
"""The mark that the end of the mode leaves: who ended it, when and why."""


async def mark_restored(url: str, *, by: str, reason: str | None = None) -> int:
    """Begin the mode, or begin it anew after another restore; its moment in microseconds. Durable on return."""
    ledger = await open_raw(url)
    try:
        now_us = await ledger.now_us()
        told = {"at_us": now_us, "by": _named(by), "reason": reason}
        await ledger.put_mark(RESTORED, json.dumps(told), end_owners=True)
        return now_us
    finally:
        await ledger.close()


async def end_restored(url: str, *, by: str, reason: str | None = None) -> bool:
    """End the mode; False where the ledger was in none."""
    ledger = await open_raw(url)
    try:
        mark = (await ledger.marks()).get(RESTORED)
        if mark is None:
            return False
        told = {"restored": json.loads(mark), "at_us": await ledger.now_us(), "by": _named(by), "reason": reason}
        await ledger.drop_mark(RESTORED, history=(ENDED, json.dumps(told)))
        return True
    finally:
        await ledger.close()


def _named(by: str) -> str:
    if not by.strip():
        raise NotEntitled("A decision needs the name of who takes it.")
    return by
