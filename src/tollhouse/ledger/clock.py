"""The two clocks of a process: its own, which never steps, and its estimate of the store's.

Everything a process decides for itself (may I still send?) is decided on :func:`boot_us`, which runs on during suspend.
Everything written down is on the store's clock, estimated from the last lease renewal: the error is one round trip,
far inside every margin. What a process concludes about *others* (is that owner lost?) is judged by the store itself.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable


def runs_during_suspend(platform: str) -> int | None:
    """The system clock that never steps and runs on while the machine sleeps; None: ``time.monotonic`` does.

    Linux stops every other monotonic clock meanwhile, macOS the one that ``time.monotonic`` reads.
    """
    return getattr(time, "CLOCK_MONOTONIC_RAW" if platform == "darwin" else "CLOCK_BOOTTIME", None)


_BOOTTIME = runs_during_suspend(sys.platform)

STEP_MARGIN_US = 5_000_000
"""A jump of the store's clock beyond this, against ours, stops resends and take-overs for a lease."""

SLOW_READING_US = 1_000_000
"""A reading that took longer than this says little: somewhere in it this process, or the network, stood still."""


def boot_us() -> int:
    """Microseconds on a clock that never steps and runs on while the machine sleeps."""
    if _BOOTTIME is not None:
        return time.clock_gettime_ns(_BOOTTIME) // 1000
    return time.monotonic_ns() // 1000


class StoreClock:
    """The store's time as this process knows it. :meth:`calibrate` is called at each renewal, from any thread."""

    def __init__(self, local_us: Callable[[], int] = boot_us) -> None:
        self.local_us = local_us
        self._offset_us: int | None = None
        self._high_us = 0
        self._steady_from_us = 0
        self.stepped_us = 0

    def calibrate(self, before_us: int, store_us: int, after_us: int, *, steady_after_us: int = 0) -> None:
        """Take in a reading of the store's clock made between two readings of ours.

        A slow reading corrects only what it disproves, since its middle may be off by half of what it took. A step
        beyond :data:`STEP_MARGIN_US` in either direction is remembered in ``stepped_us``, and :attr:`steady` is False
        for ``steady_after_us`` from now on.
        """
        offset = store_us - (before_us + after_us) // 2
        known = self._offset_us
        if known is not None and after_us - before_us > SLOW_READING_US:
            offset = min(max(known, store_us - after_us), store_us - before_us)
        if known is not None and abs(offset - known) > STEP_MARGIN_US:
            self.stepped_us = offset - known
            self._steady_from_us = after_us + steady_after_us
        self._offset_us = offset

    @property
    def steady(self) -> bool:
        """Whether the store's clock has kept pace lately: resends and take-overs wait while it has not."""
        return self.local_us() >= self._steady_from_us

    def now_us(self) -> int:
        """The store's time; never runs back. Raises AssertionError before the first calibration."""
        assert self._offset_us is not None, "the clock was never calibrated"
        self._high_us = max(self._high_us, self.local_us() + self._offset_us)
        return self._high_us

    def to_local_us(self, store_us: int) -> int:
        """The moment of the store's clock on ours."""
        assert self._offset_us is not None, "the clock was never calibrated"
        return store_us - self._offset_us
