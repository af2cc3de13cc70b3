"""Which process this is, as a value: handles that must not cross a fork compare it on every use.

The system is asked once and after a fork, not a few times a call.
"""

from __future__ import annotations

import os

_pid = os.getpid()


def pid() -> int:
    """The id of this process, also in a child made by ``os.fork``."""
    return _pid


def _note() -> None:
    global _pid  # noqa: PLW0603 - one value for the process, as the system has one
    _pid = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note)
