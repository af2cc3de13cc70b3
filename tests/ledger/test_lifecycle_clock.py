"""The store's clock as a process knows it: no slow reading, frozen process or step misleads it."""

from __future__ import annotations

import sys
import time

import pytest

from tollhouse.ledger.clock import STEP_MARGIN_US, StoreClock, boot_us, runs_during_suspend

SECOND = 1_000_000
AHEAD = 1_000_000 * SECOND


class Local:
    """Our own clock, moved by hand."""

    def __init__(self) -> None:
        self.now_us = 100 * SECOND

    def __call__(self) -> int:
        return self.now_us


def read(clock: StoreClock, local: Local, *, before_s: float, after_s: float, store_ahead_us: int = AHEAD) -> None:
    """One renewal: the store reads its clock ``before_s`` after we asked, and ``after_s`` before we hear of it."""
    asked_us = local.now_us
    store_us = asked_us + round(before_s * SECOND) + store_ahead_us
    local.now_us += round((before_s + after_s) * SECOND)
    clock.calibrate(asked_us, store_us, local.now_us, steady_after_us=30 * SECOND)


def test_a_quick_reading_is_off_by_half_its_time_at_most() -> None:
    """The middle between question and answer stands for the moment of the reading."""
    local = Local()
    clock = StoreClock(local)
    read(clock, local, before_s=0.010, after_s=0.002)
    assert abs(clock.now_us() - (local.now_us + AHEAD)) <= 6_000
    assert abs(clock.to_local_us(local.now_us + AHEAD) - local.now_us) <= 6_000


def test_a_process_frozen_in_a_reading_keeps_what_it_knew() -> None:
    """Stopped for an hour between question and answer, before or after the store read its clock: no step, no error."""
    for before_s, after_s in ((3600.0, 0.0), (0.0, 3600.0), (1800.0, 1800.0)):
        local = Local()
        clock = StoreClock(local)
        read(clock, local, before_s=0.001, after_s=0.001)
        read(clock, local, before_s=before_s, after_s=after_s)
        assert clock.now_us() == local.now_us + AHEAD
        assert clock.stepped_us == 0
        assert clock.steady


def test_a_slow_reading_still_shows_a_step() -> None:
    """What lies outside all that the reading allows is a step, by as much as is certain."""
    local = Local()
    clock = StoreClock(local)
    read(clock, local, before_s=0.001, after_s=0.001)
    read(clock, local, before_s=1.0, after_s=1.0, store_ahead_us=AHEAD + 600 * SECOND)
    assert clock.stepped_us == 599 * SECOND
    assert not clock.steady


def test_a_step_either_way_stops_resends_for_a_while() -> None:
    """Beyond the margin it is remembered, and nobody is taken over until a lease has passed."""
    for step_us in (STEP_MARGIN_US + SECOND, -STEP_MARGIN_US - SECOND):
        local = Local()
        clock = StoreClock(local)
        read(clock, local, before_s=0.0, after_s=0.0)
        read(clock, local, before_s=0.0, after_s=0.0, store_ahead_us=AHEAD + step_us)
        assert clock.stepped_us == step_us
        assert not clock.steady
        local.now_us += 30 * SECOND
        assert clock.steady


def test_a_drift_is_no_step() -> None:
    """Inside the margin the clock is corrected, and everybody goes on."""
    local = Local()
    clock = StoreClock(local)
    read(clock, local, before_s=0.0, after_s=0.0)
    read(clock, local, before_s=0.0, after_s=0.0, store_ahead_us=AHEAD + STEP_MARGIN_US)
    assert (clock.stepped_us, clock.steady) == (0, True)
    assert clock.now_us() == local.now_us + AHEAD + STEP_MARGIN_US


def test_time_never_runs_back() -> None:
    """When the store's clock is set back, ours stands still until it is reached again."""
    local = Local()
    clock = StoreClock(local)
    read(clock, local, before_s=0.0, after_s=0.0)
    high_us = clock.now_us()
    read(clock, local, before_s=0.0, after_s=0.0, store_ahead_us=AHEAD - 10 * SECOND)
    assert clock.now_us() == high_us
    local.now_us += 11 * SECOND
    assert clock.now_us() == high_us + SECOND


def test_our_own_clock_never_steps() -> None:
    """It counts from the start of the machine, also while that sleeps."""
    readings = [boot_us() for _ in range(100)]
    assert readings == sorted(readings)


@pytest.mark.parametrize(("platform", "name"), [("linux", "CLOCK_BOOTTIME"), ("darwin", "CLOCK_MONOTONIC_RAW")])
def test_our_own_clock_counts_the_time_that_the_machine_slept(
    platform: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a laptop that was opened again would take its lease for one that still runs."""
    monkeypatch.setattr(time, name, 77, raising=False)
    assert runs_during_suspend(platform) == 77


def test_our_own_clock_is_the_one_that_runs_on() -> None:
    """What a process decides by is that clock, in microseconds."""
    which = runs_during_suspend(sys.platform)
    read_us = time.monotonic_ns if which is None else lambda: time.clock_gettime_ns(which)
    assert read_us() // 1000 <= boot_us() <= read_us() // 1000
