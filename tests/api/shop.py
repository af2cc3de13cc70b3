"""The tools that the API's tests call, and what they did."""

from __future__ import annotations

import asyncio
from typing import Any

from tollhouse import (
    Accepted,
    Answer,
    NotSent,
    RecordedCall,
    Rejected,
    Tool,
    approval,
    destructive,
    did_not_happen,
    external,
    happened,
    read,
    tool,
)


class Shop:
    """Tools over one book. ``finds``: what the look-up of a lost order answers."""

    def __init__(self) -> None:
        self.effects: list[dict[str, Any]] = []
        self.undone: list[str] = []
        self.began, self.go_on = asyncio.Event(), asyncio.Event()
        self.finds: Answer = did_not_happen("not in the book")
        self.tools = self._make()

    def _make(self) -> list[Tool[Any]]:
        async def void(call: RecordedCall) -> str:
            self.undone.append(call.key)
            return "voided"

        @tool(external(cost=0.5), compensate=void)
        async def credit(account_id: str, amount_cents: int) -> dict[str, Any]:
            """Credit an account."""
            self.effects.append({"account_id": account_id, "amount_cents": amount_cents})
            return {"credit_id": f"cr_{len(self.effects)}", "amount_cents": amount_cents}

        @tool(read())
        async def balance(account_id: str) -> int:
            """Look at an account."""
            return sum(e["amount_cents"] for e in self.effects if e.get("account_id") == account_id)

        @tool(destructive())
        async def delete(path: str) -> str:
            """Delete a file."""
            self.effects.append({"deleted": path})
            return f"deleted {path}"

        @tool(external(approval=approval(quorum=2, approvers=["ada", "bob"])))
        async def wire(amount_cents: int) -> str:
            """Wire money, once two people agree."""
            self.effects.append({"wired": amount_cents})
            return "wired"

        async def look(call: RecordedCall) -> Answer:
            return self.finds

        @tool(external(absent_after_s=0.0), reconcile=look)
        async def lost(item: str) -> str:
            """Order something, and lose the answer."""
            self.effects.append({"item": item})
            raise ConnectionResetError("the line went dead")

        return [credit, balance, delete, wire, lost, *self._make_endings()]

    def _make_endings(self) -> list[Tool[Any]]:
        @tool(external())
        async def slow(item: str) -> str:
            """Take one's time."""
            self.began.set()
            await self.go_on.wait()
            self.effects.append({"item": item})
            return "done"

        @tool(external())
        async def rejected(item: str) -> str:
            """Be turned down by the receiver."""
            raise Rejected(f"no {item} is for sale")

        @tool(external())
        async def unreachable(item: str) -> str:
            """Never get a byte out."""
            raise NotSent("nobody listens there")

        async def poll(call: RecordedCall) -> Answer:
            return happened("built", reference="job-1")

        @tool(external(accepts=True), reconcile=poll)
        async def build(item: str) -> str:
            """Order long work."""
            self.effects.append({"item": item})
            raise Accepted("job-1")

        return [slow, rejected, unreachable, build]
