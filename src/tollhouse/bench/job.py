"""The work that is measured: one tool call, as small as one can be, through the real gate with its real checks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from tollhouse import Tollhouse, external, read, tool
from tollhouse.bench.measure import Work

SETTINGS = {"background": False, "lease_s": 3600.0}
"""Of measured houses: no sweep and no renewal falls into a round, so that nothing but the calls is counted."""

_numbers = itertools.count(1)


@tool(external())
async def pay(account_id: str, amount_cents: int) -> dict[str, str | int]:
    """Answer at once with some 200 bytes, as a receiver in the same room would."""
    return {"id": "cr_1", "account_id": account_id, "amount_cents": amount_cents, "note": "x" * 100}


@tool(read())
async def look(account_id: str) -> dict[str, str]:
    """Answer at once."""
    return {"account_id": account_id, "name": "x" * 100}


TOOLS = (pay, look)


def effects(house: Tollhouse) -> Work:
    """Calls with an effect, each under a key of its own: two commits."""

    async def call() -> None:
        number = next(_numbers)
        await house.call(pay, {"account_id": "a1", "amount_cents": number}, key=f"order-{number}:pay")

    return call


def reads(house: Tollhouse) -> Work:
    """Reads without a key: one commit."""

    async def call() -> None:
        await house.call(look, {"account_id": "a1"})

    return call


async def replays(house: Tollhouse, number: int = 100) -> Work:
    """The same few settled calls again and again: no commit."""
    keys = [f"replayed-{at}" for at in range(number)]
    for key in keys:
        await house.call(pay, {"account_id": "a1", "amount_cents": 1}, key=key)
    turn: Iterable[str] = itertools.cycle(keys)
    following = iter(turn)

    async def call() -> None:
        await house.call(pay, {"account_id": "a1", "amount_cents": 1}, key=next(following))

    return call
