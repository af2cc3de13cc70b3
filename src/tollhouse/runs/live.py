"""What is going on in this process right now: hints that a run's journal moved, and text as a model streams it.

Nothing here is durable, and nobody relies on it: readers catch up from the journal. A subscriber that does not read is
told that it lagged behind, and holds nobody up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

QUEUE_MOST = 1000
"""Pieces that wait for one subscriber; beyond that its oldest are dropped, and it is told."""


@dataclass(frozen=True, slots=True)
class Moved:
    """The journal has events up to ``seq``, and the run is in ``state``."""

    run_id: str
    seq: int
    state: str


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of the answer of ``turn``, as it streams in. Pieces of an answer that fails are never recorded.

    ``at``: how many characters of the answer came before it, so that a listener knows whether it heard all of them.
    """

    run_id: str
    turn: int
    piece: str
    at: int = 0


@dataclass(frozen=True, slots=True)
class Lagged:
    """Pieces were dropped: read the journal."""

    run_id: str


Live = Moved | Text | Lagged


class Bus:
    """Subscriptions of this process, by run. All methods on the loop's thread."""

    def __init__(self) -> None:
        self._queues: dict[str, set[asyncio.Queue[Live]]] = {}

    @contextmanager
    def subscribe(self, run_id: str) -> Iterator[asyncio.Queue[Live]]:
        """A queue of what happens to that run from now on; ``*`` for all runs."""
        queue: asyncio.Queue[Live] = asyncio.Queue(QUEUE_MOST)
        self._queues.setdefault(run_id, set()).add(queue)
        try:
            yield queue
        finally:
            mine = self._queues[run_id]
            mine.discard(queue)
            if not mine:
                del self._queues[run_id]

    def is_heard(self, run_id: str) -> bool:
        """Whether anybody here listens to that very run: only then is its text worth streaming."""
        return run_id in self._queues

    def tell(self, live: Live) -> None:
        """Tell everybody who listens. Never waits."""
        for queue in (*self._queues.get(live.run_id, ()), *self._queues.get("*", ())):
            if queue.full():
                _make_room(queue, live.run_id)
            queue.put_nowait(live)


def _make_room(queue: asyncio.Queue[Live], run_id: str) -> None:
    while queue.qsize() > QUEUE_MOST // 2:
        queue.get_nowait()
    queue.put_nowait(Lagged(run_id))
