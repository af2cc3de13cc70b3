"""Reads run first and are written once; they may run again, and are never in doubt."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.houses import OpenHouse, interfering
from tollhouse import Accepted, AttemptOutcome, CallContext, NotSent, Rejected, State, read, tool
from tollhouse.errors import CallFailed, StoreFull, StoreUnavailable
from tollhouse.gate import reads as reads_module


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads_module, "BACKOFF_FIRST_S", 0.005)


class Status(Exception):
    """An answer with a status, as most clients raise it."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


TRANSIENT = [
    TimeoutError(),
    ConnectionResetError(),
    OSError("no route"),
    NotSent("no connection"),
    Rejected("busy", transient=True),
    Status(408),
    Status(429),
    Status(500),
    Status(503),
]
LASTING = [ValueError("bad"), KeyError("x"), Rejected("no such thing"), Status(400), Status(404), Status(501)]

asked: list[int] = []


@tool(read())
async def look(number: int) -> int:
    """Fail once with the error of that number; -1: never fail."""
    asked.append(number)
    if number >= 0 and asked.count(number) == 1:
        raise [*TRANSIENT, *LASTING][number]
    return asked.count(number)


@tool(read(), name="look_in_thread")
def look_in_thread(number: int) -> int:
    """The same in a thread."""
    asked.append(number)
    if number >= 0 and asked.count(number) == 1:
        raise [*TRANSIENT, *LASTING][number]
    return asked.count(number)


@pytest.fixture(autouse=True)
def _nothing_asked_yet() -> None:
    asked.clear()


@pytest.mark.parametrize("tool_", [look, look_in_thread], ids=["async", "def"])
async def test_a_read_runs_again_on_what_may_pass_by_itself(open_house: OpenHouse, tool_: Any) -> None:
    """Network trouble, time-outs, answers that ask to come back; its one row tells of both attempts."""
    house = await open_house(tool_)
    for number in range(len(TRANSIENT)):
        outcome = await house.call(tool_, {"number": number}, key=f"k{number}")
        assert (outcome.value, outcome.attempts) == (2, 2), TRANSIENT[number]
        attempts = (await house.get(f"k{number}")).attempts
        assert [a.outcome for a in attempts] == [AttemptOutcome.UNKNOWN, AttemptOutcome.HAPPENED]
    assert house.store.counters.commits == len(TRANSIENT)


async def test_a_lasting_error_is_a_failure_at_once_and_replays_as_one(open_house: OpenHouse) -> None:
    """A read that failed had no effect; under its key it stays failed, without a key it is asked anew."""
    house = await open_house(look)
    for number, error in enumerate(LASTING, start=len(TRANSIENT)):
        for _ in range(2):
            with pytest.raises(CallFailed):
                await house.call(look, {"number": number}, key=f"k{number}")
        assert asked.count(number) == 1, error
        assert (await house.get(f"k{number}")).state is State.FAILED
        assert (await house.call(look, {"number": number})).value == 2


async def test_the_first_caller_sees_the_readers_own_exception(open_house: OpenHouse) -> None:
    """``__cause__`` is what the function raised."""
    house = await open_house(look)
    with pytest.raises(CallFailed) as caught:
        await house.call(look, {"number": len(TRANSIENT)})
    assert caught.value.__cause__ is LASTING[0]


async def test_attempts_of_a_read_are_bounded(open_house: OpenHouse) -> None:
    """Three by default; fewer if somebody says so; its deadline ends them, too."""
    counted: list[int] = []

    @tool(read())
    async def lost() -> None:
        counted.append(1)
        raise ConnectionResetError

    house = await open_house(lost)
    wanted: list[tuple[dict[str, Any], int]] = [({}, 3), ({"max_attempts": 1}, 1)]
    for options, times in wanted:
        counted.clear()
        with pytest.raises(CallFailed):
            await house.call(lost, **options)
        assert len(counted) == times

    @tool(read(max_attempts=100, deadline_s=0.6), name="long")
    async def long() -> None:
        counted.append(1)
        raise ConnectionResetError

    other = await open_house(long)
    counted.clear()
    with pytest.raises(CallFailed):
        await asyncio.wait_for(other.call(long), 5)
    assert 1 < len(counted) < 100


async def test_a_slow_read_is_asked_again_and_then_fails(open_house: OpenHouse) -> None:
    """Its timeout ends the attempt: nothing can be in doubt about looking."""
    counted: list[int] = []

    @tool(read(attempt_timeout_s=0.05, max_attempts=2))
    async def slow() -> None:
        counted.append(1)
        await asyncio.Event().wait()

    house = await open_house(slow)
    with pytest.raises(CallFailed) as caught:
        await house.call(slow, key="k")
    assert isinstance(caught.value.__cause__, TimeoutError)
    assert len(counted) == 2
    assert (await house.get("k")).state is State.FAILED


async def test_a_cancelled_read_leaves_no_trace(open_house: OpenHouse) -> None:
    """An abandoned read runs again under its key."""
    started = asyncio.Event()

    @tool(read())
    async def slow(wait: bool = True) -> str:
        if started.is_set():
            return "read"
        started.set()
        await asyncio.Event().wait()
        return "never"

    house = await open_house(slow)
    call = asyncio.create_task(house.call(slow, key="k"))
    await started.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await house.list() == []
    assert (await house.call(slow, key="k")).value == "read"


async def test_a_read_that_raises_cancelled_by_itself_has_failed(open_house: OpenHouse) -> None:
    """Only the caller's own cancel is one."""

    @tool(read(max_attempts=1))
    async def odd() -> None:
        raise asyncio.CancelledError

    house = await open_house(odd)
    with pytest.raises(CallFailed):
        await house.call(odd, key="k")


async def test_a_read_cannot_start_long_work(open_house: OpenHouse) -> None:
    """Whatever it raises: nothing is awaited that changes nothing."""

    @tool(read())
    async def odd() -> None:
        raise Accepted("job-1")

    @tool(read(), name="odd_value")
    async def odd_value() -> Any:
        return Accepted("job-1")

    house = await open_house(odd, odd_value)
    for each in (odd, odd_value):
        with pytest.raises(CallFailed):
            await house.call(each, key=each.name)
        assert (await house.get(each.name)).state is State.FAILED


async def test_two_reads_of_one_key_answer_the_same(open_house: OpenHouse) -> None:
    """Both may run; what was written first is what both get."""
    both = asyncio.Barrier(2)
    numbers = iter(range(10))

    @tool(read())
    async def count() -> int:
        number = next(numbers)
        await both.wait()
        return number

    house = await open_house(count)
    outcomes = await asyncio.gather(*(house.call(count, key="k") for _ in range(2)))
    assert len({outcome.value for outcome in outcomes}) == 1
    assert sorted(outcome.replayed for outcome in outcomes) == [False, True]


async def test_a_context_of_a_read_asks_the_store_nothing(open_house: OpenHouse) -> None:
    """There is no fence for what may be repeated; time and cancel count all the same."""
    kept: list[CallContext] = []

    @tool(read(), name="watch")
    async def watch(ctx: CallContext) -> int:
        kept.append(ctx)
        await ctx.confirm()
        await ctx.confirm()
        return ctx.attempt

    house = await open_house(watch, interfering=True)
    assert (await house.call(watch)).value == 1
    assert interfering(house).fences == 0
    with pytest.raises(NotSent):
        await kept[0].confirm()


async def test_a_read_whose_record_cannot_be_written_says_so(open_house: OpenHouse) -> None:
    """It ran, so something was sent; it may be asked again at once."""
    house = await open_house(look, interfering=True)
    for error in (StoreUnavailable("The store is away."), StoreFull("The store is full.")):
        interfering(house).fail_next("before", error=error)
        with pytest.raises(StoreUnavailable) as caught:
            await house.call(look, {"number": -1}, key="k")
        assert (type(caught.value), caught.value.sent) == (type(error), "yes")
    assert (await house.call(look, {"number": -1}, key="k")).value == 3
