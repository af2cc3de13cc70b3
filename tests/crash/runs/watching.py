"""What the tests see of a run from another process: waiting for it, and judging what it came to."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any

import pytest

from tests.crash.runs.office import Opened
from tests.support.runs import assert_valid
from tollhouse.ledger.events import Event, first_break
from tollhouse.ledger.run_record import RunRecord, run_stream
from tollhouse.runs.journal import read
from tollhouse.runs.service import Runs
from tollhouse.runs.view import RunView

slow_on_postgres = pytest.mark.parametrize(
    "shared_store_url",
    ["sqlite", pytest.param("postgres", marks=[pytest.mark.postgres, pytest.mark.slow])],
    indirect=True,
)
"""For tests of rules that no store has a part in: over both kinds, but over one where time is short."""


async def until(runs: Runs, run_id: str, holds: Callable[[RunView], bool], *, timeout_s: float = 60.0) -> RunView:
    """The run once this holds of it. Raises TimeoutError, saying where it stands."""
    loop = asyncio.get_running_loop()
    ends = loop.time() + timeout_s
    while not holds(run := await runs.get(run_id)):
        if loop.time() > ends:
            kinds = [event.kind for event in await runs.events(run_id)]
            raise TimeoutError(f"the run is {run.state}, waits for {run.waiting}, after {kinds}")
        await asyncio.sleep(0.02)  # what moves it may be another process
    return run


async def finished(runs: Runs, run_id: str, state: str = "succeeded") -> RunView:
    """The run once it has ended, in that state; its journal judged."""
    run = await until(runs, run_id, lambda run: run.record.finished)
    assert (run.state, run.reason) == (state, run.reason if state != "succeeded" else None)
    await sound(runs, run_id)
    return run


async def stands(runs: Runs, run_id: str, state: str) -> RunView:
    """The run once it stands in that state."""
    return await until(runs, run_id, lambda run: run.state == state)


async def sound(runs: Runs, run_id: str) -> list[dict[str, Any]]:
    """The answers the model heard, by ask; the chain is whole, and no ask of a run has two answers.

    A run that succeeded has no ask without one.
    """
    record, events = await _at_one_moment(runs, run_id)
    assert first_break(events) is None
    assert (events[-1].seq, events[-1].hash) == (record.head_seq, record.head_hash)
    results = [each for e in events if e.kind == "calls_settled" for each in (await runs.facts(e))["results"]]
    answered = Counter(each["key"] for each in results)
    assert not [key for key, times in answered.items() if times > 1]
    if record.state == "succeeded":
        assert set(answered) == set(await asks(runs, run_id))
    assert_valid((await read(runs.store, record)).conversation)
    return sorted(results, key=lambda each: each["key"])


async def _at_one_moment(runs: Runs, run_id: str) -> tuple[RunRecord, list[Event]]:
    """The run, and the history that it had then: whoever tidies it up may write between two readings."""
    while True:
        record = (await runs.get(run_id)).record
        events = await runs.store.events(runs.tenant, run_stream(run_id))
        if (await runs.get(run_id)).record == record:
            return record, events


async def asks(runs: Runs, run_id: str) -> list[str]:
    """The keys of everything that the model asked for, in order."""
    answers = [await runs.facts(e) for e in await runs.events(run_id) if e.kind == "model_answered"]
    return [ask["key"] for facts in answers for ask in facts["message"]["asks"]]


async def kinds(runs: Runs, run_id: str) -> list[str]:
    """What happened to the run, in order, without who drove it."""
    passed_over = ("run_claimed", "run_released")
    return [event.kind for event in await runs.events(run_id) if event.kind not in passed_over]


async def steps(runs: Runs, run_id: str) -> list[str]:
    """What happened to the run, without those who looked at it and found that it still waits."""
    return [kind for kind in await kinds(runs, run_id) if kind != "run_waiting"]


def bundles(names: Iterable[str], size: int = 6) -> list[Any]:
    """Parameters of so many names each: their scenarios share a test, since most of a scenario's time it waits."""
    left = list(names)
    parts = [left[at : at + size] for at in range(0, len(left), size)]
    return [pytest.param(part, id=f"{part[0]}..{part[-1]}") for part in parts]


def some(names: Iterable[str], quick: Collection[str], size: int = 6) -> list[Any]:
    """Parameters of those names that `make test` tries, and slow ones of the others."""
    others = bundles([name for name in names if name not in quick], size)
    slow = [pytest.param(*each.values, id=each.id, marks=pytest.mark.slow) for each in others]
    return [pytest.param(list(quick), id="some"), *slow]


async def side_by_side(names: Iterable[str], scenario: Callable[[str], Coroutine[Any, Any, None]]) -> None:
    """Play the scenario of each name; what is raised says at which."""

    async def one(name: str) -> None:
        try:
            await scenario(name)
        except BaseException as error:
            error.add_note(f"at {name}")
            raise

    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(one(name))


async def begun(opened: Opened, key: str = "order-7") -> RunView:
    """The run that another process started under that key, or began to."""
    return await opened.runs.start("clerk", "credit a1", by="ada", key=key)
