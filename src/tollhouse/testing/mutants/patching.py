"""Patches from outside: how a mutant takes the place of a rule, in every module that holds it, and how it goes again.

Used by the mutants alone. A rule is a function that several modules imported by name, so replacing it in the module
that defines it would change nothing; :meth:`Patches.everywhere` finds all of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


class Patches:
    """What one mutant replaced, so that it can be put back."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []

    def everywhere(self, rule: Callable[..., Any], broken: Callable[..., Any]) -> None:
        """Put ``broken`` wherever a loaded module of Tollhouse holds ``rule``, except in the mutants themselves.

        Raises LookupError when nobody holds it: a mutant that changes nothing must not pass for one that was missed.
        """
        holders = [
            (module, name)
            for place, module in list(sys.modules.items())
            if place.startswith("tollhouse.") and not place.startswith(__package__)
            for name, value in list(vars(module).items())
            if value is rule
        ]
        if not holders:
            raise LookupError(f"No module holds {rule!r}.")
        for module, name in holders:
            self.on(module, name, broken)

    def on(self, holder: Any, name: str, broken: Any) -> None:
        """Replace one attribute of a module or class, which must exist there."""
        self._undo.append((holder, name, vars(holder)[name]))
        setattr(holder, name, broken)

    def undo(self) -> None:
        """Put everything back, the last first."""
        while self._undo:
            setattr(*self._undo.pop())
