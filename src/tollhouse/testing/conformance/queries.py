"""Conformance: listing, counting, and what is due."""

from __future__ import annotations

from dataclasses import replace

from tollhouse.ledger.record import AttemptOutcome, CallRecord, State
from tollhouse.ledger.store import Query, Store
from tollhouse.testing.conformance.base import TENANT, StoreTests, tell
from tollhouse.testing.conformance.scenes import CONTRADICTED, PLAIN
from tollhouse.testing.conformance.story import T0, Story, terms
from tollhouse.testing.conformance.writes import note


def keys(records: list[CallRecord]) -> list[str]:
    """Their keys, in order."""
    return [record.key for record in records]


class FindTests(StoreTests):
    """Calls are listed newest first, filtered by anything, page by page."""

    async def test_newest_first(self, store: Store, owners: None) -> None:
        """By the time of their making, then by key."""
        for n, key in ((1, "b"), (2, "c"), (0, "a"), (1, "a2")):
            await tell(store, Story.of(key=key, at_us=T0 + n).depart())
        assert keys(await store.find(TENANT, Query())) == ["c", "b", "a2", "a"]

    async def test_each_filter_and_all_together(self, store: Store, owners: None) -> None:
        """None filters nothing."""
        mail = terms(tool="send_mail")
        await tell(store, PLAIN[State.IN_DOUBT](Story.of(key="doubt", scope="run-1")))
        await tell(store, PLAIN[State.IN_DOUBT](Story.of(mail, key="doubt-mail", scope="run-2")))
        await tell(store, CONTRADICTED[State.FAILED](Story.of(key="contradicted")))
        await tell(store, PLAIN[State.HELD](Story.of(mail, key="held", scope="run-1", request_digest="asked")))

        async def found(query: Query) -> list[str]:
            return sorted(keys(await store.find(TENANT, query)))

        assert await found(Query(state=State.IN_DOUBT)) == ["doubt", "doubt-mail"]
        assert await found(Query(tool="send_mail")) == ["doubt-mail", "held"]
        assert await found(Query(scope="run-1")) == ["doubt", "held"]
        assert await found(Query(contradicted=True)) == ["contradicted"]
        assert await found(Query(contradicted=False)) == ["doubt", "doubt-mail", "held"]
        assert await found(Query(request_digest="asked")) == ["held"]
        digest = (await store.find(TENANT, Query(state=State.HELD)))[0].digest
        assert await found(Query(scope="run-1", digest=digest)) == ["doubt", "held"]
        assert await found(Query(digest="asked")) == []
        everything = Query(
            state=State.HELD,
            tool="send_mail",
            scope="run-1",
            contradicted=False,
            digest=digest,
            request_digest="asked",
        )
        assert await found(everything) == ["held"]
        assert await found(replace(everything, scope="run-2")) == []

    async def test_found_records_are_whole(self, store: Store, owners: None) -> None:
        """The same as when read by key."""
        story = Story.of().depart().end(AttemptOutcome.HAPPENED)
        await tell(store, story)
        assert await store.find(TENANT, Query()) == [story.record]

    async def test_pages_meet_every_call_once(self, store: Store, owners: None) -> None:
        """Also where many were made in the same moment."""
        names = [f"k{n:02}" for n in range(17)]
        for n, key in enumerate(names):
            await tell(store, Story.of(key=key, at_us=T0 + n // 6).depart())
        seen: list[str] = []
        before: tuple[int, str] | None = None
        while page := await store.find(TENANT, Query(limit=4, before=before)):
            assert len(page) <= 4
            seen += keys(page)
            before = (page[-1].created_at_us, page[-1].key)
        assert seen == sorted(names, reverse=True)

    async def test_filters_hold_on_every_page(self, store: Store, owners: None) -> None:
        """Filter and cursor do not get into each other's way."""
        for n in range(6):
            scene = PLAIN[State.HELD if n % 2 else State.IN_DOUBT]
            await tell(store, scene(Story.of(key=f"k{n}", at_us=T0 + n)))
        first = await store.find(TENANT, Query(state=State.HELD, limit=2))
        rest = await store.find(
            TENANT, Query(state=State.HELD, limit=2, before=(first[-1].created_at_us, first[-1].key))
        )
        assert keys(first + rest) == ["k5", "k3", "k1"]

    async def test_calls_are_counted_by_state(self, store: Store, owners: None) -> None:
        """Each call in its present state only."""
        assert sum((await store.count(TENANT)).values()) == 0
        for state, scene in PLAIN.items():
            for n in range(2 if state is State.IN_DOUBT else 1):
                await tell(store, scene(Story.of(key=f"{state}-{n}")))
        assert await store.count(TENANT) == {state: 2 if state is State.IN_DOUBT else 1 for state in State}


class DueTests(StoreTests):
    """A worker asks for what is due, on the store's clock."""

    async def test_most_overdue_first_and_nothing_of_the_future(self, store: Store) -> None:
        """Up to the limit."""
        now_us = await store.now_us()
        due = {"later": now_us + 3_600_000_000, "third": now_us - 1, "first": T0, "second": T0 + 1, "never": None}
        for key, due_at_us in due.items():
            write = Story.of(key=key).hold().writes[0]
            (written,) = await store.write(replace(write, record=replace(write.record, due_at_us=due_at_us)))
            assert written.applied
        assert keys(await store.due(TENANT, 10)) == ["first", "second", "third"]
        assert keys(await store.due(TENANT, 2)) == ["first", "second"]

    async def test_workers_ask_for_the_tools_they_have(self, store: Store, owners: None) -> None:
        """And for the states they serve; nobody's tools and no states are nothing."""
        mail = terms(tool="send_mail")
        await tell(store, PLAIN[State.HELD](Story.of(key="held")))
        await tell(store, PLAIN[State.IN_DOUBT](Story.of(key="doubt")))
        await tell(store, PLAIN[State.IN_DOUBT](Story.of(mail, key="doubt-mail")))

        async def due(tools: list[str] | None = None, states: list[State] | None = None) -> list[str]:
            return sorted(keys(await store.due(TENANT, 10, tools=tools, states=states)))

        assert await due() == ["doubt", "doubt-mail", "held"]
        assert await due(tools=["send_mail", "other"]) == ["doubt-mail"]
        assert await due(states=[State.HELD, State.READY]) == ["held"]
        assert await due(tools=["issue_credit"], states=[State.IN_DOUBT]) == ["doubt"]
        assert await due(tools=[]) == await due(states=[]) == []

    async def test_what_was_looked_at_is_due_no_more(self, store: Store, owners: None) -> None:
        """Each look moves the next one."""
        story = Story.of().depart().end(AttemptOutcome.UNKNOWN)
        await tell(store, story)
        assert await store.due(TENANT, 10) == [story.record]
        await tell(store, story.look(next_in_s=None), since=2)
        assert await store.due(TENANT, 10) == []

    async def test_other_writes_keep_it_due(self, store: Store, owners: None) -> None:
        """A note is no look."""
        story = Story.of().depart().end(AttemptOutcome.UNKNOWN)
        await tell(store, story)
        (written,) = await store.write(note(story.record, "x"))
        assert written.applied
        assert len(await store.due(TENANT, 10)) == 1
