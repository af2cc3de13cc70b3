"""Errors that every engine raises alike, in the same words."""

from __future__ import annotations

from tollhouse.errors import HouseClosed


class BadValue(ValueError):
    """A write holds a value that the store cannot keep, or that its constraints forbid: a defect of the caller's code.

    It fails its own write only. Repeating the write is of no use. What the driver said is its ``__cause__``.
    """


def closed() -> HouseClosed:
    """The handle was closed."""
    return HouseClosed("The store was closed.")


def crossed_fork() -> HouseClosed:
    """The handle was opened in a parent process; connections cannot be shared with a child."""
    return HouseClosed("This store was opened before a fork and belongs to the parent process.")
