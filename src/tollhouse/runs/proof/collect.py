"""Reading what a bundle holds out of an opened store: one direct call, or a run with all its calls.

Every row is read with the events that led to it: where it moves meanwhile, both are read again.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from typing import Any, Protocol

from tollhouse.errors import StoreUnavailable, UnknownCall, UnknownRun
from tollhouse.ledger.events import Event
from tollhouse.ledger.record import CallRecord
from tollhouse.ledger.rows import COLUMNS, immutable_values, mutable_values
from tollhouse.ledger.run_record import RUN_COLUMNS, Definition, RunQuery, RunRecord, run_row, run_stream
from tollhouse.ledger.store import Query
from tollhouse.ledger.writes import call_stream
from tollhouse.runs.proof.chains import named_bodies, needed_definitions
from tollhouse.runs.proof.records import FORMAT, Contents

PAGE = 1000
TRIES = 100
"""Times that a row which keeps moving is read again."""

_EVENT_FIELDS = tuple(field.name for field in fields(Event))


class Calls(Protocol):
    """What is read of calls: any opened :class:`~tollhouse.ledger.store.Store`."""

    async def get(self, tenant: str, key: str) -> CallRecord | None: ...

    async def find(self, tenant: str, query: Query) -> list[CallRecord]: ...

    async def events(self, tenant: str, stream: str, after: int = 0, limit: int = 10_000) -> list[Event]: ...

    async def blob(self, tenant: str, digest: str) -> bytes | None: ...


class Runs(Protocol):
    """What is read of runs: any opened :class:`~tollhouse.ledger.run_record.RunStore`."""

    async def run(self, tenant: str, run_id: str) -> RunRecord | None: ...

    async def find_runs(self, tenant: str, query: RunQuery) -> list[RunRecord]: ...

    async def definition(self, tenant: str, digest: str) -> Definition | None: ...


async def contents_of_call(calls: Calls, tenant: str, key: str, *, with_blobs: bool = True) -> Contents:
    """What proves one call, and the call that undid it. Raises :class:`UnknownCall` or what the store raises."""
    told = await _call_with_events(calls, tenant, key)
    if told is None:
        raise UnknownCall(f"No call is recorded under {key} for the tenant {tenant}.", key=key)
    return await _Gathered(calls, tenant, with_blobs).contents("call", key, await _with_undoing(calls, tenant, [told]))


async def contents_of_run(calls: Calls, runs: Runs, tenant: str, run_id: str, *, with_blobs: bool = True) -> Contents:
    """What proves a run. Raises :class:`UnknownRun` or what the store raises."""
    run, events, told = await _run_with_calls(calls, runs, tenant, run_id)
    gathered = _Gathered(calls, tenant, with_blobs)
    contents = await gathered.contents("run", run_id, await _with_undoing(calls, tenant, told), (run, events))
    contents["children"] = [_child(each) for each in await _children(runs, tenant, run_id)]
    needed = [await runs.definition(tenant, digest) for digest in needed_definitions({**asdict_of(run)}, events)]
    contents["definitions"] = sorted((asdict(each) for each in needed if each), key=lambda each: each["digest"])
    return contents


def asdict_of(run: RunRecord) -> dict[str, Any]:
    """A run's row by the names of its columns."""
    return dict(zip(RUN_COLUMNS, run_row(run), strict=True))


def row_of(record: CallRecord) -> dict[str, Any]:
    """A call's row by the names of its columns."""
    values = (*immutable_values(record), record.digest, record.arguments, *mutable_values(record))
    return dict(zip(COLUMNS, values, strict=True))


class _Gathered:
    """Brings what was read into the shape of a bundle."""

    def __init__(self, calls: Calls, tenant: str, with_blobs: bool) -> None:
        self._calls, self._tenant, self._with_blobs = calls, tenant, with_blobs

    async def contents(
        self,
        kind: str,
        name: str,
        told: Iterable[tuple[CallRecord, list[Event]]],
        run: tuple[RunRecord, list[Event]] | None = None,
    ) -> Contents:
        pairs = sorted(told, key=lambda each: each[0].key)
        streams = [_stream(call_stream(record.key), record, events) for record, events in pairs]
        if run is not None:
            streams.insert(0, _stream(run_stream(run[0].id), *run))
        contents: Contents = {
            "about": {
                "format": FORMAT,
                "kind": kind,
                "id": name,
                "tenant": self._tenant,
                "blobs": "included" if self._with_blobs else "left out",
            },
            "streams": streams,
            "runs": [] if run is None else [asdict_of(run[0])],
            "calls": [row_of(record) for record, _ in pairs],
            "children": [],
            "definitions": [],
            "blobs": [],
        }
        digests = sorted({digest for digest, _ in named_bodies(contents)})
        contents["blobs"] = [await self._blob(digest) for digest in digests]
        return contents

    async def _blob(self, digest: str) -> dict[str, Any]:
        data = await self._calls.blob(self._tenant, digest) if self._with_blobs else None
        if data is None:
            return {"digest": digest, "size": None, "data": None}
        return {"digest": digest, "size": len(data), "data": b64encode(data).decode()}


def _stream(name: str, row: CallRecord | RunRecord, events: Sequence[Event]) -> dict[str, Any]:
    return {
        "stream": name,
        "head": {"stream": name, "seq": row.head_seq, "hash": row.head_hash},
        "events": [{field: getattr(event, field) for field in _EVENT_FIELDS} for event in events],
    }


async def _call_with_events(calls: Calls, tenant: str, key: str) -> tuple[CallRecord, list[Event]] | None:
    for _ in range(TRIES):
        record = await calls.get(tenant, key)
        if record is None:
            return None
        events = await _events(calls, tenant, call_stream(key))
        if _belong(record, events) or await calls.get(tenant, key) == record:
            return record, events
    raise StoreUnavailable(f"The call {key} kept moving while it was read.", key=key)


async def _run_with_calls(
    calls: Calls, runs: Runs, tenant: str, run_id: str
) -> tuple[RunRecord, list[Event], list[tuple[CallRecord, list[Event]]]]:
    """A run and its calls at one moment: those of a journal that moved on meanwhile would be calls it does not know."""
    for _ in range(TRIES):
        run, events = await _run_with_events(calls, runs, tenant, run_id)
        told = [await _call_with_events(calls, tenant, key) for key in await _keys_of(calls, tenant, run_id)]
        if await runs.run(tenant, run_id) == run:
            return run, events, [each for each in told if each is not None]
    raise StoreUnavailable(f"The run {run_id} kept moving while it was read.")


async def _run_with_events(calls: Calls, runs: Runs, tenant: str, run_id: str) -> tuple[RunRecord, list[Event]]:
    for _ in range(TRIES):
        record = await runs.run(tenant, run_id)
        if record is None:
            raise UnknownRun(f"No run is recorded under {run_id} for the tenant {tenant}.")
        events = await _events(calls, tenant, run_stream(run_id))
        if _belong(record, events) or await runs.run(tenant, run_id) == record:
            return record, events
    raise StoreUnavailable(f"The run {run_id} kept moving while it was read.")


def _belong(row: CallRecord | RunRecord, events: Sequence[Event]) -> bool:
    return row.head_seq == (events[-1].seq if events else 0)


async def _events(calls: Calls, tenant: str, stream: str) -> list[Event]:
    events: list[Event] = []
    while page := await calls.events(tenant, stream, events[-1].seq if events else 0, PAGE):
        events += page
        if len(page) < PAGE:
            break
    return events


async def _keys_of(calls: Calls, tenant: str, run_id: str) -> list[str]:
    keys: list[str] = []
    query = Query(scope=run_id, limit=PAGE)
    while page := await calls.find(tenant, query):
        keys += [record.key for record in page]
        if len(page) < PAGE:
            break
        query = Query(scope=run_id, limit=PAGE, before=(page[-1].created_at_us, page[-1].key))
    return sorted(set(keys))


async def _with_undoing(
    calls: Calls, tenant: str, told: Iterable[tuple[CallRecord, list[Event]]]
) -> list[tuple[CallRecord, list[Event]]]:
    """The same and the calls that undid them."""
    whole = {record.key: (record, events) for record, events in told}
    for key in [record.compensated_by for record, _ in whole.values()]:
        if key is not None and key not in whole:
            undoing = await _call_with_events(calls, tenant, key)
            if undoing is not None:
                whole[key] = undoing
    return list(whole.values())


async def _children(runs: Runs, tenant: str, run_id: str) -> list[RunRecord]:
    children: list[RunRecord] = []
    query = RunQuery(parent_run_id=run_id, limit=PAGE)
    while page := await runs.find_runs(tenant, query):
        children += page
        if len(page) < PAGE:
            break
        query = RunQuery(parent_run_id=run_id, limit=PAGE, before=(page[-1].created_at_us, page[-1].id))
    return sorted(children, key=lambda run: run.id)


def _child(run: RunRecord) -> dict[str, Any]:
    """A run of another agent, by the head of its chain: it is proven by a bundle of its own."""
    names = ("id", "agent", "state", "finished", "parent_key", "head_seq", "head_hash")
    return {name: getattr(run, name) for name in names}
