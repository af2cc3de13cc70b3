"""What the tests of operations build on: tools with a book, a ledger with calls of every kind, two stores."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from tollhouse import NotSent, Rejected, Tollhouse, external, read, tool
from tollhouse.errors import TollhouseError

SENT: list[str] = []
"""What the receiver of :func:`pay` was sent, in order."""


@tool(external())
async def pay(to: str) -> str:
    """Pay somebody; what happens depends on whom."""
    SENT.append(to)
    if to == "lost":
        raise ConnectionError("the reply was lost")
    if to == "refused":
        raise Rejected("no such account")
    if to == "unsent":
        raise NotSent("no route")
    return "x" * 70_000 if to == "large" else f"paid {to}"


@tool(read())
async def balance(of: str) -> dict[str, Any]:
    """A read, with a value that needs marking."""
    return {"of": of, "raw": b"\x00\xff"}


TOOLS = (pay, balance)


async def fill(house: Tollhouse) -> None:
    """Calls that end in every way there is without a person."""
    for to in ("ada", "lost", "refused", "unsent", "large"):
        with suppress(TollhouseError):
            await house.call(pay, {"to": to}, key=f"pay:{to}")
    await house.call(balance, {"of": "ada"}, key="balance:1")
    # One byte more than ASCII, and a name that sorts differently by locale.
    await house.call(pay, {"to": "Zoë \U0001f600"}, key="Pay:zoe")


async def keep_calling(house: Tollhouse, number: int) -> list[TollhouseError]:
    """Calls one after another until one is refused for another reason than its own; what was raised."""
    for at in range(100_000):
        try:
            await house.call(pay, {"to": f"{number}-{at}"}, key=f"load:{number}:{at}")
        except TollhouseError as error:
            return [error]
        await asyncio.sleep(0)
    return []
