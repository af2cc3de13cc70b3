"""The garbage collector as a process sets it that serves calls for long: what is loaded is left alone, and the rest is
looked at seldom.

At Python's own settings the collector walks all that was imported again and again, and every call pays for it. The
command line and the bench set it so; a library changes nothing in the process of its user.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLDS = (50_000, 20, 20)


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Set it for the block, and put back what was set before."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
