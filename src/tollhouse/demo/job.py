"""What a worker of the demo is told to do; the language between ``processes.py`` and ``worker.py``."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Self

LOG_FORMAT = "%(asctime)s %(process)d %(levelname)s %(name)s %(message)s"


@dataclass(frozen=True)
class Order:
    """One call to make: the tool by name, its arguments, its key."""

    tool: str
    arguments: dict[str, Any]
    key: str


@dataclass(frozen=True)
class Job:
    """A worker's task. ``callers``: how many ask for each order at the same time.

    ``crash_at``: the crash point (``tollhouse.testing.crashpoints``) at which it kills itself; None: at none.
    ``serve``: make no calls; run the services of doubt until standard input ends.
    """

    store: str
    tenant: str
    lease_s: float
    orders: tuple[Order, ...] = ()
    callers: int = 1
    crash_at: str | None = None
    serve: bool = False

    def dumps(self) -> str:
        """The job as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> Self:
        """The job in ``text``, as :meth:`dumps` wrote it."""
        given = json.loads(text)
        orders = tuple(Order(**order) for order in given.pop("orders"))
        return cls(**given, orders=orders)
