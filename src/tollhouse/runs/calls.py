"""The calls of a run: each ask of a model passes the gate under its own key, and the model hears what became of it.

Asking again is always right: a key that was settled replays, one that is in doubt stays in doubt, one that people hold
stays held. So whoever drives a run after a crash simply passes the open asks again.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from tollhouse.contract.terms import Effect
from tollhouse.doubt.people import People
from tollhouse.errors import (
    CallConflict,
    CallFailed,
    CallInFlight,
    Compensated,
    Contradicted,
    Held,
    InDoubt,
    InvalidArguments,
    InvalidKey,
    InvalidSetting,
    NotAllowed,
    Refused,
    ResultPurged,
    TollhouseError,
    UnknownTool,
)
from tollhouse.gate.core import Core
from tollhouse.gate.gate import Gate
from tollhouse.gate.request import Options
from tollhouse.gate.results import Unavailable, rebuild
from tollhouse.ledger.codec import from_tree, loads, to_tree
from tollhouse.ledger.digest import encode_arguments
from tollhouse.ledger.plain import plain_json
from tollhouse.ledger.record import CallRecord, State, replace
from tollhouse.ledger.run_record import RunRecord
from tollhouse.models.port import Ask
from tollhouse.runs.agents import Agent
from tollhouse.runs.body import Waiting, body_of
from tollhouse.runs.children import spent_for_call
from tollhouse.runs.journal import JournalStore, RunOwnerGone
from tollhouse.runs.lineage import twins
from tollhouse.runs.results import Result, readable
from tollhouse.runs.states import RunState

AGAIN_US = 1_000_000
"""How soon a run looks again at a call that another process has in hand."""


class Calls:
    """Passes the asks of runs through the gate. One per process."""

    def __init__(self, core: Core, gate: Gate, people: People, store: JournalStore) -> None:
        self._core, self._gate, self._people, self._store = core, gate, people, store

    async def settle(self, ask: Ask, run: RunRecord, agent: Agent, group: str) -> Result | Waiting:
        """The answer to one ask, or what it waits for. Sends what may be sent; see :meth:`Tollhouse.call`.

        Raises :class:`StoreUnavailable` or :class:`HouseClosed`; then it can be asked again. Whatever the tool does is
        an answer. Cancelling ends the wait only.
        """
        if (refusal := self._not_allowed(ask, agent)) is not None:
            return refusal
        answer = await self._settle(ask, run, agent, group)
        if isinstance(answer, Result) and ask.tool not in agent.tools:
            return replace(answer, spent=await spent_for_call(self._store, run.tenant, ask.key))
        return answer

    async def _settle(self, ask: Ask, run: RunRecord, agent: Agent, group: str) -> Result | Waiting:
        assert ask.arguments is not None
        body = body_of(run)
        if body.effects == "reuse" and (twin := await self._twin(run, ask)) is not None:
            return await self._reused(ask, twin)
        options = Options(by=run.requested_by, scope=run.id, group=group, run_when_approved=True)
        try:
            outcome = await self._gate.call(ask.tool, ask.arguments, ask.key, options)
        except TollhouseError as error:
            return await self._answer(ask, run, agent, error)
        if outcome.state is State.ACCEPTED:
            return await self._waits("work", ask.key, "")
        text = _text_of(outcome.value, outcome.problem_detail)
        if outcome.edited and (record := await self._core.store.get(self._core.tenant, ask.key)) is not None:
            text = _with_arguments(record, text)
        return Result(ask.key, ask.tool, text, outcome.state.value, replayed=outcome.replayed)

    # -- before the gate -----------------------------------------------------------------------------------

    def _not_allowed(self, ask: Ask, agent: Agent) -> Result | None:
        allowed = (*agent.tools, *(agent_tool_name(name) for name in agent.agents))
        if ask.tool not in allowed:
            has = ", ".join(allowed) or "none"
            return _told(
                ask, f"There is no tool {ask.tool[:200]} here. Nothing was sent. Tools: {has}.", "tool_not_allowed"
            )
        if ask.arguments is None:
            return _told(ask, "The arguments were no JSON object of text. Nothing was sent.", "invalid_arguments")
        return None

    async def _twin(self, run: RunRecord, ask: Ask) -> CallRecord | None:
        """A call of the run's lineage with the same tool and arguments that took effect, and can be answered from.

        None once the ask has a call of its own: that may be held, and whoever approves it would have it sent.
        """
        tool = self._core.tools.get(ask.tool)
        if tool is None or tool.effect is Effect.READ or ask.arguments is None:
            return None
        try:
            digest = encode_arguments(ask.arguments).digest
        except InvalidArguments:
            return None
        if await self._state_of(ask.key) is not None:
            return None
        async for twin in twins(self._store, run, ask.tool, digest):
            if twin.state is State.SUCCEEDED and not twin.contradicted and await self._is_done(twin):
                return twin
        return None

    async def _is_done(self, call: CallRecord) -> bool:
        """Whether nothing that the call began ended without its output: it may have been a run of another agent."""
        child = await self._store.run_of_start(call.tenant, call.key)
        return child is None or child.parent_key != call.key or child.state == RunState.SUCCEEDED

    async def _reused(self, ask: Ask, twin: CallRecord) -> Result:
        try:
            text = _with_arguments(twin, _text_of(await rebuild(twin, self._core.store, None), None))
        except ResultPurged as purged:
            told = _told(ask, purged.for_model, purged.code, twin.state.value)
            return replace(told, replayed=True, reused=twin.key)
        return Result(ask.key, ask.tool, text, twin.state.value, replayed=True, reused=twin.key)

    # -- after the gate ------------------------------------------------------------------------------------

    async def _answer(self, ask: Ask, run: RunRecord, agent: Agent, error: TollhouseError) -> Result | Waiting:
        match error:
            case Held():
                return await self._waits("approval", ask.key, error.cause)
            case InDoubt() | Contradicted():
                return await self._doubt(ask, agent, error)
            case CallInFlight():
                now_us = self._core.clock.now_us()
                return Waiting("time", ask.key, now_us, now_us + AGAIN_US, error.cause)
            case CallFailed() | Refused() | InvalidArguments() | UnknownTool():
                return await self._without_effect(ask, run, error)
            case Compensated() | ResultPurged():
                return _told(ask, error.for_model, error.code, await self._state_of(ask.key))
            case InvalidKey() | InvalidSetting() | CallConflict():
                return _told(ask, error.for_model, error.code)
            case _:
                raise error

    async def _doubt(self, ask: Ask, agent: Agent, error: TollhouseError) -> Result | Waiting:
        if agent.on_in_doubt == "pause":
            return await self._waits("reconciliation", ask.key, error.cause)
        return _told(ask, error.for_model, error.code, await self._state_of(ask.key))

    async def _without_effect(self, ask: Ask, run: RunRecord, error: TollhouseError) -> Result | Waiting:
        """It had no effect. A call that could still go is given up, so that the model may ask for something else.

        Unless this process was taken for lost meanwhile: then the call belongs to whoever drives the run now.
        """
        state = await self._state_of(ask.key)
        if state == State.READY:
            if run.owner != self._core.owner_id:
                raise RunOwnerGone
            with suppress(NotAllowed):  # it ended by itself
                reason = "nothing was sent, and the run goes on"
                state = (await self._people.cancel(ask.key, by=run.id, reason=reason)).state
        if state in (None, State.REFUSED, State.FAILED):
            return _told(ask, error.for_model, error.code, state)
        now_us = self._core.clock.now_us()  # somebody is sending it after all
        return Waiting("time", ask.key, now_us, now_us + AGAIN_US, error.cause)

    async def _waits(self, kind: Any, key: str, text: str) -> Waiting:
        record = await self._core.store.get(self._core.tenant, key)
        since_us = self._core.clock.now_us() if record is None else record.updated_at_us
        until_us = None
        if kind == "approval" and record is not None and record.approval is not None:
            until_us = record.approval.expires_at_us
        return Waiting(kind, key, since_us, until_us, text)

    async def _state_of(self, key: str) -> str | None:
        record = await self._core.store.get(self._core.tenant, key)
        return None if record is None else record.state.value


def agent_tool_name(agent: str) -> str:
    """The name of the tool that runs that agent."""
    return f"agent_{agent}"


def _told(ask: Ask, text: str, code: str, call_state: str | None = None) -> Result:
    return Result(ask.key, ask.tool, text, call_state, failed=True, code=code)


def _text_of(value: Any, detail: str | None) -> str:
    """A result as a model reads it: text as it is, anything else as JSON."""
    if isinstance(value, Unavailable):
        return f"It took effect, but its result could not be kept ({detail or value.problem})."
    if isinstance(value, str):
        return readable(value)
    plain = plain_json(from_tree(to_tree(value, lossless=True)))
    return readable(json.dumps(plain, ensure_ascii=False))


def _with_arguments(record: CallRecord, text: str) -> str:
    """What came of a call, with what it ran with where that is not what was asked for."""
    if record.digest == record.request_digest:
        return text
    ran_with = json.dumps(plain_json(from_tree(loads(record.arguments))), ensure_ascii=False)
    return f"A person changed this call before it was sent; it ran with {ran_with}.\n{text}"


def is_fatal(result: Result, agent: Agent) -> bool:
    """Whether an answer ends the run, by what its agent's file says."""
    if result.code in ("call_in_doubt", "call_contradicted"):
        return agent.on_in_doubt == "fail"
    return result.code == CallFailed.code and agent.on_tool_error == "fail"
