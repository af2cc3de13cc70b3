"""As much of PostgreSQL's wire protocol as it takes to lose one acknowledgement; used by the proxy.

A commit's acknowledgement can be lost in two ways that look the same to the client: the statement never
reached the server, or it was carried out and the answer never came back. Protocol 3: every message after the
start-up is a type byte, a length and a payload; each Sync, Query or FunctionCall of the client is answered, in
order, by one ReadyForQuery, and an implicit transaction has committed when that is sent.
Source: PostgreSQL documentation, chapter "Frontend/Backend Protocol".
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, Literal

Variant = Literal["applied", "not_applied"]
Matching = str | re.Pattern[str] | Callable[["Statement"], bool] | None

_PROTOCOL_3: Final = 3
_ENCRYPTION_REQUESTS: Final = (80877103, 80877104)  # TLS, GSSAPI
_ENDS_A_CYCLE: Final = b"SQF"


@dataclass(frozen=True)
class Statement:
    """What a client asks to execute: the text, and the bound parameters as sent (None for NULL)."""

    text: str
    parameters: tuple[bytes | None, ...] = ()


@dataclass(frozen=True)
class Loss:
    """What was lost. For `applied`: the command tags, the transaction status after it, and the error, if any.

    `status` is `I` (no transaction open: it is committed, or failed if `error` is set), `T` (inside an explicit
    transaction, which the cut rolls back) or `E`; `error` is an SQLSTATE.
    """

    statement: Statement
    variant: Variant
    tags: tuple[str, ...] = ()
    status: str | None = None
    error: str | None = None


@dataclass(eq=False)
class Trap:
    """One acknowledgement to lose, once; `wait` tells when it has happened."""

    matching: Matching
    variant: Variant
    skip: int = 0
    then_away: bool = False
    _loss: Future[Loss] = field(default_factory=Future)

    def wait(self, timeout_s: float = 10.0) -> Loss:
        """Block until the acknowledgement is lost. Raises TimeoutError."""
        return self._loss.result(timeout_s)

    @property
    def sprung(self) -> bool:
        """Whether the acknowledgement has been lost."""
        return self._loss.done()

    def spring(self, loss: Loss) -> None:
        """Say what was lost; called by the proxy after the connection was cut."""
        self._loss.set_result(loss)

    def takes(self, statement: Statement) -> bool:
        """Whether this statement's acknowledgement is the one to lose; a fitting one may be skipped."""
        if not _matches(self.matching, statement):
            return False
        self.skip -= 1
        return self.skip < 0


def _matches(matching: Matching, statement: Statement) -> bool:
    match matching:
        case None:
            return True
        case str():
            return matching.lower() in statement.text.lower()
        case re.Pattern():
            return matching.search(statement.text) is not None
    return matching(statement)


class Session:
    """One client's conversation. Bytes go in by `from_client` and `from_server`, and out by the two boxes.

    When `cut` is set, whatever is in the boxes is not to be sent, the connection is to be dropped on both
    sides, and then `spring` to be called.
    """

    def __init__(self, traps: list[Trap]) -> None:
        """Watch for `traps`, a list that others may extend and that loses each trap that takes a statement."""
        self.to_server = bytearray()
        self.to_client = bytearray()
        self.cut = False
        self._traps = traps
        self._trap: Trap | None = None
        self._loss: Loss | None = None
        self._started = False
        self._plain = False
        self._asked = bytearray()
        self._answered = bytearray()
        self._texts: dict[bytes, str] = {}
        self._portals: dict[bytes, Statement] = {}
        self._cycles = 0  # cycles that the client has ended
        self._ready = -1  # cycles that the server has answered; its first ReadyForQuery answers the start-up
        self._losing: int | None = None  # the cycle whose answer is not to arrive

    def from_client(self, data: bytes) -> None:
        """Take bytes from the client; complete messages move on."""
        self._asked += data
        while not (self._started or self._plain) and self._start_up():
            pass
        if self._plain:
            _move(self._asked, self.to_server)
        elif self._started:
            for kind, message in _messages(self._asked):
                self._ask(kind, message)
                if self.cut:
                    return

    def from_server(self, data: bytes) -> None:
        """Take bytes from the server; complete messages move on, but for the answer to be lost."""
        self._answered += data
        if not self._started:
            _move(self._answered, self.to_client)
            return
        for kind, message in _messages(self._answered):
            self._answer(kind, message)
            if self.cut:
                return

    @property
    def then_away(self) -> bool:
        """Whether the server is to be away once the acknowledgement is lost."""
        return self._trap is not None and self._trap.then_away

    def spring(self) -> None:
        """Report the loss to whoever set the trap."""
        assert self._trap is not None
        assert self._loss is not None
        self._trap.spring(self._loss)

    def _start_up(self) -> bool:
        """Take one start-up packet; False when there is none yet."""
        if self._asked[:1] > b"\0":
            # No start-up packet is that long. Whoever speaks otherwise may begin with fewer bytes than one has.
            self._plain = True
            return False
        if len(self._asked) < 8:
            return False
        length, code = struct.unpack_from("!II", self._asked)
        if code in _ENCRYPTION_REQUESTS:
            # Encrypted messages could not be read, so the client is told to go on in plain.
            del self._asked[:length]
            self.to_client += b"N"
            return True
        if code >> 16 != _PROTOCOL_3:
            self._plain = True  # a cancel request: nothing to watch
            return False
        if len(self._asked) < length:
            return False
        _move(self._asked, self.to_server, length)
        self._started = True
        return False

    def _ask(self, kind: bytes, message: bytes) -> None:
        statement = self._statement(kind, message[5:])
        if statement is not None and self._trap is None:
            self._trap = next((trap for trap in self._traps if trap.takes(statement)), None)
            if self._trap is not None:
                self._arm(self._trap, statement)
        if not self.cut:
            self._cycles += kind in _ENDS_A_CYCLE
            self.to_server += message

    def _arm(self, trap: Trap, statement: Statement) -> None:
        self._traps.remove(trap)
        self._loss = Loss(statement, trap.variant)
        self._losing = self._cycles
        self.cut = trap.variant == "not_applied"

    def _statement(self, kind: bytes, payload: bytes) -> Statement | None:
        """The statement that a message executes; None for one that executes nothing."""
        match kind:
            case b"P":
                name, text, _ = payload.split(b"\0", 2)
                self._texts[name] = text.decode(errors="replace")
            case b"B":
                portal, name, rest = payload.split(b"\0", 2)
                self._portals[portal] = Statement(self._texts.get(name, ""), tuple(_parameters(rest)))
            case b"E":
                return self._portals.get(payload.split(b"\0", 1)[0])
            case b"Q":
                return Statement(payload.rstrip(b"\0").decode(errors="replace"))
        return None

    def _answer(self, kind: bytes, message: bytes) -> None:
        lost = self._losing is not None and self._ready == self._losing
        if lost:
            self._note(kind, message[5:])
        # A COPY's rows only come once the client was told to send them.
        if not lost or kind == b"G":
            self.to_client += message
        self._ready += kind == b"Z"
        self.cut = lost and kind == b"Z"

    def _note(self, kind: bytes, payload: bytes) -> None:
        assert self._loss is not None
        tags, status, error = self._loss.tags, self._loss.status, self._loss.error
        match kind:
            case b"C":
                tags = (*tags, payload.rstrip(b"\0").decode())
            case b"E":
                error = next(part[1:].decode() for part in payload.split(b"\0") if part[:1] == b"C")
            case b"Z":
                status = payload.decode()
        self._loss = Loss(self._loss.statement, self._loss.variant, tags, status, error)


def _messages(buffer: bytearray) -> Iterator[tuple[bytes, bytes]]:
    """Take the complete messages out of a buffer."""
    while len(buffer) >= 5:
        end = 1 + struct.unpack_from("!I", buffer, 1)[0]
        if len(buffer) < end:
            return
        message = bytes(buffer[:end])
        del buffer[:end]
        yield message[:1], message


def _parameters(rest: bytes) -> Iterator[bytes | None]:
    """The values of a Bind message, after its format codes."""
    (formats,) = struct.unpack_from("!H", rest)
    offset = 2 + 2 * formats
    (count,) = struct.unpack_from("!H", rest, offset)
    offset += 2
    for _ in range(count):
        (length,) = struct.unpack_from("!i", rest, offset)
        offset += 4
        yield None if length < 0 else rest[offset : offset + length]
        offset += max(length, 0)


def _move(source: bytearray, sink: bytearray, count: int | None = None) -> None:
    size = len(source) if count is None else count
    sink += source[:size]
    del source[:size]
