"""Everything that runs need, opened from an agents' file: tools, models, a house, and the runs over it.

``serve`` opens it to drive and to answer; ``runs start --drive`` to drive one run here.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tollhouse.contract.tool import Tool
from tollhouse.errors import UnknownAgent
from tollhouse.house import Tollhouse
from tollhouse.house.running import open_runs
from tollhouse.models.port import ModelFailed, ModelReply, ModelRequest, OnText

if TYPE_CHECKING:
    from tollhouse.runs.agent_files import AgentsFile, Draft
    from tollhouse.runs.service import Runs


@dataclass(frozen=True, slots=True)
class Runtime:
    """An opened house with its runs. ``file``: the agents' file, proved."""

    house: Tollhouse
    runs: Runs
    file: AgentsFile


class NoModel:
    """Stands where nothing is driven."""

    async def ask(self, request: ModelRequest, on_text: OnText | None = None) -> ModelReply:
        """Never answers."""
        raise ModelFailed("model_unreachable", "This process asks no models.", transient=True)

    async def close(self) -> None:
        """Nothing to close."""


@contextlib.asynccontextmanager
async def opened(found: Draft, url: str, tools: Sequence[Tool[Any]], **settings: Any) -> AsyncIterator[Runtime]:
    """A house with the file's agents and models. ``settings`` are those of :meth:`Tollhouse.open`."""
    from tollhouse.runs.subagents import agent_tools

    holder: dict[str, Runs] = {}
    file = found.proved({tool.name for tool in tools})
    offered = [*tools, *agent_tools(file.agents.values(), lambda: holder["runs"])]
    book = file.book()
    try:
        async with Tollhouse.open(url, tools=offered, **settings) as house:
            runs = holder["runs"] = await open_runs(house, file.agents, book)
            yield Runtime(house, runs, file)
    finally:
        await book.close()


def file_needed(found: Draft | None) -> Draft:
    """The agents' file. Raises :class:`UnknownAgent` where there is none."""
    if found is None:
        raise UnknownAgent("There is no agents' file here.", remedy="Write tollhouse.yaml, or name one with --file.")
    return found
