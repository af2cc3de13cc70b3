"""What many tests of doubt begin with: a tool whose reply is lost, and a call of it that is in doubt."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from tollhouse import State, Tollhouse, external, tool
from tollhouse.contract.tool import Tool
from tollhouse.errors import InDoubt
from tollhouse.gate.view import RecordedCall
from tollhouse.house.opening import open_house_over
from tollhouse.ledger.store import Store
from tollhouse.settings import settings_of
from tollhouse.stores import open_store

KEY = "order-7:credit"
ASKED = {"account": "a1", "cents": 2500}
SILENCE_S = 0.2
"""Absence counts this long after nothing can be sent any more: short, since these tests wait for it."""


def lossy(hook: Callable[..., Any] | None = None, *, name: str = "credit", **terms: Any) -> Tool[str]:
    """A tool whose every reply is lost: whatever it does, its attempts end as *unknown*."""

    @tool(external(**{"absent_after_s": SILENCE_S, **terms}), name=name, reconcile=hook)
    async def credit(account: str, cents: int) -> str:
        """Credit an account."""
        raise ConnectionResetError("the reply was lost")

    return credit


async def in_doubt(house: Tollhouse, name: str = "credit", key: str = KEY, **options: Any) -> RecordedCall:
    """A call whose only attempt ended as *unknown*, before anybody looked."""
    with pytest.raises(InDoubt):
        await house.call(name, ASKED, key=key, **options)
    record = await house.get(key)
    assert record.state is State.IN_DOUBT
    return record


def facts(record: RecordedCall, kind: str) -> list[dict[str, Any]]:
    """The facts of a call's events of one kind, in order."""
    return [dict(line.facts) for line in record.history if line.kind == kind]


@asynccontextmanager
async def house_over(
    url: str, wrap: Callable[[Store], Any], *offered: Tool[Any], **settings: Any
) -> AsyncIterator[tuple[Tollhouse, Any]]:
    """A house over a wrapped store, and the wrapper."""
    wrapped: list[Any] = []

    async def opening() -> Store:
        wrapped.append(wrap(await open_store(url)))
        return cast(Store, wrapped[0])

    house = await open_house_over(opening, settings_of({"tools": offered, "background": False, **settings}))
    try:
        yield house, wrapped[0]
    finally:
        await house.close()
