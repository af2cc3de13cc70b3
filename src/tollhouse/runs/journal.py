"""A run's journal: writing it (events sealed, large facts kept as bodies) and reading it back as a conversation.

The journal is the authority: whoever drives a run knows of it only what is read here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Protocol

from tollhouse.errors import RunPurged, UnknownRun
from tollhouse.ledger.change import Draft
from tollhouse.ledger.compact import compact_encoder
from tollhouse.ledger.cover import covered, run_digest
from tollhouse.ledger.events import Event, seal
from tollhouse.ledger.plain import moment
from tollhouse.ledger.record import CallRecord, replace
from tollhouse.ledger.run_record import RunQuery, RunRecord, RunRefusal, RunStore, RunWrite, run_stream
from tollhouse.ledger.store import Blob, Owner, Query
from tollhouse.models.port import Ask, AssistantMessage, Message, ToolMessage, UserMessage, message_of
from tollhouse.runs.body import body_of
from tollhouse.runs.states import RunEvent, RunState
from tollhouse.runs.steps import RunChange

INLINE_CHARACTERS_MOST = 64 * 1024
"""A text longer than this is kept as a body of its own, by its SHA-256, never cut."""

EVENTS_PAGE = 1000
CALLS_PAGE = 500
RUNS_PAGE = 500
THREAD_RUNS_MOST = 100
"""How many earlier runs of a thread a conversation goes back."""
EARLIER_ERASED = "(The earlier messages of this conversation were erased.)"
"""What a model hears where the conversation was purged that it is to go on with."""

_encode = compact_encoder(default=str)
_BODY = "$blob"
"""The name in a mapping that stands for a body; a name of somebody's own that looks like it gets one more ``$``."""
_LIKE_BODY = re.compile(r"\$+blob")


class JournalStore(RunStore, Protocol):
    """What the journal needs of a store."""

    async def events(self, tenant: str, stream: str, after: int = 0, limit: int = 10_000) -> list[Event]: ...

    async def blob(self, tenant: str, digest: str) -> bytes | None: ...

    async def get(self, tenant: str, key: str) -> CallRecord | None: ...

    async def find(self, tenant: str, query: Query) -> list[CallRecord]: ...

    async def now_us(self) -> int: ...

    async def owner(self, tenant: str, owner_id: str) -> Owner | None: ...


class RunStale(Exception):
    """The run moved on since it was read. ``record``: what stands there now."""

    def __init__(self, record: RunRecord | None) -> None:
        super().__init__("the run moved on")
        self.record = record


class RunOwnerGone(Exception):
    """This process was taken for lost: it may not move the run any more."""


class StartRefused(Exception):
    """A start whose key, id or thread is taken. ``record``: the run that stands there."""

    def __init__(self, refusal: RunRefusal, record: RunRecord | None) -> None:
        super().__init__(refusal.value)
        self.refusal, self.record = refusal, record


async def commit(
    store: JournalStore, change: RunChange, write_id: str, *, owner: str | None = None
) -> tuple[RunRecord, tuple[Event, ...]]:
    """Write one change, compare-and-set; the record and the events as they stand, durable on return.

    ``owner``: the change is refused once that process was taken for lost. Raises :class:`RunStale`,
    :class:`RunOwnerGone` or, for a new run, :class:`StartRefused`.
    """
    before, record = change.before, change.record
    drafts, blobs = _with_bodies(change.drafts)
    head_seq, head_hash = (0, "") if before is None else (before.head_seq, before.head_hash)
    drafts = covered(drafts, run_digest(record))
    events = seal(run_stream(record.id), head_seq, head_hash, drafts, record.updated_at_us, write_id)
    sealed = replace(record, head_seq=events[-1].seq, head_hash=events[-1].hash)
    expected = None if before is None else before.version
    written = await store.write_run(RunWrite(sealed, expected, events, write_id, owner, blobs))
    if written.applied:
        stands = written.stands
        if stands is None or stands.version != sealed.version:
            return sealed, events
        # An earlier try of this write was applied, decided at another moment: what follows builds on that one.
        return stands, tuple(await store.events(record.tenant, run_stream(record.id), head_seq, len(events)))
    if written.refusal is RunRefusal.OWNER:
        raise RunOwnerGone
    if before is None and written.refusal is not None:
        raise StartRefused(written.refusal, written.record)
    raise RunStale(written.record)


def _with_bodies(drafts: Iterable[Draft]) -> tuple[Sequence[Draft], tuple[Blob, ...]]:
    """The same drafts with long texts moved out into bodies."""
    blobs: dict[str, Blob] = {}

    def moved(value: Any) -> Any:
        if isinstance(value, str) and len(value) > INLINE_CHARACTERS_MOST:
            return _kept(value, blobs)
        if isinstance(value, Mapping):
            return {f"${name}" if _LIKE_BODY.fullmatch(name) else name: moved(each) for name, each in value.items()}
        return [moved(each) for each in value] if isinstance(value, list | tuple) else value

    outside = []
    for draft in drafts:
        text = _encode(draft.data)
        plain = len(text) <= INLINE_CHARACTERS_MOST and f'{_BODY}"' not in text
        outside.append(draft if plain else Draft(draft.kind, moved(draft.data)))
    return outside, tuple(blobs.values())


def _kept(text: str, blobs: dict[str, Blob]) -> dict[str, Any]:
    data = text.encode(errors="surrogatepass")
    digest = sha256(data).hexdigest()
    blobs[digest] = Blob(digest, data)
    return {_BODY: digest, "size": len(data)}


async def facts_of(store: JournalStore, tenant: str, event: Event) -> dict[str, Any]:
    """The facts of an event with its bodies put back; none where it was erased."""

    async def whole(value: Any) -> Any:
        if isinstance(value, dict):
            if _BODY in value:
                data = await store.blob(tenant, value[_BODY])
                return "" if data is None else data.decode(errors="surrogatepass")
            return {name[1:] if _LIKE_BODY.fullmatch(name) else name: await whole(each) for name, each in value.items()}
        return [await whole(each) for each in value] if isinstance(value, list) else value

    facts = event.facts
    if f'{_BODY}"' in event.data:
        facts = await whole(facts)
    return facts


async def said_in(store: JournalStore, tenant: str, event: Event) -> dict[str, Any]:
    """The facts of an event for whoever goes through the run again. Raises :class:`RunPurged` where they are gone."""
    if not event.data:
        raise RunPurged(f"What was said in {event.stream.removeprefix(run_stream(''))} was purged.")
    return await facts_of(store, tenant, event)


@dataclass(slots=True)
class Journal:
    """What the events of a run amount to so far. ``turn``: model answers; ``results``: by the key of the ask."""

    record: RunRecord
    messages: list[Message] = field(default_factory=list)
    task: str = ""
    """What the run itself was asked, whatever was said before in its thread."""
    turn: int = 0
    asks: tuple[Ask, ...] = ()
    """What the last answer asked for, whether settled or not."""
    results: dict[str, ToolMessage] = field(default_factory=dict)
    answer: AssistantMessage | None = None
    """The last answer, when it asks for nothing: final, unless a check rejects it."""
    cut: bool = False
    """Whether that answer was cut off at its greatest length."""
    rejections: Counter[str] = field(default_factory=Counter)
    """How many final answers were rejected, by each check."""
    catalogue: str = ""
    last_seq: int = 0

    @property
    def open_asks(self) -> tuple[Ask, ...]:
        """Asks of the last answer that have no result yet, in order."""
        return tuple(ask for ask in self.asks if ask.key not in self.results)

    @property
    def conversation(self) -> tuple[Message, ...]:
        """All messages, every ask with exactly one answer: what no run has settled says that it is not known."""
        return (*self.messages, *self._answers())

    def _answers(self) -> list[Message]:
        return [self.results.get(ask.key) or _no_answer(ask) for ask in self.asks]

    def take(self, event: Event, facts: Mapping[str, Any]) -> None:
        """Follow one event."""
        self.last_seq = event.seq
        match event.kind:
            case RunEvent.STARTED:
                self.catalogue = facts["catalogue"]
                self.messages.extend(message_of(each) for each in facts["messages"])
                self.task = facts["messages"][-1]["text"] if facts["messages"] else ""
            case RunEvent.MODEL_ANSWERED:
                self._close_turn()
                message = message_of(facts["message"])
                assert isinstance(message, AssistantMessage)
                self.turn, self.asks = facts["turn"], message.asks
                self.cut = facts["finish_reason"] == "length"
                self.messages.append(message)
                self.answer = None if message.asks else message
            case RunEvent.CALLS_SETTLED:
                for each in facts["results"]:
                    self.results[each["key"]] = ToolMessage(each["key"], each["tool"], each["text"], each["failed"])
            case RunEvent.VERIFIED:
                self._take_verdict(facts)
            case _:
                pass

    def _take_verdict(self, facts: Mapping[str, Any]) -> None:
        if facts["passed"]:
            return
        self.rejections[facts["check"]] += 1
        self.answer = None
        self.messages.append(UserMessage(facts["text"]))

    def _close_turn(self) -> None:
        self.messages.extend(self._answers())
        self.asks = ()


def _no_answer(ask: Ask) -> ToolMessage:
    return ToolMessage(
        ask.key, ask.tool, "The run ended before the outcome of this call was known. Verify first.", True
    )


async def read(store: JournalStore, record: RunRecord) -> Journal:
    """The journal of a run as it stands, with the conversation of its thread before it."""
    journal = Journal(record)
    journal.messages.extend(await read_before(store, record))
    await follow(store, journal)
    return journal


async def follow(store: JournalStore, journal: Journal, events: Iterable[Event] | None = None) -> None:
    """Take the events that came since; None: read them."""
    tenant, stream = journal.record.tenant, run_stream(journal.record.id)
    if events is not None:
        for event in events:
            journal.take(event, await said_in(store, tenant, event))
        return
    while page := await store.events(tenant, stream, journal.last_seq, EVENTS_PAGE):
        for event in page:
            journal.take(event, await said_in(store, tenant, event))
        if len(page) < EVENTS_PAGE:
            return


async def calls_of(
    store: JournalStore,
    tenant: str,
    run_id: str,
    *,
    tool: str | None = None,
    digest: str | None = None,
    request_digest: str | None = None,
) -> AsyncIterator[CallRecord]:
    """Every call of a run, or those of one tool and with these arguments, newest first."""
    query = Query(scope=run_id, tool=tool, digest=digest, request_digest=request_digest, limit=CALLS_PAGE)
    while page := await store.find(tenant, query):
        for call in page:
            yield call
        query = replace(query, before=(page[-1].created_at_us, page[-1].key))


async def runs_of(
    store: RunStore, tenant: str, *, parent: str | None = None, source: str | None = None
) -> AsyncIterator[RunRecord]:
    """Every run that the calls of ``parent`` started, or that reruns ``source``, newest first."""
    query = RunQuery(parent_run_id=parent, source_run_id=source, limit=RUNS_PAGE)
    while page := await store.find_runs(tenant, query):
        for run in page:
            yield run
        query = replace(query, before=(page[-1].created_at_us, page[-1].id))


async def output_of(store: JournalStore, record: RunRecord) -> Any:
    """The output of a run; one that is too long for the row is in the journal. None where there is none any more."""
    body = body_of(record)
    if body.output is not None or body.purged_at_us is not None or record.state != RunState.SUCCEEDED:
        return body.output
    for event in await store.events(record.tenant, run_stream(record.id), max(0, record.head_seq - 10)):
        if event.kind == RunEvent.SUCCEEDED:
            return (await facts_of(store, record.tenant, event))["output"]
    return None


async def last_of_thread(store: JournalStore, tenant: str, thread: str, but: str | None = None) -> str | None:
    """The run of a thread that none of its other runs continues yet, ``but`` left out; None in a new thread.

    Not simply the newest: a run that was begun later may have been started, and have ended, sooner.
    """
    found = await store.find_runs(tenant, RunQuery(thread=thread, limit=THREAD_RUNS_MOST))
    others = [record for record in found if record.id != but]
    continued = {body_of(record).continues for record in others}
    return next((record.id for record in others if record.id not in continued), None)


def check_not_purged(record: RunRecord) -> None:
    """Raise :class:`RunPurged` for a run of which only the outline is left."""
    purged_at_us = body_of(record).purged_at_us
    if purged_at_us is not None:
        raise RunPurged(f"What was said in {record.id} was purged at {moment(purged_at_us)}.")


async def check_whole(store: JournalStore, record: RunRecord) -> None:
    """Raise :class:`RunPurged` where the run, or one that it continues, is no longer there to be gone through again."""
    for each in (record, *await _earlier(store, record)):
        check_not_purged(each)


async def read_before(store: JournalStore, record: RunRecord) -> list[Message]:
    """The messages of the runs that this one continues, oldest first: from the last one on that was purged, if any."""
    messages: list[Message] = []
    for each in reversed(await _earlier(store, record)):
        if body_of(each).purged_at_us is not None:
            messages.append(UserMessage(EARLIER_ERASED))
            continue
        journal = Journal(each)
        await follow(store, journal)
        messages.extend(journal.conversation)
    return messages


async def _earlier(store: JournalStore, record: RunRecord) -> list[RunRecord]:
    """The runs that this one continues, newest first; none before one that was purged."""
    earlier: list[RunRecord] = []
    body = body_of(record)
    while body.continues is not None and body.purged_at_us is None and len(earlier) < THREAD_RUNS_MOST:
        found = await store.run(record.tenant, body.continues)
        if found is None:
            raise UnknownRun(f"The run {body.continues}, which {record.id} continues, is not recorded.")
        earlier.append(found)
        body = body_of(found)
    return earlier
