"""Whether a write may commit on its caller's thread: when it comes alone, and commits are quick."""

from __future__ import annotations

_SLOW_COMMIT_S = 0.001
_WEIGHT = 0.1
_LOOKS = 8


class Pace:
    """What the writer has seen lately. A commit on the event loop's thread blocks the loop for as long as it takes."""

    def __init__(self) -> None:
        self._commit_s = 0.0
        self._alone = 0

    @property
    def quick(self) -> bool:
        """Whether commits have taken less than a millisecond on average; those of the writer's thread count too."""
        return self._commit_s < _SLOW_COMMIT_S

    def committed(self, spent_s: float) -> None:
        """Note how long a commit took, capped: it is slow when about half are, not for one check-point in a while."""
        self._commit_s += _WEIGHT * (min(spent_s, 2 * _SLOW_COMMIT_S) - self._commit_s)

    def should_look_around(self) -> bool:
        """Whether to let others come first, to share a commit: always while some came lately, now and then later."""
        self._alone += 1
        return self._alone <= _LOOKS or self._alone % _LOOKS == 0

    def met_others(self) -> None:
        """Note that several callers write at the same time."""
        self._alone = 0
