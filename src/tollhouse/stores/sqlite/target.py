"""What a ``sqlite://`` URL names, and whether writing there is durable. Asked by ``open_store`` before it opens."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote

from tollhouse.errors import StoreNotDurable, StoreURLInvalid
from tollhouse.stores.sqlite.mounts import MEMORY, NETWORK, Mount, file_system_of, mounted

logger = logging.getLogger("tollhouse.stores.sqlite")

_DURABLE = ("FULL", "EXTRA")
_SYNCHRONOUS = ("OFF", "NORMAL", *_DURABLE)


@dataclass(frozen=True, slots=True)
class Target:
    """A database: ``path`` absolute, None in memory. ``max_page_count`` None: as large as its disk allows."""

    url: str
    path: Path | None
    synchronous: str = "FULL"
    max_page_count: int | None = None

    @property
    def name(self) -> str:
        """How errors call it."""
        return str(self.path or "in memory")

    @property
    def lock_path(self) -> Path:
        """The side file whose lock is held around each write transaction."""
        assert self.path is not None
        return self.path.with_name(self.path.name + "-lock")


def parse(url: str) -> Target:
    """Read ``sqlite:///relative.db``, ``sqlite:////absolute.db`` or ``sqlite:///:memory:``.

    Parameters: ``synchronous`` (FULL, EXTRA; NORMAL, OFF only where losing the ledger is acceptable) and
    ``max_page_count`` (a bound on the file, in pages of 4 kB). Raises :class:`~tollhouse.errors.StoreURLInvalid`.
    """
    location, _, query = url.removeprefix("sqlite://").partition("?")
    path = unquote(location.removeprefix("/"))
    if not location.startswith("/") or not path or "\0" in path:
        raise StoreURLInvalid("A sqlite URL needs three slashes and a path, as in sqlite:///tollhouse.db.")
    parameters = dict(parse_qsl(query, keep_blank_values=True))
    synchronous = parameters.pop("synchronous", "FULL").upper()
    if synchronous not in _SYNCHRONOUS:
        raise StoreURLInvalid(f"synchronous is one of {', '.join(_SYNCHRONOUS)}.")
    pages = parameters.pop("max_page_count", None)
    if pages is not None and not (pages.isdecimal() and int(pages)):
        raise StoreURLInvalid("max_page_count is a whole number of pages above 0.")
    if parameters:
        raise StoreURLInvalid(f"A sqlite URL has no parameter {min(parameters)!r}.")
    file = None if path == ":memory:" else Path(path).absolute()
    return Target(url, file, synchronous, None if pages is None else int(pages))


def require_durable(target: Target, mounts: Sequence[Mount] | None = None) -> None:
    """Raise :class:`~tollhouse.errors.StoreNotDurable` where a power cut could undo what was confirmed.

    That is memory, a weaker ``synchronous``, and network file systems, which neither lock nor share memory as WAL
    needs. A file system in the machine's memory is logged but not refused: it survives every crash of a process, and
    temporary folders often are one. ``mounts`` None: those of this machine.
    """
    if target.path is None:
        raise StoreNotDurable("A ledger in memory is gone when its process ends.")
    if target.synchronous not in _DURABLE:
        raise StoreNotDurable(f"With synchronous={target.synchronous} a power cut can undo confirmed departures.")
    kind = file_system_of(target.path, mounted() if mounts is None else mounts)
    if kind in NETWORK:
        raise StoreNotDurable(
            f"The ledger would be on a network file system ({kind}), where SQLite cannot lock it or make it durable.",
            remedy="Use a local disk or PostgreSQL, or pass volatile=True where losing the ledger is acceptable.",
        )
    if kind in MEMORY:
        logger.warning("ledger in memory: %s is on %s and will not outlive a restart of the machine", target.path, kind)
