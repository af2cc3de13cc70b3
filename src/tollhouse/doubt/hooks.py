"""Calling a tool's hooks: ``reconcile=`` looks, ``compensate=`` undoes. Arguments are bound by what a hook asks for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from tollhouse.contract.context import CallContext
from tollhouse.contract.tool import Tool
from tollhouse.gate.core import Core
from tollhouse.gate.view import RecordedCall

RECORD_NAMES = frozenset({"record", "call", "original"})


def bound(hook: Callable[..., Any], record: RecordedCall, context: CallContext | None = None) -> dict[str, Any]:
    """Keyword arguments for a hook.

    ``record`` (or ``call``, ``original``, or the first parameter that names nothing else) gets the recorded call;
    ``result``, ``reference``, ``key``, ``idempotency_key`` what they say; a parameter annotated
    :class:`CallContext` or named ``ctx`` the context; names of the call's arguments their values. Raises TypeError for
    a look-up that asks for a context: there is none, since it is no attempt.
    """
    known = _known(record)
    chosen: dict[str, Any] = {}
    given_record = False
    for name, parameter in inspect.signature(hook).parameters.items():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        if name == "ctx" or "CallContext" in str(parameter.annotation):
            if context is not None:
                chosen[name] = context
            elif parameter.default is parameter.empty:
                raise TypeError(f"a look-up sends nothing, so it has no context to pass as {name}")
        elif name in RECORD_NAMES:
            chosen[name], given_record = record, True
        elif name in known:
            chosen[name] = known[name]
        elif not given_record and parameter.default is parameter.empty:
            chosen[name], given_record = record, True
    return chosen


def bound_arguments(tool: Tool[Any], record: RecordedCall) -> dict[str, Any]:
    """Arguments of a compensating tool, by name, from the call that it undoes."""
    known = _known(record)
    return {name: known[name] for name in tool.schema.parameters if name in known}


def _known(record: RecordedCall) -> Mapping[str, Any]:
    words = {
        "result": record.result,
        "reference": record.reference,
        "key": record.key,
        "idempotency_key": record.idempotency_key,
    }
    return {**words, **record.arguments}


async def ask(core: Core, hook: Callable[..., Any], record: RecordedCall) -> Any:
    """Call a look-up hook, sync or async, and return what it answers."""
    arguments = bound(hook, record)
    if inspect.iscoroutinefunction(hook):
        return await hook(**arguments)
    answer = await core.threads.run(hook, **arguments)
    return await answer if inspect.isawaitable(answer) else answer
