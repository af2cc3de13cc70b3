"""Backing up a SQLite ledger while it is in use, and proving that the copy is whole. Called by ``tollhouse db backup``.

PostgreSQL has better tools of its own; the pages on operation say which.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from tollhouse.operations.copying import chains_hold
from tollhouse.stores import backup, open_raw
from tollhouse.stores.common.raw import CALLS


async def back_up(url: str, file: Path) -> int:
    """Copy the ledger to ``file`` and verify it there; how many calls it has. On return it is durable.

    Raises :class:`~tollhouse.errors.CopyDiffers` where a history is broken, and what the stores raise.
    """
    await backup(url, file)
    copy = await open_raw(_url_of(file))
    try:
        await chains_hold(copy)
        calls = await copy.count(CALLS)
    finally:
        await copy.close()
    await asyncio.to_thread(_make_durable, file)
    return calls


def _make_durable(file: Path) -> None:
    for path in (file, file.parent):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    file.with_name(f"{file.name}-lock").unlink(missing_ok=True)


def _url_of(file: Path) -> str:
    return f"sqlite:///{file.absolute()}"
