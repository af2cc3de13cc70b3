"""What playing the demo brought to light about doubts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.houses import OpenHouse
from tollhouse import Asked, CallContext, Deny, Pass, dedup, external, tool
from tollhouse.errors import InDoubt

sendings: list[int] = []


@tool(external(dedup=dedup.by_key(hours=24)))
async def pay(invoice: str, ctx: CallContext) -> str:
    """Pay; the reply to the first sending is lost on the way."""
    sendings.append(ctx.attempt)
    if ctx.attempt == 1:
        raise ConnectionResetError("the reply was lost")
    return invoice


class SendOnce:
    """A gate that lets nothing be sent again, so that the doubt is left to others."""

    name = "send_once"

    def check(self, asked: Asked) -> Pass | Deny:
        return Deny("once is enough") if asked.sent_before else Pass()


async def test_a_doubt_that_a_resend_ends_is_told_as_ended(open_house: OpenHouse) -> None:
    """Whoever hears that a doubt appeared hears of its end too, whether by evidence or by a second sending."""
    told: list[tuple[str, Any]] = []

    def listen(kind: str, facts: Mapping[str, Any]) -> None:
        told.append((kind, facts.get("state")))

    sendings.clear()
    careful = await open_house(pay, on_event=listen, gates=[SendOnce()])
    with pytest.raises(InDoubt):
        await careful.call(pay, {"invoice": "6"}, key="invoice-6:pay")
    assert told == [("doubt_appeared", "in_doubt")]
    house = await open_house(pay, on_event=listen)
    record = await house.reconcile("invoice-6:pay")
    assert record.state == "succeeded"
    assert sendings == [1, 2]
    assert told == [("doubt_appeared", "in_doubt"), ("doubt_settled", "succeeded")]
