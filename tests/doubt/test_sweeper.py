"""Owners: who is lost is set aside, who lives is left alone, and what the lost one still knows is kept."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any, cast

import pytest

from tests.crash import tools
from tests.crash.fixtures import Start
from tests.crash.listening import Heard, eventually, kinds
from tests.crash.process import LEASE_S, Answered
from tests.doubt.scenes import ASKED, KEY, house_over, in_doubt, lossy
from tests.support.houses import OpenHouse, interfering
from tollhouse import (
    AttemptOutcome,
    CallContext,
    RecordedCall,
    State,
    Tollhouse,
    did_not_happen,
    external,
    tool,
    unknown,
)
from tollhouse.contract.answers import Answer
from tollhouse.contract.terms import US
from tollhouse.contract.tool import Tool
from tollhouse.doubt.sweeper import Sweeper
from tollhouse.errors import CallFailed, CallInFlight, CallNotSent, InvalidSetting, StoreUnavailable, TollhouseError
from tollhouse.gate.request import Options, new_record, request_of
from tollhouse.ledger.ids import Prefix
from tollhouse.ledger.steps import Start as Begun
from tollhouse.ledger.steps import first_departure
from tollhouse.ledger.store import LeaseConnection, Owner, Renewal, Store
from tollhouse.ledger.writes import write_of
from tollhouse.testing.postgres import PostgresServer
from tollhouse.testing.receiver import Receiver

SHORT_S = 0.4
"""A lease within one process, where a loaded machine cannot make anybody late but the test itself."""


class Slow:
    """A tool that says when it has begun and goes on when it is told to."""

    def __init__(self) -> None:
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()
        self.runs = 0

    def tool(self, **terms: Any) -> Tool[str]:
        """The tool; with ``departs="at_confirm"`` it confirms when it goes on."""
        checked = terms.get("departs") == "at_confirm"

        @tool(external(**terms))
        async def credit(account: str, cents: int, ctx: CallContext) -> str:
            self.begun.set()
            await self.go_on.wait()
            if checked:
                await ctx.confirm()
            self.runs += 1
            return "cr-1"

        return credit


# -- the living ------------------------------------------------------------------------------------------


# case H07
# case C02
# case C26
async def test_long_call_of_a_live_process_is_left_alone(
    start: Start, house_store_url: str, receiver: Receiver
) -> None:
    """A process that starts beside it waits: the lease is renewed as long as the tool takes; nobody sends twice."""
    receiver.fault("hold_after_effect")
    worker = await start(house_store_url, {"tests.crash.tools:credits": {"url": receiver.url}})
    first = worker.ask("call", "credit", ASKED, key=KEY)
    await receiver.await_for_effects(1)
    heard = Heard()
    async with Tollhouse.open(
        house_store_url, tools=tools.credits(receiver.url), lease_s=LEASE_S, every_s=0.05, on_event=heard
    ) as house:
        await asyncio.sleep(2.5 * LEASE_S)  # any judgement by the clock alone would have come by now
        with pytest.raises(CallInFlight):
            await house.call("credit", ASKED, key=KEY, wait=False)
        second = asyncio.ensure_future(house.call("credit", ASKED, key=KEY))
        receiver.release()
        assert (await first)["value"] == (await second).value == receiver.effects()[0].id
        assert await kinds(house, KEY) == ["departed", "outcome"]
        assert heard.of("owner_lost") == []
    assert len(receiver.requests(method="POST")) == 1


# case C25
async def test_blocked_event_loop_keeps_its_lease(start: Start, house_store_url: str, receiver: Receiver) -> None:
    """Renewal has its own thread and connection: a tool that hogs the loop beyond the lease loses nothing."""
    hogging = {"tests.doubt.hogging:tools": {"seconds": 2.5 * LEASE_S}}
    worker = await start(house_store_url, hogging)
    answer = worker.ask("call", "hog", {}, key=KEY)
    heard = Heard()
    async with Tollhouse.open(house_store_url, lease_s=LEASE_S, every_s=0.05, on_event=heard) as house:
        assert (await answer)["value"] == "done"
        assert await kinds(house, KEY) == ["departed", "outcome"]
    assert heard.of("owner_lost") == []


# case C23
async def test_heartbeat_that_leaves_no_room_is_refused() -> None:
    """A lease that one lost renewal could end is a mistake of configuration, said at once."""
    for every_s in (30.0, 16.0, 14.0, 0.0, -1.0):
        with pytest.raises(InvalidSetting, match="renew_every_s"):
            await Tollhouse.open("sqlite:///:memory:", volatile=True, lease_s=30.0, renew_every_s=every_s)
    for lease_s in (0.0, 0.1, 4000.0, float("nan"), float("inf")):
        with pytest.raises(InvalidSetting, match="lease_s"):
            await Tollhouse.open("sqlite:///:memory:", volatile=True, lease_s=lease_s)


# case C23
async def test_job_longer_than_many_leases_runs_once(open_house: OpenHouse) -> None:
    """Six leases long, with another house sweeping beside it: one run."""
    slow = Slow()
    first = await open_house(slow.tool(), lease_s=SHORT_S)
    other = await open_house(slow.tool(), lease_s=SHORT_S, background=True, every_s=0.05)
    call = asyncio.ensure_future(first.call("credit", ASKED, key=KEY))
    await slow.begun.wait()
    await asyncio.sleep(6 * SHORT_S)
    slow.go_on.set()
    assert (await call).value == "cr-1"
    assert slow.runs == 1
    assert await kinds(other, KEY) == ["departed", "outcome"]


# case C31
async def test_caller_turned_away_frees_nothing(start: Start, house_store_url: str, receiver: Receiver) -> None:
    """A caller who hears that it is under way has no part in it: the next one hears the same, and it runs once."""
    receiver.fault("hold_before_effect")
    offered = {"tests.crash.tools:credits": {"url": receiver.url}}
    worker, other = await start(house_store_url, offered), await start(house_store_url, offered)
    running = worker.ask("call", "credit", ASKED, key=KEY)
    await receiver.await_for_requests(1)
    for turned_away in (other, worker, other):
        with pytest.raises(Answered) as refusal:
            await turned_away.ask("call", "credit", ASKED, key=KEY, wait=False)
        assert (refusal.value.code, refusal.value.sent) == ("call_in_flight", "maybe")
    receiver.release()
    assert (await running)["value"] == receiver.effects()[0].id
    assert len(receiver.requests(method="POST")) == 1


class HeldRenewals:
    """A store whose renewals are applied at once, and acknowledged only when the test lets them be."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.applied, self.acknowledge = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def lease_connection(self) -> Any:
        """A connection of the same kind."""
        return _HeldLease(self, self._store.lease_connection())


class _HeldLease:
    def __init__(self, held: HeldRenewals, inner: LeaseConnection) -> None:
        self._held, self._inner = held, inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def renew(self, *renewal: Any) -> Renewal:
        renewed = self._inner.renew(*renewal)
        self._held.applied.set()
        self._held.acknowledge.wait(20)
        return renewed


# case C20
async def test_call_that_ends_while_a_renewal_is_under_way_ends_once(house_store_url: str) -> None:
    """Renewing an owner and ending its call are writes to different rows: neither makes the other void."""
    slow = Slow()
    async with house_over(house_store_url, HeldRenewals, slow.tool(), lease_s=SHORT_S) as (house, held):
        call = asyncio.ensure_future(house.call("credit", ASKED, key=KEY))
        await slow.begun.wait()
        await asyncio.to_thread(held.applied.wait, 20)
        slow.go_on.set()
        assert (await call).value == "cr-1"
        held.acknowledge.set()
        async with Tollhouse.open(house_store_url, tools=[slow.tool()], background=False) as other:
            await other.services.round()
            assert (await other.call("credit", ASKED, key=KEY)).replayed
            assert await kinds(other, KEY) == ["departed", "outcome"]
    assert slow.runs == 1


# -- the lost --------------------------------------------------------------------------------------------


async def lost(house: Tollhouse, other: Tollhouse) -> None:
    """Wait until ``other`` has set aside what ``house`` has out; ``house`` cannot renew its lease any more."""
    interfering(house).lose_renewals = True

    async def swept() -> bool:
        return await other.services.round() > 0

    await eventually(swept)


# case C25
async def test_outcome_of_a_lost_owner_is_kept_and_ends_its_doubt(open_house: OpenHouse) -> None:
    """It is refused as owner: the fence has moved. What it knows is first-hand all the same."""
    slow = Slow()
    house = await open_house(slow.tool(), interfering=True, lease_s=SHORT_S)
    other = await open_house(lease_s=SHORT_S)
    call = asyncio.ensure_future(house.call("credit", ASKED, key=KEY))
    await slow.begun.wait()
    await lost(house, other)
    doubtful = await other.get(KEY)
    assert (doubtful.state, doubtful.attempts[0].lost, doubtful.raw.fence) == (State.IN_DOUBT, "lease", 2)
    slow.go_on.set()
    assert (await call).value == "cr-1"
    record = await other.get(KEY)
    assert (record.state, record.attempts[0].late) == (State.SUCCEEDED, True)
    assert await kinds(other, KEY) == ["departed", "owner_lost", "late_outcome"]


# case C25
async def test_outcome_of_a_lost_owner_does_not_overwrite_a_settlement(open_house: OpenHouse) -> None:
    """Somebody decided meanwhile: both stand, and the contradiction shows."""
    slow = Slow()
    house = await open_house(slow.tool(), interfering=True, lease_s=SHORT_S)
    other = await open_house(lease_s=SHORT_S)
    call = asyncio.ensure_future(house.call("credit", ASKED, key=KEY))
    await slow.begun.wait()
    await lost(house, other)
    await other.resolve(KEY, did_not_happen(), by="ada", reason="not there")
    slow.go_on.set()
    with pytest.raises(TollhouseError, match="contradict"):
        await call
    record = await other.get(KEY)
    assert (record.state, record.contradicted) == (State.FAILED, True)
    assert record.attempts[0].outcome is AttemptOutcome.HAPPENED


# case C19
async def test_owner_that_was_set_aside_unawares_is_stopped_at_the_dispatch(open_house: OpenHouse) -> None:
    """Its lease is good and it knows of nothing: the fence in the store is read before the effect, not only after."""
    slow = Slow()
    house = await open_house(slow.tool(departs="at_confirm"))
    other = await open_house()
    call = asyncio.ensure_future(house.call("credit", ASKED, key=KEY))
    await slow.begun.wait()
    await other.resolve(KEY, did_not_happen(), by="ada", reason="stop it", force=True)
    await asyncio.sleep(0.15)  # commit 1 stands in for the check for 0.1 s
    slow.go_on.set()
    with pytest.raises(CallFailed):
        await call
    record = await other.get(KEY)
    assert slow.runs == 0
    assert (record.attempts[0].outcome, record.contradicted) == (AttemptOutcome.NOT_SENT, False)


# case C19
async def test_owner_whose_lease_ended_is_stopped_at_the_dispatch(open_house: OpenHouse) -> None:
    """Before anybody has set it aside: it looks at its own lease, on its own clock, and sends nothing past its end."""
    slow = Slow()
    house = await open_house(slow.tool(departs="at_confirm"), interfering=True, lease_s=SHORT_S)
    call = asyncio.ensure_future(house.call("credit", ASKED, key=KEY))
    await slow.begun.wait()
    interfering(house).lose_renewals = True
    await asyncio.sleep(1.5 * SHORT_S)
    slow.go_on.set()
    with pytest.raises(CallNotSent):
        await call
    assert slow.runs == 0


async def test_two_sweepers_set_each_orphan_aside_once(open_house: OpenHouse) -> None:
    """Any number may sweep: each step is compare-and-set, and who is second finds nothing to do."""
    slow = Slow()
    house = await open_house(slow.tool(), interfering=True, lease_s=SHORT_S, grace_s=0.0)
    keys = [f"order-{number}" for number in range(50)]
    calls = [asyncio.ensure_future(house.call("credit", ASKED, key=key)) for key in keys]
    sweepers = [await open_house(lease_s=SHORT_S) for _ in range(3)]
    await slow.begun.wait()
    interfering(house).lose_renewals = True
    swept = 0

    async def all_swept() -> bool:
        nonlocal swept
        swept += sum(await asyncio.gather(*(each.services.round() for each in sweepers)))
        return swept >= len(keys)

    await eventually(all_swept)
    assert swept == len(keys)
    assert {tuple(await kinds(sweepers[0], key)) for key in keys} == {("departed", "owner_lost")}
    slow.go_on.set()
    await asyncio.gather(*calls)


async def test_slow_look_ups_and_calls_do_not_keep_the_lost_from_being_seen(open_house: OpenHouse) -> None:
    """Sweeping waits for nothing: not for a hook that hangs, nor for an approved call that runs for hours."""
    asked, stuck, slow, heard = asyncio.Event(), asyncio.Event(), Slow(), Heard()

    async def hangs(_call: RecordedCall) -> Answer:
        asked.set()
        await stuck.wait()
        return unknown()

    doubted = lossy(hangs, name="doubted")
    worker = await open_house(doubted, lease_s=SHORT_S, every_s=0.05, on_event=heard)
    await in_doubt(worker, "doubted", "doubt")
    worker.services.start()
    await asked.wait()
    house = await open_house(slow.tool(), interfering=True, lease_s=SHORT_S)
    call = asyncio.ensure_future(house.call("credit", ASKED, key=KEY))
    await slow.begun.wait()
    interfering(house).lose_renewals = True
    await heard.until("owner_lost")
    assert (await worker.get(KEY)).state is State.IN_DOUBT
    stuck.set()
    slow.go_on.set()
    await call


class Outage:
    """A store that is away, as one sweeper sees it, while ``away`` is set. ``patient``: its answers wait for the end of
    that, as those of a store which tries again by itself."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.away = self.patient = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def end_expired_owners(self, tenant: str, *, by_us: int | None = None) -> list[Owner]:
        """As the store does, unless it is away."""
        await self._back()
        return await self._store.end_expired_owners(tenant, by_us=by_us)

    async def now_us(self) -> int:
        """As the store does, unless it is away."""
        await self._back()
        return await self._store.now_us()

    async def _back(self) -> None:
        if self.away and not self.patient:
            raise StoreUnavailable("The store is away.")
        while self.away:  # noqa: ASYNC110 - the flag is a plain one, as tests set it
            await asyncio.sleep(0.005)


async def test_sweeper_waits_a_lease_after_an_outage(
    open_house: OpenHouse, shared_store_url: str, house_tenant: str
) -> None:
    """Nobody could renew while the store was away, so a lease that ended meanwhile proves nothing yet."""
    slow = Slow()
    house = await open_house(slow.tool(), interfering=True, lease_s=SHORT_S)
    call = asyncio.ensure_future(house.call("credit", ASKED, key=KEY))
    await slow.begun.wait()
    async with house_over(shared_store_url, Outage, tenant=house_tenant, lease_s=SHORT_S) as (sweeper, outage):
        interfering(house).lose_renewals = outage.away = True
        until_s = time.monotonic() + 2 * SHORT_S
        while time.monotonic() < until_s:
            with pytest.raises(StoreUnavailable):
                await sweeper.services.round()
            await asyncio.sleep(0.05)
        outage.away = False
        assert await sweeper.services.round() == 0
        interfering(house).lose_renewals = False
        await renewed(house)
        await asyncio.sleep(SHORT_S)
        assert await sweeper.services.round() == 0
        slow.go_on.set()
        assert (await call).value == "cr-1"
        assert await kinds(sweeper, KEY) == ["departed", "outcome"]


async def test_sweeper_judges_again_a_lease_after_an_outage(
    open_house: OpenHouse, shared_store_url: str, house_tenant: str
) -> None:
    """The wait ends: who has not come back by then is lost."""
    slow = Slow()
    house = await open_house(slow.tool(), interfering=True, lease_s=SHORT_S)
    call = asyncio.ensure_future(house.call("credit", ASKED, key=KEY))
    await slow.begun.wait()
    async with house_over(shared_store_url, Outage, tenant=house_tenant, lease_s=SHORT_S) as (sweeper, outage):
        outage.away = True
        with pytest.raises(StoreUnavailable):
            await sweeper.services.round()
        outage.away = False
        await lost(house, sweeper)
        assert (await sweeper.get(KEY)).state is State.IN_DOUBT
    slow.go_on.set()
    await call


@pytest.mark.parametrize("asked", ["before", "during"])
async def test_outage_that_the_stores_patience_hides_counts_as_one(
    open_house: OpenHouse, shared_store_url: str, house_tenant: str, asked: str
) -> None:
    """The sweeper's question waits until the store is back; whom it finds expired then had no way to renew."""
    slow = Slow()
    house = await open_house(slow.tool(), interfering=True, lease_s=SHORT_S)
    call = asyncio.ensure_future(house.call("credit", ASKED, key=KEY))
    await slow.begun.wait()
    async with house_over(shared_store_url, Outage, tenant=house_tenant, lease_s=SHORT_S) as (sweeper, outage):
        outage.patient = True
        if asked == "before":  # the time was told before the outage, and the judgement is held up by it
            outage.now_us = outage._store.now_us
        interfering(house).lose_renewals = outage.away = True
        sweeping = asyncio.ensure_future(sweeper.services.round())
        await asyncio.sleep(2 * SHORT_S)
        outage.away = False
        assert await sweeping == 0
        assert await sweeper.services.round() == 0
        interfering(house).lose_renewals = False
        await renewed(house)
        slow.go_on.set()
        assert (await call).value == "cr-1"
        assert await kinds(sweeper, KEY) == ["departed", "outcome"]


class Virtual:
    """A core, a store and a clock at once, in virtual time: away from ``from_us`` for ``away_us``, and patient then.

    One owner renews at a quarter of its lease, so late as it may, and at once when the store is back.
    """

    def __init__(self, lease_us: int, from_us: int, away_us: int) -> None:
        self.store = self.clock = self
        self.steady, self.tenant = True, "t1"
        self.at_us = 0
        self._lease_us, self._from_us, self._back_us = lease_us, from_us, from_us + away_us
        self.lost_at_us: int | None = None

    def local_us(self) -> int:
        """Both clocks are one."""
        return self.at_us

    async def now_us(self) -> int:
        """The store's time, once it is back."""
        self._wait()
        return self.at_us

    async def end_expired_owners(self, tenant: str, *, by_us: int) -> list[Owner]:
        """As a store does."""
        self._wait()
        last_us = self._from_us - round(self._lease_us * 0.275)
        renewed = self.at_us >= self._back_us + self._lease_us // 100
        if not renewed and last_us + self._lease_us < self.at_us <= by_us:
            self.lost_at_us = self.at_us
        return []

    def _wait(self) -> None:
        if self._from_us <= self.at_us < self._back_us:
            self.at_us = self._back_us
        self.at_us += 1


@pytest.mark.parametrize("tenths", range(1, 30))
async def test_no_outage_between_two_rounds_ends_an_owner_who_could_not_renew(tenths: int) -> None:
    """However long it lasted and whenever it began: a pause and the answers after it hide less than a lease bears."""
    lease_us = 30 * US
    for from_us in range(40 * US, 70 * US, US // 2):
        world = Virtual(lease_us, from_us, tenths * lease_us // 10)
        sweeper = Sweeper(cast(Any, world), lease_us / US)
        longest_us = round(1.25 * sweeper.longest_pause_s * US)  # services vary their pauses by a quarter
        while world.at_us < from_us + 5 * lease_us:
            await sweeper.sweep()
            world.at_us += longest_us
        assert world.lost_at_us is None


async def renewed(house: Tollhouse) -> None:
    """Wait until the house has its lease renewed."""
    before = house._core.keeper.current

    async def moved_on() -> bool:
        return house._core.keeper.current != before

    await eventually(moved_on)


async def test_step_of_the_stores_clock_stops_take_overs_for_a_lease(open_house: OpenHouse) -> None:
    """A clock that jumped may have ended everybody's lease at once."""
    slow = Slow()
    house = await open_house(slow.tool(), interfering=True, lease_s=SHORT_S)
    sweeper = await open_house(lease_s=30.0)
    call = asyncio.ensure_future(house.call("credit", ASKED, key=KEY))
    await slow.begun.wait()
    interfering(house).lose_renewals = True
    await asyncio.sleep(1.5 * SHORT_S)
    clock = sweeper._core.clock
    here_us = clock.local_us()
    clock.calibrate(here_us, clock.now_us() + 60 * US, here_us, steady_after_us=round(SHORT_S * US))
    assert await sweeper.services.round() == 0
    await lost(house, sweeper)
    slow.go_on.set()
    await call


# -- restarts --------------------------------------------------------------------------------------------


# case C14
@pytest.mark.crash
async def test_running_step_survives_the_restart_of_its_coordinator(
    start: Start, house_store_url: str, receiver: Receiver
) -> None:
    """The house that sweeps ends and begins again; the worker inside the tool keeps its attempt, and ends it."""
    receiver.fault("hold_after_effect")
    offered = {"tests.crash.tools:credits": {"url": receiver.url}}
    worker = await start(house_store_url, offered)
    coordinator = await start(house_store_url, offered)
    running = worker.ask("call", "credit", ASKED, key=KEY)
    await receiver.await_for_effects(1)
    await coordinator.kill()
    await asyncio.sleep(1.2 * LEASE_S)
    coordinator = await start(house_store_url, offered)
    replay = coordinator.ask("call", "credit", ASKED, key=KEY)
    receiver.release()
    assert (await running)["value"] == (await replay)["value"]
    async with Tollhouse.open(house_store_url, background=False) as house:
        assert await kinds(house, KEY) == ["departed", "outcome"]
    assert len(receiver.requests(method="POST")) == 1


# case C14
@pytest.mark.postgres
async def test_running_step_survives_the_restart_of_the_server(
    start: Start, private_postgres: PostgresServer, receiver: Receiver
) -> None:
    """The store goes away for longer than a lease and comes back; the worker writes its outcome, nobody took over."""
    receiver.fault("hold_after_effect")
    offered = {"tests.crash.tools:credits": {"url": receiver.url}}
    lease_s = 2 * LEASE_S  # of which a busy machine may need one for connecting again
    worker = await start(private_postgres.url, offered, lease_s=lease_s)
    sweeper = await start(private_postgres.url, offered, lease_s=lease_s)
    running = worker.ask("call", "credit", ASKED, key=KEY)
    await receiver.await_for_effects(1)
    await asyncio.to_thread(private_postgres.stop)
    await asyncio.sleep(1.5 * lease_s)
    await asyncio.to_thread(private_postgres.start)
    replay = sweeper.ask("call", "credit", ASKED, key=KEY)
    receiver.release()
    assert (await running)["value"] == receiver.effects()[0].id
    assert (await replay)["value"] == receiver.effects()[0].id
    async with Tollhouse.open(private_postgres.url, background=False) as house:
        assert await kinds(house, KEY) == ["departed", "outcome"]
    assert len(receiver.requests(method="POST")) == 1


# -- many ------------------------------------------------------------------------------------------------

ORPHANS = 10_000
AT_ONCE = 250


async def departures(house: Tollhouse, owner: str) -> None:
    """Calls that departed in the name of another process, written as its gate would write them."""
    core, credit = house._core, lossy()
    for first in range(0, ORPHANS, AT_ONCE):
        now_us = core.clock.now_us()
        writes = []
        for number in range(first, first + AT_ONCE):
            asked = request_of(core, credit.name, {"account": "a1", "cents": number}, f"order-{number}", Options())
            new = new_record(core, asked, credit, now_us)
            begun = Begun(core.ids.new(Prefix.ATTEMPT), owner, now_us, now_us + 30 * US)
            writes.append(write_of(first_departure(new, begun, {}), begun.id, owner=owner))
        assert all(written.applied for written in await house.store.write(*writes))


@pytest.mark.crash
async def test_ten_thousand_orphans_are_classified(
    start: Start, house_store_url: str, request: pytest.FixtureRequest
) -> None:
    """After a crash every call that was out is in doubt, soon after the lease has ended; `-rP` shows how soon."""
    worker = await start(house_store_url, {}, background=False)
    async with Tollhouse.open(house_store_url, background=False) as house:
        await departures(house, worker.owner)
    await worker.kill()
    heard = Heard()
    async with Tollhouse.open(house_store_url, lease_s=LEASE_S, on_event=heard) as house:
        told = await heard.until("owner_lost", timeout_s=60)
        owner = await house.store.owner("default", worker.owner)
        assert owner is not None
        took_s = (await house.store.now_us() - owner.lease_until_us) / US
        assert (told["calls"], told["proof"]) == (ORPHANS, "dead")
        counted = await house.count()
        assert (counted[State.IN_DOUBT], counted[State.DEPARTED]) == (ORPHANS, 0)
    assert len(heard.of("doubt_appeared")) == ORPHANS
    request.node.add_report_section("call", "orphans", f"{ORPHANS} classified {took_s:.1f} s after the lease's end")
