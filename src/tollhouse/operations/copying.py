"""Moving a ledger to another store: fence the source, copy its rows, verify them, open the target.

Called by ``tollhouse db copy``. Both ledgers are fenced while rows travel, so at no moment can two of them be written,
and none of them can until everything has arrived and was compared. How far a copy has come is what the target holds:
rows travel in the order of their keys, so a copy that was killed goes on after the last one there.

No lease is renewed behind the fence, and owners end when the target is opened. Their open attempts travel as they are,
and become in the target what a lost owner's do.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from tollhouse.errors import CopyDiffers, CopyRefused
from tollhouse.ledger.events import Event, first_break
from tollhouse.ledger.run_record import run_stream
from tollhouse.ledger.writes import call_stream
from tollhouse.stores import check, open_raw, upgrade, without_password
from tollhouse.stores.common.raw import BLOBS, CALLS, EVENTS, FENCE, RESTORED, RUNS, TABLES, RawLedger, Row, Table

PAGE = 1000
PAGE_OF_BLOBS = 20
"""Bodies are large, and a page is held in memory."""

COPIED_FROM = "copied_from"
"""The mark that a finished copy leaves in its target."""

Mark = dict[str, Any]
Name = tuple[str, str]
"""A stream's tenant and name."""
End = tuple[int, str]
"""``seq`` and hash of its last event."""
Progress = Callable[[str, int], None]
"""``progress(table, rows)``: so many rows of a table have arrived."""


@dataclass(frozen=True, slots=True)
class Copied:
    """What arrived. ``digests``: SHA-256 over all rows of a table, equal in both. ``resumed``: begun by an earlier run,
    or finished by it."""

    rows: dict[str, int] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    resumed: bool = False


async def copy_ledger(source_url: str, target_url: str, progress: Progress = lambda _table, _rows: None) -> Copied:
    """Move a ledger; on return the target is open and the source is fenced for good. Safe to repeat after a kill.

    Raises :class:`CopyRefused`, :class:`CopyDiffers` or what the stores raise.
    """
    if (await check(target_url)).version is None:
        await upgrade(target_url)
    source = await open_raw(source_url)
    try:
        target = await open_raw(target_url)
        try:
            return await _Copy(source, target, progress).run()
        finally:
            await target.close()
    finally:
        await source.close()


async def abandon_copy(source_url: str, target_url: str, *, by: str) -> None:
    """Give up a copy that was not finished: the target stays fenced for ever, the source is open again."""
    source = await open_raw(source_url)
    try:
        moved = fence_of(await source.marks())
        if moved is None or moved["reason"] != "moved":
            raise CopyRefused(f"No copy of {source.url} is under way.")
        if moved["to"] != without_password(target_url):
            raise CopyRefused(f"{source.url} is being copied to {moved['to']}, not there.", remedy="Name that target.")
        if (await check(target_url)).version is not None:
            await _close_for_ever(target_url, moved, by)
        await source.lift()
    finally:
        await source.close()


async def _close_for_ever(target_url: str, moved: Mark, by: str) -> None:
    target = await open_raw(target_url)
    try:
        there = fence_of(await target.marks())
        if there is None or there.get("id") != moved["id"]:
            raise CopyRefused(
                f"The copy to {target.url} was finished, so that ledger may have sent since.",
                remedy="Use the target; to go back, copy it into a new store.",
            )
        await target.put_mark(FENCE, json.dumps({**there, "reason": "abandoned", "by": by}))
    finally:
        await target.close()


def fence_of(marks: dict[str, str]) -> Mark | None:
    """Why a ledger is fenced; None when it is not."""
    return json.loads(marks[FENCE]) if FENCE in marks else None


class _Copy:
    """One run of a copy."""

    def __init__(self, source: RawLedger, target: RawLedger, progress: Progress) -> None:
        self._source, self._target, self._progress = source, target, progress

    async def run(self) -> Copied:
        here, there = await self._source.marks(), await self._target.marks()
        moved, done = fence_of(here), json.loads(there.get(COPIED_FROM, "{}"))
        if moved is not None and moved["reason"] == "moved" and moved["id"] == done.get("id"):
            return Copied(done["rows"], done["digests"], resumed=True)
        resumed = moved is not None
        number = await self._fence_both(moved, fence_of(there))
        for table in TABLES:
            await self._copy(table)
        verified = await _verify(self._source, self._target)
        now_us = await self._source.now_us()
        told = {"id": number, "from": self._source.url, "at_us": now_us} | {
            "rows": verified.rows,
            "digests": verified.digests,
        }
        marks = {COPIED_FROM: json.dumps(told)} | {name: here[name] for name in (RESTORED,) if name in here}
        await self._target.open(marks, clock_at_least_us=now_us)
        return Copied(verified.rows, verified.digests, resumed)

    async def _fence_both(self, moved: Mark | None, received: Mark | None) -> str:
        """The target first: a source that is fenced always has a target that knows of it."""
        number = received["id"] if received is not None else secrets.token_hex(8)
        if moved is not None and (moved["reason"] != "moved" or moved["id"] != number):
            where = moved.get("to") or f"a store that receives {moved.get('from')}"
            raise CopyRefused(f"{self._source.url} is fenced by another copy: {where}.", remedy="Go on with that one.")
        if received is None:
            await self._require_empty()
            await self._target.fence(await self._mark("receiving", number))
        elif received["reason"] != "receiving":
            raise CopyRefused(f"{self._target.url} is fenced itself ({received['reason']}).")
        elif moved is None and received["from"] != self._source.url:
            raise CopyRefused(f"{self._target.url} already receives {received['from']}.")
        if moved is None:
            await self._source.fence(await self._mark("moved", number))
        return str(number)

    async def _mark(self, reason: str, number: str) -> str:
        at_us = await self._source.now_us()
        told = {"reason": reason, "id": number, "from": self._source.url, "to": self._target.url, "at_us": at_us}
        return json.dumps(told)

    async def _require_empty(self) -> None:
        for table in TABLES:
            if await self._target.last(table) is not None:
                raise CopyRefused(f"The target {self._target.url} is not empty: it has {table.name}.")

    async def _copy(self, table: Table) -> None:
        after = await self._target.last(table) or table.start
        while rows := await self._source.page(table, after, _page_of(table)):
            await self._target.fill(table, rows)
            after = table.key_of(rows[-1])
            self._progress(table.name, len(rows))


# -- verifying -----------------------------------------------------------------------------------------------------


async def _verify(source: RawLedger, target: RawLedger) -> Copied:
    """Compare every row and prove what proves itself: the bytes of bodies, the chains of events and their heads."""
    rows, digests = {}, {}
    for table in TABLES:
        rows[table.name], digests[table.name] = await _same_rows(table, source, target)
    async for row in _all(BLOBS, target):
        if sha256(row[2]).hexdigest() != row[1]:
            raise CopyDiffers(f"The body {row[1]} is not what its digest says.")
    await chains_hold(target)
    return Copied(rows, digests)


async def _same_rows(table: Table, source: RawLedger, target: RawLedger) -> tuple[int, str]:
    counted = [await ledger.count(table) for ledger in (source, target)]
    if counted[0] != counted[1]:
        raise CopyDiffers(f"{counted[0]} {table.name} were sent, {counted[1]} arrived.")
    digest, number, arrived = sha256(), 0, _all(table, target)
    async for sent in _all(table, source):
        got = await anext(arrived, None)
        if sent != got:
            raise CopyDiffers(f"A row of {table.name} arrived changed: {' '.join(map(str, table.key_of(sent)))}.")
        digest.update(repr(sent).encode())
        number += 1
    return number, digest.hexdigest()


async def chains_hold(ledger: RawLedger) -> None:
    """Every stream is whole, belongs to a call or a run, and ends where its row says."""
    streams = _streams(ledger)
    found = await anext(streams, None)
    async for name, head in _heads(ledger):
        if found is None or found[0] > name:
            ends: End = (0, "")
        elif found[0] == name:
            ends, found = found[1], await anext(streams, None)
        else:
            break
        if ends != head:
            raise CopyDiffers(f"The history {name[1]} does not end where its row says.")
    if found is not None:
        raise CopyDiffers(f"The history {found[0][1]} is there, and the row that it belongs to is not.")


async def _heads(ledger: RawLedger) -> AsyncIterator[tuple[Name, End]]:
    """Where the streams of calls and runs end by their rows, in the order of names."""
    sources = (_heads_of(CALLS, "key", call_stream, ledger), _heads_of(RUNS, "id", run_stream, ledger))
    heads = [await anext(source, None) for source in sources]
    while present := [(head[0], at) for at, head in enumerate(heads) if head is not None]:
        _, at = min(present)
        head, heads[at] = heads[at], await anext(sources[at], None)
        assert head is not None
        yield head


async def _heads_of(
    table: Table, key: str, stream: Callable[[str], str], ledger: RawLedger
) -> AsyncGenerator[tuple[Name, End], None]:
    async for values in _all(table, ledger):
        row = dict(zip(table.columns, values, strict=True))
        yield (row["tenant"], stream(row[key])), (row["head_seq"], row["head_hash"])


async def _streams(ledger: RawLedger) -> AsyncGenerator[tuple[Name, End], None]:
    """Every stream's name and end, in the order of names. Raises :class:`CopyDiffers` where a chain is broken."""
    name, events = ("", ""), list[Event]()
    async for row in _all(EVENTS, ledger):
        if (row[0], row[1]) != name:
            if events:
                yield name, _end_of(events)
            name, events = (row[0], row[1]), []
        events.append(Event(*row[1:]))
    if events:
        yield name, _end_of(events)


def _end_of(events: list[Event]) -> tuple[int, str]:
    if (broken := first_break(events)) is not None:
        raise CopyDiffers(f"The history {events[0].stream} is broken at {broken}.")
    return events[-1].seq, events[-1].hash


async def _all(table: Table, ledger: RawLedger) -> AsyncIterator[Row]:
    after = table.start
    while rows := await ledger.page(table, after, _page_of(table)):
        for row in rows:
            yield row
        after = table.key_of(rows[-1])


def _page_of(table: Table) -> int:
    return PAGE_OF_BLOBS if table is BLOBS else PAGE
