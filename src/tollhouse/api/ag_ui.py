"""A run's journal as events of the AG-UI protocol (1.0): the same journal always gives the same events and ids.

One run of ours is one or more runs of AG-UI, since there a run ends where it waits for people, and answering begins
another on the same thread. What AG-UI has no event for is told by ``CUSTOM`` events named ``tollhouse.…``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ag_ui.core import (
    BaseEvent,
    CustomEvent,
    Interrupt,
    MessagesSnapshotEvent,
    RunErrorEvent,
    RunFinishedCancelledOutcome,
    RunFinishedEvent,
    RunFinishedInterruptOutcome,
    RunFinishedSuccessOutcome,
    RunStartedEvent,
    StateDeltaEvent,
    StateSnapshotEvent,
    StepFinishedEvent,
    StepStartedEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
    TokenUsage,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
)

from tollhouse.api.ag_ui_messages import Transcript
from tollhouse.api.feeds import Answer, Line
from tollhouse.ledger.plain import moment
from tollhouse.ledger.run_record import RunRecord
from tollhouse.runs.states import RunEvent, RunState

VERSION = "1.0"
NAMESPACE = "tollhouse"
ASKED = ("approval", "answer")
"""What a run waits for that people are asked, so that its AG-UI run ends with a question."""
DIGEST_CHARACTERS = 16
"""How much of the digest of its arguments stands in the id of an approval that is asked for."""

APPROVAL_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}, "reason": {"type": "string", "maxLength": 4000}},
    "required": ["approved"],
    "additionalProperties": False,
}
ANSWER_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"answer": {"type": "string", "minLength": 1}},
    "required": ["answer"],
    "additionalProperties": False,
}
LIMITS_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"limits": {"type": "object"}},
    "required": ["limits"],
    "additionalProperties": False,
}


class Asked(NamedTuple):
    """What is known of the questions that a line asks.

    ``digests``: of the arguments of each call that waits for approval, by key. ``is_open``: whether all are still to be
    answered; where some are not, the run goes on by itself.
    """

    digests: Mapping[str, str]
    is_open: bool = True


NOTHING_ASKED = Asked({})


def approval_id(key: str, digest: str) -> str:
    """The id of the question whether this call may run, with these arguments."""
    return f"{key}/{digest[:DIGEST_CHARACTERS]}"


def limit_id(run_id: str, seq: int) -> str:
    """The id of the question whether a run that stopped at a limit may go on."""
    return f"{run_id}:limit:{seq}"


class _Spoken(NamedTuple):
    """A message that is streaming out. ``number``: of the answer, see :class:`~tollhouse.api.feeds.Answer`."""

    id: str
    number: int
    text: str


class Projection:
    """Turns lines of a journal into AG-UI events, in order from the first.

    ``known``: messages that the client has, which snapshots repeat as they are; None: it has none. ``state``: the
    client's state, under which ours stands as ``tollhouse``.
    """

    def __init__(self, record: RunRecord, *, known: list[dict[str, Any]] | None = None, state: Any = None) -> None:
        self._record, self._thread = record, record.thread or record.id
        self._transcript = Transcript(record.id, known)
        self._base = {} if state is None else state
        self._ours: dict[str, Any] = {"run_id": record.id, "agent": record.agent, "state": None, "waiting": []}
        self._spoken: _Spoken | None = None
        self._muted = -1
        self._step: int | None = None
        self._usage: dict[str, tuple[int, int]] = {}
        self._last_seq = 0
        self._asked = NOTHING_ASKED
        self.run_id: str | None = None
        """The AG-UI run that is open; None: none is."""

    # -- runs of AG-UI -----------------------------------------------------------------------------------

    def begin(self, run_id: str) -> list[BaseEvent]:
        """Open a run under the client's own id, wherever the journal stands."""
        self._step, self.run_id = None, None
        return self._opened(run_id)

    def _opened(self, run_id: str) -> list[BaseEvent]:
        if self.run_id is not None:
            return []
        self.run_id, self._usage = run_id, {}
        started = RunStartedEvent(thread_id=self._thread, run_id=run_id, protocol_version=VERSION)
        return [started, *self._state_snapshot(), *self._messages_snapshot()]

    def _closed(self, end: BaseEvent) -> list[BaseEvent]:
        self.run_id = None
        return [*self._silenced(), *self._stepped(None), end]

    def _finished(self, outcome: Any, result: Any = None) -> list[BaseEvent]:
        end = RunFinishedEvent(
            thread_id=self._thread, run_id=self.run_id or "", outcome=outcome, result=result, usage=self._spent()
        )
        return self._closed(end)

    def _spent(self) -> list[TokenUsage] | None:
        return [
            TokenUsage(model=model, input_tokens=used[0], output_tokens=used[1], total_tokens=sum(used))
            for model, used in self._usage.items()
        ] or None

    # -- lines of the journal ----------------------------------------------------------------------------

    def take(self, line: Line, asked: Asked = NOTHING_ASKED) -> list[BaseEvent]:
        """The events that one line comes to. ``asked``: what is known of the questions in it."""
        event, facts = line.event, line.facts
        self._last_seq = event.seq
        if not facts:  # erased
            return []
        before = self._ours["state"], self._ours["waiting"]
        self._ours["state"] = facts.get("state")
        self._ours["waiting"] = [_waiting(each) for each in facts.get("waiting", ())]
        self._count(facts.get("attempts", ()))
        made: list[BaseEvent] = []
        if self.run_id is None and event.kind not in _OUTSIDE:
            made = self._opened(self._record.id if event.seq == 1 else f"{self._record.id}:{event.seq}")
        elif self.run_id is not None and before != (facts.get("state"), self._ours["waiting"]):
            made = self._state_delta()
        self._asked = asked
        made += _TELLERS.get(event.kind, Projection._nothing)(self, line)
        for each in made:
            each.timestamp = event.at_us // 1000
        return made

    def _nothing(self, _line: Line) -> list[BaseEvent]:
        return []

    def _begun(self, line: Line) -> list[BaseEvent]:
        self._transcript.begin(line.facts["messages"])
        return self._messages_snapshot() if self._transcript.is_all_ours else []

    def _handed_over(self, _line: Line) -> list[BaseEvent]:
        return self._silenced()

    def _verified(self, line: Line) -> list[BaseEvent]:
        return [_custom("output_verified", {"passed": line.facts["passed"], "text": line.facts["text"]})]

    def _succeeded(self, line: Line) -> list[BaseEvent]:
        return self._finished(RunFinishedSuccessOutcome(), line.facts["output"])

    def _failed(self, line: Line) -> list[BaseEvent]:
        facts = line.facts
        return self._closed(RunErrorEvent(message=facts["cause"], code=facts["code"], usage=self._spent()))

    def _cancelled(self, line: Line) -> list[BaseEvent]:
        told = {name: line.facts[name] for name in ("by", "reason", "left")}
        return [_custom("cancelled", told), *self._finished(RunFinishedCancelledOutcome())]

    def _limit_reached(self, line: Line) -> list[BaseEvent]:
        return self._interrupted([_limit(self._record.id, line)]) if self._asked.is_open else []

    def _model_failed(self, line: Line) -> list[BaseEvent]:
        facts = line.facts
        told = {"code": facts["code"], "cause": facts["cause"], "again_at": moment(facts["again_at_us"])}
        made = [*self._silenced(), _custom("model_failed", told)]
        return made if facts["again_at_us"] is not None else made + self._failed(line)

    def _settled(self, line: Line) -> list[BaseEvent]:
        made = self._stepped(line.facts["turn"])
        for result in line.facts["results"]:
            message = self._transcript.result(result)
            about = {name: result.get(name) for name in ("call_state", "failed", "code", "replayed")}
            made.append(
                ToolCallResultEvent(
                    message_id=message["id"],
                    tool_call_id=result["key"],
                    content=result["text"],
                    role="tool",
                    metadata={NAMESPACE: about},
                )
            )
        return made

    def _waits(self, line: Line) -> list[BaseEvent]:
        waiting = line.facts["waiting"]
        if line.facts["state"] == RunState.RUNNING or not self._asked.is_open:  # it is not that it stands still
            return []
        asked = [self._interrupt(each) for each in waiting if each["kind"] in ASKED]
        others = [_waiting(each) for each in waiting if each["kind"] not in ASKED]
        made: list[BaseEvent] = [_custom("waiting", {"waiting": others})] if others else []
        return made + self._interrupted(asked) if asked else made

    def _interrupted(self, asked: list[Interrupt]) -> list[BaseEvent]:
        """The end of an AG-UI run, with all that its continuation needs told before."""
        return [
            *self._silenced(),
            *self._stepped(None),
            *self._state_snapshot(),
            *self._messages_snapshot(),
            *self._finished(RunFinishedInterruptOutcome(interrupts=asked)),
        ]

    def _interrupt(self, waiting: Mapping[str, Any]) -> Interrupt:
        key, expires_at = waiting["id"], moment(waiting["until_us"])
        if waiting["kind"] == "answer":
            return Interrupt(
                id=key,
                reason="input_required",
                message=waiting["text"],
                tool_call_id=key,
                response_schema=ANSWER_SCHEMA,
                expires_at=expires_at,
            )
        tool, arguments = self._transcript.asked(key)
        digest = self._asked.digests.get(key, "")
        return Interrupt(
            id=approval_id(key, digest),
            reason="tool_call",
            message=f"May {tool} run? {waiting['text']}",
            tool_call_id=key,
            response_schema=APPROVAL_SCHEMA,
            expires_at=expires_at,
            metadata={NAMESPACE: {"key": key, "tool": tool, "arguments": arguments, "digest": digest}},
        )

    # -- what the model says -----------------------------------------------------------------------------

    def hear(self, answer: Answer) -> list[BaseEvent]:
        """What came of an answer since it was last heard, before it is in the journal."""
        if self.run_id is None or not answer.text or answer.number == self._muted:
            return []
        spoken, made = self._spoken, list[BaseEvent]()
        if spoken is None:
            spoken = _Spoken(self._message_id(self._last_seq + 1), answer.number, "")
            made = [*self._stepped(answer.turn), TextMessageStartEvent(message_id=spoken.id, role="assistant")]
        if spoken.number != answer.number or not answer.text.startswith(spoken.text):
            self._muted = answer.number  # another try: its text is told when it is recorded
            return []
        if piece := answer.text[len(spoken.text) :]:
            made.append(TextMessageContentEvent(message_id=spoken.id, delta=piece))
        self._spoken = spoken._replace(text=answer.text)
        return made

    def _answered(self, line: Line) -> list[BaseEvent]:
        facts = line.facts
        text, message_id = facts["message"]["text"], self._message_id(line.event.seq)
        made = self._stepped(facts["turn"])
        spoken = self._spoken
        if spoken is not None and spoken.id == message_id and text.startswith(spoken.text):
            made += _rest(message_id, text[len(spoken.text) :])
            self._spoken = None
        else:
            made += self._silenced()
            if spoken is not None and spoken.id == message_id:
                message_id += ":again"
            if text:
                made += [TextMessageStartEvent(message_id=message_id, role="assistant"), *_rest(message_id, text)]
        for call in self._transcript.answer(message_id, facts["message"]):
            made += _call(call, message_id)
        return made

    def _silenced(self) -> list[BaseEvent]:
        """Close a message that nothing recorded, and say so."""
        spoken, self._spoken = self._spoken, None
        if spoken is None:
            return []
        return [
            TextMessageEndEvent(message_id=spoken.id),
            _custom("text_withdrawn", {"messageId": spoken.id}),
        ]

    def _message_id(self, seq: int) -> str:
        return f"{self._record.id}:{seq}"

    # -- steps, state, messages --------------------------------------------------------------------------

    def _stepped(self, turn: int | None) -> list[BaseEvent]:
        """Be in the step of this turn; None: in none."""
        if turn == self._step:
            return []
        made: list[BaseEvent] = [StepFinishedEvent(step_name=f"turn {self._step}")] if self._step else []
        self._step = turn
        return [*made, StepStartedEvent(step_name=f"turn {turn}")] if turn else made

    def _state_snapshot(self) -> list[BaseEvent]:
        if not isinstance(self._base, dict):
            return []
        return [StateSnapshotEvent(snapshot={**self._base, NAMESPACE: dict(self._ours)})]

    def _state_delta(self) -> list[BaseEvent]:
        if not isinstance(self._base, dict):
            return []
        changed = ((name, self._ours[name]) for name in ("state", "waiting"))
        delta = [{"op": "replace", "path": f"/{NAMESPACE}/{name}", "value": value} for name, value in changed]
        return [StateDeltaEvent.model_validate({"delta": delta})]

    def _messages_snapshot(self) -> list[BaseEvent]:
        messages = self._transcript.messages
        return [MessagesSnapshotEvent.model_validate({"messages": messages})] if messages else []

    def _count(self, attempts: list[Mapping[str, Any]]) -> None:
        for attempt in attempts:
            if attempt["input_tokens"] is not None:
                used = self._usage.get(attempt["model"], (0, 0))
                self._usage[attempt["model"]] = (
                    used[0] + attempt["input_tokens"],
                    used[1] + (attempt["output_tokens"] or 0),
                )


_TELLERS: dict[str, Callable[[Projection, Line], list[BaseEvent]]] = {
    RunEvent.STARTED: Projection._begun,
    RunEvent.MODEL_ANSWERED: Projection._answered,
    RunEvent.MODEL_FAILED: Projection._model_failed,
    RunEvent.CLAIMED: Projection._handed_over,
    RunEvent.RELEASED: Projection._handed_over,
    RunEvent.CALLS_SETTLED: Projection._settled,
    RunEvent.WAITING: Projection._waits,
    RunEvent.LIMIT_REACHED: Projection._limit_reached,
    RunEvent.VERIFIED: Projection._verified,
    RunEvent.SUCCEEDED: Projection._succeeded,
    RunEvent.FAILED: Projection._failed,
    RunEvent.CANCELLED: Projection._cancelled,
}
"""What each kind of line comes to; the others come to nothing."""

_OUTSIDE = frozenset(
    {RunEvent.QUESTION_ANSWERED, RunEvent.LIMITS_RAISED, RunEvent.REMINDED, RunEvent.TIDIED, RunEvent.PURGED}
)
"""What may be told while no AG-UI run is open, and opens none."""


def _rest(message_id: str, text: str) -> list[BaseEvent]:
    made: list[BaseEvent] = [TextMessageContentEvent(message_id=message_id, delta=text)] if text else []
    return [*made, TextMessageEndEvent(message_id=message_id)]


def _call(call: Mapping[str, Any], message_id: str) -> list[BaseEvent]:
    return [
        ToolCallStartEvent(
            tool_call_id=call["id"], tool_call_name=call["function"]["name"], parent_message_id=message_id
        ),
        ToolCallArgsEvent(tool_call_id=call["id"], delta=call["function"]["arguments"]),
        ToolCallEndEvent(tool_call_id=call["id"]),
    ]


def _custom(name: str, value: Any) -> CustomEvent:
    return CustomEvent(name=f"{NAMESPACE}.{name}", value=value)


def _limit(run_id: str, line: Line) -> Interrupt:
    facts = line.facts
    return Interrupt(
        id=limit_id(run_id, line.event.seq),
        reason=f"{NAMESPACE}:limit_reached",
        message=f"The run reached its limit of {facts['most']} for {facts['limit']}. May it go on, with a higher one?",
        response_schema=LIMITS_SCHEMA,
        metadata={NAMESPACE: {"limit": facts["limit"], "most": facts["most"], "spent": facts["spent"]}},
    )


def _waiting(waiting: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "kind": waiting["kind"],
        "id": waiting["id"],
        "since": moment(waiting["since_us"]),
        "until": moment(waiting["until_us"]),
        "text": waiting["text"],
    }


def note(name: str, value: Any) -> BaseEvent:
    """A ``CUSTOM`` event of ours."""
    return _custom(name, value)


def encoded(event: BaseEvent, seq: int | None = None) -> bytes:
    """The event as a server-sent one; ``seq``: the place in the journal that a reader may go on after."""
    text = json.dumps(event.model_dump(mode="json", by_alias=True), separators=(",", ":"))
    return f"id: {seq}\ndata: {text}\n\n".encode() if seq is not None else f"data: {text}\n\n".encode()
