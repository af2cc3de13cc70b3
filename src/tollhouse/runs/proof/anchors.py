"""Anchors: how far every chain had come, written down outside the database, so that cutting a chain off shows.

An append-only file of JSON lines beside the signing key. Each line names heads of chains, carries the hash of the
line before it, and is signed. Copies of it belong where the ledger's administrators cannot reach: whoever holds an
older copy can tell that a chain of today is shorter than it was.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from tollhouse.errors import ProofUnreadable
from tollhouse.runs.proof.envelope import exact_base64
from tollhouse.runs.proof.keys import Signer, place_of, public_key_of, sync_folder

HEADS_IN_LINE_MOST = 1000
FIRST = ""
"""The hash before the first line."""
_BLOCK = 64 * 1024


class Head(NamedTuple):
    """How far a chain has come."""

    stream: str
    seq: int
    hash: str


@dataclass(frozen=True, slots=True)
class Anchored:
    """One line of the file that was checked."""

    at: str
    tenant: str
    heads: tuple[Head, ...]


def anchors_file(home: Path, store_url: str) -> Path:
    """The file of one ledger's anchors in that folder: named after the database, apart for each of one name."""
    place = place_of(store_url)
    name = re.sub(r"[^A-Za-z0-9._-]", "_", place.rpartition("/")[2]) or "ledger"
    return home / f"{name}.{sha256(place.encode()).hexdigest()[:8]}.anchors.jsonl"


class Anchors:
    """Appends to one file, from any number of threads and processes. ``now``: the time of day, ISO 8601, for readers.

    ``note`` costs a dictionary's write and may be called for every write of a ledger; ``flush`` and ``append`` write
    to disk and are durable on return.
    """

    def __init__(self, path: Path, signer: Signer, now: Callable[[], str] | None = None) -> None:
        self.path, self._signer = path, signer
        self._now = now or (lambda: datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"))
        self._moved: dict[tuple[str, str], Head] = {}

    def note(self, tenant: str, stream: str, seq: int, digest: str) -> None:
        """Remember a head for the next :meth:`flush`. The furthest one of a chain counts, an empty chain does not."""
        known = self._moved.get((tenant, stream))
        if seq > 0 and (known is None or known.seq < seq):
            self._moved[tenant, stream] = Head(stream, seq, digest)

    def flush(self) -> int:
        """Write down what was noted since; how many heads. What cannot be written stays noted. Raises OSError."""
        taken, self._moved = self._moved, {}
        by_tenant: dict[str, list[Head]] = {}
        for (tenant, _), head in taken.items():
            by_tenant.setdefault(tenant, []).append(head)
        try:
            for tenant, heads in by_tenant.items():
                self.append(tenant, heads)
        except BaseException:
            for (tenant, _), head in taken.items():
                self.note(tenant, *head)
            raise
        return len(taken)

    async def keep(self, every_s: float, failed: Callable[[OSError], None] = lambda _error: None) -> None:
        """Flush every so often until cancelled, then once more; the disk is waited for in a thread."""
        try:
            while True:
                await asyncio.sleep(every_s)
                try:
                    await asyncio.to_thread(self.flush)
                except OSError as error:
                    failed(error)
        finally:
            with suppress(OSError):
                self.flush()

    def append(self, tenant: str, heads: Iterable[Head]) -> None:
        """Write these heads down. Raises OSError."""
        ordered = sorted(heads)
        with self._locked() as file:
            previous = _last_hash(file)
            begun = previous == FIRST
            for at in range(0, len(ordered), HEADS_IN_LINE_MOST):
                line = self._line(tenant, ordered[at : at + HEADS_IN_LINE_MOST], previous)
                _write(file, line + b"\n")
                previous = sha256(line).hexdigest()
            os.fsync(file)
            if begun:
                sync_folder(self.path.parent)

    def _line(self, tenant: str, heads: list[Head], previous: str) -> bytes:
        said = {"at": self._now(), "tenant": tenant, "heads": heads, "previous": previous}
        signature = self._signer.sign(_signed(said))
        return _text({**said, "keyid": self._signer.key_id, "sig": b64encode(signature).decode()})

    @contextmanager
    def _locked(self) -> Iterator[int]:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            _lock(file)
            yield file
        finally:
            os.close(file)


def read_anchors(text: str, public_pem: str) -> list[Anchored]:
    """The lines of a file of anchors, each signed by that key and following the one before.

    Raises :class:`ProofUnreadable`, naming the line that is missing, altered or signed by another key.
    """
    from cryptography.exceptions import InvalidSignature

    key, previous, lines = public_key_of(public_pem), FIRST, []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            told: dict[str, Any] = json.loads(line)
            signature = exact_base64(told.pop("sig"))
            said = {name: told[name] for name in ("at", "tenant", "heads", "previous")}
            key.verify(signature, _signed(said))
            heads = tuple(Head(*head) for head in told["heads"])
        except InvalidSignature:
            raise ProofUnreadable(f"Line {number} of the anchors is not signed by the key of this proof.") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ProofUnreadable(f"Line {number} of the anchors cannot be read.") from None
        if told["previous"] != previous:
            raise ProofUnreadable(f"Line {number} of the anchors does not follow the line before it.")
        previous = sha256(line.encode()).hexdigest()
        lines.append(Anchored(told["at"], told["tenant"], heads))
    return lines


def _signed(said: dict[str, Any]) -> bytes:
    return b"tollhouse-anchor/1 " + _text(said)


def _text(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True).encode()


def _write(file: int, line: bytes) -> None:
    """All of it: a disk that fills up takes a part first, and refuses the rest."""
    while line:
        line = line[os.write(file, line) :]


def _last_hash(file: int) -> str:
    """The hash of the last line. A line that a crash cut short was never confirmed, and goes."""
    size = os.fstat(file).st_size
    if size == 0:
        return FIRST
    tail, at = b"", size
    while at > 0 and tail.rstrip(b"\n").count(b"\n") == 0:
        step = min(_BLOCK, at)
        at -= step
        tail = os.pread(file, step, at) + tail
    if not tail.endswith(b"\n"):
        whole = size - len(tail.rpartition(b"\n")[2])
        os.ftruncate(file, whole)
        return _last_hash(file)
    return sha256(tail[:-1].rpartition(b"\n")[2]).hexdigest()


def _lock(file: int) -> None:
    """Exclusive until the file is closed."""
    try:
        import fcntl
    except ImportError:  # Windows, where one process serves
        return
    fcntl.flock(file, fcntl.LOCK_EX)
