"""The loop of a run, one step at a time: ask the model, pass its calls through the gate, or finish.

Nothing is held between steps that the journal does not hold: whoever drives a run next begins where the last commit
ended. A model's answer is recorded before any of its calls runs; what a call came to is on the ledger before the run
hears of it. So a step that was cut off anywhere is simply made again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from tollhouse.gate.core import Core
from tollhouse.ledger.ids import Prefix
from tollhouse.ledger.record import replace
from tollhouse.ledger.run_record import RunRecord
from tollhouse.models.port import Ask, Model, ModelFailed, ModelReply, ModelRequest, OnText, ToolSpec, UserMessage
from tollhouse.runs import builtin, steps
from tollhouse.runs.agents import Agent
from tollhouse.runs.body import Body, Waiting, body_of
from tollhouse.runs.calls import Calls, agent_tool_name, is_fatal
from tollhouse.runs.journal import Journal, JournalStore, RunOwnerGone, RunStale, commit, follow, read
from tollhouse.runs.live import Bus, Moved, Text
from tollhouse.runs.output import Verdict, check_schema, verify
from tollhouse.runs.results import Result
from tollhouse.runs.states import FINISHED, RunState
from tollhouse.runs.steps import RunChange

CALLS_AT_ONCE = 16
"""Calls of one model answer that are out at the same time."""

MODEL_FAILURES_MOST = 8
"""Requests that fail in a row before the run fails; between them it waits, longer each time."""
MODEL_PAUSE_FIRST_S = 2.0
MODEL_PAUSE_MOST_S = 300.0
_US = 1_000_000

CUT = "Your answer was cut off at its greatest length. Answer again, shorter."


@dataclass(frozen=True, slots=True)
class Step:
    """What is next after a step: go on, wait (nothing runs any more), or done. ``record``: the run as it stands."""

    kind: Literal["continue", "wait", "done"]
    record: RunRecord


class Lost(Exception):
    """Somebody else drives the run now, or it was cancelled: this process has nothing to do with it any more."""


class Shared:
    """What the drives of a process share."""

    def __init__(self, core: Core, store: JournalStore, calls: Calls, model: Model, bus: Bus) -> None:
        self.core, self.store, self.calls, self.model, self.bus = core, store, calls, model, bus
        self.reread_every_step = False
        """For tests: hold nothing between steps, as if every step were made by another process."""

    def now_us(self) -> int:
        return self.core.clock.now_us()


class Drive:
    """One run, claimed by this process, while it is driven here."""

    def __init__(self, shared: Shared, record: RunRecord, agent: Agent, journal: Journal) -> None:
        self._shared, self.record, self._agent, self._journal = shared, record, agent, journal

    @classmethod
    async def claim(cls, shared: Shared, record: RunRecord, agent: Agent) -> Drive:
        """Take the run. Raises :class:`Lost` when another was first.

        What moved one of its calls before the claim is read after it, so the notes about that may go.
        """
        owner = shared.core.owner_id
        try:
            change = steps.claimed(record, owner, shared.now_us())
            taken, _ = await commit(shared.store, change, shared.core.ids.new(Prefix.DECISION), owner=owner)
        except (RunStale, RunOwnerGone):
            raise Lost from None
        if record.version > 1:
            await shared.store.forget_wakes(taken.tenant, taken.id)
        shared.bus.tell(Moved(taken.id, taken.head_seq))
        return cls(shared, taken, agent, await read(shared.store, taken))

    @classmethod
    async def resume(cls, shared: Shared, record: RunRecord, agent: Agent) -> Drive:
        """Go on with a run that this process claimed before and let go of."""
        return cls(shared, record, agent, await read(shared.store, record))

    async def step(self) -> Step:
        """Make the next step, durable on return. Raises :class:`Lost`, or what the store raises when it is away."""
        if self._shared.reread_every_step:
            self._journal = await read(self._shared.store, self.record)
        if self._journal.open_asks:
            await self._settle_calls()
        elif self._journal.answer is not None:
            await self._finish(self._journal.answer.text)
        else:
            await self._ask()
        return self._standing()

    async def release(self) -> None:
        """Hand the run over to whoever comes next."""
        await self._commit(lambda record: steps.released(record, self._shared.now_us()))

    async def fail(self, code: str, cause: str) -> Step:
        """End it for a reason that no further step can mend."""
        await self._commit(lambda record: steps.failed(record, code, cause, self._shared.now_us()))
        return self._standing()

    def _standing(self) -> Step:
        state = RunState(self.record.state)
        return Step("continue" if state is RunState.RUNNING else "done" if state in FINISHED else "wait", self.record)

    @property
    def _body(self) -> Body:
        return body_of(self.record)

    async def _commit(self, change_of: Callable[[RunRecord], RunChange]) -> None:
        """Write a change, decided anew when a person wrote to the run meanwhile."""
        shared, owner = self._shared, self.record.owner
        write_id = shared.core.ids.new(Prefix.DECISION)
        try:
            self.record, events = await commit(shared.store, change_of(self.record), write_id, owner=owner)
        except RunOwnerGone:
            raise Lost from None
        except RunStale as stale:
            standing = stale.record
            if standing is None or standing.owner != owner or standing.state != RunState.RUNNING:
                raise Lost from None
            self.record = standing
            await follow(shared.store, self._journal)
            await self._commit(change_of)
            return
        await follow(shared.store, self._journal, events)
        shared.bus.tell(Moved(self.record.id, self.record.head_seq))

    # -- asking the model --------------------------------------------------------------------------------

    async def _ask(self) -> None:
        if (reached := self._limit_before_asking()) is not None:
            await self._stop_at(*reached)
            return
        turn = self._journal.turn + 1
        try:
            reply = await self._shared.model.ask(self._request(turn), self._teller(turn))
        except ModelFailed as failure:
            await self._model_failed(failure, turn)
            return
        await self._commit(lambda record: self._answered(record, reply, turn))

    def _answered(self, record: RunRecord, reply: ModelReply, turn: int) -> RunChange:
        """The answer, and in the same commit the end of the run where nothing speaks against it."""
        now_us = self._shared.now_us()
        change = steps.model_answered(record, reply, turn, now_us)
        if reply.asks:
            return change
        if reply.finish_reason == "refused":
            return change.then(steps.failed(change.record, "model_declined", "The model declined to answer.", now_us))
        if self._agent.verifier is not None or reply.finish_reason != "stop":
            return change
        verdict = check_schema(self._agent, reply.text)
        return change if verdict.problem else change.then(steps.succeeded(change.record, verdict.output, now_us))

    def _request(self, turn: int) -> ModelRequest:
        agent = self._agent
        return ModelRequest(
            model=agent.model,
            fallback=agent.fallback,
            instructions=agent.instructions,
            messages=self._journal.conversation,
            tools=(*self._tools(), *builtin.offered(agent)),
            output_schema=agent.output_schema,
            settings=agent.model_settings,
            key=f"{self.record.id}:{turn}",
        )

    def _tools(self) -> list[ToolSpec]:
        names = (*self._agent.tools, *(agent_tool_name(name) for name in self._agent.agents))
        found = (self._shared.core.tools.get(name) for name in names)
        return [ToolSpec(each.name, each.description or "", each.json_schema) for each in found if each is not None]

    def _teller(self, turn: int) -> OnText:
        told = 0

        async def tell(piece: str) -> None:
            nonlocal told
            self._shared.bus.tell(Text(self.record.id, turn, piece, told))
            told += len(piece)

        return tell

    async def _model_failed(self, failure: ModelFailed, turn: int) -> None:
        failures = self._body.failures
        again_at_us = None
        if failure.transient and failures + 1 < MODEL_FAILURES_MOST:
            pause_s = min(MODEL_PAUSE_MOST_S, MODEL_PAUSE_FIRST_S * 2**failures) * random.uniform(0.75, 1.25)
            again_at_us = self._shared.now_us() + round(pause_s * _US)
        await self._commit(lambda record: steps.model_failed(record, failure, turn, again_at_us, self._shared.now_us()))

    # -- limits ------------------------------------------------------------------------------------------

    def _limit_before_asking(self) -> tuple[str, object] | None:
        """The limit that forbids another question, and its value."""
        limits, spent = self._body.limits, self._body.spent
        if spent.turns >= limits.turns:
            return "turns", limits.turns
        if limits.tokens is not None and spent.input_tokens + spent.output_tokens >= limits.tokens:
            return "tokens", limits.tokens
        if limits.cost is not None and spent.cost >= limits.cost:
            return "cost", limits.cost
        return self._wall_limit()

    def _wall_limit(self) -> tuple[str, object] | None:
        wall_s = self._body.limits.wall_s
        if wall_s is not None and self._shared.now_us() - self.record.created_at_us >= wall_s * _US:
            return "wall_s", wall_s
        return None

    async def _stop_at(self, limit: str, most: object) -> None:
        await self._commit(lambda record: steps.limit_reached(record, limit, str(most), self._shared.now_us()))

    # -- calls -------------------------------------------------------------------------------------------

    async def _settle_calls(self) -> None:
        """Pass the open asks of the last answer, side by side, each on its own; write down what they come to."""
        limits, spent = self._body.limits, self._body.spent
        if limits.calls is not None and spent.calls > limits.calls:
            await self._stop_at("calls", limits.calls)
            return
        room = asyncio.Semaphore(CALLS_AT_ONCE)
        tasks = [asyncio.create_task(self._settled(ask, room)) for ask in self._journal.open_asks]
        try:
            waiting = await self._gather(tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if waiting and self._journal.open_asks:
            await self._pause(waiting)

    async def _settled(self, ask: Ask, room: asyncio.Semaphore) -> Result | Waiting:
        if ask.tool in builtin.NAMES:
            body = self._body
            known = next((each for each in body.waiting if each.id == ask.key), None)
            return builtin.settle(ask, self._agent, body.answers or {}, known, self._shared.now_us())
        async with room:
            group = f"{self.record.id}:{self._journal.turn}"
            return await self._shared.calls.settle(ask, self.record, self._agent, group)

    async def _gather(self, tasks: Sequence[asyncio.Task[Result | Waiting]]) -> tuple[Waiting, ...]:
        """Commit results as they come in; what all that is left waits for.

        A failure of one is raised after the others ended. A result that ends the run leaves the others to the ledger.
        """
        waiting: list[Waiting] = []
        failure: BaseException | None = None
        left = set(tasks)
        while left:
            done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            results = []
            for task in (each for each in tasks if each in done):
                if (raised := task.exception()) is not None:
                    failure = failure or raised
                    continue
                answer = task.result()
                if isinstance(answer, Result):
                    results.append(answer)
                else:
                    waiting.append(self._as_known(answer))
            if results:
                await self._results(results, tuple(waiting))
                if self.record.state != RunState.RUNNING:
                    return ()
        if failure is not None:
            raise failure
        return tuple(waiting)

    def _as_known(self, waiting: Waiting) -> Waiting:
        """The same with what was known of it: since when, and whether people were reminded."""
        known = next((w for w in self._body.waiting if (w.id, w.kind) == (waiting.id, waiting.kind)), None)
        return waiting if known is None else replace(waiting, since_us=known.since_us, reminded=known.reminded)

    async def _results(self, results: list[Result], waiting: tuple[Waiting, ...]) -> None:
        fatal = next((result for result in results if is_fatal(result, self._agent)), None)
        turn = self._journal.turn

        def change_of(record: RunRecord) -> RunChange:
            now_us = self._shared.now_us()
            change = steps.calls_settled(record, turn, results, waiting, now_us)
            if fatal is None:
                return change
            return change.then(steps.failed(change.record, str(fatal.code), fatal.text, now_us))

        await self._commit(change_of)

    async def _pause(self, waiting: tuple[Waiting, ...]) -> None:
        if (reached := self._wall_limit()) is not None:
            await self._stop_at(*reached)
            return
        wall_s = self._body.limits.wall_s
        latest_us = None if wall_s is None else self.record.created_at_us + round(wall_s * _US)
        await self._commit(lambda record: steps.paused(record, waiting, latest_us, self._shared.now_us()))

    # -- finishing ---------------------------------------------------------------------------------------

    async def _finish(self, text: str) -> None:
        """Check the final answer; then end the run, or tell the model what is wrong with it."""
        verdict = Verdict(problem=CUT) if self._journal.cut else check_schema(self._agent, text)
        code, most = "output_invalid", self._agent.output_repairs
        verifier = self._agent.verifier
        if verdict.problem is None and verifier is not None and not self._journal.passed:
            looked = await self._verified(text)
            if looked is None:
                return
            verdict = Verdict(verdict.output, looked.problem, looked.attempts)
            code, most = "output_rejected", verifier.rounds
        await self._commit(lambda record: self._judged(record, verdict, code, most))

    def _judged(self, record: RunRecord, verdict: Verdict, code: str, most: int) -> RunChange:
        now_us = self._shared.now_us()
        if verdict.problem is None and not verdict.attempts:
            return steps.succeeded(record, verdict.output, now_us)
        change = steps.verified(record, verdict.problem is None, verdict.problem or "", verdict.attempts, now_us)
        if verdict.problem is None:
            return change.then(steps.succeeded(change.record, verdict.output, now_us))
        if self._journal.rejections >= most:
            return change.then(steps.failed(change.record, code, verdict.problem, now_us))
        return change

    async def _verified(self, text: str) -> Verdict | None:
        """What the verifier says; None: it did not answer, and the run waits or has failed."""
        assert self._agent.verifier is not None
        question = next((m.text for m in self._journal.messages if isinstance(m, UserMessage)), "")
        key = f"{self.record.id}:{self._journal.turn}:verify"
        try:
            return await verify(self._shared.model, self._agent.verifier, question, text, key)
        except ModelFailed as failure:
            await self._model_failed(failure, self._journal.turn)
            return None
