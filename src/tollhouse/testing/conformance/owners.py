"""Conformance: leases on the store's clock, owners that end, and the calls they leave behind."""

from __future__ import annotations

import pytest

from tollhouse.ledger.record import AttemptOutcome
from tollhouse.ledger.store import Refusal, Store
from tollhouse.testing.conformance.base import KEY, TENANT, Leases, StoreTests, applied, refused, tell
from tollhouse.testing.conformance.story import Story


async def ids_of(store: Store) -> list[str]:
    """Ended owners that still have open attempts, as the sweeper learns of them."""
    return sorted(owner.id for owner in await store.end_expired_owners(TENANT))


class LeaseTests(StoreTests):
    """Register, renew, end."""

    async def test_registration_starts_a_lease(self, store: Store, leases: Leases) -> None:
        """On the store's clock, with everything that can prove the process dead later."""
        before_us = await store.now_us()
        renewal = await leases.register(lease_s=30.0)
        owner = await store.owner(TENANT, "own_a")
        assert owner is not None
        assert renewal.alive
        assert before_us <= renewal.now_us <= await store.now_us()
        assert renewal.lease_until_us == renewal.now_us + 30_000_000 == owner.lease_until_us
        assert owner.started_at_us == renewal.now_us
        assert (owner.host, owner.pid, owner.pid_started, owner.label) == ("host/boot", 4711, "12345", "worker 1")
        assert (owner.ended_at_us, owner.proven_dead) == (None, False)

    async def test_renewal_moves_the_end(self, store: Store, leases: Leases) -> None:
        """From the moment of the renewal on."""
        await leases.register(lease_s=1.0)
        renewal = await leases.renew(lease_s=60.0)
        owner = await store.owner(TENANT, "own_a")
        assert owner is not None
        assert renewal.alive
        assert owner.lease_until_us == renewal.lease_until_us == renewal.now_us + 60_000_000

    async def test_registering_again_keeps_the_owner(self, store: Store, leases: Leases) -> None:
        """The first acknowledgement may have been lost."""
        first = await leases.register(lease_s=60.0)
        again = await leases.register(lease_s=60.0)
        owner = await store.owner(TENANT, "own_a")
        assert owner is not None
        assert again.alive
        assert owner.started_at_us == first.now_us

    async def test_a_lease_that_ran_out_can_be_renewed_until_somebody_ends_it(
        self, store: Store, leases: Leases
    ) -> None:
        """An expired lease alone discards nothing."""
        await leases.register(lease_s=0.0)
        assert (await leases.renew(lease_s=60.0)).alive
        assert await ids_of(store) == []

    @pytest.mark.parametrize("how", ["gracefully", "by a sweeper", "as dead"])
    async def test_an_ended_owner_never_returns(self, store: Store, leases: Leases, how: str) -> None:
        """Neither a renewal nor a registration brings it back, nor does it depart anything."""
        await leases.register(lease_s=0.0 if how == "by a sweeper" else 60.0)
        if how == "gracefully":
            await leases.end()
        elif how == "by a sweeper":
            await store.end_expired_owners(TENANT)
        else:
            await store.owner_is_dead(TENANT, "own_a")
        assert not (await leases.renew()).alive
        assert not (await leases.register()).alive
        owner = await store.owner(TENANT, "own_a")
        assert owner is not None
        assert owner.ended_at_us is not None
        await refused(store, Story.of().depart().writes[0], Refusal.OWNER)

    async def test_an_unknown_owner_cannot_be_renewed(self, store: Store, leases: Leases) -> None:
        """It must register first."""
        assert not (await leases.renew("own_x")).alive
        assert await store.owner(TENANT, "own_x") is None
        await leases.end("own_x")

    async def test_the_time_of_the_end_is_kept(self, store: Store, leases: Leases) -> None:
        """Ending twice ends once; the proof of death adds to it."""
        await leases.register()
        await leases.end()
        ended = await store.owner(TENANT, "own_a")
        assert ended is not None
        assert not ended.proven_dead
        await leases.end()
        await store.owner_is_dead(TENANT, "own_a")
        await store.owner_is_dead(TENANT, "own_a")
        dead = await store.owner(TENANT, "own_a")
        assert dead is not None
        assert dead.proven_dead
        assert dead.ended_at_us == ended.ended_at_us

    async def test_the_clock_never_runs_back(self, store: Store) -> None:
        """As seen through one handle."""
        readings = [await store.now_us() for _ in range(20)]
        assert readings == sorted(readings)
        assert readings[0] > 1_600_000_000_000_000


class OrphanTests(StoreTests):
    """What a lost owner leaves behind is found, and only that."""

    async def test_a_judgement_that_arrives_too_late_ends_nobody(self, store: Store, leases: Leases) -> None:
        """It was asked for before an outage, and its owner had no way to renew since."""
        await leases.register("own_a", lease_s=0.0)
        await tell(store, Story.of().depart())
        now_us = await store.now_us()
        assert await store.end_expired_owners(TENANT, by_us=now_us - 1) == []
        assert (await leases.renew("own_a", lease_s=0.0)).alive
        ended = await store.end_expired_owners(TENANT, by_us=await store.now_us() + 60_000_000)
        assert [owner.id for owner in ended] == ["own_a"]

    async def test_only_expired_owners_are_ended(self, store: Store, leases: Leases) -> None:
        """A live lease protects its calls."""
        await leases.register("own_a", lease_s=60.0)
        await leases.register("own_b", lease_s=60.0)
        await tell(store, Story.of(key="a").depart("own_a"))
        await tell(store, Story.of(key="b").depart("own_b"))
        assert await ids_of(store) == []
        await leases.renew("own_b", lease_s=0.0)
        assert await ids_of(store) == ["own_b"]
        owner = await store.owner(TENANT, "own_a")
        assert owner is not None
        assert owner.ended_at_us is None

    async def test_ended_owners_are_told_until_nothing_of_theirs_is_open(self, store: Store, leases: Leases) -> None:
        """Whoever ended them; an owner without open attempts is nobody's business."""
        for owner_id in ("own_a", "own_b", "own_c", "own_idle"):
            await leases.register(owner_id)
        stories = {owner_id: Story.of(key=owner_id).depart(owner_id) for owner_id in ("own_a", "own_b", "own_c")}
        for story in stories.values():
            await tell(store, story)
        await leases.end("own_a")
        await store.owner_is_dead(TENANT, "own_b")
        await leases.renew("own_c", lease_s=0.0)
        await leases.renew("own_idle", lease_s=0.0)
        assert await ids_of(store) == ["own_a", "own_b", "own_c"]
        for owner_id, story in stories.items():
            await tell(store, story.lose(owner_id), since=1)
            assert owner_id not in await ids_of(store)
        assert await ids_of(store) == []

    async def test_orphans_are_the_calls_with_open_attempts(self, store: Store, leases: Leases) -> None:
        """In whatever state: a caller that stopped waiting leaves an attempt behind, too."""
        await leases.register()
        departed = Story.of(key="departed").depart()
        doubted = Story.of(key="doubted").depart().end_wait()
        overtaken = Story.of(key="overtaken").depart().end_wait().settle("happened")
        ended = Story.of(key="ended").depart().end(AttemptOutcome.UNKNOWN)
        for story in (departed, doubted, overtaken, ended):
            await tell(store, story)
        orphans = {record.key: record for record in await store.orphans(TENANT, "own_a", 10)}
        assert orphans == {story.record.key: story.record for story in (departed, doubted, overtaken)}

    async def test_orphans_come_in_portions(self, store: Store, leases: Leases) -> None:
        """A sweeper sets some aside and asks again."""
        await leases.register()
        stories = [Story.of(key=f"k{n}").depart() for n in range(5)]
        for story in stories:
            await tell(store, story)
        by_key = {story.record.key: story for story in stories}
        seen = []
        while portion := await store.orphans(TENANT, "own_a", 2):
            assert len(portion) <= 2
            for record in portion:
                seen.append(record.key)
                await applied(store, by_key[record.key].lose().writes[-1])
        assert sorted(seen) == [f"k{n}" for n in range(5)]

    async def test_two_owners_on_one_call_are_told_apart(self, store: Store, leases: Leases) -> None:
        """Each attempt has its own; setting one aside leaves the other's."""
        await leases.register("own_a", lease_s=0.0)
        await leases.register("own_b", lease_s=0.0)
        story = Story.of().depart("own_a").end_wait().resend("own_b")
        await tell(store, story)
        assert await ids_of(store) == ["own_a", "own_b"]
        for owner_id in ("own_a", "own_b"):
            assert [record.key for record in await store.orphans(TENANT, owner_id, 10)] == [KEY]
        await tell(store, story.lose("own_a"), since=3)
        assert await store.orphans(TENANT, "own_a", 10) == []
        assert await store.orphans(TENANT, "own_b", 10) == [story.record]
        assert await ids_of(store) == ["own_b"]

    async def test_a_name_inside_another_is_another_owner(self, store: Store, leases: Leases) -> None:
        """Ids are compared whole, and no character in them is a pattern."""
        for owner_id in ("own_a", "own_ab", "n_a", "own%a"):
            await leases.register(owner_id, lease_s=0.0)
        await tell(store, Story.of().depart("own_ab"))
        for owner_id in ("own_a", "n_a", "own_", "own%", "own%a"):
            assert await store.orphans(TENANT, owner_id, 10) == []
        assert await ids_of(store) == ["own_ab"]
