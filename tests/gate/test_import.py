"""Importing the package is cheap: what only some need is imported when they need it."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("httpx2", "httpx", "typer", "rich", "click", "asyncpg", "sqlite3")


def test_importing_the_package_imports_no_client_terminal_or_driver() -> None:
    """A tool's module imports ``tollhouse`` at the start of every process."""
    program = f"import sys, tollhouse; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_public_names_are_what_they_say() -> None:
    """Every name in ``__all__`` can be imported, and is the documented one."""
    import tollhouse

    for name in tollhouse.__all__:
        assert getattr(tollhouse, name) is not None
    assert {"Tollhouse", "tool", "read", "write", "external", "destructive", "dedup", "CallContext"} <= set(
        tollhouse.__all__
    )
    assert {"NotSent", "Rejected", "Accepted", "happened", "did_not_happen", "unknown"} <= set(tollhouse.__all__)
