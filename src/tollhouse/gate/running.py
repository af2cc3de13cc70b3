"""Running a tool's function for one attempt: whatever it does, an ending comes back.

Called by :class:`~tollhouse.gate.sending.Sending`, which writes that ending down.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

from tollhouse.contract.answers import Accepted
from tollhouse.contract.tool import Tool
from tollhouse.gate.context import Context
from tollhouse.gate.costs import CostGap, cost_of
from tollhouse.gate.ending import ending_of_error, error_record
from tollhouse.gate.results import Kept, keep, without_body
from tollhouse.gate.threads import ThreadPool
from tollhouse.ledger.codec import from_tree, loads
from tollhouse.ledger.record import AttemptOutcome
from tollhouse.ledger.steps import Ending


class Ended(NamedTuple):
    """An attempt's first-hand end with all that goes with it."""

    ending: Ending
    error: BaseException | None
    kept: Kept | None
    gap: CostGap | None


class StillRunning(BaseException):
    """The house closes while a thread runs the tool's function, which nothing can stop."""


class Run:
    """A tool's function with the arguments of one call; each attempt runs it once."""

    def __init__(self, tool: Tool[Any], arguments: Mapping[str, Any], stored: str, threads: ThreadPool) -> None:
        self._tool, self._arguments, self._threads = tool, arguments, threads
        self._each = Afresh(tool, arguments, stored)

    async def ending(self, context: Context, delay_s: float) -> Ended:
        """Run the function. Whatever it does, an ending comes back."""
        try:
            if delay_s:
                await asyncio.sleep(delay_s)
            value = await self._call(context)
        except StillRunning:
            raise
        except BaseException as error:
            if context.stop_unless_started("The attempt was stopped before it began."):
                never = Ending(AttemptOutcome.NOT_SENT, error=error_record(error, context.secrets))
                return self._ended(never, error, None)
            return self._ended(ending_of_error(error, self._tool, context), error, None)
        if isinstance(value, Accepted):
            return self._ended(Ending(AttemptOutcome.ACCEPTED, reference=value.reference), None, None)
        kept = keep(value, self._tool.schema.result)
        return self._ended(Ending(AttemptOutcome.HAPPENED, result=kept.stored), None, kept)

    async def _call(self, context: Context) -> Any:
        arguments = self._each.take()
        if (name := self._tool.schema.context_parameter) is not None:
            arguments[name] = context
        fn = self._tool.fn
        if self._tool.is_async:
            await context.check()
            context.begin()
            return await fn(**arguments)

        def in_thread() -> Any:
            context.check_sync()
            context.begin()
            return fn(**arguments)

        context.thread = self._threads.run(in_thread)
        try:
            return await awaited(await context.thread)
        except asyncio.CancelledError:
            if context.thread.cancelled() and context.started:
                raise StillRunning from None
            raise

    def _ended(self, ending: Ending, error: BaseException | None, kept: Kept | None) -> Ended:
        cost, gap = cost_of(self._tool, self._arguments, ending, kept.value if kept else None)
        if cost is not None:
            ending = Ending(ending.outcome, ending.result, ending.error, ending.reference, cost)
        return Ended(ending, error, kept, gap)


class Afresh:
    """The arguments of a call for each attempt: no two share an object, since a tool may change what it is given and
    every sending has to be the same. ``arguments``: as they were validated; ``stored``: as the ledger keeps them."""

    def __init__(self, tool: Tool[Any], arguments: Mapping[str, Any], stored: str) -> None:
        self._tool, self._stored = tool, stored
        self._first = None if callable(tool.cost) else arguments  # a cost is computed from them afterwards

    def take(self) -> dict[str, Any]:
        """Those of the next attempt."""
        first, self._first = self._first, None
        return dict(first) if first is not None else self._tool.schema.validate(from_tree(loads(self._stored)))


async def awaited(value: Any) -> Any:
    """What a ``def`` function returned; what is still to be done, where it wraps an ``async def``, is done."""
    return await value if inspect.isawaitable(value) else value


def without_result(ended: Ended) -> Ended:
    """The same end with no room for its result's body."""
    assert ended.ending.result is not None
    smaller = without_body(ended.ending.result)
    ending = Ending(ended.ending.outcome, smaller, ended.ending.error, ended.ending.reference, ended.ending.cost)
    return Ended(ending, ended.error, ended.kept, ended.gap)
