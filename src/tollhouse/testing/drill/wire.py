"""What the drill's processes say to each other: one JSON object a line, in one write, over a local socket."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any


class Line:
    """The worker's end: blocking and safe from any thread, so that a note is out before whatever comes next."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path)
        self._lock = threading.Lock()
        self._buffer = b""

    def say(self, **fields: Any) -> None:
        """Say one thing; it survives this process."""
        with self._lock:
            self._socket.sendall(json.dumps(fields, default=str).encode() + b"\n")

    def hear(self) -> dict[str, Any] | None:
        """The next thing said to this process; None at the end. For one thread."""
        while b"\n" not in self._buffer:
            try:
                piece = self._socket.recv(65536)
            except OSError:
                return None
            if not piece:
                return None
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        heard: dict[str, Any] = json.loads(line)
        return heard
