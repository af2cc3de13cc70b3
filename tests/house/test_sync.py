"""The house without `await`: the same answers, from any number of threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.doubt.scenes import ASKED, KEY, lossy
from tollhouse import Accepted, CallContext, State, Tollhouse, approval, did_not_happen, external, happened, read, tool
from tollhouse.errors import (
    CallConflict,
    CallFailed,
    Contradicted,
    Held,
    HouseClosed,
    InDoubt,
    InvalidSetting,
    Refused,
    TollhouseError,
)
from tollhouse.house.sync import SyncTollhouse


class Counted:
    """`credit`, which counts its runs, and others that tests need."""

    def __init__(self) -> None:
        self.runs = 0
        self.lock = threading.Lock()

    def tools(self) -> list[Any]:
        """The tools of the house."""

        @tool(external())
        def credit(account: str, cents: int, ctx: CallContext) -> str:
            ctx.confirm_sync()
            with self.lock:
                self.runs += 1
            return f"cr-{account}"

        @tool(external(approval=approval()))
        async def guarded(account: str, cents: int) -> str:
            return "guarded"

        @tool(external(accepts=True))
        async def export(month: str) -> Accepted:
            return Accepted("job-7")

        @tool(read())
        async def look() -> int:
            return self.runs

        return [credit, guarded, export, look, lossy(lambda _call: happened("found"), name="lost")]


@pytest.fixture
def counted() -> Counted:
    """What the tools did."""
    return Counted()


@pytest.fixture
def house(shared_store_url: str, house_tenant: str, counted: Counted) -> Iterator[SyncTollhouse]:
    """An opened house."""
    with Tollhouse.open_sync(shared_store_url, tools=counted.tools(), tenant=house_tenant, grace_s=1.0) as house:
        yield house


def test_calls_replay_and_conflict_as_with_await(house: SyncTollhouse, counted: Counted) -> None:
    """The same key again replays; with other arguments it is a conflict."""
    assert house.call("credit", ASKED, key=KEY).value == "cr-a1"
    assert house.call("credit", ASKED, key=KEY).replayed
    with pytest.raises(CallConflict):
        house.call("credit", {"account": "a2", "cents": 1}, key=KEY)
    assert house.call("look").value == counted.runs == 1
    assert house.get(KEY).state is State.SUCCEEDED
    assert [call.key for call in house.list(tool="credit")] == [KEY]
    assert house.count()[State.SUCCEEDED] == 2
    assert [each.name for each in house.tools] == ["credit", "export", "guarded", "look", "lost"]


def test_decisions_as_with_await(house: SyncTollhouse) -> None:
    """Every verb of the house has its twin."""
    with pytest.raises(Held):
        house.call("guarded", ASKED, key="held", by="agent")
    house.edit("held", {"account": "a1", "cents": 1}, by="ada")
    house.approve("held", by="ada")
    assert house.call("guarded", ASKED, key="held").value == "guarded"
    with pytest.raises(Held):
        house.call("guarded", ASKED, key="denied", by="agent")
    house.deny("denied", by="ada", reason="no")
    assert house.wait("denied").state is State.REFUSED
    with pytest.raises(Refused):
        house.call("guarded", ASKED, key="denied")
    house.retry("denied", by="ada", reason="after all")
    assert house.cancel("denied", by="ada").state is State.REFUSED
    with pytest.raises(InDoubt):
        house.call("lost", ASKED, key="lost")
    house.resolve("lost", did_not_happen(), by="ada", reason="not there")
    assert house.reconcile("lost").contradicted
    with pytest.raises(Contradicted):
        house.call("lost", ASKED, key="lost")
    assert house.uphold("lost", by="bob", reason="another one").state is State.FAILED
    with pytest.raises(CallFailed):
        house.call("lost", ASKED, key="lost")
    assert house.overturn("lost", by="bob", reason="no, that one").result == "found"
    assert house.call("export", {"month": "may"}, key="job").state is State.ACCEPTED
    assert house.report("job", happened("file"), reference="job-7").result == "file"
    assert house.wait("job", timeout_s=1).state is State.SUCCEEDED


def test_threads_share_one_house(house: SyncTollhouse, counted: Counted) -> None:
    """Forty threads, ten keys: ten effects, and all who ask for a key get the same."""
    with ThreadPoolExecutor(40) as pool:
        keys = [f"order-{number % 10}" for number in range(40)]
        values = list(pool.map(lambda key: house.call("credit", ASKED, key=key).value, keys))
    assert values == ["cr-a1"] * 40
    assert counted.runs == 10


def test_house_that_is_not_open_refuses(shared_store_url: str, house_tenant: str, counted: Counted) -> None:
    """Before its block and after it, with the same code; it can be opened again."""
    house = Tollhouse.open_sync(shared_store_url, tools=counted.tools(), tenant=house_tenant)
    with pytest.raises(HouseClosed):
        house.call("credit", ASKED, key=KEY)
    with house:
        house.call("credit", ASKED, key=KEY)
    for asked in (lambda: house.call("credit", ASKED, key="x"), lambda: house.get(KEY), house.count, house.list):
        with pytest.raises(HouseClosed):
            asked()
    house.close()
    with house:
        assert house.call("credit", ASKED, key=KEY).replayed


def test_mistake_in_the_settings_leaves_no_thread_behind(shared_store_url: str) -> None:
    """What could not be opened is not running."""
    with pytest.raises(InvalidSetting):
        Tollhouse.open_sync(shared_store_url, no_such_setting=1)
    with pytest.raises(InvalidSetting), Tollhouse.open_sync(shared_store_url, lease_s=0.01):
        pass
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("tollhouse-loop")] == []


def test_closing_frees_a_thread_that_waits_for_ever(shared_store_url: str, house_tenant: str, counted: Counted) -> None:
    """Another thread waits for a person who never comes: it is told that the house was closed."""
    told: list[BaseException] = []
    waits = threading.Event()

    def wait_for_ever(house: SyncTollhouse) -> None:
        waits.set()
        try:
            house.wait("held")
        except HouseClosed as closed:
            told.append(closed)

    house = Tollhouse.open_sync(shared_store_url, tools=counted.tools(), tenant=house_tenant)
    with house:
        with pytest.raises(Held):
            house.call("guarded", ASKED, key="held")
        thread = threading.Thread(target=wait_for_ever, args=(house,), daemon=True)
        thread.start()
        assert waits.wait(10)
    thread.join(10)
    assert not thread.is_alive()
    assert len(told) == 1


def test_closing_frees_a_thread_whose_tool_never_returns(shared_store_url: str, house_tenant: str) -> None:
    """The caller hears of a doubt or of the closing; it does not wait for the tool."""
    begun, never = threading.Event(), threading.Event()
    told: list[BaseException] = []

    @tool(external())
    def stuck() -> str:
        begun.set()
        never.wait(60)
        return "never"

    def call(house: SyncTollhouse) -> None:
        try:
            house.call(stuck, key="stuck")
        except (InDoubt, HouseClosed) as error:
            told.append(error)

    with Tollhouse.open_sync(shared_store_url, tools=[stuck], tenant=house_tenant, grace_s=0.1) as house:
        thread = threading.Thread(target=call, args=(house,), daemon=True)
        thread.start()
        assert begun.wait(10)
    thread.join(10)
    assert not thread.is_alive()
    assert len(told) == 1
    never.set()


def test_house_is_not_waited_for_on_its_own_thread(shared_store_url: str, house_tenant: str) -> None:
    """It would wait there for itself, for ever: an `async def` tool is told so instead."""
    heard: list[TollhouseError] = []

    @tool(read())
    async def ask_the_house() -> int:
        for ask in (opened.count, opened.close):
            try:
                ask()
            except TollhouseError as error:
                heard.append(error)
        return len(heard)

    with Tollhouse.open_sync(shared_store_url, tools=[ask_the_house], tenant=house_tenant) as opened:
        assert opened.call(ask_the_house).value == 2
        assert opened.count()[State.SUCCEEDED] == 1
    assert {error.code for error in heard} == {"not_allowed"}
