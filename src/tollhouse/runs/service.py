"""Runs as every surface uses them: start, look, answer, raise limits, cancel, run again; and what drivers drive with.

One :class:`Runs` per opened house. It holds no run: everything is in the store, so any number of processes may serve
the same runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from tollhouse.doubt.people import People
from tollhouse.errors import (
    PreconditionFailed,
    RunConflict,
    RunNotAllowed,
    RunPurged,
    ThreadBusy,
    TollhouseError,
    UnknownQuestion,
)
from tollhouse.gate.core import Core
from tollhouse.gate.gate import Gate
from tollhouse.ledger.ids import Prefix
from tollhouse.ledger.record import replace
from tollhouse.ledger.run_record import RunQuery, RunRecord, RunRefusal, run_stream
from tollhouse.models.port import Message, Model, UserMessage, message_of
from tollhouse.runs import steps
from tollhouse.runs.advance import Drive, Lost, Shared, Step
from tollhouse.runs.agents import Agent, Limits
from tollhouse.runs.body import Body, Effects, body_of
from tollhouse.runs.calls import Calls
from tollhouse.runs.children import limits_within, nothing_left
from tollhouse.runs.ending import Ending
from tollhouse.runs.journal import (
    JournalStore,
    RunStale,
    StartRefused,
    check_whole,
    commit,
    last_of_thread,
    said_in,
)
from tollhouse.runs.live import Bus, Moved
from tollhouse.runs.reader import RunReader
from tollhouse.runs.registry import agent_version, keep_catalogue
from tollhouse.runs.rehearse import Rehearsal, rehearse
from tollhouse.runs.starting import Start, check_limits, check_name, check_start, check_words, digest_of, is_start_of
from tollhouse.runs.states import RunState
from tollhouse.runs.steps import RunChange
from tollhouse.runs.view import RunView, view_of


class Runs(RunReader):
    """See the module's docstring.

    Every method may raise :class:`StoreUnavailable`; those that take an id :class:`UnknownRun`. What a method returns
    is durable.
    """

    def __init__(self, core: Core, gate: Gate, people: People, model: Model, store: JournalStore) -> None:
        super().__init__(store, core.tenant)
        self._core = core
        self.bus = Bus()
        self._shared = Shared(core, store, Calls(core, gate, people, store), model, self.bus)
        self._ending = Ending(core, people, store)
        self.driver = "local"
        """Who drives the runs that are started here, where a start says nothing else."""
        self._catalogue: str | None = None
        self._versions: dict[str, Agent] = {}
        self.on_start: Callable[[RunRecord], None] = lambda _record: None
        """Called with a run that may go on, so that a driver of this process need not wait for its next round."""

    @property
    def owner_id(self) -> str:
        """What this process is called as an owner of runs and calls."""
        return self._core.owner_id

    @property
    def model(self) -> Model:
        return self._shared.model

    # -- starting ----------------------------------------------------------------------------------------

    async def start(
        self,
        agent: str,
        input: str,
        *,
        by: str,
        key: str | None = None,
        thread: str | None = None,
        messages: tuple[Message, ...] = (),
        driver: str | None = None,
        agent_version: str | None = None,
        limits: Mapping[str, Any] | None = None,
        parent_run_id: str | None = None,
        parent_key: str | None = None,
    ) -> RunView:
        """Start a run of ``agent``; it is queued for a driver.

        ``key``: names this start, 1 to 200 characters as a call's key; the same start again returns the run that is
        there (``started_before``). ``messages`` stand before the input. ``thread``: a conversation that it continues.
        ``driver`` None: this process's own.
        ``agent_version`` None: the newest. ``limits`` tighten the agent's. Raises :class:`UnknownAgent`,
        :class:`InvalidSetting`, :class:`InvalidKey`, :class:`RunConflict` for another start under the key,
        :class:`ThreadBusy` while a run of the thread has not finished and :class:`RunNotAllowed` where the parent has
        no tokens or dollars left.
        """
        start = Start(
            agent=agent,
            by=by,
            key=key,
            thread=thread,
            messages=(*messages, UserMessage(input)),
            driver=driver or self.driver,
            agent_version=agent_version,
            limits=limits,
            parent_run_id=parent_run_id,
            parent_key=parent_key,
        )
        check_start(start)
        return await self._start(start, await self._version(agent, agent_version))

    async def rerun(
        self,
        run_id: str,
        *,
        by: str,
        key: str | None = None,
        effects: Effects = "hold",
        agent_version: str | None = None,
    ) -> RunView:
        """Start the same run once more, from its inputs in full and with no looser limits.

        ``effects``: what happens to an effect that its lineage had, or may have had: ``hold`` it for people, ``reuse``
        what is recorded, or ``repeat`` it; the choice is on record. ``agent_version`` None: that of the run itself.
        Raises :class:`RunNotAllowed` while the run has not ended, and :class:`RunPurged` where it, or a run that it
        continues, was purged.
        """
        source = await self._record(run_id)
        if not source.finished and source.state != RunState.LIMIT_REACHED:
            raise RunNotAllowed(f"{run_id} is {source.state}; only a run that has ended can be run again.")
        try:
            await check_whole(self._store, source)
        except RunPurged:
            if known := await self._rerun_before(source, key, effects, agent_version):
                return known
            raise
        first = (await self._store.events(self.tenant, run_stream(run_id), 0, 1))[0]
        facts = await said_in(self._store, self.tenant, first)
        start = Start(
            agent=source.agent,
            by=by,
            key=key,
            messages=tuple(message_of(each) for each in facts["messages"]),
            driver=source.driver,
            agent_version=agent_version,
            source_run_id=source.id,
            attempt_no=source.attempt_no + 1,
            effects=effects,
            limits=asdict(body_of(source).limits),
            continues=body_of(source).continues,
        )
        check_start(start)
        return await self._start(start, await self._version(source.agent, agent_version or source.agent_version))

    async def _rerun_before(
        self, source: RunRecord, key: str | None, effects: Effects, version: str | None
    ) -> RunView | None:
        """What this very rerun started while the source still had its messages."""
        known = None if key is None else await self._store.run_of_start(self.tenant, key)
        if known is None or known.source_run_id != source.id:
            return None
        same = (known.agent_version, body_of(known).effects) == (version or source.agent_version, effects)
        return view_of(known, started_before=True) if same else None

    async def rehearse(
        self,
        run_id: str,
        *,
        agent_version: str | None = None,
        model: str | None = None,
        compare_output: bool | None = None,
    ) -> Rehearsal:
        """Let a model go through a recorded run again, its tools answered from the record: nothing leaves.

        ``agent_version`` None: the newest. ``model`` None: that version's own. ``compare_output``: see
        :func:`~tollhouse.runs.rehearse.rehearse`. Nothing is recorded.
        """
        record = await self._record(run_id)
        agent = await self._version(record.agent, agent_version)
        if model is not None:
            agent = replace(agent, model=model, fallback=())
        return await rehearse(self, run_id, agent, self.model, compare_output=compare_output)

    async def _start(self, start: Start, agent: Agent) -> RunView:
        if self._catalogue is None:
            now_us = self._core.clock.now_us()
            self._catalogue = await keep_catalogue(self._store, self.tenant, self._core.tools.all(), now_us)
        continues = start.continues or await self._continued(start)
        record = self._new(start, agent, await self._limits(start, agent), continues)
        try:
            record, _ = await commit(self._store, steps.started(record, start.facts(agent, self._catalogue)), record.id)
        except StartRefused as refused:
            return self._standing(start, refused)
        self.bus.tell(Moved(record.id, record.head_seq, record.state))
        self.on_start(record)
        return view_of(record)

    async def _limits(self, start: Start, agent: Agent) -> Limits:
        """Those of the agent, as far as the start does not tighten them, and no more than its parent has left."""
        limits = agent.limits if start.limits is None else check_limits(agent.limits, start.limits, tighten=True)
        parent = await self._store.run(self.tenant, start.parent_run_id) if start.parent_run_id is not None else None
        if parent is None:
            return limits
        limits = limits_within(limits, parent)
        spent = nothing_left(limits)
        if spent is not None and await self._store.run_of_start(self.tenant, start.key or "") is None:
            raise RunNotAllowed(f"The run {parent.id} has nothing left of its limit of {spent} for a run of its own.")
        return limits

    def _new(self, start: Start, agent: Agent, limits: Limits, continues: str | None) -> RunRecord:
        now_us = self._core.clock.now_us()
        return RunRecord(
            tenant=self.tenant,
            id=self._core.ids.new(Prefix.RUN),
            agent=agent.name,
            agent_version=agent.version,
            driver=start.driver,
            state=RunState.QUEUED.value,
            version=1,
            owner=None,
            start_key=start.key,
            start_digest=digest_of(start),
            thread=start.thread,
            parent_run_id=start.parent_run_id,
            parent_key=start.parent_key,
            source_run_id=start.source_run_id,
            attempt_no=start.attempt_no,
            requested_by=start.by,
            created_at_us=now_us,
            updated_at_us=now_us,
            due_at_us=steps.at_once(now_us),
            finished=False,
            head_seq=0,
            head_hash="",
            body=Body(limits=limits, effects=start.effects, continues=continues).text,
        )

    def _standing(self, start: Start, refused: StartRefused) -> RunView:
        """What stands against a start: the very same start, or another."""
        standing = refused.record
        named = "another run" if standing is None else standing.id
        if refused.refusal is RunRefusal.BUSY:
            raise ThreadBusy(f"The thread {start.thread} has an unfinished run: {named}.")
        if standing is None or not is_start_of(standing, start):
            raise RunConflict(f"The key {start.key} belongs to another start: {named}.")
        return view_of(standing, started_before=True)

    async def _continued(self, start: Start) -> str | None:
        """The run of the thread before this one, as far as is known before it stands."""
        if start.thread is None:
            return None
        return await last_of_thread(self._store, self.tenant, start.thread)

    async def _version(self, agent: str, version: str | None) -> Agent:
        found = await agent_version(self._store, self.tenant, agent, version, self._versions)
        return self._versions.setdefault(found.version, found)

    # -- people ------------------------------------------------------------------------------------------

    async def answer(
        self, run_id: str, question_id: str, text: str, *, by: str, versions: Collection[int] | None = None
    ) -> RunView:
        """Answer a question of the run; it goes on by itself.

        ``versions``: of which one must still stand, or :class:`PreconditionFailed` is raised; None: any. Raises
        :class:`UnknownQuestion`, or :class:`RunNotAllowed` when the run has ended.
        """
        check_name(by)
        check_words("text=", text)

        def change_of(record: RunRecord) -> RunChange:
            body = body_of(record)
            if record.finished:
                raise RunNotAllowed(f"{run_id} is {record.state}: nobody waits for the answer.")
            asked = any(each.id == question_id and each.kind == "answer" for each in body.waiting)
            if not asked or question_id in (body.answers or {}):
                raise UnknownQuestion(f"{run_id} has no open question {question_id[:100]}.")
            return steps.question_answered(record, question_id, text, by, self._core.clock.now_us())

        return await self._decide(run_id, change_of, versions)

    async def raise_limits(
        self, run_id: str, limits: Mapping[str, Any], *, by: str, versions: Collection[int] | None = None
    ) -> RunView:
        """Let a run that reached a limit go on. ``limits``: those that change, by name; None: no limit.

        ``versions``: see :meth:`answer`.
        Raises :class:`RunNotAllowed` where it was run again meanwhile: each would do what the other does.
        """
        check_name(by)
        if reruns := await self._store.find_runs(self.tenant, RunQuery(source_run_id=run_id, limit=1)):
            raise RunNotAllowed(f"{run_id} was run again as {reruns[0].id}, and only one of them may go on.")

        def change_of(record: RunRecord) -> RunChange:
            raised = check_limits(body_of(record).limits, limits, tighten=False)
            return steps.limits_raised(record, raised, by, self._core.clock.now_us())

        return await self._decide(run_id, change_of, versions)

    async def cancel(
        self, run_id: str, *, by: str, reason: str = "", versions: Collection[int] | None = None
    ) -> RunView:
        """Stop a run, at once. What it had not sent is not sent; what had left is named in its history.

        Its children are cancelled too. Cancelling a cancelled run changes nothing. ``versions``: see :meth:`answer`.
        Raises :class:`RunNotAllowed` for one that ended otherwise.
        """
        check_name(by)
        check_words("reason=", reason)
        record = await self._record(run_id)
        _check_version(record, versions)
        while record.state != RunState.CANCELLED:
            left = await self._ending.left(record)
            now_us = self._core.clock.now_us()
            change = steps.cancelled(record, by, reason or "no reason given", left, now_us)
            try:
                record, _ = await commit(self._store, change, self._core.ids.new(Prefix.DECISION))
            except RunStale as stale:
                record = stale.record or await self._record(run_id)
                _check_version(record, versions)
                continue
            self.bus.tell(Moved(record.id, record.head_seq, record.state))
            record = await self.tidy(record)
        return await self._seen(record)

    async def _decide(
        self, run_id: str, change_of: Callable[[RunRecord], RunChange], versions: Collection[int] | None
    ) -> RunView:
        """Write a person's change, decided anew when the run moved meanwhile."""
        record = await self._record(run_id)
        while True:
            _check_version(record, versions)
            try:
                record, _ = await commit(self._store, change_of(record), self._core.ids.new(Prefix.DECISION))
            except RunStale as stale:
                record = stale.record or await self._record(run_id)
                continue
            self.bus.tell(Moved(record.id, record.head_seq, record.state))
            self.on_start(record)
            return await self._seen(record)

    # -- driving -----------------------------------------------------------------------------------------

    async def agent_of(self, record: RunRecord) -> Agent:
        """The version of the agent that the run runs."""
        return await self._version(record.agent, record.agent_version)

    def now_here_us(self) -> int:
        """The store's clock as this process knows it."""
        return self._core.clock.now_us()

    async def claim(self, record: RunRecord) -> Drive:
        """Take a run in hand. Raises :class:`Lost` when somebody else has it, or it has ended."""
        if record.finished:
            raise Lost
        agent = await self.agent_of(record)
        if record.owner is not None and record.owner == self._core.owner_id:
            return await Drive.resume(self._shared, record, agent)
        if record.owner is not None:
            owner = await self._store.owner(self.tenant, record.owner)
            if owner is not None and owner.ended_at_us is None:
                raise Lost  # a process that lives has it in hand, however long its step takes
        return await Drive.claim(self._shared, record, agent)

    async def advance(self, run_id: str) -> Step:
        """Make one step of a run that nobody drives, and hand it over again unless it ended or waits.

        Raises :class:`RunNotAllowed` when another process has it in hand.
        """
        record = await self._record(run_id)
        if record.finished:
            return Step("done", await self.tidy(record))
        try:
            drive = await self.claim(record)
            return await self._one_step(drive)
        except Lost:
            raise RunNotAllowed(f"{run_id} is in other hands.") from None

    async def _one_step(self, drive: Drive) -> Step:
        try:
            step = await drive.step()
        except BaseException:
            with suppress(Lost, TollhouseError):  # then this process goes on with it when it is asked to again
                await drive.release()
            raise
        if step.kind == "continue":
            await drive.release()
        return Step(step.kind, drive.record)

    async def tidy(self, record: RunRecord) -> RunRecord:
        """Finish what a finished run left: its calls, its children, the call of its parent. Right to repeat."""
        return await self._ending.tidy(record, self._cancel_child)

    async def forbid_calls(self, record: RunRecord) -> None:
        """Refuse what calls of the run have not left; forbid that the rest is sent again. Right to repeat."""
        await self._ending.forbid_calls(record)

    async def end_with_parent(self, child: RunRecord) -> None:
        """Cancel a child that was just started if its call was cancelled: the end of the parent may have looked for
        children before it was there. Whoever has a call of a run that failed sent again wants its effect."""
        call = await self._core.store.get(self.tenant, child.parent_key or "")
        if call is not None and call.cancel_asked:
            await self._cancel_child(child.id, child.parent_run_id or call.requested_by, "its call was cancelled")

    async def _cancel_child(self, run_id: str, by: str, reason: str) -> None:
        with suppress(RunNotAllowed):  # it ended by itself meanwhile
            await self.cancel(run_id, by=by, reason=reason)

    def hold_nothing_between_steps(self) -> None:
        """For tests: every step begins from the store, as if another process made it."""
        self._shared.reread_every_step = True


def _check_version(record: RunRecord, versions: Collection[int] | None) -> None:
    """Raise :class:`PreconditionFailed` unless the run stands at one of these versions. None: any is right."""
    if versions is not None and record.version not in versions:
        now = RunState(record.state).sentence
        raise PreconditionFailed(f"{record.id} is at version {record.version} now: {now}.")
