"""The store's clock: the machine's time of day, made never to run back.

All processes of an SQLite ledger share one machine, so its time of day is their common clock. When it is set back, the
store's time goes on from the highest reading at the pace of a clock that never steps. Across restarts the ledger
itself remembers the highest time by which an owner was judged.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tollhouse.ledger.clock import boot_us


def wall_us() -> int:
    """The machine's time of day, in microseconds."""
    return time.time_ns() // 1000


class NeverBack:
    """A time that follows ``wall`` forwards only. Safe across threads."""

    def __init__(self, wall: Callable[[], int] = wall_us, steady: Callable[[], int] = boot_us) -> None:
        self._wall = wall
        self._steady = steady
        self._lock = threading.Lock()
        self._high_us = 0
        self._high_at_us = steady()

    def now_us(self, at_least_us: int = 0) -> int:
        """The store's time, not below ``at_least_us`` or any earlier answer."""
        with self._lock:
            steady_us = self._steady()
            gone_on_us = self._high_us + steady_us - self._high_at_us
            self._high_us, self._high_at_us = max(self._wall(), gone_on_us, at_least_us), steady_us
            return self._high_us
