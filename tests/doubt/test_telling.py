"""Every doubt is visible: what listener and log are told when one appears, ages, ends or is contradicted."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pytest

from tests.crash.listening import Heard
from tests.doubt.scenes import KEY, in_doubt, lossy
from tests.support.houses import OpenHouse
from tollhouse import CallContext, State, destructive, did_not_happen, external, happened, tool, unknown
from tollhouse.errors import Held, InDoubt, UnknownTool

DOUBT = {"key", "tool", "state", "tenant"}


def logged(caplog: pytest.LogCaptureFixture, kind: str) -> list[dict[str, Any]]:
    """The fields of all log lines of that kind."""
    lines = [line for line in caplog.records if line.getMessage().startswith(f"{kind} ")]
    return [line.__dict__["tollhouse"] for line in lines]


async def test_doubt_is_told_when_it_appears_and_when_it_ends(
    open_house: OpenHouse, caplog: pytest.LogCaptureFixture
) -> None:
    """To the listener and to the log, with the same fields, once each."""
    caplog.set_level(logging.INFO, "tollhouse")
    heard = Heard()
    house = await open_house(lossy(lambda _call: happened("cr-1")), on_event=heard)
    await in_doubt(house)
    await house.reconcile(KEY)
    (appeared,) = heard.of("doubt_appeared")
    assert set(appeared) == DOUBT
    assert (appeared["key"], appeared["tool"], appeared["state"]) == (KEY, "credit", "in_doubt")
    (settled,) = heard.of("doubt_settled")
    assert (settled["key"], settled["state"]) == (KEY, "succeeded")
    assert logged(caplog, "doubt_appeared") == [appeared]
    assert logged(caplog, "doubt_settled") == [settled]
    levels = {line.levelno for line in caplog.records if line.getMessage().startswith("doubt_appeared ")}
    assert levels == {logging.WARNING}


@pytest.mark.parametrize("hook", [lambda _call: unknown(), None])
async def test_old_doubt_is_told_again_and_again(
    open_house: OpenHouse, caplog: pytest.LogCaptureFixture, hook: Any
) -> None:
    """Past the alarm's age each look tells of it, with its age, whether or not the tool has a look-up."""
    heard = Heard()
    house = await open_house(lossy(hook), on_event=heard, doubt_alarm_s=3600)
    await in_doubt(house)
    await house.reconcile(KEY)
    assert heard.of("doubt_aged") == []
    easily_alarmed = await open_house(lossy(hook), on_event=heard, doubt_alarm_s=0.000_001)
    await easily_alarmed.reconcile(KEY)
    await easily_alarmed.reconcile(KEY)
    aged = heard.of("doubt_aged", key=KEY, tool="credit")
    assert len(aged) == 2
    assert set(aged[0]) == {"key", "tool", "age_s", "looks", "tenant"}
    assert logged(caplog, "doubt_aged") == aged


async def test_contradiction_is_told_when_it_opens(open_house: OpenHouse, caplog: pytest.LogCaptureFixture) -> None:
    """Once, when evidence and decision come apart; not at every look after that."""
    heard = Heard()
    house = await open_house(lossy(lambda _call: happened("cr-1")), on_event=heard)
    await in_doubt(house)
    await house.resolve(KEY, did_not_happen(), by="ada", reason="not there")
    for _ in range(3):
        await house.reconcile(KEY)
    (opened,) = heard.of("contradiction_opened")
    assert (set(opened), opened["state"]) == (DOUBT, "failed")
    assert logged(caplog, "contradiction_opened") == [opened]


async def test_hold_and_a_turned_away_request_are_told(open_house: OpenHouse) -> None:
    """What waits for people, and what never got a row."""

    @tool(destructive())
    async def delete_account(account: str) -> str:
        return "gone"

    heard = Heard()
    house = await open_house(delete_account, on_event=heard)
    with pytest.raises(Held):
        await house.call("delete_account", {"account": "a1"}, key=KEY)
    assert heard.of("call_held", key=KEY, tool="delete_account", state="held")
    with pytest.raises(UnknownTool):
        await house.call("no_such_tool", {}, key="other")
    assert heard.of("call_turned_away", key="other", tool="no_such_tool", code="unknown_tool")


async def test_lines_hold_no_arguments_and_no_secrets(open_house: OpenHouse, caplog: pytest.LogCaptureFixture) -> None:
    """What a call carries is for the ledger, never for the log."""

    @tool(external(), reconcile=lambda _call: did_not_happen("evidence-ev-77"))
    async def credit(account: str, cents: int, ctx: CallContext) -> str:
        raise RuntimeError(f"{account} {ctx.secrets['token']}")

    caplog.set_level(logging.DEBUG, "tollhouse")
    house = await open_house(credit, secrets=lambda _tool: {"token": "s3cr3t-t0ken"})
    with pytest.raises(InDoubt):
        # No tenant and no id that is drawn at random looks like these.
        await house.call("credit", {"account": "acct-of-ada", "cents": 918_273_645_546_372}, key=KEY)
    await house.reconcile(KEY)
    text = "\n".join(line.getMessage() for line in caplog.records)
    assert "doubt_appeared" in text
    for hidden in ("s3cr3t-t0ken", "acct-of-ada", "918273645546372"):
        assert hidden not in text


async def test_listener_that_raises_changes_nothing(open_house: OpenHouse, caplog: pytest.LogCaptureFixture) -> None:
    """Telling is bookkeeping: it comes after the outcome and cannot undo it."""

    def broken(_kind: str, _facts: Mapping[str, Any]) -> None:
        raise RuntimeError("the pager is down")

    house = await open_house(lossy(lambda _call: happened("cr-1")), on_event=broken)
    await in_doubt(house)
    assert (await house.reconcile(KEY)).state is State.SUCCEEDED
    assert any("on_event raised" in line.getMessage() for line in caplog.records)
