"""The loop of a run, one step at a time: ask the model, pass its calls through the gate, or finish.

Nothing is held between steps that the journal does not hold: whoever drives a run next begins where the last commit
ended. A model's answer is recorded before any of its calls runs; what a call came to is on the ledger before the run
hears of it. So a step that was cut off anywhere is simply made again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, cast

from tollhouse.gate.core import Core
from tollhouse.ledger.ids import Prefix
from tollhouse.ledger.record import replace
from tollhouse.ledger.run_record import RunRecord, run_stream
from tollhouse.models.port import Ask, Model, ModelFailed, ModelReply, ModelRequest, OnText, ToolSpec
from tollhouse.runs import builtin, reached, steps
from tollhouse.runs.agents import Agent
from tollhouse.runs.body import Body, Waiting, body_of
from tollhouse.runs.calls import Calls, agent_tool_name, is_fatal
from tollhouse.runs.journal import Journal, JournalStore, RunOwnerGone, RunStale, commit, follow, last_of_thread, read
from tollhouse.runs.live import Bus, Moved, Text
from tollhouse.runs.output import DECLINED, Verdict, check_schema, most_rejections, verify
from tollhouse.runs.results import Result, in_characters
from tollhouse.runs.states import FINISHED, RunEvent, RunState
from tollhouse.runs.steps import RunChange

CALLS_AT_ONCE = 16
"""Calls of one model answer that are out at the same time."""

MODEL_FAILURES_MOST = 8
"""Requests that fail in a row before the run fails; between them it waits, longer each time."""
MODEL_PAUSE_FIRST_S = 2.0
MODEL_PAUSE_MOST_S = 300.0
RETRY_AFTER_MOST_S = 86_400.0
"""A provider that wants to be left alone for longer is asked again after this."""
_US = 1_000_000

Told = TypeVar("Told", ModelReply, Verdict)


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
        self._is_known = True
        """Whether the last step ended well; else what it wrote may not be known here."""
        self._unrecorded: tuple[str, ModelReply | Verdict | ModelFailed] | None = None
        """What a request came to, by its key, that could not be recorded yet: it is paid for, and not made again."""

    @classmethod
    async def claim(cls, shared: Shared, record: RunRecord, agent: Agent) -> Drive:
        """Take the run. Raises :class:`Lost` when another was first.

        What moved one of its calls before the claim is read after it, so the notes about that may go.
        """
        owner = shared.core.owner_id
        continues = body_of(record).continues
        if record.thread is not None and record.version == 1:
            # Known for sure only now: while this run stands unfinished, no other of its thread can begin.
            continues = await last_of_thread(shared.store, record.tenant, record.thread, but=record.id)
        try:
            change = steps.claimed(record, owner, continues, shared.now_us())
            taken, _ = await commit(shared.store, change, shared.core.ids.new(Prefix.DECISION), owner=owner)
        except (RunStale, RunOwnerGone):
            raise Lost from None
        if record.version > 1:
            await shared.store.forget_wakes(taken.tenant, taken.id)
        shared.bus.tell(Moved(taken.id, taken.head_seq, taken.state))
        return cls(shared, taken, agent, await read(shared.store, taken))

    @classmethod
    async def resume(cls, shared: Shared, record: RunRecord, agent: Agent) -> Drive:
        """Go on with a run that this process claimed before and let go of.

        Raises :class:`Lost` where it was in hand still when it was read, and came to its end or its wait since.
        """
        drive = cls(shared, record, agent, Journal(record))
        await drive._look()
        drive._journal = await read(shared.store, drive.record)
        return drive

    async def step(self) -> Step:
        """Make the next step, durable on return. Raises :class:`Lost`, or what the store raises when it is away."""
        if self._shared.reread_every_step or not self._is_known:
            await self._look()
            self._journal = await read(self._shared.store, self.record)
        self._is_known = False
        if self._journal.open_asks:
            await self._settle_calls()
        elif self._journal.answer is not None:
            await self._finish(self._journal.answer.text)
        else:
            await self._ask()
        self._is_known, self._unrecorded = True, None
        return self._standing()

    async def release(self) -> None:
        """Hand the run over to whoever comes next, as it stands, whatever broke off before."""
        await self._look()
        await self._commit(lambda record: steps.released(record, self._shared.now_us()))

    async def fail(self, code: str, cause: str) -> Step:
        """End it for a reason that no further step can mend."""
        await self._look()
        await self._commit(lambda record: steps.failed(record, code, cause, self._shared.now_us()))
        return self._standing()

    def _standing(self) -> Step:
        state = RunState(self.record.state)
        return Step("continue" if state is RunState.RUNNING else "done" if state in FINISHED else "wait", self.record)

    async def _look(self) -> None:
        """See what the store has. Raises :class:`Lost` when that is no longer this process's to move."""
        self.record = self._mine(await self._shared.store.run(self.record.tenant, self.record.id))

    def _mine(self, standing: RunRecord | None) -> RunRecord:
        if standing is None or standing.owner != self.record.owner or standing.state != RunState.RUNNING:
            raise Lost
        return standing

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
            standing = self._mine(stale.record)
            await self._take_answers()
            self.record = standing
            await self._commit(change_of)
            return
        await follow(shared.store, self._journal, events)
        shared.bus.tell(Moved(self.record.id, self.record.head_seq, self.record.state))

    async def _take_answers(self) -> None:
        """Answers are all that anybody but its driver writes to a run that is driven; else another drives it too."""
        journal = self._journal
        events = await self._shared.store.events(self.record.tenant, run_stream(self.record.id), journal.last_seq)
        if any(event.kind != RunEvent.QUESTION_ANSWERED for event in events):
            raise Lost
        await follow(self._shared.store, journal, events)

    # -- asking the model --------------------------------------------------------------------------------

    async def _ask(self) -> None:
        turn = self._journal.turn + 1
        key = f"{self.record.id}:{turn}"
        if not self._is_made(key) and (limit := reached.before_asking(self.record, self._shared.now_us())) is not None:
            await self._stop_at(*limit)
            return
        if await self._is_left_alone(turn):
            return
        try:
            reply = await self._once(key, lambda: self._reply(turn))
        except ModelFailed as failure:
            await self._model_failed(failure, turn)
            return
        await self._commit(lambda record: self._answered(record, reply, turn))

    async def _reply(self, turn: int) -> ModelReply:
        teller = self._teller(turn) if self._shared.bus.is_heard(self.record.id) else None
        return in_characters(await self._shared.model.ask(self._request(turn), teller))

    async def _is_left_alone(self, turn: int) -> bool:
        """Wait on where a model that failed is not to be asked yet: something else may have woken the run."""
        until_us = self._shared.now_us() + steps.AHEAD_US
        waits = tuple(
            w for w in self._body.waiting if w.id == f"{self.record.id}:{turn}" and (w.until_us or 0) > until_us
        )
        if waits:
            await self._pause(waits)
        return bool(waits)

    def _is_made(self, key: str) -> bool:
        """Whether the request of that key was made, and only its record is missing."""
        return self._unrecorded is not None and self._unrecorded[0] == key

    async def _once(self, key: str, make: Callable[[], Awaitable[Told]]) -> Told:
        """What a request comes to, made once however many tries it takes to record it. Raises :class:`ModelFailed`."""
        if self._unrecorded is None or self._unrecorded[0] != key:
            try:
                self._unrecorded = key, await make()
            except ModelFailed as failure:
                self._unrecorded = key, failure
        told = self._unrecorded[1]
        if isinstance(told, ModelFailed):
            raise told
        return cast(Told, told)

    def _answered(self, record: RunRecord, reply: ModelReply, turn: int) -> RunChange:
        """The answer, and in the same commit the end of the run where nothing speaks against it."""
        now_us = self._shared.now_us()
        change = steps.model_answered(record, reply, turn, now_us)
        if reply.asks:
            return change
        if reply.finish_reason == "refused":
            return change.then(steps.failed(change.record, *DECLINED, now_us))
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
            asked_s = min(failure.retry_after_s or 0.0, RETRY_AFTER_MOST_S)
            again_at_us = self._shared.now_us() + round(max(pause_s, asked_s) * _US)
            again_at_us = min(again_at_us, reached.latest_us(self.record) or again_at_us)
        await self._commit(lambda record: steps.model_failed(record, failure, turn, again_at_us, self._shared.now_us()))

    # -- limits ------------------------------------------------------------------------------------------

    @property
    def _begins_children(self) -> bool:
        """Whether the last answer has other agents do something, and none of its calls was passed on yet."""
        asks = self._journal.open_asks
        fresh = asks == self._journal.asks and not self._body.waiting
        return fresh and any(each.tool in map(agent_tool_name, self._agent.agents) for each in asks)

    async def _stop_at(self, limit: str, most: object) -> None:
        await self._commit(lambda record: steps.limit_reached(record, limit, str(most), self._shared.now_us()))

    # -- calls -------------------------------------------------------------------------------------------

    async def _settle_calls(self) -> None:
        """Pass the open asks of the last answer, side by side, each on its own; write down what they come to."""
        if (
            limit := reached.before_calling(self.record, self._shared.now_us(), begins_children=self._begins_children)
        ) is not None:
            await self._stop_at(*limit)
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
            try:
                return await self._shared.calls.settle(ask, self.record, self._agent, group)
            except RunOwnerGone:
                raise Lost from None

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
                await self._results(results, self._known_with(waiting))
                if self.record.state != RunState.RUNNING:
                    return ()
            if left:
                await self._show_questions(waiting)
        if failure is not None:
            raise failure
        return self._known_with(waiting)

    def _as_known(self, waiting: Waiting) -> Waiting:
        """The same with what was known of it: since when, and whether people were reminded."""
        known = next((w for w in self._body.waiting if (w.id, w.kind) == (waiting.id, waiting.kind)), None)
        return waiting if known is None else replace(waiting, since_us=known.since_us, reminded=known.reminded)

    def _known_with(self, found: Sequence[Waiting]) -> tuple[Waiting, ...]:
        """What open asks are found to wait for now, and what those that are not looked at yet waited for before."""
        known = {each.id: each for each in (*self._body.waiting, *found)}
        return tuple(known[ask.key] for ask in self._journal.open_asks if ask.key in known)

    async def _show_questions(self, found: Sequence[Waiting]) -> None:
        """A question that nobody has seen yet is there to be answered while other calls of the turn still run."""
        known = {each.id for each in self._body.waiting}
        if any(each.kind == "answer" and each.id not in known for each in found):
            waiting = self._known_with(found)
            await self._commit(lambda record: steps.waits_meanwhile(record, waiting, self._shared.now_us()))

    async def _results(self, results: list[Result], waiting: tuple[Waiting, ...]) -> None:
        fatal = next((result for result in results if is_fatal(result, self._agent)), None)
        turn = self._journal.turn

        def change_of(record: RunRecord) -> RunChange:
            now_us, answers = self._shared.now_us(), body_of(record).answers or {}
            heard = [builtin.after_all(result, answers) for result in results]
            change = steps.calls_settled(record, turn, heard, waiting, now_us)
            if fatal is None:
                return change
            return change.then(steps.failed(change.record, str(fatal.code), fatal.text, now_us))

        await self._commit(change_of)

    async def _pause(self, waiting: tuple[Waiting, ...]) -> None:
        if (limit := reached.out_of_time(self.record, self._shared.now_us())) is not None:
            await self._stop_at(*limit)
            return
        await self._commit(
            lambda record: steps.paused(record, waiting, reached.latest_us(self.record), self._shared.now_us())
        )

    # -- finishing ---------------------------------------------------------------------------------------

    async def _finish(self, text: str) -> None:
        """Check the final answer; then end the run, or tell the model what is wrong with it."""
        verdict = check_schema(self._agent, text, cut=self._journal.cut)
        if verdict.problem is None and self._agent.verifier is not None:
            looked = await self._verified(text)
            if looked is not None:
                verdict = Verdict(verdict.output, looked.problem, looked.attempts)
                await self._commit(lambda record: self._judged(record, "verifier", verdict))
        else:
            await self._commit(lambda record: self._judged(record, "schema", verdict))

    def _judged(self, record: RunRecord, check: str, verdict: Verdict) -> RunChange:
        now_us, problem = self._shared.now_us(), verdict.problem
        if check == "schema" and problem is None:
            return steps.succeeded(record, verdict.output, now_us)
        change = steps.verified(record, check, problem is None, problem or "", verdict.attempts, now_us)
        if problem is None:
            return change.then(steps.succeeded(change.record, verdict.output, now_us))
        most, code = most_rejections(self._agent, check)
        if self._journal.rejections[check] < most:
            return change
        return change.then(steps.failed(change.record, code, problem, now_us))

    async def _verified(self, text: str) -> Verdict | None:
        """What the verifier says; None: it was not asked or did not answer, and the run stands still or has failed."""
        verifier = self._agent.verifier
        assert verifier is not None
        key = f"{self.record.id}:{self._journal.turn}:verify"
        if not self._is_made(key) and (limit := reached.used_up(self.record, self._shared.now_us())) is not None:
            await self._stop_at(*limit)
            return None
        if await self._is_left_alone(self._journal.turn):
            return None
        try:
            return await self._once(key, lambda: verify(self._shared.model, verifier, self._journal.task, text, key))
        except ModelFailed as failure:
            await self._model_failed(failure, self._journal.turn)
            return None
