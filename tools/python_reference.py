"""The section of the docs about the Python API: every public name, from its docstring and its signature."""

from __future__ import annotations

import dataclasses
import enum
import inspect
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

import tollhouse
from tollhouse.contract.terms import Dedup
from tools.markdown import annotation, code, prose

GROUPS: dict[str, list[str]] = {
    "The house": ["Tollhouse", "Outcome", "RecordedCall", "State", "AttemptOutcome"],
    "Declaring a tool": [
        "tool", "Tool", "read", "write", "external", "destructive", "dedup", "approval", "hold_repeats",
    ],
    "Inside a tool": ["CallContext", "guard", "never_sent", "NotSent", "Rejected", "Accepted"],
    "Answers of a look-up": ["happened", "did_not_happen", "unknown", "Answer"],
    "Gates of your own": ["Check", "Asked", "Pass", "Deny", "Hold"],
}  # fmt: skip


def api() -> str:
    """Every public name, by group; a new name that no group has yet comes last."""
    listed = {name for names in GROUPS.values() for name in names}
    more = [name for name in tollhouse.__all__ if name not in listed]
    groups = {**GROUPS, **({"More": more} if more else {})}
    return "\n\n".join(
        f"## {group}\n\n" + "\n\n".join(_entry(name, getattr(tollhouse, name)) for name in names)
        for group, names in groups.items()
    )


def _entry(name: str, value: Any) -> str:
    if isinstance(value, ModuleType):
        members = [(n, v) for n, v in vars(value).items() if not n.startswith("_") and _is_own(v, value)]
        return "\n\n".join([f"### {name}", prose(value.__doc__), *(_member(f"{name}.{n}", v) for n, v in members)])
    if isinstance(value, FunctionType):
        return f"### {name}\n\n{_signature(name, value)}\n\n{prose(value.__doc__)}"
    return "\n\n".join([f"### {name}", *_class(name, value)])


def _is_own(value: Any, module: ModuleType) -> bool:
    """Functions of the module, and the values of its own kind; not what it imported to make them."""
    return isinstance(value, Dedup) or (isinstance(value, FunctionType) and value.__module__ == module.__name__)


def _member(name: str, value: Any) -> str:
    if isinstance(value, FunctionType):
        return f"{_signature(name, value)}\n\n{prose(value.__doc__)}"
    return f"`{name}`: a value, see [the contract reference](contract.md#dedup)."


def _class(name: str, cls: type[Any]) -> Iterator[str]:
    doc = cls.__doc__ or ""
    if dataclasses.is_dataclass(cls):
        yield _call(name, [_field_of(f) for f in dataclasses.fields(cls)], "")
    elif issubclass(cls, Exception) and "__init__" in vars(cls):
        yield _signature(name, vars(cls)["__init__"], returns=False)
    yield prose(doc)
    if issubclass(cls, enum.Enum):
        yield "One of " + ", ".join(code(member.value) for member in cls) + "."
        return
    if inspect.isabstract(cls):
        yield "Attributes: " + ", ".join(f"`{n}` (`{annotation(h)}`)" for n, h in cls.__annotations__.items()) + "."
    for member, value in vars(cls).items():
        if not member.startswith("_") and (told := _told(member, value)):
            yield told


def _field_of(field: dataclasses.Field[Any]) -> str:
    made = field.default_factory is not dataclasses.MISSING
    return _parameter(field.name, str(field.type), ... if made else field.default, dataclasses.MISSING)


def _told(name: str, value: Any) -> str | None:
    if isinstance(value, staticmethod):
        value = value.__func__
    if isinstance(value, property):
        hint = annotation(value.fget.__annotations__.get("return", "Any")) if value.fget else "Any"
        return f"**`{name}`** (`{hint}`)" + (f": {prose(value.__doc__)}" if value.__doc__ else "")
    if isinstance(value, FunctionType):
        return f"{_signature(name, value)}\n\n{prose(value.__doc__)}".rstrip()
    return None


def _signature(name: str, fn: FunctionType, *, returns: bool = True) -> str:
    parts, starred = [], False
    for p in inspect.signature(fn).parameters.values():
        if p.name == "self":
            continue
        starred = starred or p.kind is p.VAR_POSITIONAL
        if p.kind is p.KEYWORD_ONLY and not starred:
            parts.append("*")
            starred = True
        stars = "**" if p.kind is p.VAR_KEYWORD else "*" if p.kind is p.VAR_POSITIONAL else ""
        hint = "" if p.annotation is p.empty else annotation(p.annotation)
        parts.append(stars + _parameter(p.name, hint, p.default, p.empty))
    start = "await " if inspect.iscoroutinefunction(fn) else ""
    gives = f" -> {annotation(fn.__annotations__.get('return', 'Any'))}" if returns else ""
    return _call(start + name, parts, gives)


def _call(name: str, parts: list[str], gives: str) -> str:
    """Marked `py`, since a block marked `python` is a program that the tests run."""
    whole = f"{name}({', '.join(parts)}){gives}"
    if len(whole) > 100:
        whole = f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){gives}"
    return f"```py\n{whole}\n```"


def _parameter(name: str, hint: str, default: Any, none: Any) -> str:
    told = f"{name}: {hint}" if hint else name
    if default is none:
        return told
    if default is ...:
        return f"{told} = ..."
    return f"{told} = {default!r}" if hint else f"{told}={default!r}"


SECTIONS: dict[str, Callable[[], str]] = {
    "api": api,
}
