"""Sending: the attempts of one call in this process, from commit 1 until the call is out of our hands.

Attempts live in tasks of the house, so that neither a cancelled caller nor a raising sibling touches them. The caller
waits for :attr:`Sending.answer`; a timeout or a cancel ends that wait, never the attempt. Outcome first, bookkeeping
after: once an outcome is known, nothing that fails later changes it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from tollhouse.contract.terms import US
from tollhouse.contract.tool import Tool
from tollhouse.errors import HouseClosed, Sent, StoreFull, StoreUnavailable, TollhouseError
from tollhouse.gate.context import Context
from tollhouse.gate.core import Core, log
from tollhouse.gate.costs import note_gap
from tollhouse.gate.ending import is_transient, names_rejection
from tollhouse.gate.leftovers import begin, put_back_later
from tollhouse.gate.results import Kept
from tollhouse.gate.running import Ended, Run, StillRunning, without_result
from tollhouse.ledger.change import Change
from tollhouse.ledger.ids import Prefix
from tollhouse.ledger.lifecycle import Forbidden
from tollhouse.ledger.record import Attempt, AttemptOutcome, CallRecord, State
from tollhouse.ledger.steps import Ending, Start, depart, end_and_resend, end_attempt, end_wait, resend
from tollhouse.ledger.store import Blob
from tollhouse.ledger.transact import OwnerGone, Stale, transact

BACKOFF_FIRST_S = 0.1
BACKOFF_MOST_S = 5.0
STORE_RETRY_MOST_S = 5.0


class Answered(NamedTuple):
    """What the waiting caller hears: the record, the tool's exception, and the value where it is at hand."""

    record: CallRecord
    error: BaseException | None = None
    kept: Kept | None = None


class Next(NamedTuple):
    """A sending that may follow: its start, and how long it waits before it begins."""

    start: Start
    delay_s: float


class Sending:
    """See the module's docstring. ``gates_pass`` runs all gates again before a resend; a refusal leaves the doubt."""

    def __init__(
        self,
        core: Core,
        tool: Tool[Any],
        arguments: Mapping[str, Any],
        record: CallRecord,
        *,
        principal: str,
        secrets: Mapping[str, str],
        gates_pass: Callable[[CallRecord], Awaitable[bool]],
    ) -> None:
        self._core, self._tool, self._record = core, tool, record
        self._run = Run(tool, arguments, record.arguments, core.threads)
        self._principal, self._secrets, self._gates_pass = principal, secrets, gates_pass
        self._loop = asyncio.get_running_loop()
        self._last_error: BaseException | None = None
        self._cancelled = self._lost = False
        self._contexts: dict[str, Context] = {}
        self.answer: asyncio.Future[Answered] = self._loop.create_future()

    @property
    def adapter(self) -> TypeAdapter[Any]:
        """What rebuilds a result of the tool."""
        return self._tool.schema.result

    # -- starting ----------------------------------------------------------------------------------------

    def start(self, attempt: Attempt, *, delay_s: float = 0.0) -> None:
        """Begin an attempt whose commit was just acknowledged."""
        core = self._core
        context = Context(
            core,
            self._record,
            attempt,
            acknowledged_local_us=core.to_local_us(attempt.started_at_us),  # no later than that
            loop=self._loop,
            principal=self._principal,
            secrets=self._secrets,
            rejected_statuses=self._tool.rejected_statuses,
            is_rejection=lambda error: names_rejection(self._tool, error),
        )
        core.running[attempt.id] = self._contexts[attempt.id] = context
        core.spawn(self._attempt(attempt, context, delay_s))
        if self._cancelled:  # while the commit that begins this attempt was under way
            self._cancel_attempt(attempt, context)

    async def _attempt(self, attempt: Attempt, context: Context, delay_s: float) -> None:
        try:
            await self._write_end(attempt, await self._run_in_time(attempt, context, delay_s))
        except StillRunning:
            await self._end_wait(attempt, "closed")
            return  # it stays among what runs here, so that closing does not give up the lease under it
        except BaseException as error:
            self._leave(error)
            self._forget(attempt)
            raise
        self._forget(attempt)
        await context.sends.give_back()

    async def _run_in_time(self, attempt: Attempt, context: Context, delay_s: float) -> Ended:
        timer = self._loop.call_later(context.remaining_s, self._time_is_up, attempt, context)
        try:
            return await self._run.ending(context, delay_s)
        finally:
            timer.cancel()
            context.stop("The attempt has ended.")

    def _forget(self, attempt: Attempt) -> None:
        self._core.running.pop(attempt.id, None)
        self._contexts.pop(attempt.id, None)

    def _leave(self, error: BaseException) -> None:
        """The house closes, or a defect of ours: neither may leave the caller waiting."""
        if isinstance(error, asyncio.CancelledError):
            error = HouseClosed("The house was closed before the outcome was written.")
        if isinstance(error, TollhouseError):
            self._fail(error, "maybe", _SEE_LATER)
        elif not self.answer.done():
            self.answer.set_exception(error)

    # -- writing the end ---------------------------------------------------------------------------------

    async def _write_end(self, attempt: Attempt, ended: Ended, why: str = "end") -> None:
        """Commit 2. A store that is away is waited for in the background; the caller hears of it at once.

        ``why`` tells decisions apart that may be under way at once, so that neither is taken for a repeat of the other.
        """
        following = await self._plan_resend(ended)
        write_id = f"{attempt.id}:{why}"
        if following is None:
            await self._commit_until_written(attempt, ended, None, write_id)
            return
        core, next_id = self._core, following.start.id
        core.beginning.add(next_id)  # until it starts: a try that was not acknowledged may have begun it
        try:
            acknowledged = await self._commit_until_written(attempt, ended, following, write_id)
            if not acknowledged and next_id not in core.running:
                put_back_later(core, self._record.key, next_id)
        finally:
            core.beginning.discard(next_id)

    async def _commit_until_written(
        self, attempt: Attempt, ended: Ended, following: Next | None, write_id: str
    ) -> bool:
        """Whether the first try was acknowledged."""
        pause_s, first = BACKOFF_FIRST_S, True
        while True:
            try:
                await self._commit_end(attempt, ended, following, write_id)
                return first
            except StoreFull as full:
                if ended.ending.result is not None and ended.ending.result.problem != "no_space":
                    ended = without_result(ended)
                    continue
                self._fail(full, _sent_by(ended))
            except StoreUnavailable as away:
                self._fail(away, _sent_by(ended))
            except Stale:
                log.error("call_row_gone", extra={"key": self._record.key})
                gone = StoreUnavailable(f"The row of {self._record.key} is gone from the store.")
                self._fail(gone, _sent_by(ended), _ROW_GONE)
                return True
            first = False
            if self._core.closed:
                return False
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, STORE_RETRY_MOST_S)

    async def _commit_end(self, attempt: Attempt, ended: Ended, following: Next | None, write_id: str) -> None:
        again = following.start if following is not None else None
        blobs = ended.kept.blobs if ended.kept and ended.ending.result and ended.ending.result.blob else ()
        try:
            after = await self._transact(
                lambda record: self._end_step(record, attempt, ended, again), write_id, again, blobs
            )
        except Forbidden as forbidden:
            if forbidden.guard != "ended":
                raise
            return  # it was ended as never started
        next_attempt = after.attempt(again.id) if again is not None else None
        if next_attempt is not None and following is not None:
            self._last_error = ended.error
            self.start(next_attempt, delay_s=following.delay_s)
        elif after.state is not State.DEPARTED:
            self._deliver(Answered(after, ended.error or self._last_error, ended.kept))

    def _end_step(self, record: CallRecord, attempt: Attempt, ended: Ended, again: Start | None) -> Change:
        change = None
        if again is not None and self._may_send_again():
            change = self._resent(record, attempt, ended, again)
        if change is None:
            change = end_attempt(record, attempt.id, ended.ending, self._core.clock.now_us())
        return change if ended.gap is None else change.then(note_gap(ended.gap, self._core.clock.now_us()))

    def _resent(self, record: CallRecord, attempt: Attempt, ended: Ended, again: Start) -> Change | None:
        """The end with the next attempt in the same commit; None where a guard forbids it (any more)."""
        try:
            if record.state is not State.DEPARTED or record.fence != attempt.fence or record.cancel_asked:
                return None
            if ended.ending.outcome is AttemptOutcome.NOT_SENT:
                change = end_attempt(record, attempt.id, ended.ending, again.at_us)
                if change.record.state is State.READY:
                    return change.then(lambda ready: depart(ready, again, {"by": "owner"}))
            return end_and_resend(record, attempt.id, ended.ending, again, self._tool.terms, {"by": "owner"})
        except Forbidden:
            return None

    async def _plan_resend(self, ended: Ended) -> Next | None:
        """The next attempt where the outcome may be improved by one, or None. Retries have this one owner.

        What was proven not sent uses up no attempt: only the deadline bounds that.
        """
        if not self._may_send_again() or self._core.closed or not self._core.clock.steady:
            return None
        if self._record.limits.max_attempts <= 1 or not is_transient(ended.error, ended.ending):
            return None
        return await self._next(self._backoff_s())

    def _may_send_again(self) -> bool:
        """Neither did the caller give up, nor was this process taken for lost."""
        return not (self._cancelled or self._lost)

    async def _next(self, delay_s: float) -> Next | None:
        """A sending after ``delay_s``; None where the deadline comes before, or a gate says no."""
        now_us = self._core.clock.now_us()
        begin_us = now_us + round(delay_s * US)
        deadline_us = self._record.deadline_at_us
        if deadline_us is not None and begin_us >= deadline_us:
            return None
        if not await self._gates_pass(self._record):
            return None
        end_us = begin_us + round(self._record.limits.attempt_timeout_s * US)
        send_by_us = end_us if deadline_us is None else min(end_us, deadline_us)
        return Next(Start(self._core.ids.new(Prefix.ATTEMPT), self._core.owner_id, now_us, send_by_us), delay_s)

    def _backoff_s(self) -> float:
        doubled: float = BACKOFF_FIRST_S * 2 ** min(len(self._record.round_attempts) - 1, 10)
        return min(BACKOFF_MOST_S, doubled) * (0.75 + random.random() / 2)

    async def _transact(
        self, step: Callable[[CallRecord], Change], write_id: str, again: Start | None, blobs: tuple[Blob, ...] = ()
    ) -> CallRecord:
        owner = self._core.owner_id if again is not None else None
        try:
            before, after = await transact(self._core.store, self._record, step, write_id, owner=owner, blobs=blobs)
        except OwnerGone:
            return await self._as_lost_owner(step, write_id, blobs)
        self._know(after)
        self._core.tell_of(before, after)
        return after

    async def _as_lost_owner(
        self, step: Callable[[CallRecord], Change], write_id: str, blobs: tuple[Blob, ...]
    ) -> CallRecord:
        """Taken for lost meanwhile: the outcome is written all the same, but nothing is sent again."""
        self._lost = True
        before, after = await transact(self._core.store, self._record, step, f"{write_id}:lost", blobs=blobs)
        self._know(after)
        self._core.tell_of(before, after)
        return after

    def _know(self, after: CallRecord) -> None:
        """Of two writes beside each other the earlier one may be heard of last, and knows nothing of the later."""
        if after.version > self._record.version:
            self._record = after

    # -- the end of the wait -----------------------------------------------------------------------------

    def _time_is_up(self, attempt: Attempt, context: Context) -> None:
        if context.stop_unless_started("The attempt's time was up before it began."):
            thread, error = context.thread, TimeoutError(_NOT_BEGUN)
            if thread is not None and self._core.threads.withdraw(thread):
                thread.set_exception(error)  # its own task writes that down, and is gone
            else:
                self._core.spawn(self._never_began(attempt, error))
        else:
            if context.thread is not None:
                self._core.threads.leave(context.thread)
            self._core.spawn(self._end_wait(attempt, "timeout"))

    async def _never_began(self, attempt: Attempt, error: TimeoutError) -> None:
        ending = Ending(AttemptOutcome.NOT_SENT, error={"type": "TimeoutError", "message": str(error)})
        await self._write_end(attempt, Ended(ending, error, None, None), "not_begun")

    def cancel(self) -> None:
        """The caller gave up: nothing is sent any more that has not left, and the doubt is recorded at once."""
        self._cancelled = True
        for attempt_id, context in list(self._contexts.items()):
            if (attempt := self._record.attempt(attempt_id)) is not None:
                self._cancel_attempt(attempt, context)

    def _cancel_attempt(self, attempt: Attempt, context: Context) -> None:
        context.stop("The call was cancelled before this attempt could send.")
        self._core.spawn(self._end_wait(attempt, "cancel"))

    async def _end_wait(self, attempt: Attempt, why: str) -> None:
        """Nobody waits for this attempt any more. After a timeout its owner may send again beside it."""
        beside = why == "timeout" and self._record.limits.max_attempts > 1 and not self._core.closed
        following = await self._next(0.0) if beside else None
        again = following.start if following is not None else None

        def step(record: CallRecord) -> Change:
            now_us = self._core.clock.now_us()
            change = end_wait(record, attempt.id, why, now_us, cancel=why == "cancel")
            if again is None or not self._may_send_again() or not self._core.clock.steady:
                return change
            try:
                return change.then(lambda doubt: resend(doubt, again, self._tool.terms, {"by": "owner"}))
            except Forbidden:
                return change

        error: BaseException = TimeoutError(f"No answer within {self._record.limits.attempt_timeout_s:g} s.")
        write_id = f"{attempt.id}:{why}"
        try:
            if again is None:
                after = await self._transact(step, write_id, None)
            else:
                after = await begin(
                    self._core, self._record.key, again.id, lambda: self._transact(step, write_id, again)
                )
        except Forbidden:
            await self._answer_as_it_stands(error)
            return
        except TollhouseError as away:
            self._fail(away, sent="maybe")
            return
        next_attempt = after.attempt(again.id) if again is not None else None
        if next_attempt is not None:
            self._last_error = error
            self.start(next_attempt)
        elif after.state is not State.DEPARTED:
            self._deliver(Answered(after, error))

    async def _answer_as_it_stands(self, error: BaseException) -> None:
        """It ended just now, or somebody set it aside or settled it while it went on: the wait is over all the same."""
        try:
            record = await self._core.store.get(self._record.tenant, self._record.key)
        except TollhouseError as away:
            self._fail(away, sent="maybe")
            return
        if record is None or (record.state is State.DEPARTED and record.attempts[-1].owner == self._core.owner_id):
            return  # the next attempt of this very process answers
        self._deliver(Answered(record, error))

    # -- answering ---------------------------------------------------------------------------------------

    def _deliver(self, answered: Answered) -> None:
        if not self.answer.done():
            self.answer.set_result(answered)

    def _fail(self, error: TollhouseError, sent: Sent, remedy: str | None = None) -> None:
        if self.answer.done():
            return
        raised = type(error)(error.cause, remedy=remedy or _UNWRITTEN, key=self._record.key, sent=sent)
        raised.__cause__ = error
        self.answer.set_exception(raised)


_NOT_BEGUN = "This attempt did not begin in its time: no thread was free, or it was still waiting."
_SEE_LATER = "Open a house and ask for the same key: it answers with what is known by then."
_ROW_GONE = "Ask the receiver what became of it: the ledger lost what it knew of this call."
_UNWRITTEN = "The outcome is kept in memory and written when the store is back; ask for the same key then."


def _sent_by(ended: Ended) -> Sent:
    if ended.ending.outcome is AttemptOutcome.NOT_SENT:
        return "no"
    return "maybe" if ended.ending.outcome is AttemptOutcome.UNKNOWN else "yes"
