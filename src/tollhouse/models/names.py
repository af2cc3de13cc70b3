"""Names and ids that every provider takes: minted here, so that what a provider sends or leaves out does no harm.

``convert.py`` makes both for one request and reads the answer with the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST_NAME = 64


class WireNames:
    """Tools' names as providers take them: ``[A-Za-z0-9_-]{1,64}``, no two alike, and back again.

    A tool whose name needs no change keeps it; others get one that is free. The same tools in the same order get the
    same names, as providers' caches want it.
    """

    def __init__(self, tools: Iterable[str]) -> None:
        named = list(dict.fromkeys(tools))
        self._wire = {tool: tool for tool in named if _spelled(tool) == tool}
        self._tools = dict(self._wire)
        for tool in named:
            if tool not in self._wire:
                self._take(tool)

    def _take(self, tool: str) -> None:
        name, number = _spelled(tool), 2
        while name in self._tools:
            ending = f"_{number}"
            name, number = _spelled(tool)[: _LONGEST_NAME - len(ending)] + ending, number + 1
        self._wire[tool], self._tools[name] = name, tool

    def wire(self, tool: str) -> str:
        """What the provider calls the tool, which must be one of those given."""
        return self._wire[tool]

    def tool(self, wire: str) -> str:
        """The tool of that name; a name that was never given stays as it is, for the run to refuse."""
        return self._tools.get(wire, wire)


def _spelled(tool: str) -> str:
    return _NOT_IN_NAMES.sub("_", tool)[:_LONGEST_NAME] or "_"


class WireIds:
    """Ids of calls as providers take them: at most 40 of ``[A-Za-z0-9_-]``, made of the call's key, no two alike.

    The strictest providers set both bounds; keys have ``:`` and ``.`` in them and may be longer.
    """

    def __init__(self) -> None:
        self._met: dict[str, int] = {}

    def mint(self, key: str) -> str:
        """The id for the next call with that key; a key that comes again gets another."""
        count = self._met[key] = self._met.get(key, 0) + 1
        text = key if count == 1 else f"{key}#{count}"
        return f"call_{sha256(text.encode()).hexdigest()[:32]}"
