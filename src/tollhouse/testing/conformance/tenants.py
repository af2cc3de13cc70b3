"""Conformance: two tenants share a store and nothing else."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

from tollhouse.ledger.record import AttemptOutcome, State
from tollhouse.ledger.store import Blob, Query, Refusal, Store
from tollhouse.ledger.writes import call_stream, write_of
from tollhouse.testing.conformance.base import KEY, Leases, StoreTests, applied, history, refused, tell
from tollhouse.testing.conformance.repeats import insert
from tollhouse.testing.conformance.story import Story

OURS, THEIRS = "t1", "t2"
NAMES = ("t1", "t1 ", "T1", "t1:t1", "t%", "_1", "")
"""Tenants that a careless comparison would take for each other."""


class TenantTests(StoreTests):
    """Everything is scoped by tenant, the same key and the same owner id too."""

    # case C46
    async def test_one_key_in_two_tenants_is_two_calls(self, store: Store, leases: Leases) -> None:
        """The second tenant executes; no result, version or event crosses."""
        for tenant in (OURS, THEIRS):
            await leases.register("own_a", tenant=tenant)
        ours = Story.of(tenant=OURS).depart().end(AttemptOutcome.HAPPENED, result='"ours"')
        theirs = Story.of(tenant=THEIRS).depart()
        await tell(store, ours)
        assert await store.get(THEIRS, KEY) is None
        await tell(store, theirs)
        assert await store.get(OURS, KEY) == ours.record
        assert await store.get(THEIRS, KEY) == theirs.record
        assert [len(await history(store, tenant=tenant)) for tenant in (OURS, THEIRS)] == [2, 1]

    # case C46
    async def test_readings_never_cross(self, store: Store, leases: Leases) -> None:
        """Each way to read finds nothing of another tenant."""
        await leases.register("own_a", tenant=OURS)
        blob = Blob(sha256(b"secret").hexdigest(), b"secret")
        story = Story.of(tenant=OURS, scope="run-1").depart()
        await applied(store, write_of(story.changes[0], "w", owner="own_a", blobs=(blob,)))
        await tell(store, Story.of(key="doubt", tenant=OURS).depart().end(AttemptOutcome.UNKNOWN))
        for tenant in (THEIRS, *NAMES[1:]):
            assert await store.get(tenant, KEY) is None
            assert await store.fence(tenant, KEY) is None
            assert await store.events(tenant, call_stream(KEY)) == []
            assert await store.blob(tenant, blob.digest) is None
            assert await store.find(tenant, Query()) == []
            assert await store.find(tenant, Query(scope="run-1")) == []
            assert sum((await store.count(tenant)).values()) == 0
            assert await store.due(tenant, 10) == []
            assert await store.orphans(tenant, "own_a", 10) == []
            assert await store.owner(tenant, "own_a") is None

    # case C46
    async def test_writes_never_cross(self, store: Store, leases: Leases) -> None:
        """Another tenant's version is not there to replace; another tenant's owner departs nothing."""
        await leases.register("own_a", tenant=OURS)
        story = Story.of(tenant=OURS).depart()
        await tell(store, story)
        ended = story.end(AttemptOutcome.HAPPENED).writes[-1]
        moved = replace(ended, record=replace(ended.record, tenant=THEIRS))
        assert await refused(store, moved, Refusal.STALE) is None
        assert await refused(store, Story.of(tenant=THEIRS).depart().writes[0], Refusal.OWNER) is None
        assert await store.get(OURS, KEY) == story.writes[0].record

    # case C46
    async def test_a_write_id_of_another_tenant_is_no_repeat(self, store: Store, leases: Leases) -> None:
        """What one tenant applied was never applied for another."""
        for tenant in (OURS, THEIRS):
            await leases.register("own_a", tenant=tenant)
            await applied(store, Story.of(tenant=tenant).depart().writes[0])
        ours = Story.of(tenant=OURS).depart().end(AttemptOutcome.UNKNOWN)
        await applied(store, ours.writes[1])
        theirs = replace(ours.writes[1], record=replace(ours.record, tenant=THEIRS), expected=9)
        await refused(store, theirs, Refusal.STALE)

    # case C46
    async def test_twins_and_slots_do_not_meet_across_tenants(self, store: Store, leases: Leases) -> None:
        """A repeat is one only within a tenant."""
        for tenant in (OURS, THEIRS):
            await leases.register("own_a", tenant=tenant)
            await applied(store, insert("first", tenant=tenant, repeat_slot="slot"))
        await refused(store, insert("second", tenant=OURS, repeat_slot="slot"), Refusal.REPEAT)

    # case C46
    async def test_owners_of_one_name_live_and_end_apart(self, store: Store, leases: Leases) -> None:
        """Renewing, ending, sweeping and proving dead touch one tenant's owner only."""
        for tenant in (OURS, THEIRS):
            await leases.register("own_a", tenant=tenant, lease_s=0.0)
            await tell(store, Story.of(tenant=tenant).depart())
        await leases.renew("own_a", tenant=THEIRS, lease_s=60.0)
        assert [owner.tenant for owner in await store.end_expired_owners(OURS)] == [OURS]
        assert await store.end_expired_owners(THEIRS) == []
        await store.owner_is_dead(OURS, "own_a")
        await leases.end("own_a", tenant=OURS)
        theirs = await store.owner(THEIRS, "own_a")
        assert theirs is not None
        assert (theirs.ended_at_us, theirs.proven_dead) == (None, False)
        assert (await leases.renew("own_a", tenant=THEIRS)).alive
        assert [record.tenant for record in await store.orphans(OURS, "own_a", 10)] == [OURS]

    # case C46
    async def test_tenants_with_like_names_are_apart(self, store: Store) -> None:
        """Names are compared byte by byte."""
        for n, tenant in enumerate(NAMES):
            for call in range(n + 1):
                await tell(store, Story.of(tenant=tenant, key=f"k{call}").hold())
        assert [await store.count(tenant) for tenant in NAMES] == [{State.HELD: n + 1} for n in range(len(NAMES))]
