"""Reads: run first, written once. They may run again on transient errors, and again after a crash; never in doubt."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any

from tollhouse.contract.answers import Accepted
from tollhouse.contract.terms import US
from tollhouse.contract.tool import Tool
from tollhouse.gate.context import Context
from tollhouse.gate.core import Core
from tollhouse.gate.costs import cost_of
from tollhouse.gate.ending import error_record, is_transient_read_error
from tollhouse.gate.results import Kept, keep
from tollhouse.gate.running import Afresh, awaited
from tollhouse.ledger.ids import Prefix
from tollhouse.ledger.record import Attempt, AttemptOutcome, CallRecord, replace
from tollhouse.ledger.steps import Ending

BACKOFF_FIRST_S = 0.1


class ReadRun:
    """One read in this process: up to ``max_attempts`` tries within ``deadline_s``, then its ending."""

    def __init__(
        self,
        core: Core,
        tool: Tool[Any],
        arguments: Mapping[str, Any],
        record: CallRecord,
        principal: str,
        secrets: Mapping[str, str],
    ) -> None:
        self._core, self._tool, self._arguments = core, tool, arguments
        self._record, self._principal, self._secrets = record, principal, secrets
        self._each = Afresh(tool, arguments, record.arguments)
        self.attempts: list[Attempt] = []
        self.error: BaseException | None = None
        self.kept: Kept | None = None

    async def run(self) -> Ending:
        """Try until it answers, a lasting error comes, or attempts and time are used up."""
        limits = self._record.limits
        deadline_us = self._core.clock.now_us() + round(limits.deadline_s * US)
        while True:
            ending = await self._try(deadline_us)
            again = self.error is not None and is_transient_read_error(self.error)
            pause_s = BACKOFF_FIRST_S * 2 ** min(len(self.attempts) - 1, 6) * (0.75 + random.random() / 2)
            room = self._core.clock.now_us() + round(pause_s * US) < deadline_us
            if not again or not room or len(self.attempts) >= limits.max_attempts:
                return ending
            await asyncio.sleep(pause_s)

    async def _try(self, deadline_us: int) -> Ending:
        core, limits = self._core, self._record.limits
        now_us = core.clock.now_us()
        send_by_us = min(now_us + round(limits.attempt_timeout_s * US), deadline_us)
        number = len(self.attempts) + 1
        attempt = Attempt(core.ids.new(Prefix.ATTEMPT), 1, number, core.owner_id, number, now_us, send_by_us)
        context = ReadContext(
            core,
            self._record,
            attempt,
            acknowledged_local_us=core.local_us(),
            loop=asyncio.get_running_loop(),
            principal=self._principal,
            secrets=self._secrets,
            rejected_statuses=self._tool.rejected_statuses,
        )
        ending = await self._run(context, (send_by_us - now_us) / US)
        await context.sends.give_back()
        cost, _gap = cost_of(self._tool, self._arguments, ending, self.kept.value if self.kept else None)
        self.attempts.append(
            replace(attempt, outcome=ending.outcome, ended_at_us=core.clock.now_us(), error=ending.error, cost=cost)
        )
        return ending

    async def _run(self, context: Context, most_s: float) -> Ending:
        self.error = None
        try:
            async with asyncio.timeout(most_s):
                value = await self._call(context)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and _caller_cancelled():
                raise
            self.error = error
            return Ending(AttemptOutcome.UNKNOWN, error=error_record(error, context.secrets))
        finally:
            context.stop("The attempt has ended.")
        if isinstance(value, Accepted):
            self.error = value
            return Ending(AttemptOutcome.UNKNOWN, error=error_record(value))
        self.kept = keep(value, self._tool.schema.result)
        return Ending(AttemptOutcome.HAPPENED, result=self.kept.stored)

    async def _call(self, context: Context) -> Any:
        arguments = self._each.take()
        if (name := self._tool.schema.context_parameter) is not None:
            arguments[name] = context
        if self._tool.is_async:
            return await self._tool.fn(**arguments)
        return await awaited(await self._core.threads.run(self._tool.fn, **arguments))


def _caller_cancelled() -> bool:
    """Whether it is the caller who left, and not the tool that raised CancelledError by itself."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


class ReadContext(Context):
    """A read has no fence: nothing of it is in the store while it runs. Time and cancel are still checked."""

    async def check(self) -> None:
        self._may_send()

    def check_sync(self) -> None:
        self._may_send()
