"""How a house in this process is doing, from what it has in memory: nothing here asks the store. For health checks."""

from __future__ import annotations

from dataclasses import dataclass

from tollhouse.contract.terms import US
from tollhouse.house.house import Tollhouse
from tollhouse.ledger.store import Counters, Queueing


@dataclass(frozen=True, slots=True)
class Vitals:
    """Ages and times in seconds. ``lease_left_s`` may be below 0: it ended. ``last_round_age_s`` None: none was made.

    ``rounds``, ``looks`` and ``resends`` count since the house was opened, as ``counters`` do. ``waiting``: writes that
    wait for their commit.
    """

    lease_left_s: float
    renewals_failing: int
    attempts_running: int
    threads_leaked: int
    rounds: int
    looks: int
    resends: int
    last_round_age_s: float | None
    waiting: int
    counters: Counters


def vitals_of(house: Tollhouse) -> Vitals:
    """What can be said at once."""
    core, services = house._core, house.services
    lease, now_us = core.keeper.current, core.local_us()
    assert lease is not None
    last_us, store = services.last_round_local_us, core.store
    return Vitals(
        lease_left_s=(lease.until_local_us - now_us) / US,
        renewals_failing=core.keeper.failures,
        attempts_running=len(core.running),
        threads_leaked=core.threads.leaked,
        rounds=services.rounds,
        looks=house._reconciler.looks,
        resends=house._reconciler.resends,
        last_round_age_s=None if last_us is None else (now_us - last_us) / US,
        waiting=store.waiting if isinstance(store, Queueing) else 0,
        counters=store.counters,
    )
