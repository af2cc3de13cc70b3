"""The metrics of a worker in Prometheus' text format: their names, what each means, and how they are written.

The page on watching workers lists the same names; a test holds it to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tollhouse.contract.terms import US
from tollhouse.house.vitals import Vitals
from tollhouse.ledger.record import State
from tollhouse.stores import Signs


class Metric(NamedTuple):
    """One metric. ``kind``: ``gauge`` or ``counter``."""

    name: str
    kind: str
    help: str


CALLS = Metric("tollhouse_calls", "gauge", "Calls that stand in each state.")
CONTRADICTED = Metric("tollhouse_calls_contradicted", "gauge", "Calls of which a person must settle a contradiction.")
DOUBT_AGE = Metric("tollhouse_oldest_doubt_age_seconds", "gauge", "Age of the call in doubt that was asked for first.")
OWNERS = Metric("tollhouse_owners_live", "gauge", "Processes whose lease runs.")
UP = Metric("tollhouse_store_up", "gauge", "1 if the store answered within 2 seconds.")
RESTORED = Metric("tollhouse_restored", "gauge", "1 while the ledger is marked as restored from a backup.")
LEASE_LEFT = Metric("tollhouse_lease_remaining_seconds", "gauge", "How long this process's lease runs yet.")
RENEWALS = Metric("tollhouse_lease_renewals_failing", "gauge", "Renewals that failed in a row.")
RUNNING = Metric("tollhouse_attempts_running", "gauge", "Attempts that this process has under way.")
LEAKED = Metric("tollhouse_threads_leaked", "gauge", "Functions that still run though nobody waits for them.")
ROUNDS = Metric("tollhouse_rounds_total", "counter", "Rounds of the background services.")
ROUND_AGE = Metric("tollhouse_last_round_age_seconds", "gauge", "How long ago the last round was begun.")
LOOKS = Metric("tollhouse_look_ups_total", "counter", "Times that a tool's look-up was asked.")
RESENDS = Metric("tollhouse_resends_total", "counter", "Doubts that were sent again with the same key.")
WAITING = Metric("tollhouse_writes_waiting", "gauge", "Writes that wait for their commit.")
COMMITS = Metric("tollhouse_store_commits_total", "counter", "Commits of this process.")
WRITES = Metric("tollhouse_store_writes_total", "counter", "Writes in them: many share one commit.")
RECONNECTS = Metric("tollhouse_store_reconnects_total", "counter", "Connections that were made again.")

METRICS = (
    CALLS, CONTRADICTED, DOUBT_AGE, OWNERS, UP, RESTORED, LEASE_LEFT, RENEWALS, RUNNING, LEAKED, ROUNDS, ROUND_AGE,
    LOOKS, RESENDS, WAITING, COMMITS, WRITES, RECONNECTS,
)  # fmt: skip

Sample = tuple[Metric, Mapping[str, str], float]


def exposition(vitals: Vitals, counted: Mapping[State, int] | None, signs: Signs | None, now_us: int) -> str:
    """All metrics as text. ``counted`` and ``signs`` None: the store did not answer, and its metrics are left out."""
    samples = [*_of_process(vitals), *_of_store(counted, signs, now_us)]
    lines: list[str] = []
    for metric in METRICS:
        own = [(labels, value) for of, labels, value in samples if of is metric]
        if own:
            lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
            lines += [f"{metric.name}{_labels(labels)} {value}" for labels, value in own]
    return "\n".join(lines) + "\n"


def _of_store(counted: Mapping[State, int] | None, signs: Signs | None, now_us: int) -> Iterator[Sample]:
    yield UP, {}, 0 if counted is None or signs is None else 1
    if counted is None or signs is None:
        return
    for state in State:
        yield CALLS, {"state": state.value}, counted.get(state, 0)
    yield CONTRADICTED, {}, signs.contradicted
    yield DOUBT_AGE, {}, 0 if signs.oldest_doubt_us is None else max(0, now_us - signs.oldest_doubt_us) / US
    yield OWNERS, {}, signs.live_owners
    yield RESTORED, {}, int(signs.restored)


def _of_process(vitals: Vitals) -> Iterator[Sample]:
    yield LEASE_LEFT, {}, vitals.lease_left_s
    yield RENEWALS, {}, vitals.renewals_failing
    yield RUNNING, {}, vitals.attempts_running
    yield LEAKED, {}, vitals.threads_leaked
    yield ROUNDS, {}, vitals.rounds
    if vitals.last_round_age_s is not None:
        yield ROUND_AGE, {}, vitals.last_round_age_s
    yield LOOKS, {}, vitals.looks
    yield RESENDS, {}, vitals.resends
    yield WAITING, {}, vitals.waiting
    yield COMMITS, {}, vitals.counters.commits
    yield WRITES, {}, vitals.counters.writes
    yield RECONNECTS, {}, vitals.counters.reconnects


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}" if labels else ""
