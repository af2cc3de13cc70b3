"""Text that no store can hold, and messages too long to search: refused or bounded before they harm anybody else."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.houses import OpenHouse, on_one_store
from tollhouse import Accepted, State, external, happened, tool
from tollhouse.errors import InvalidSetting, UnknownCall
from tollhouse.gate.ending import MESSAGE_LENGTH_MOST, error_record


@pytest.mark.parametrize("option", ["by", "scope", "group"])
@pytest.mark.parametrize("text", ["a\0b", "a\ud800b"])
async def test_a_name_that_is_no_text_is_refused(open_house: OpenHouse, option: str, text: str) -> None:
    """Nothing is stored of it, whatever store is beneath; text of any language is a name."""

    @tool(external())
    async def pay() -> int:
        return 1

    house = await open_house(pay)
    given: Any = {option: text}
    with pytest.raises(InvalidSetting):
        await house.call(pay, key="k", **given)
    with pytest.raises(UnknownCall):
        await house.get("k")
    named: Any = {option: "Zoë 李"}
    assert (await house.call(pay, key="k", **named)).value == 1


@on_one_store
async def test_a_receiver_may_number_its_jobs(open_house: OpenHouse) -> None:
    """A reference that came as a number out of JSON is found by the callback that names it."""
    job: dict[str, Any] = {"id": 42}

    @tool(external(accepts=True))
    async def export() -> None:
        raise Accepted(job["id"])

    house = await open_house(export)
    assert (await house.call(export, key="k")).reference == "42"
    assert (await house.report("k", happened(), reference="42")).state is State.SUCCEEDED


def test_a_message_of_megabytes_is_kept_short_without_stopping_the_loop() -> None:
    """An exception may carry a whole page; searching it for credentials takes time in proportion, not its square."""
    kept = error_record(ValueError("x" * 3_000_000))
    assert len(kept["message"]) == MESSAGE_LENGTH_MOST


def test_credentials_in_urls_stay_out_of_messages() -> None:
    """Neither a password nor a query string is kept."""
    kept = error_record(ValueError("at (https://ada:secret@bank.example/pay?token=t0k3n), twice"))
    assert kept["message"] == "at (https://bank.example/pay?*** twice"
