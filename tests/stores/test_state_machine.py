"""A real store and the model in memory, side by side through random lives: same replies, same rows, same histories.

Each call lives in the small world of `tests/ledger/world.py`, which knows what truly happened and checks after every
applied step that no promise was broken. What is added here is a store's own trouble: writers who act on what they saw
before, writes told twice, several calls in one commit, owners who are ended.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from tests.ledger.promises import check
from tests.ledger.world import CONTRACTS, World, begin, moves
from tollhouse.ledger.change import Change
from tollhouse.ledger.events import first_break
from tollhouse.ledger.record import CallRecord, State
from tollhouse.ledger.store import Query, Refusal, Store, Write, Written
from tollhouse.ledger.writes import call_stream, write_of
from tollhouse.stores import open_store
from tollhouse.testing.conformance.base import Leases
from tollhouse.testing.memory_store import MemoryStore

KEYS = ("a", "b", "c")
OWNERS = ("own_0", "own_1")


@dataclass(slots=True)
class Bench:
    """A real store and the loop that it lives on, kept for many examples; each has a tenant of its own."""

    runner: asyncio.Runner
    real: Store
    tenants: Iterator[int] = field(default_factory=itertools.count)


@contextmanager
def opened(url: str) -> Iterator[Bench]:
    """The store at ``url`` on a loop of its own."""
    with asyncio.Runner() as runner:
        real = runner.run(open_store(url))
        yield Bench(runner, real)
        runner.run(real.close())


class BothStores(RuleBasedStateMachine):
    """Everything is done to both; every difference between them is an error."""

    def __init__(self, bench: Bench) -> None:
        super().__init__()
        self.bench, self.model = bench, MemoryStore()
        self.tenant = f"t{next(bench.tenants)}"
        self.leases = [Leases(store) for store in (bench.real, self.model)]
        self.worlds: dict[str, World] = {}
        self.seen: dict[str, list[World]] = {}
        self.writes: list[Write] = []
        self.decisions = itertools.count()
        self.live = set(OWNERS)
        for owner in OWNERS:
            self.both(*(leases.register(owner, tenant=self.tenant) for leases in self.leases))

    # -- doing things to both ----------------------------------------------------------------------------------------

    def both(self, *coroutines: Any) -> list[Any]:
        """The answers of both stores."""

        async def together() -> list[Any]:
            return [await coroutine for coroutine in coroutines]

        return self.bench.runner.run(together())

    def same(self, method: str, *arguments: Any) -> Any:
        """The answer that both give."""
        real, model = self.both(*(getattr(store, method)(*arguments) for store in (self.bench.real, self.model)))
        assert real == model, f"{method}{arguments}"
        return model

    def write(self, *writes: Write) -> tuple[Written, ...]:
        """The reply that both give; rows, fences and histories are the same after it."""
        written: tuple[Written, ...] = self.same("write", *writes)
        for write in writes:
            key = write.record.key
            self.same("get", self.tenant, key)
            self.same("fence", self.tenant, key)
            self.same("events", self.tenant, call_stream(key))
        return written

    def write_of(self, change: Change) -> Write:
        """The guarded write of a change; departures name their owner."""
        record, before = change.record, change.before
        departs = record.state is State.DEPARTED and len(record.attempts) > (len(before.attempts) if before else 0)
        return write_of(change, f"w{next(self.decisions)}", owner=record.attempts[-1].owner if departs else None)

    def step(self, data: st.DataObject, world: World) -> tuple[World, World]:
        """One action of the world, whichever the draw says."""
        choices = list(moves(world))
        eager = [name for name, _ in choices if name not in ("tick", "look")]
        patient = data.draw(st.booleans(), label="patient")
        names = [name for name, _ in choices] if patient or not eager else eager
        name = data.draw(st.sampled_from(names or ["nothing"]), label="action")
        after = dict(choices).get(name, world)
        return world, replace(after, trace=(*world.trace, name))

    def accept(self, key: str, before: World, after: World, record: CallRecord | None) -> None:
        """Let the world go on from what was written."""
        check(before, after)
        self.worlds[key] = replace(after, record=record, change=None)
        self.seen.setdefault(key, []).append(self.worlds[key])

    # -- rules -------------------------------------------------------------------------------------------------------

    @rule(data=st.data(), key=st.sampled_from(KEYS), contract=st.sampled_from(sorted(CONTRACTS)))
    def live_on(self, data: st.DataObject, key: str, contract: str) -> None:
        """Some things happen to a call, one after the other."""
        for _ in range(data.draw(st.integers(1, 10), label="how many")):
            self.act(data, key, contract)

    def act(self, data: st.DataObject, key: str, contract: str) -> None:
        """Something happens to a call: a new one begins, or the world takes its next step."""
        if key not in self.worlds:
            fresh = begin(contract, key=key, tenant=self.tenant)
            before, after = (fresh, fresh) if fresh.change else self.step(data, fresh)
        else:
            before, after = self.step(data, self.worlds[key])
        if after.change is None:
            self.accept(key, before, after, before.record)
            return
        write = self.write_of(after.change)
        (written,) = self.write(write)
        if written.refusal is Refusal.OWNER:
            assert write.owner not in self.live
            return
        assert written.applied
        self.writes.append(write)
        self.accept(key, before, after, write.record)

    @rule(data=st.data(), key=st.sampled_from(KEYS))
    @precondition(lambda self: self.seen)
    def act_on_what_was_seen_before(self, data: st.DataObject, key: str) -> None:
        """A writer decided on an earlier version; unless that is still the present one, nothing changes."""
        if not self.seen.get(key):
            return
        old = data.draw(st.sampled_from(self.seen[key]), label="seen")
        _, after = self.step(data, old)
        present = self.worlds[key].record
        if after.change is None or present is None or old.record is None or old.record.version == present.version:
            return
        (written,) = self.write(self.write_of(after.change))
        assert written == Written(Refusal.STALE, present)

    @rule(data=st.data())
    @precondition(lambda self: self.writes)
    def tell_again(self, data: st.DataObject) -> None:
        """An acknowledgement was lost: the same write is recognised, however much later."""
        write = data.draw(st.sampled_from(self.writes), label="write")
        assert self.write(write) == (Written(),)

    @rule(data=st.data())
    @precondition(lambda self: len(self.worlds) > 1)
    def act_together(self, data: st.DataObject) -> None:
        """Steps of two calls in one commit: both, or neither."""
        first, second = data.draw(st.permutations(sorted(self.worlds)), label="keys")[:2]
        steps = {key: self.step(data, self.worlds[key]) for key in (first, second)}
        changes = [after.change for _, after in steps.values() if after.change is not None]
        if len(changes) < 2:
            return
        writes = [self.write_of(change) for change in changes]
        written = self.write(*writes)
        if not all(answer.applied for answer in written):
            assert Refusal.OWNER in [answer.refusal for answer in written]
            return
        self.writes += writes
        for write, (key, (before, after)) in zip(writes, steps.items(), strict=True):
            self.accept(key, before, after, write.record)

    @rule(how=st.sampled_from(["end", "expire", "die"]))
    def lose_an_owner(self, how: str) -> None:
        """From now on it departs nothing, and what it left open is found; the other goes on."""
        owner = OWNERS[1]
        if how == "end":
            self.both(*(leases.end(owner, tenant=self.tenant) for leases in self.leases))
        elif how == "die":
            self.both(*(store.owner_is_dead(self.tenant, owner) for store in (self.bench.real, self.model)))
        else:
            self.both(*(leases.renew(owner, tenant=self.tenant, lease_s=0.0) for leases in self.leases))
        self.live.discard(owner)
        real, model = self.both(*(s.end_expired_owners(self.tenant) for s in (self.bench.real, self.model)))
        assert sorted((o.id, o.proven_dead) for o in real) == sorted((o.id, o.proven_dead) for o in model)

    @rule(state=st.none() | st.sampled_from(State), contradicted=st.none() | st.booleans())
    def list_them(self, state: State | None, contradicted: bool | None) -> None:
        """Every way to list says the same of both."""
        found = self.same("find", self.tenant, Query(state=state, contradicted=contradicted))
        assert all(state in (None, record.state) for record in found)
        counted = [
            {state: count for state, count in counts.items() if count}
            for counts in self.both(*(store.count(self.tenant) for store in (self.bench.real, self.model)))
        ]
        assert counted[0] == counted[1]
        for owner in OWNERS:
            self.unordered(*(store.orphans(self.tenant, owner, 10) for store in (self.bench.real, self.model)))
        self.unordered(*(store.due(self.tenant, 10) for store in (self.bench.real, self.model)))

    def unordered(self, *coroutines: Any) -> None:
        """Both find the same calls, in whatever order."""
        real, model = self.both(*coroutines)
        assert {record.key: record for record in real} == {record.key: record for record in model}

    def teardown(self) -> None:
        """In the end both hold the same whole histories."""
        for key in self.worlds:
            events = self.same("events", self.tenant, call_stream(key))
            assert first_break(events) is None
        self.both(*(leases.close() for leases in self.leases))


def agree(url: str, examples: int) -> None:
    """Run that many random lives against the store at ``url``."""
    calm = settings(
        max_examples=examples,
        stateful_step_count=40,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    with opened(url) as bench:
        run_state_machine_as_test(lambda: BothStores(bench), settings=calm)  # type: ignore[arg-type]


def test_sqlite_lives_as_the_model_does(tmp_path: Path) -> None:
    """Random lives in a file and in memory."""
    agree(f"sqlite:///{tmp_path}/ledger.db", examples=30)


@pytest.mark.postgres
def test_postgresql_lives_as_the_model_does(postgres_url: str) -> None:
    """Random lives on a server and in memory."""
    agree(postgres_url, examples=15)


@pytest.mark.slow
def test_sqlite_lives_long_as_the_model_does(tmp_path: Path) -> None:
    """Many more of them."""
    agree(f"sqlite:///{tmp_path}/ledger.db", examples=300)
