"""Everything that runs need, opened from an agents' file: tools, models, a house, and the runs over it.

``serve`` opens it to drive and to answer; ``runs start --drive`` to drive one run here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tollhouse.contract.tool import Tool
from tollhouse.errors import UnknownAgent
from tollhouse.house import Tollhouse
from tollhouse.house.opening import open_house_over
from tollhouse.house.running import open_runs
from tollhouse.models.port import ModelFailed, ModelReply, ModelRequest, OnText
from tollhouse.runs.proof.noting import Noting
from tollhouse.settings import HouseSettings, settings_of
from tollhouse.stores import open_store

if TYPE_CHECKING:
    from tollhouse.runs.agent_files import AgentsFile, Draft
    from tollhouse.runs.proof.anchors import Anchors
    from tollhouse.runs.service import Runs

log = logging.getLogger("tollhouse")

ANCHOR_EVERY_S = 5.0
"""A crash loses the anchors of so long; what is cut off a chain within it does not show."""


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
async def opened(
    found: Draft, url: str, tools: Sequence[Tool[Any]], *, anchors: Anchors | None = None, **settings: Any
) -> AsyncIterator[Runtime]:
    """A house with the file's agents and models. ``settings`` are those of :meth:`Tollhouse.open`.

    ``anchors``: told of every chain that moves, and written while the house is open; None: none are kept.
    """
    from tollhouse.runs.subagents import agent_tools

    holder: dict[str, Runs] = {}
    file = found.proved({tool.name for tool in tools})
    offered = [*tools, *agent_tools(file.agents.values(), lambda: holder["runs"])]
    book = file.book()
    try:
        async with _house(url, settings_of({**settings, "tools": offered}), anchors) as house:
            runs = holder["runs"] = await open_runs(house, file.agents, book)
            yield Runtime(house, runs, file)
    finally:
        await book.close()


@contextlib.asynccontextmanager
async def _house(url: str, settings: HouseSettings, anchors: Anchors | None) -> AsyncIterator[Tollhouse]:
    async def store() -> Any:
        opened_store = await open_store(url, volatile=settings.volatile, busy_timeout_s=settings.store_wait_s)
        return opened_store if anchors is None else Noting(opened_store, anchors)

    house = await open_house_over(store, settings)
    keeping = None if anchors is None else asyncio.create_task(anchors.keep(ANCHOR_EVERY_S, _not_anchored))
    try:
        yield house
    finally:
        await house.close()
        if keeping is not None:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)


def _not_anchored(error: OSError) -> None:
    log.error("anchors_not_written: %s", error.strerror)


def file_needed(found: Draft | None) -> Draft:
    """The agents' file. Raises :class:`UnknownAgent` where there is none."""
    if found is None:
        raise UnknownAgent("There is no agents' file here.", remedy="Write tollhouse.yaml, or name one with --file.")
    return found
