"""Rehearsing: a model goes through a recorded run again, its tools answer from the record, and nothing leaves.

For trying a new prompt, model or version against runs that were recorded: what it would have done differently is
reported. Nothing is written, no tool is called, and whoever rehearses needs neither tools nor a lease.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tollhouse.ledger.record import replace
from tollhouse.ledger.run_record import run_stream
from tollhouse.models.port import (
    Ask,
    Message,
    Model,
    ModelFailed,
    ModelReply,
    ModelRequest,
    ToolSpec,
    UserMessage,
    message_of,
)
from tollhouse.runs import builtin
from tollhouse.runs.agents import CATALOGUE, Agent
from tollhouse.runs.body import Spent, spent_as_json
from tollhouse.runs.calls import agent_tool_name, is_fatal
from tollhouse.runs.journal import EVENTS_PAGE, JournalStore, check_whole, read_before, said_in
from tollhouse.runs.output import DECLINED, Verdict, check_schema, most_rejections, verify
from tollhouse.runs.reader import RunReader
from tollhouse.runs.results import Result, asked, in_characters
from tollhouse.runs.states import RunEvent, RunState

Kind = Literal["new_call", "other_arguments", "missing_call", "other_end", "other_output"]

NO_RECORD = "This is a rehearsal, and the record has no answer to this call. Nothing was sent."


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that went otherwise than recorded. ``recorded`` or ``now`` None: there was nothing of the kind.

    ``turn``: the model's answer it was found in, from 1; 0: the run as a whole.
    """

    kind: Kind
    turn: int
    sentence: str
    recorded: Any = None
    now: Any = None


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What came of it. ``state``: how the run would have ended; ``waits``: where it would wait, it goes on instead."""

    run_id: str
    agent: str
    agent_version: str
    model: str
    turns: int
    state: str
    output: Any
    reason: Mapping[str, Any] | None
    spent: Spent
    differences: tuple[Difference, ...]

    @property
    def as_json(self) -> dict[str, Any]:
        """As every surface answers with it."""
        return {
            "run_id": self.run_id,
            "agent": self.agent,
            "agent_version": self.agent_version,
            "model": self.model,
            "turns": self.turns,
            "state": self.state,
            "output": self.output,
            "reason": self.reason,
            "spent": spent_as_json(self.spent),
            "same": not self.differences,
            "differences": [
                {"kind": d.kind, "turn": d.turn, "sentence": d.sentence, "recorded": d.recorded, "now": d.now}
                for d in self.differences
            ],
        }


@dataclass(slots=True)
class _Recorded:
    """What the record says: the messages it began with, each call with its answer, and how it ended.

    ``turns``: how many people let it make when they raised its limits; 0: nobody did.
    """

    messages: list[Message] = field(default_factory=list)
    asks: list[tuple[Ask, Result | None]] = field(default_factory=list)
    catalogue: str = ""
    turns: int = 0
    output: Any = None


async def rehearse(
    reader: RunReader,
    run_id: str,
    agent: Agent,
    model: Model,
    *,
    tools: Mapping[str, ToolSpec] | None = None,
    compare_output: bool | None = None,
) -> Rehearsal:
    """Rehearse a recorded run with that agent.

    ``tools``: what the model sees, by name; None: the tools as they were when the run was started. ``compare_output``:
    whether another output is a difference; None: where the agent declares a schema. Raises :class:`UnknownRun`,
    and :class:`RunPurged` where the run, or one that it continues, was purged.
    """
    view = await reader.get(run_id)
    await check_whole(reader.store, view.record)
    recorded = await _recorded(reader, run_id)
    recorded.output = view.output
    seen = tools if tools is not None else await _catalogue(reader, recorded.catalogue)
    play = _Play(run_id, agent, model, seen, recorded)
    state, output, reason = await play.through()
    play.note_missing()
    compares = agent.output_schema is not None if compare_output is None else compare_output
    play.note_end(view.state, state, output, compares=compares)
    return Rehearsal(
        run_id=run_id,
        agent=agent.name,
        agent_version=agent.version,
        model=agent.model,
        turns=play.turn,
        state=state,
        output=output,
        reason=reason,
        spent=play.spent,
        differences=tuple(play.differences),
    )


def _failed(code: str, cause: str) -> tuple[str, Any, Mapping[str, Any]]:
    return RunState.FAILED.value, None, {"code": code, "cause": cause}


async def _recorded(reader: RunReader, run_id: str) -> _Recorded:
    """The run as the journal tells it."""
    store: JournalStore = reader.store
    run = (await reader.get(run_id)).record
    recorded, answers, asks = _Recorded(), dict[str, Result](), list[Ask]()
    recorded.messages.extend(await read_before(store, run))
    after = 0
    while page := await store.events(run.tenant, run_stream(run_id), after, EVENTS_PAGE):
        for event in page:
            facts = await said_in(store, run.tenant, event)
            if event.kind == RunEvent.STARTED:
                recorded.catalogue = facts["catalogue"]
                recorded.messages.extend(message_of(each) for each in facts["messages"])
            elif event.kind == RunEvent.LIMITS_RAISED:
                recorded.turns = facts["limits"]["turns"]
            elif event.kind == RunEvent.MODEL_ANSWERED:
                asks += getattr(message_of(facts["message"]), "asks", ())
            elif event.kind == RunEvent.CALLS_SETTLED:
                for each in facts["results"]:
                    answers[each["key"]] = Result(
                        each["key"], each["tool"], each["text"], failed=each["failed"], code=each["code"]
                    )
        after = page[-1].seq
    recorded.asks = [(ask, answers.get(ask.key)) for ask in asks]
    return recorded


async def _catalogue(reader: RunReader, digest: str) -> dict[str, ToolSpec]:
    kept = await reader.store.definition(reader.tenant, digest)
    if kept is None or kept.kind != CATALOGUE:
        return {}
    listed = json.loads(kept.body)
    return {each["name"]: ToolSpec(each["name"], each["description"] or "", each["json_schema"]) for each in listed}


class _Play:
    """One rehearsal under way."""

    def __init__(
        self, run_id: str, agent: Agent, model: Model, tools: Mapping[str, ToolSpec], recorded: _Recorded
    ) -> None:
        self._run_id, self._agent, self._model, self._tools = run_id, agent, model, tools
        self._left = list(recorded.asks)
        self._recorded = recorded
        self._messages: list[Message] = list(recorded.messages)
        self.turn, self.spent = 0, Spent()
        self.differences: list[Difference] = []

    async def through(self) -> tuple[str, Any, Mapping[str, Any] | None]:
        """Play to the end: state, output and reason."""
        rejections = Counter[str]()
        while self.turn < max(self._agent.limits.turns, self._recorded.turns):
            self.turn += 1
            try:
                reply = in_characters(await self._model.ask(self._request()))
                self.spent = replace(self.spent.with_attempts(reply.attempts), turns=self.turn)
                message = asked(reply, self._run_id, self.turn)
                self._messages.append(message)
                if message.asks:
                    answers = [self._answer(ask) for ask in message.asks]
                    if (fatal := next((each for each in answers if is_fatal(each, self._agent)), None)) is not None:
                        return _failed(str(fatal.code), fatal.text)
                    self._messages += [answer.message for answer in answers]
                    continue
                if reply.finish_reason == "refused":
                    return _failed(*DECLINED)
                check, verdict = await self._checked(reply)
            except ModelFailed as failure:
                self.spent = self.spent.with_attempts(failure.attempts)
                return _failed(failure.code, failure.cause)
            if verdict.problem is None:
                return RunState.SUCCEEDED.value, verdict.output, None
            most, code = most_rejections(self._agent, check)
            if rejections[check] >= most:
                return _failed(code, verdict.problem)
            rejections[check] += 1
            self._messages.append(UserMessage(verdict.problem))
        return RunState.LIMIT_REACHED.value, None, {"code": "limit_turns", "cause": "It reached its limit of turns."}

    async def _checked(self, reply: ModelReply) -> tuple[str, Verdict]:
        """What looked at the final answer last, and what it says. Raises :class:`ModelFailed`."""
        verdict = check_schema(self._agent, reply.text, cut=reply.finish_reason == "length")
        if verdict.problem is not None or self._agent.verifier is None:
            return "schema", verdict
        key = f"{self._run_id}:{self.turn}:verify"
        looked = await verify(self._model, self._agent.verifier, self._recorded.messages[-1].text, reply.text, key)
        self.spent = self.spent.with_attempts(looked.attempts)
        return "verifier", Verdict(verdict.output, looked.problem)

    def _request(self) -> ModelRequest:
        agent = self._agent
        names = (*agent.tools, *(agent_tool_name(name) for name in agent.agents))
        return ModelRequest(
            model=agent.model,
            fallback=agent.fallback,
            instructions=agent.instructions,
            messages=tuple(self._messages),
            tools=(*(self._tools[name] for name in names if name in self._tools), *builtin.offered(agent)),
            output_schema=agent.output_schema,
            settings=agent.model_settings,
            key=f"{self._run_id}:{self.turn}",
        )

    def _answer(self, ask: Ask) -> Result:
        """The recorded answer to the same call: each is given once, in the order of the record."""
        self.spent = replace(self.spent, calls=self.spent.calls + 1)
        for number, (recorded, answer) in enumerate(self._left):
            if (recorded.tool, recorded.arguments) == (ask.tool, ask.arguments):
                del self._left[number]
                return self._as_answer(ask, answer)
        return self._unrecorded(ask)

    def _unrecorded(self, ask: Ask) -> Result:
        same_tool = next((each for each, _ in self._left if each.tool == ask.tool), None)
        now = {"tool": ask.tool, "arguments": ask.arguments}
        if same_tool is None:
            self._note("new_call", f"It calls {ask.tool}, which the record does not.", None, now)
        else:
            was = {"tool": same_tool.tool, "arguments": same_tool.arguments}
            self._note("other_arguments", f"It calls {ask.tool} with other arguments.", was, now)
            self._left = [(each, answer) for each, answer in self._left if each is not same_tool]
        return self._as_answer(ask, None)

    def _as_answer(self, ask: Ask, answer: Result | None) -> Result:
        if answer is None:
            return Result(ask.key, ask.tool, NO_RECORD, failed=True)
        return replace(answer, key=ask.key)

    def note_missing(self) -> None:
        """Calls that the record has and the rehearsal has not."""
        for ask, _ in self._left:
            was = {"tool": ask.tool, "arguments": ask.arguments}
            self._note("missing_call", f"It never calls {ask.tool} as the record does.", was, None)

    def note_end(self, recorded: RunState, now: str, output: Any, *, compares: bool) -> None:
        """Another end, or where it matters another output. A run that has not ended has no end to compare."""
        if recorded in (RunState.SUCCEEDED, RunState.FAILED) and recorded.value != now:
            self._note("other_end", f"It ends {now}, and was recorded as {recorded}.", recorded.value, now)
        elif compares and recorded is RunState.SUCCEEDED and output != self._recorded.output:
            self._note("other_output", "Its output is another.", self._recorded.output, output)

    def _note(self, kind: Kind, sentence: str, recorded: Any, now: Any) -> None:
        whole = kind in ("missing_call", "other_end", "other_output")
        self.differences.append(Difference(kind, 0 if whole else self.turn, sentence, recorded, now))
