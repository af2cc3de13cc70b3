"""The decorator ``@tool(...)`` and what it makes: a :class:`Tool`, which only the gate can call."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any, Generic, NoReturn, TypeVar, Unpack

from tollhouse.contract.checks import check_name, complete, merged
from tollhouse.contract.effects import Cost, Declaration, Rejects, Settings
from tollhouse.contract.guarantee import cautions, guarantee
from tollhouse.contract.schema import Schema
from tollhouse.contract.terms import Effect, Terms
from tollhouse.errors import ContractError, UngatedCall

R = TypeVar("R")


class Tool(Generic[R]):
    """A function with its contract. Calling it directly raises :class:`UngatedCall`; ``fn`` is for unit tests.

    ``terms``: what the lifecycle needs, stored on each call. ``json_schema``: what a model sees. ``cautions``: what
    ``tollhouse check`` warns of.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        declaration: Declaration,
        *,
        name: str | None,
        description: str | None,
        reconcile: Callable[..., Any] | None,
        compensate: Callable[..., Any] | Tool[Any] | None,
        names: Mapping[str, Any],
    ) -> None:
        _check_function(fn)
        self.fn = fn
        self.name = check_name(fn.__name__ if name is None else name)
        self.description = description or inspect.getdoc(fn)
        self.is_async = inspect.iscoroutinefunction(fn)
        self.schema = Schema(fn, self.name, names)
        self.json_schema = self.schema.json_schema(self.description)
        self.reconcile = _check_hook(reconcile, "reconcile")
        self.compensate = _check_compensation(compensate)
        given = complete(
            declaration,
            has_reconcile=reconcile is not None,
            has_compensate=compensate is not None,
            has_context=self.schema.context_parameter is not None,
        )
        self.rejects: tuple[Rejects, ...] = given.rejects
        self.rejected_statuses = frozenset(rule for rule in given.rejects if isinstance(rule, int))
        self.cost: Cost | None = declaration.settings.get("cost")
        self.cautions = cautions(declaration.effect, given, has_reconcile=reconcile is not None)
        unversioned = Terms(
            tool=self.name,
            effect=declaration.effect,
            version="",
            dedup=given.dedup,
            max_attempts=given.max_attempts,
            attempt_timeout_s=given.attempt_timeout_s,
            deadline_s=given.deadline_s,
            absent_after_s=given.absent_after_s,
            departs=given.departs,  # type: ignore[arg-type]
            accepts=given.accepts,
            job_deadline_s=given.job_deadline_s,
            resend_margin_s=given.resend_margin_s,
            approval=given.approval,
            on_repeat=given.on_repeat,
            has_reconcile=reconcile is not None,
            compensate=_compensation_name(self.name, compensate),
            guarantee=guarantee(declaration.effect, given, has_reconcile=reconcile is not None),
        )
        self.terms = replace(unversioned, version=_version(unversioned, self.json_schema))
        self.contract_text = self.terms.dumps()
        self.__name__ = self.name
        self.__doc__ = self.description

    @property
    def effect(self) -> Effect:
        """What it does to the world."""
        return self.terms.effect

    def __call__(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise UngatedCall(f"{self.name} was called directly, around the gate.")

    def __repr__(self) -> str:
        return f"<Tool {self.name}: {self.effect.value}>"


def tool(
    declaration: Declaration,
    *,
    name: str | None = None,
    description: str | None = None,
    reconcile: Callable[..., Any] | None = None,
    compensate: Callable[..., Any] | Tool[Any] | None = None,
    **settings: Unpack[Settings],
) -> Callable[[Callable[..., Any]], Tool[Any]]:
    """Make a function a tool. ``name`` defaults to the function's, ``description`` to its docstring.

    ``reconcile``: reads only; gets the call's record and answers :func:`happened`, :func:`did_not_happen` or
    :func:`unknown`. ``compensate``: a tool or function that undoes one call; it runs only when a person asks, as a call
    of its own. Settings may stand in the effect or here. Raises :class:`ContractError` on a contradiction.
    """
    names = sys._getframe(1).f_locals

    def decorate(fn: Callable[..., Any]) -> Tool[Any]:
        return Tool(
            fn,
            merged(declaration, settings),
            name=name,
            description=description,
            reconcile=reconcile,
            compensate=compensate,
            names=names,
        )

    return decorate


def _check_function(fn: object) -> None:
    plain = inspect.isfunction(fn) or inspect.ismethod(fn)
    if not plain or inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise ContractError(
            "A tool is a plain `def` or `async def` function.",
            field="function",
            remedy="Put @tool(...) on a function that returns its result, above no other decorator that hides it.",
        )
    if inspect.isfunction(fn) and next(iter(inspect.signature(fn).parameters), None) in ("self", "cls"):
        raise ContractError(
            "A tool has no self: nobody who calls it could give one.",
            field="function",
            remedy="Put the tool at module level, or decorate the method of an instance: tool(...)(billing.refund).",
        )


def _check_hook(hook: Any, field: str) -> Any:
    if hook is not None and not callable(hook):
        raise ContractError(f"{field}= must be a function, not {type(hook).__name__}.", field=field)
    if isinstance(hook, Tool):
        raise ContractError(
            f"{field}= is a look-up beside the gate, so it is a plain function.",
            field=field,
            remedy=f"Give the function itself: {field}={hook.name}.fn.",
        )
    return hook


def _check_compensation(compensate: Any) -> Any:
    if not isinstance(compensate, Tool):
        return _check_hook(compensate, "compensate")
    if compensate.effect is Effect.READ:
        raise ContractError(
            f"{compensate.name} only reads, so it undoes nothing.",
            field="compensate",
            remedy="Declare the effect that it has, such as @tool(external()).",
        )
    return compensate


def _compensation_name(name: str, compensate: Callable[..., Any] | Tool[Any] | None) -> str | None:
    if compensate is None:
        return None
    return compensate.name if isinstance(compensate, Tool) else f"{name}.compensate"


def _version(terms: Terms, schema: Mapping[str, Any]) -> str:
    """Changes whenever a promise or the schema changes: what approvals are bound to."""
    return sha256((terms.dumps() + json.dumps(schema, sort_keys=True, default=str)).encode()).hexdigest()[:16]
