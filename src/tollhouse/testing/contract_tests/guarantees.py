"""Comparing what a tool guarantees with what its users rely on, for CI."""

from __future__ import annotations

from typing import Any, Literal

from tollhouse.contract.terms import Effect
from tollhouse.contract.tool import Tool

Sends = Literal["read", "once", "keyed", "natural"]
"""How it may be sent: ``read`` (harmless), ``once``, ``keyed`` (again, with the key), ``natural`` (harmless again)."""


def assert_guarantee(
    tool: Tool[Any],
    *,
    sends: Sends | None = None,
    settles_itself: bool = False,
    fenced: bool = False,
    approved: bool = False,
    compensable: bool = False,
) -> None:
    """Fail when the tool guarantees less than stated.

    ``sends``: exactly how it may be sent. ``settles_itself``: a doubt can be settled without a person (a look-up or
    dedup). ``fenced``: late sends are stopped by the check. ``approved``: people must agree. ``compensable``: it can be
    undone. Raises AssertionError naming each difference and the guarantee the tool really has.
    """
    terms = tool.terms
    missing = []
    if sends is not None and (really := _sends(tool)) != sends:
        missing.append(f"it is sent as {really!r}, not {sends!r}")
    if settles_itself and not (terms.has_reconcile or terms.dedup.allows_resend):
        missing.append("a doubt waits for a person: it has neither a reconcile hook nor dedup")
    if fenced and not terms.sends_checked:
        missing.append("a late send is not stopped: it does not declare departs='at_confirm'")
    if approved and terms.approval is None:
        missing.append("nobody has to approve it")
    if compensable and terms.compensate is None:
        missing.append("it declares no compensation")
    if missing:
        raise AssertionError(f"{tool.name} guarantees less: {'; '.join(missing)}. It guarantees: {terms.guarantee}.")


def _sends(tool: Tool[Any]) -> Sends:
    if tool.effect is Effect.READ:
        return "read"
    kinds: dict[str, Sends] = {"none": "once", "by_key": "keyed", "natural": "natural"}
    return kinds[tool.terms.dedup.kind]
