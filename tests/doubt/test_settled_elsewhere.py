"""Look-ups that meet a call which an undoing has settled already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.doubt.scenes import ASKED, KEY
from tollhouse import Tollhouse, did_not_happen, external, happened, tool


async def test_look_up_after_an_undoing_contradicts_nothing(tmp_path: Path) -> None:
    """What was undone is gone at the receiver: that a look-up finds nothing is no contradiction."""
    gone: list[str] = []

    async def look(record: Any) -> object:
        return did_not_happen("nothing there") if gone else happened("cr-1")

    async def undo(record: Any) -> str:
        gone.append(record.key)
        return "undone"

    @tool(external(absent_after_s=0), reconcile=look, compensate=undo)
    async def credit(account: str, cents: int) -> str:
        """Credit an account."""
        return "cr-1"

    async with Tollhouse.open(f"sqlite:///{tmp_path}/a.db", tools=[credit], background=False) as house:
        await house.call(credit, ASKED, key=KEY)
        await house.compensate(KEY, by="ada", reason="ordered by mistake")
        record = await house.reconcile(KEY)
        assert (record.state, record.contradicted) == ("compensated", False)
