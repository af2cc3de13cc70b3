"""Compensation: undoing one call on purpose, by a call of its own that is linked, gated and ledgered like any other.

Never run by the runtime itself. One original has one compensation, under the key ``<key>:compensate``; asking again
replays it. The original becomes *compensated* in the commit that settles its compensation as succeeded.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from tollhouse.contract.context import CallContext
from tollhouse.contract.effects import external
from tollhouse.contract.tool import Tool, tool
from tollhouse.doubt.hooks import bound, bound_arguments
from tollhouse.doubt.people import named_decision
from tollhouse.errors import NotAllowed, UnknownCall, UnknownTool
from tollhouse.gate.core import Core
from tollhouse.gate.gate import Gate
from tollhouse.gate.outcome import Outcome
from tollhouse.gate.request import Options
from tollhouse.gate.view import RecordedCall, view
from tollhouse.ledger.decisions import may_compensate
from tollhouse.ledger.keys import check_key
from tollhouse.ledger.lifecycle import Forbidden
from tollhouse.ledger.record import CallRecord, State
from tollhouse.ledger.transact import mark_compensated, undoes

SUFFIX = ":compensate"
KEY_LENGTH_MOST = 200


def compensation_key(key: str) -> str:
    """The one key of a call's compensation, at most 200 characters."""
    if len(key) + len(SUFFIX) <= KEY_LENGTH_MOST:
        return key + SUFFIX
    return f"{key[:120]}:{sha256(key.encode()).hexdigest()[:32]}{SUFFIX}"


class Compensator:
    """See the module's docstring."""

    def __init__(self, core: Core, gate: Gate) -> None:
        self._core, self._gate = core, gate

    async def compensate(self, key: str, *, by: str, reason: str) -> Outcome[Any]:
        """Undo a call that took effect. Raises :class:`NotAllowed` while a doubt about it is open,
        :class:`NotEntitled` without a name, :class:`InvalidSetting` without a reason, and whatever the compensating
        call itself raises."""
        named_decision("compensate", by, reason, None)
        record = await self._core.store.get(self._core.tenant, check_key(key))
        if record is None:
            raise UnknownCall(f"No call is recorded under {key}.", key=key)
        undo = self._tool_for(record)
        if record.state is not State.COMPENSATED:
            await self._check(record)
        original = await view(record, self._core.store, self._adapter(record), with_history=False)
        options = Options(by=by, compensates=key, reason=reason)
        arguments = {"original_key": key} if _is_wrapped(undo) else bound_arguments(undo, original)
        outcome = await self._gate.call(undo, arguments, compensation_key(key), options)
        await mark_compensated(self._core.store, self._core.tenant, key, outcome.key, self._core.clock.now_us())
        if not outcome.replayed:
            self._core.tell("call_compensated", key=key, by=by, reason=reason, compensation=outcome.key)
        return outcome

    async def _check(self, record: CallRecord) -> None:
        try:
            may_compensate(record, self._core.clock.now_us())
        except Forbidden as forbidden:
            raise NotAllowed(f"{record.key} cannot be compensated: {forbidden.cause}", key=record.key) from None
        done = await self._core.store.get(record.tenant, compensation_key(record.key))
        if done is not None and done.state is State.SUCCEEDED and not undoes(done, record):
            raise NotAllowed(
                f"{done.key} undid an earlier round of {record.key}, and a call is undone only once.",
                key=record.key,
                remedy="Undo this round at the receiver by hand, or by a call of its own under another key.",
            )

    def _tool_for(self, record: CallRecord) -> Tool[Any]:
        done = self._core.tools.get(record.tool)
        if done is None:
            raise UnknownTool(f"The tool {record.tool} is not registered here.", key=record.key)
        if done.terms.compensate is None:
            raise NotAllowed(
                f"{record.tool} declares no compensation.",
                key=record.key,
                remedy="Undo it at the receiver by hand, or add compensate= to the tool.",
            )
        undo = self._core.tools.get(done.terms.compensate)
        assert undo is not None, "a house registers the compensations of its tools"
        return undo

    def _adapter(self, record: CallRecord) -> Any:
        found = self._core.tools.get(record.tool)
        return found.schema.result if found is not None else None


def _is_wrapped(undo: Tool[Any]) -> bool:
    return undo.schema.parameters == ("original_key",)


def compensating_tool(of: Tool[Any], load: Callable[[str], Any]) -> Tool[Any] | None:
    """The tool that undoes calls of ``of``: its own, or one made of a plain function; None where it declares none.

    ``load`` fetches a recorded call by key at run time, so that what is stored is only the original's key. Called on
    the loop of the house.
    """
    undo = of.compensate
    if undo is None or isinstance(undo, Tool):
        return undo
    made = _awaiting(undo, load) if inspect.iscoroutinefunction(undo) else _in_thread(undo, load)
    described = inspect.getdoc(undo) or f"Undoes one call of {of.name}."
    return tool(external(), name=of.terms.compensate, description=described)(made)


def _awaiting(undo: Callable[..., Any], load: Callable[[str], Any]) -> Callable[..., Any]:
    async def compensate(original_key: str, ctx: CallContext) -> Any:
        return await undo(**bound(undo, await load(original_key), ctx))

    return compensate


def _in_thread(undo: Callable[..., Any], load: Callable[[str], Any]) -> Callable[..., Any]:
    """A ``def`` tool, so that it blocks a thread of the pool and not the house."""
    loop = asyncio.get_running_loop()

    def compensate(original_key: str, ctx: CallContext) -> Any:
        original: RecordedCall = asyncio.run_coroutine_threadsafe(load(original_key), loop).result()
        return undo(**bound(undo, original, ctx))

    return compensate
