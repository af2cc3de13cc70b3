"""What the tests of proofs build on: a run and calls with something of everything, through a real house."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tollhouse import NotSent, Rejected, Tollhouse, destructive, external, happened, read, tool
from tollhouse.errors import TollhouseError
from tollhouse.house.running import open_runs
from tollhouse.models.book import ModelBook
from tollhouse.runs.agents import Agent
from tollhouse.runs.proof.bundle import Bundle, prove_call, prove_run, sealed
from tollhouse.runs.proof.keys import Signer, open_signer
from tollhouse.runs.service import Runs

LARGE = "x" * 70_000
Json = Any


@tool(external(), cost=lambda arguments, _value: 0.25 if arguments["to"] == "ada" else 1)
async def pay(to: str) -> str:
    """Pay somebody; what happens depends on whom."""
    if to == "lost":
        raise ConnectionError("the reply was lost")
    if to == "refused":
        raise Rejected("no such account")
    if to == "unsent":
        raise NotSent("no route")
    return LARGE if to == "large" else f"paid {to}"


@tool(destructive())
async def close_account(of: str) -> str:
    """Needs a person's yes."""
    return f"closed {of}"


@tool(read())
async def balance(of: str) -> dict[str, Any]:
    """A read."""
    return {"of": of, "raw": b"\x00\xff"}


TOOLS = (pay, close_account, balance)


async def approved_call(house: Tollhouse, key: str) -> None:
    """A call that a person let go."""
    with suppress(TollhouseError):
        await house.call(close_account, {"of": "ada"}, key=key)
    await house.approve(key, by="bea", reason="asked for in writing")
    await house.call(close_account, {"of": "ada"}, key=key)


async def settled_call(house: Tollhouse, key: str) -> None:
    """A doubt that a person settled."""
    with suppress(TollhouseError):
        await house.call(pay, {"to": "lost"}, key=key)
    await house.resolve(key, happened("paid"), reason="seen in the bank's books", by="bea")


async def finished_run(house: Tollhouse, *, twice: bool = False) -> tuple[Runs, str]:
    """A run that read, paid twice, and said so at length."""
    turns: list[Any] = [
        {
            "call": [
                {"tool": "balance", "arguments": {"of": "ada"}},
                {"tool": "pay", "arguments": {"to": "ada"}},
                {"tool": "pay", "arguments": {"to": "large"}},
            ]
        },
        {"say": "y" * 70_000 if twice else "Paid."},
    ]
    return await run_of(house, turns)


async def run_of(house: Tollhouse, turns: list[Any], *, steps: int = 100) -> tuple[Runs, str]:
    """A run of an agent whose model answers these turns, advanced so many steps or until it ends or waits."""
    models = ModelBook(scripts={"play": turns})
    agent = Agent("clerk", "scripted:play", "Pay them.", tools=("balance", "pay", "close_account"))
    runs = await open_runs(house, {"clerk": agent}, models)
    run = await runs.start("clerk", "Pay ada.", by="ada")
    for _ in range(steps):
        if (await runs.advance(run.record.id)).kind != "continue":
            break
    return runs, run.record.id


def signer_of(folder: Path) -> Signer:
    """The key of these tests."""
    return open_signer(folder / "keys")


async def bundle_of_call(house: Tollhouse, key: str, signer: Signer) -> Bundle:
    """The proof of a call of this house."""
    return await prove_call(house.store, house._core.tenant, key, signer)


async def bundle_of_run(house: Tollhouse, run_id: str, signer: Signer) -> Bundle:
    """The proof of a run of this house."""
    store: Any = house.store
    return await prove_run(store, store, house._core.tenant, run_id, signer)


Change = Callable[[Bundle], None]


def changed(bundle: Bundle, change: Change) -> Bundle:
    """A copy of the bundle with one change, under the signature that it had."""
    copied = copy.deepcopy(bundle)
    change(copied)
    return copied


def forged(bundle: Bundle, change: Change, signer: Signer) -> Bundle:
    """A copy with one change, signed anew."""
    return sealed(changed(bundle, change)["contents"], signer)
