"""Agents' files for the tests: written into a folder, read, and what came of it."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from tollhouse.errors import AgentFileInvalid, Mistake
from tollhouse.runs.agent_files import AgentsFile, read_file

TOOLS = ("look", "pay", "refund")


def written(folder: Path, text: str | bytes) -> Path:
    """The file, in a folder of its own."""
    path = folder / "tollhouse.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def right(folder: Path, text: str, tools: Collection[str] | None = TOOLS) -> AgentsFile:
    """What a file says that must be right."""
    return read_file(written(folder, text), tools=tools)


def wrong(folder: Path, text: str | bytes, tools: Collection[str] | None = TOOLS) -> tuple[Mistake, ...]:
    """All that is wrong in a file that must be refused."""
    with pytest.raises(AgentFileInvalid) as refused:
        read_file(written(folder, text), tools=tools)
    assert refused.value.mistakes
    return refused.value.mistakes


def only(folder: Path, text: str | bytes, tools: Collection[str] | None = TOOLS) -> Mistake:
    """The one thing that is wrong in it."""
    (mistake,) = wrong(folder, text, tools)
    return mistake
