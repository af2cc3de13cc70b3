"""Runs over an opened house: the one place where the gate, the store and the models of a process meet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from tollhouse.errors import InvalidSetting
from tollhouse.runs.agents import Agent
from tollhouse.runs.registry import publish
from tollhouse.runs.service import Runs

if TYPE_CHECKING:
    from tollhouse.house.house import Tollhouse
    from tollhouse.models.port import Model
    from tollhouse.runs.journal import JournalStore


async def open_runs(house: Tollhouse, agents: Mapping[str, Agent], model: Model) -> Runs:
    """The runs of this house. ``agents`` become the newest versions of theirs; durable on return.

    A driver of this process drives them; see ``runs/drivers``.
    """
    core = house._core
    store: Any = core.store
    if not hasattr(store, "write_run"):
        raise InvalidSetting("This store keeps no runs.", remedy="Use sqlite:///… or postgresql://….")
    journal_store = cast("JournalStore", store)
    await publish(journal_store, core.tenant, agents, core.clock.now_us())
    return Runs(core, house._gate, house._people, model, journal_store)
