"""A store that notes for the anchors how far every chain has come, for servers that keep anchors up to date.

``house._core.store = Noting(house._core.store, anchors)`` after a house was opened, and ``anchors.keep(every_s)`` in a
task of its own: every write that was applied is noted in memory, and written down a little later.
"""

from __future__ import annotations

from typing import Any

from tollhouse.ledger.run_record import RunWrite, RunWritten
from tollhouse.ledger.store import Write, Written
from tollhouse.ledger.writes import call_stream
from tollhouse.runs.proof.anchors import Anchors


class Noting:
    """Everything of the store behind it, with what was applied told to ``anchors``."""

    def __init__(self, store: Any, anchors: Anchors) -> None:
        self._store, self._anchors = store, anchors

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def write(self, *writes: Write) -> tuple[Written, ...]:
        answers: tuple[Written, ...] = await self._store.write(*writes)
        for write, answer in zip(writes, answers, strict=True):
            if answer.applied:
                record = answer.stands or write.record
                self._anchors.note(record.tenant, call_stream(record.key), record.head_seq, record.head_hash)
        return answers

    async def write_run(self, write: RunWrite) -> RunWritten:
        answer: RunWritten = await self._store.write_run(write)
        if answer.applied:
            record = answer.stands or write.record
            self._anchors.note(record.tenant, f"run:{record.id}", record.head_seq, record.head_hash)
        return answer
