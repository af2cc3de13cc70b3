"""The tool under the probe: its function and hooks wrapped, so that what they do is seen without changing it."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tollhouse.contract.tool import Tool


class Watch:
    """What the wrapped function was seen to do."""

    def __init__(self) -> None:
        self.mutated: str | None = None

    def compare(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """Note the first argument that is not what it was."""
        for name, value in before.items():
            if self.mutated is None and not _equal(after[name], value):
                self.mutated = name


@contextmanager
def watched(tool: Tool[Any]) -> Iterator[Watch]:
    """The tool with its function watched, put back as it was afterwards."""
    watch, real = Watch(), tool.fn
    tool.fn = _watching(real, watch, tool.schema.context_parameter)
    try:
        yield watch
    finally:
        tool.fn = real


def _watching(real: Callable[..., Any], watch: Watch, context_name: str | None) -> Callable[..., Any]:
    def given(arguments: Mapping[str, Any]) -> dict[str, Any]:
        return copy.deepcopy({name: value for name, value in arguments.items() if name != context_name})

    if inspect.iscoroutinefunction(real):

        async def run(**arguments: Any) -> Any:
            before = given(arguments)
            try:
                return await real(**arguments)
            finally:
                watch.compare(before, arguments)

        return run

    def run_sync(**arguments: Any) -> Any:
        before = given(arguments)
        try:
            return real(**arguments)
        finally:
            watch.compare(before, arguments)

    return run_sync


def _equal(one: Any, other: Any) -> bool:
    """Equal, where that can be said; what cannot be compared is not accused."""
    try:
        return bool(one == other)
    except Exception:
        return True
