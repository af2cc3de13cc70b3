"""The receiver's durable book: what took effect, what was asked, and what became of long work.

One append-only file of JSON lines, each `{"kind": ..., ...}`. The service writes through it and rebuilds
itself from it after a crash; tests and the demo may read the file with no service running.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self

JOB_STATES: Final = ("queued", "done", "failed", "cancelled")


def now_us() -> int:
    """Wall-clock time in microseconds since 1970."""
    return time.time_ns() // 1000


@dataclass(frozen=True)
class Effect:
    """Something that happened, once, and stays. `key` and `reference` are None when the sender gave none."""

    sequence: int
    id: str
    collection: str
    key: str | None
    reference: str | None
    body: Any
    body_sha256: str
    at_us: int


@dataclass(frozen=True)
class SeenRequest:
    """One request that arrived, whether it took effect or not; `connection` numbers the sender's sockets.

    `complete` is False when the sender left in the middle of the body. Headers are kept whole, with names
    in lower case: the book is a witness of what was sent, secrets too, so it belongs in a test's folder.
    """

    sequence: int
    method: str
    path: str
    query: dict[str, str]
    collection: str
    key: str | None
    headers: dict[str, str]
    body: Any
    body_sha256: str
    complete: bool
    connection: int
    at_us: int


@dataclass(frozen=True)
class Mode:
    """How a collection treats keys: whether it recognises them, how long (None: for ever), and look-ups."""

    keyed: bool = False
    lookup: bool = True
    remembers_s: float | None = None


@dataclass
class Job:
    """Long work under the id of the effect that queued it."""

    status: str = "queued"
    result: Any = None


def digest(body: bytes) -> str:
    """SHA-256 of the bytes as received, in hexadecimal."""
    return hashlib.sha256(body).hexdigest()


@dataclass
class Book:
    """The state that the lines add up to; `load` opens a file for appending, `replay` only reads."""

    effects: list[Effect] = field(default_factory=list)
    requests: list[SeenRequest] = field(default_factory=list)
    jobs: dict[str, Job] = field(default_factory=dict)
    modes: dict[str, Mode] = field(default_factory=dict)
    sequence: int = 0
    _file: int | None = None

    @classmethod
    def load(cls, path: Path) -> Self:
        """Open or create the book at `path`; a line cut short by a crash is dropped, its effect never was."""
        book = cls.replay(path)
        if path.exists():
            content = path.read_bytes()
            os.truncate(path, content.rfind(b"\n") + 1)
        book._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        _sync_folder(path.parent)
        return book

    @classmethod
    def replay(cls, path: Path) -> Self:
        """The state after every whole line of the file; empty when there is none."""
        book = cls()
        for line in _whole_lines(path):
            book._apply(json.loads(line))
        return book

    def add_effect(self, collection: str, key: str | None, body: Any, body_sha256: str) -> Effect:
        """Record an effect; it is on disk when this returns."""
        number = self.sequence + 1
        reference = body.get("reference") if isinstance(body, dict) else None
        name = f"{collection}-{number}"
        effect = Effect(number, name, collection, key, reference, body, body_sha256, now_us())
        self._append("effect", asdict(effect), durable=True)
        return effect

    def add_request(self, **seen: Any) -> None:
        """Record an arrival; it survives a kill of this process, not of the machine."""
        request = SeenRequest(sequence=self.sequence + 1, at_us=now_us(), **seen)
        self._append("request", asdict(request), durable=False)

    def set_job(self, name: str, status: str, result: Any) -> None:
        """Record what became of long work, durably."""
        self._append("job", {"id": name, "status": status, "result": result}, durable=True)

    def set_mode(self, collection: str, mode: Mode) -> None:
        """Record how a collection treats keys, durably."""
        self._append("mode", {"collection": collection, **asdict(mode)}, durable=True)

    def reset(self) -> None:
        """Start anew, durably; the old lines stay in the file and count no longer."""
        self._append("reset", {}, durable=True)

    def mode(self, collection: str) -> Mode:
        """How a collection treats keys."""
        return self.modes.get(collection, Mode())

    def remembered(self, collection: str, key: str | None) -> Effect | None:
        """The effect for which a keyed collection still recognises the key."""
        mode = self.mode(collection)
        if not mode.keyed or key is None:
            return None
        span_s = mode.remembers_s
        since_us = 0.0 if span_s is None else now_us() - span_s * 1_000_000
        fits = (each for each in self.effects if each.collection == collection and each.key == key)
        return next((each for each in fits if each.at_us >= since_us), None)

    def close(self) -> None:
        """Close the file; the book can still be read."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _append(self, kind: str, entry: dict[str, Any], *, durable: bool) -> None:
        assert self._file is not None, "a book that was only replayed cannot be written"
        line = json.dumps({"kind": kind, **entry}).encode() + b"\n"
        while line:
            line = line[os.write(self._file, line) :]
        if durable:
            os.fsync(self._file)
        self._apply({"kind": kind, **entry})

    def _apply(self, entry: dict[str, Any]) -> None:
        kind = entry.pop("kind")
        self.sequence = entry.get("sequence", self.sequence)
        if kind == "effect":
            self.effects.append(Effect(**entry))
        elif kind == "request":
            self.requests.append(SeenRequest(**entry))
        elif kind == "job":
            self.jobs[entry["id"]] = Job(entry["status"], entry["result"])
        elif kind == "mode":
            collection = entry.pop("collection")
            self.modes[collection] = Mode(**entry)
        else:
            assert kind == "reset", kind
            for part in (self.effects, self.requests, self.jobs, self.modes):
                part.clear()


def read_effects(path: Path) -> list[Effect]:
    """The effects in a book's file, oldest first; no service needs to run."""
    return Book.replay(path).effects


def _whole_lines(path: Path) -> Iterator[bytes]:
    if path.exists():
        yield from (line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n"))


def _sync_folder(folder: Path) -> None:
    # A new file is durable only once its folder is; Windows offers no such call and needs none.
    if os.name != "nt":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
