"""Runs work near the end of the stack, where deep callers would be."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable


def with_stack_left(frames: int, work: Callable[[], object]) -> object:
    """Run ``work`` with only so many stack frames to go."""

    def descend(levels: int) -> object:
        return work() if levels == 0 else descend(levels - 1)

    return descend(sys.getrecursionlimit() - len(inspect.stack(0)) - frames)
