"""What readers of a run's stream share: one follower of each run that anybody reads, however many they are.

A follower reads the journal; the bus only tells it when that is worth while, and what other processes write is found by
looking. Readers keep nothing but their place: whoever is slow reads older lines from the store, and holds nobody up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple, TypeVar

from tollhouse.api.json_text import write_json
from tollhouse.errors import StoreUnavailable, TollhouseError
from tollhouse.house.as_json import facts_as_json
from tollhouse.ledger.events import Event
from tollhouse.ledger.plain import moment
from tollhouse.ledger.run_record import RunRecord
from tollhouse.runs.live import Live, Moved, Text
from tollhouse.runs.service import Runs
from tollhouse.runs.states import FINISHED, RunEvent

T = TypeVar("T")

log = logging.getLogger("tollhouse.api")

LINES_MOST, BYTES_MOST = 1000, 4 * 1024 * 1024
"""What a follower remembers at least of the newest lines, and at most of their bytes."""
PAGE = 200
"""Lines that one reader is sent at a time."""
PAGE_BYTES = 256 * 1024
"""Beyond so many bytes a reader gets no further line at a time: whoever is slow keeps no more than that waiting."""
JOINED_MOST = 16
LIVE_CHARACTERS_MOST = 1024 * 1024

LOOK_S = 0.25
"""How often the journal is looked at for what other processes wrote, while few runs are followed."""
LOOKS_PER_S_MOST = 400
"""By all followers of a process together."""
BREATH_PER_READER_S = 0.0001
"""A follower pauses so long for each of its readers between two pieces of news, so that each piece is worth a send."""
_ENDS_AN_ANSWER = frozenset(
    {RunEvent.MODEL_ANSWERED, RunEvent.MODEL_FAILED, RunEvent.CLAIMED, RunEvent.RELEASED, RunEvent.CANCELLED}
)
"""After these, what was heard of an answer is recorded or void."""
AWAY_S = 1.0
TIDY_S = 2.0
"""How long readers of a run that has ended are kept for the note that it was tidied."""


class Line(NamedTuple):
    """One event of the journal: as it is, its facts with bodies put back, and as it is sent."""

    event: Event
    facts: dict[str, Any]
    sent: bytes


async def line_of(runs: Runs, event: Event) -> Line:
    """The event as readers get it."""
    facts = await runs.facts(event)
    told = facts_as_json(facts)
    if "waiting" in told:
        told["waiting"] = [facts_as_json(each) for each in told["waiting"]]
    shown = {"seq": event.seq, "at": moment(event.at_us), "kind": event.kind, "facts": told}
    head = f"id: {event.seq}\nevent: {event.kind}\ndata: ".encode()
    return Line(event, facts, head + write_json(shown) + b"\n\n")


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """What the store says, however long it is away."""
    while True:
        try:
            return await ask()
        except StoreUnavailable:
            await asyncio.sleep(AWAY_S)


def _page(lines: list[Line]) -> list[Line]:
    """Lines from the first, as many as one reader is sent at a time."""
    size = 0
    for number, line in enumerate(lines, start=1):
        size += len(line.sent)
        if size > PAGE_BYTES:
            return lines[:number]
    return lines


class Joined(NamedTuple):
    """Lines as they are sent, all in one; empty: there are no more yet. ``last``: the place after them."""

    sent: bytes
    last: int


class Answer(NamedTuple):
    """A model's answer as far as it has streamed in. ``number``: tells one answer of a turn from its next try."""

    number: int
    turn: int
    text: str


class Feed:
    """The follower of one run. ``head``: the last event that it has read.

    ``answer``: what streams in after that event; not for a reader who is beyond it, and may have the record of it.
    """

    def __init__(self, runs: Runs, record: RunRecord) -> None:
        self._runs, self.run_id, self.head = runs, record.id, record.head_seq
        self._first, self._lines, self._bytes = record.head_seq + 1, list[Line](), 0
        self._joined: dict[int, Joined] = {}
        self.answer = Answer(0, 0, "")
        self._recorded_turn = 0
        self.readers = 0
        self.complete = record.finished and record.due_at_us is None
        """The run has ended, and nothing more will be written: whoever has read up to ``head`` has everything."""
        self._may_have_ended = record.finished
        self._waits_until: float | None = None
        self.closed = False
        self.news = asyncio.Event()
        """Set, and replaced by another, whenever there is something new."""

    # -- for readers -------------------------------------------------------------------------------------

    async def lines(self, after: int) -> Sequence[Line]:
        """Lines after that place, some at a time; none: there are no more yet. Waits while the store is away."""
        if after >= self.head:
            return ()
        if after >= self._first - 1:
            at = after - self._first + 1
            return _page(self._lines[at : at + PAGE])
        return await patiently(lambda: self._older(after))

    async def _older(self, after: int) -> list[Line]:
        """What nobody remembers here, as far as the store gives it out at a time. Raises where it gives nothing."""
        lines, size = list[Line](), 0
        for event in await self._runs.events(self.run_id, after, PAGE):
            try:
                lines.append(await line_of(self._runs, event))
            except StoreUnavailable:
                if not lines:
                    raise
                break
            size += len(lines[-1].sent)
            if size > PAGE_BYTES:
                break
        return lines

    async def joined(self, after: int) -> Joined:
        """The same lines as they are sent; most readers are at one place, so what one gets is kept for the others."""
        if (known := self._joined.get(after)) is not None:
            return known
        lines = await self.lines(after)
        if not lines:
            return Joined(b"", after)
        joined = Joined(b"".join(line.sent for line in lines), lines[-1].event.seq)
        if len(self._joined) < JOINED_MOST:
            self._joined[after] = joined
        return joined

    # -- following ---------------------------------------------------------------------------------------

    async def follow(self, pause_s: Callable[[], float]) -> None:
        """Take in what is new, now and whenever a hint comes or the pause is over. Ends when cancelled."""
        with self._runs.bus.subscribe(self.run_id) as hints:
            while True:
                try:
                    await self._read()
                    await self._see_whether_complete()
                except TollhouseError:  # the store is away: readers wait
                    await asyncio.sleep(AWAY_S)
                except Exception:
                    log.exception("feed_failed run=%s", self.run_id)
                    await asyncio.sleep(AWAY_S)
                else:
                    await self._breathe()
                    await self._listen(hints, pause_s())

    async def _listen(self, hints: asyncio.Queue[Live], pause_s: float) -> None:
        """Wait until the journal moved, or is to be looked at anyway, taking in what a model says meanwhile."""
        loop = asyncio.get_running_loop()
        until = loop.time() + pause_s
        with suppress(TimeoutError):
            while True:
                async with asyncio.timeout_at(until):
                    hint = await hints.get()
                if isinstance(hint, Text):
                    self._hear(hint)
                elif not (isinstance(hint, Moved) and hint.seq <= self.head):
                    return
                if hints.empty():
                    await self._breathe()

    async def _breathe(self) -> None:
        await asyncio.sleep(BREATH_PER_READER_S * self.readers)

    async def _read(self) -> None:
        while events := await self._runs.events(self.run_id, self.head, PAGE):
            try:
                for event in events:
                    self._take(await line_of(self._runs, event))
            finally:
                self._forget()
                self.tell()

    def _take(self, line: Line) -> None:
        """Line and head move together: reading goes on after whatever was taken, also where it broke off."""
        self._lines.append(line)
        self._bytes += len(line.sent)
        self.head = line.event.seq
        self._may_have_ended = line.facts.get("state") in FINISHED
        if line.event.kind == RunEvent.MODEL_ANSWERED:
            self._recorded_turn = line.facts.get("turn", 0)
        if line.event.kind in _ENDS_AN_ANSWER:
            self.answer = Answer(self.answer.number + 1, 0, "")

    async def _see_whether_complete(self) -> None:
        """A run that ended may still be tidied, which is soon, or else nobody waits for it."""
        if self.complete:
            return
        record = await self._runs.store.run(self._runs.tenant, self.run_id) if self._may_have_ended else None
        if record is None or not record.finished:
            return
        now = asyncio.get_running_loop().time()
        self._waits_until = self._waits_until or now + TIDY_S
        if record.head_seq == self.head and (record.due_at_us is None or now >= self._waits_until):
            self.complete = True
            self.tell()

    def _hear(self, piece: Text) -> None:
        """Add a piece of the answer. One that does not follow what was heard is left out: the whole comes later.

        So is one that comes after the whole: hints wait while the journal is read.
        """
        if piece.turn <= self._recorded_turn:
            return
        number, _, text = self.answer
        if piece.at == 0 and text:
            number, text = number + 1, ""
        if piece.at == len(text) < LIVE_CHARACTERS_MOST:
            self.answer = Answer(number, piece.turn, text + piece.piece)
            self.tell()

    def _forget(self) -> None:
        spare = len(self._lines) - LINES_MOST
        while spare > LINES_MOST or (self._bytes > BYTES_MOST and self._lines):
            gone = self._lines[: max(spare, 1)]
            del self._lines[: len(gone)]
            self._first += len(gone)
            self._bytes -= sum(len(line.sent) for line in gone)
            spare = len(self._lines) - LINES_MOST

    def tell(self) -> None:
        """Wake every reader."""
        self._joined.clear()
        news, self.news = self.news, asyncio.Event()
        news.set()


class Feeds:
    """The followers of a process. They end with their last reader, or when the server stops."""

    def __init__(self, runs: Runs, stopping: asyncio.Event) -> None:
        self._runs, self._stopping = runs, stopping
        self._feeds: dict[str, tuple[Feed, asyncio.Task[None]]] = {}
        self._closing: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._feeds)

    @asynccontextmanager
    async def of(self, record: RunRecord) -> AsyncIterator[Feed]:
        """The follower of a run, while somebody reads it."""
        if record.id not in self._feeds:
            feed = Feed(self._runs, record)
            self._feeds[record.id] = feed, asyncio.create_task(feed.follow(self._pause_s))
        feed, task = self._feeds[record.id]
        feed.readers += 1
        feed.closed = self._stopping.is_set()
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        try:
            yield feed
        finally:
            feed.readers -= 1
            if feed.readers == 0:
                task.cancel()
                del self._feeds[record.id]
                self._rest()

    def _pause_s(self) -> float:
        return max(LOOK_S, len(self._feeds) / LOOKS_PER_S_MOST)

    def _rest(self) -> None:
        if not self._feeds and self._closing is not None:
            self._closing.cancel()
            self._closing = None

    async def _close(self) -> None:
        """End every stream when the server is about to stop."""
        await self._stopping.wait()
        for feed, _ in self._feeds.values():
            feed.closed = True
            feed.tell()
