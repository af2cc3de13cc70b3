"""Conformance: which runs a driver is given, what wakes them, and what runs refer to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tollhouse.ledger.record import AttemptOutcome, State
from tollhouse.ledger.run_record import AccessKey, Definition, RunQuery, RunRefusal, run_stream
from tollhouse.runs.states import RunEvent, RunState
from tollhouse.testing.conformance.base import TENANT, Leases, StoreTests, applied, tell
from tollhouse.testing.conformance.run_story import (
    FAR_US,
    RUN,
    RunLedger,
    begin,
    claim,
    finish,
    ids,
    move,
    pause,
    paused,
    put,
    rejected,
    running,
)
from tollhouse.testing.conformance.scenes import TRIALS, attempted
from tollhouse.testing.conformance.story import T0, Story
from tollhouse.testing.conformance.tenants import NAMES, OURS, THEIRS


async def takeable(store: RunLedger, driver: str = "local", limit: int = 100, **options: Any) -> list[str]:
    """Ids of what a driver would be given."""
    return ids(await store.runs_to_take(TENANT, driver, limit, **options))


class TakingTests(StoreTests):
    """A driver is given what nobody drives and somebody should, and nothing else."""

    async def test_what_is_due(self, store: RunLedger, owners: None) -> None:
        """On the store's clock; not before, not without a time, not while somebody drives it."""
        await put(store, begin("due"))
        await put(store, begin("later", due_at_us=FAR_US))
        await put(store, begin("never", due_at_us=None))
        await running(store, "driven")
        held = await running(store, "driven-with-a-timer")
        await put(store, move(held, RunEvent.MODEL_ANSWERED, due_at_us=T0))
        await put(store, pause(await running(store, "timer"), RunState.AWAITING_TIME, due_at_us=T0))
        assert sorted(await takeable(store)) == ["due", "timer"]

    async def test_whoever_has_waited_longest_comes_first(self, store: RunLedger) -> None:
        """Then by id; no more than asked for."""
        for run_id, due_at_us in (("b", 2), ("a2", 1), ("c", 0), ("a", 1)):
            await put(store, begin(run_id, due_at_us=due_at_us))
        assert await takeable(store) == ["c", "a", "a2", "b"]
        assert await takeable(store, limit=2) == ["c", "a"]

    async def test_of_its_kind_and_of_agents_it_knows(self, store: RunLedger, owners: None) -> None:
        """Whatever brought the run back."""
        await put(store, begin("a"))
        await put(store, begin("b", agent="scribe"))
        await put(store, begin("c", driver="temporal"))
        await paused(store, "woken", agent="scribe")
        await store.wake(TENANT, "woken")
        assert sorted(await takeable(store)) == ["a", "b", "woken"]
        assert await takeable(store, "temporal") == ["c"]
        assert sorted(await takeable(store, agents=["scribe"])) == ["b", "woken"]
        assert sorted(await takeable(store, agents={"scribe", "concierge", "x"})) == ["a", "b", "woken"]
        assert await takeable(store, agents=[]) == []

    async def test_a_finished_run_with_something_to_tidy(self, store: RunLedger, owners: None) -> None:
        """Its time is kept as any other's."""
        await put(store, finish(await running(store), due_at_us=T0))
        assert await takeable(store) == [RUN]

    async def test_what_an_ended_owner_left(self, store: RunLedger, leases: Leases) -> None:
        """Ended by itself, swept or proven dead; the runs of the living are theirs."""
        for owner in ("own_a", "own_b", "own_c", "own_d"):
            await leases.register(owner)
            await running(store, f"of-{owner}", owner)
        assert await takeable(store) == []
        await leases.end("own_a")
        await leases.renew("own_b", lease_s=0.0)
        await store.end_expired_owners(TENANT)
        await store.owner_is_dead(TENANT, "own_c")
        left = await store.runs_to_take(TENANT, "local", 100)
        assert sorted(ids(left)) == ["of-own_a", "of-own_b", "of-own_c"]
        await leases.register("own_e")
        for record in left:
            await put(store, claim(record, "own_e"))
        assert await takeable(store) == []
        assert ids(await store.runs_owned(TENANT, "own_e", 100)) == ["of-own_a", "of-own_b", "of-own_c"]
        assert len(await store.runs_owned(TENANT, "own_e", 2)) == 2
        assert ids(await store.runs_owned(TENANT, "own_d", 100)) == ["of-own_d"]

    async def test_a_run_is_given_once_whatever_speaks_for_it(self, store: RunLedger) -> None:
        """Due and woken is one run."""
        await put(store, begin())
        await store.wake(TENANT, RUN)
        assert await takeable(store) == [RUN]


class WakeTests(StoreTests):
    """A call that moves wakes the run it belongs to, in the same transaction."""

    @pytest.mark.parametrize("state", State)
    async def test_every_move_of_a_call_but_one_that_departed(
        self, store: RunLedger, owners: None, state: State
    ) -> None:
        """Everything that can happen to a call in that state: the run is woken exactly if the state was left, or a
        contradiction opened or was decided.
        """
        for event in TRIALS:
            run_id = f"run-{event}"
            story, took_place = attempted(event, state, Story.of(key=event.value, scope=run_id))
            if not took_place:
                continue
            await paused(store, run_id)
            *before, last = story.writes
            for write in before:
                await applied(store, write)
            await store.forget_wakes(TENANT, run_id)
            await applied(store, last)
            contradicted = [write.record.contradicted for write in (*before[-1:], last)]
            moved = state is not State.DEPARTED and (story.state is not state or contradicted[0] != contradicted[-1])
            assert (run_id in await takeable(store)) == moved, f"{event} in {state}"

    async def test_the_outcome_of_a_departure_wakes_nobody(self, store: RunLedger, owners: None) -> None:
        """Whoever sent it awaits it, and knows."""
        await paused(store)
        await tell(store, Story.of(scope=RUN).depart().end(AttemptOutcome.HAPPENED))
        assert await takeable(store) == []

    async def test_a_wake_stays_until_it_is_forgotten(self, store: RunLedger, owners: None) -> None:
        """Through a claim and a pause; then the next move wakes the run anew."""
        waits = await paused(store)
        story = Story.of(scope=RUN).hold().approve()
        await tell(store, story)
        claimed = await put(store, claim(waits))
        assert await takeable(store) == []
        waits = await put(store, pause(claimed))
        assert await takeable(store) == [RUN]
        await store.forget_wakes(TENANT, RUN)
        assert await takeable(store) == []
        await tell(store, story.cancel(), since=2)
        assert await takeable(store) == [RUN]

    async def test_a_wake_while_the_run_is_driven_is_found_afterwards(self, store: RunLedger, owners: None) -> None:
        """Nothing that moved after the wakes were forgotten is lost."""
        driven = await running(store)
        await tell(store, Story.of(scope=RUN).hold().deny())
        await put(store, pause(driven))
        assert await takeable(store) == [RUN]

    async def test_calls_without_a_run_wake_nobody(self, store: RunLedger, owners: None) -> None:
        """No scope, a scope that is no run, and a run of another tenant."""
        await paused(store)
        for scope in (None, "run_2"):
            await tell(store, Story.of(key=f"{scope}", scope=scope).hold().deny())
        await tell(store, Story.of(tenant="t2", scope=RUN).hold().deny())
        await store.wake(TENANT, "run_2")
        await store.forget_wakes(TENANT, "run_2")
        assert await takeable(store) == []

    async def test_nobody_is_asked_to_look_at_a_run_that_cannot_go_on(self, store: RunLedger, owners: None) -> None:
        """Finished, or stopped at a limit until that is raised; then what moved meanwhile is seen."""
        finished, stopped = await running(store, "finished"), await running(store, "stopped")
        await store.wake(TENANT, "finished")
        await put(store, finish(finished))
        stopped = await put(store, pause(stopped, RunState.LIMIT_REACHED))
        for run_id in ("finished", "stopped"):
            await tell(store, Story.of(key=run_id, scope=run_id).hold().deny())
            await store.wake(TENANT, run_id)
        assert await takeable(store) == []
        await put(store, move(stopped, RunEvent.LIMITS_RAISED, state=RunState.QUEUED))
        assert await takeable(store) == ["stopped"]

    async def test_whoever_was_woken_first_comes_first(self, store: RunLedger, owners: None) -> None:
        """By the time of the call that moved."""
        for n, run_id in ((2, "b"), (1, "c"), (3, "a")):
            await paused(store, run_id)
            await tell(store, Story.of(key=run_id, scope=run_id, at_us=T0 + n).hold().deny())
        assert await takeable(store) == ["c", "b", "a"]
        assert await takeable(store, limit=2) == ["c", "b"]


class RegistryTests(StoreTests):
    """What runs refer to, and who may ask for them."""

    async def test_a_definition_is_kept_for_ever(self, store: RunLedger) -> None:
        """The same digest again changes nothing."""
        first = Definition(TENANT, "d" * 64, "agent", "concierge", T0, '{"model":"m"}')
        await store.keep_definition(first)
        await store.keep_definition(replace(first, name="other", body="{}", created_at_us=T0 + 9))
        assert await store.definition(TENANT, "d" * 64) == first
        assert await store.definition(TENANT, "e" * 64) is None

    async def test_definitions_are_listed_newest_first(self, store: RunLedger) -> None:
        """Of a kind, and of a name."""
        for digest, kind, name, at_us in (
            ("1", "agent", "concierge", T0), ("2", "agent", "concierge", T0 + 2), ("3", "agent", "scribe", T0 + 1),
            ("4", "catalogue", "concierge", T0),
        ):  # fmt: skip
            await store.keep_definition(Definition(TENANT, digest, kind, name, at_us, "{}"))
        assert [d.digest for d in await store.definitions(TENANT, "agent")] == ["2", "3", "1"]
        assert [d.digest for d in await store.definitions(TENANT, "agent", "concierge")] == ["2", "1"]
        assert [d.digest for d in await store.definitions(TENANT, "catalogue")] == ["4"]
        assert await store.definitions(TENANT, "agent", "nobody") == []

    async def test_an_access_key_is_replaced_whole(self, store: RunLedger) -> None:
        """Revoking it, for one, is another version of it."""
        key = AccessKey(TENANT, "key_1", "s" * 64, "rita", ("runs:start", "runs:read"), T0, expires_at_us=FAR_US)
        await store.keep_access_key(key)
        assert await store.access_key(TENANT, "key_1") == key
        revoked = replace(key, revoked_at_us=T0 + 1, scopes=())
        await store.keep_access_key(revoked)
        assert await store.access_key(TENANT, "key_1") == revoked
        assert await store.access_key(TENANT, "key_2") is None

    async def test_access_keys_are_listed_newest_first(self, store: RunLedger) -> None:
        """All of them."""
        kept = [AccessKey(TENANT, f"key_{n}", "s", "rita", ("a",), T0 + n, revoked_at_us=n or None) for n in range(3)]
        for key in kept:
            await store.keep_access_key(key)
        assert await store.access_keys(TENANT) == kept[::-1]


class RunTenantTests(StoreTests):
    """Two tenants share a store and nothing else."""

    # case C46
    async def test_one_id_in_two_tenants_is_two_runs(self, store: RunLedger, leases: Leases) -> None:
        """Also one start key and one thread; no event, wake or write crosses."""
        for tenant in (OURS, THEIRS):
            await leases.register("own_a", tenant=tenant)
        fields: dict[str, Any] = {"start_key": "k", "thread": "t"}
        ours = await put(store, begin(tenant=OURS, **fields))
        theirs = await put(store, begin(tenant=THEIRS, **fields, due_at_us=None))
        ours = await put(store, claim(ours))
        assert await store.run(THEIRS, RUN) == theirs
        assert [len(await store.events(tenant, run_stream(RUN))) for tenant in (OURS, THEIRS)] == [2, 1]
        await store.wake(OURS, RUN)
        await store.forget_wakes(THEIRS, RUN)
        await put(store, pause(ours))
        assert ids(await store.runs_to_take(OURS, "local", 10)) == [RUN]
        assert await store.runs_to_take(THEIRS, "local", 10) == []

    # case C46
    async def test_readings_never_cross(self, store: RunLedger, leases: Leases) -> None:
        """Each way to read finds nothing of another tenant."""
        await leases.register("own_a")
        await put(store, begin(start_key="k", thread="t"))
        await running(store, "run_2")
        await store.keep_definition(Definition(OURS, "d", "agent", "a", T0, "{}"))
        await store.keep_access_key(AccessKey(OURS, "key_1", "s", "rita", (), T0))
        await leases.end("own_a")
        for tenant in (THEIRS, *NAMES[1:]):
            assert await store.run(tenant, RUN) is None
            assert await store.run_of_start(tenant, "k") is None
            assert await store.find_runs(tenant, RunQuery()) == []
            assert await store.find_runs(tenant, RunQuery(thread="t")) == []
            assert await store.count_runs(tenant) == {}
            assert await store.runs_to_take(tenant, "local", 10) == []
            assert await store.runs_owned(tenant, "own_a", 10) == []
            assert await store.definition(tenant, "d") is None
            assert await store.definitions(tenant, "agent") == []
            assert await store.access_key(tenant, "key_1") is None
            assert await store.access_keys(tenant) == []

    # case C46
    async def test_an_owner_of_another_tenant_drives_nothing(self, store: RunLedger, leases: Leases) -> None:
        """Its name alone is not enough."""
        await leases.register("own_a", tenant=THEIRS)
        started = await put(store, begin())
        await rejected(store, claim(started), RunRefusal.OWNER)
