"""Parameters of a statement, numbered as they are named; whoever binds them keeps to the order."""

from __future__ import annotations


class Numbered:
    """Gives out ``$1::text``, ``$2::bigint`` and so on."""

    def __init__(self) -> None:
        self._count = 0

    def one(self, kind: str) -> str:
        """The next parameter, of that type."""
        self._count += 1
        return f"${self._count}::{kind}"

    def many(self, kinds: dict[str, str]) -> str:
        """One parameter for each column, in order, as an SQL list."""
        return ", ".join(self.one(kind) for kind in kinds.values())

    def table(self, name: str, kinds: dict[str, str]) -> str:
        """One array for each column, as rows of a table of that name."""
        arrays = ", ".join(self.one(f"{kind}[]") for kind in kinds.values())
        return f"unnest({arrays}) AS {name}({', '.join(kinds)})"
