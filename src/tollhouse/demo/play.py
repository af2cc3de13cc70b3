"""Plays the demo from beginning to end and reports; ``tollhouse demo`` calls it and draws what it tells."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import uuid
from dataclasses import replace
from pathlib import Path

from tollhouse.demo.processes import DemoStopped
from tollhouse.demo.report import Place, Report, compare
from tollhouse.demo.scenes import SCENARIOS, SCENES
from tollhouse.demo.stage import Stage, Tell, open_stage
from tollhouse.errors import TollhouseError
from tollhouse.ledger.keys import DEFAULT_TENANT

STORY_MOST_S = 120.0
"""A healthy machine needs less than ten seconds for all scenes."""


async def play(tell: Tell, *, store: str | None = None, keep: bool = False) -> Report:
    """Play all scenes. ``store`` None: a SQLite ledger in a fresh folder; in any other the calls get their own tenant.

    The folder (ledger, receiver's book, log) is removed unless ``keep`` or the demo failed; the report names it then.
    Raises what opening the store raises; everything that goes wrong later is in the report.
    """
    place = _place(store)
    report = None
    try:
        async with open_stage(place, tell) as stage:
            problem = await _play_scenes(stage)
            report = await report_of(stage, problem)
    finally:
        kept = keep or (report is not None and not report.passed)
        if not kept:
            shutil.rmtree(place.folder, ignore_errors=True)
    return replace(report, kept=place) if kept else report


def _place(store: str | None) -> Place:
    folder = Path(tempfile.mkdtemp(prefix="tollhouse-demo-"))
    if store is None:
        return Place(folder, f"sqlite:///{folder / 'ledger.db'}", DEFAULT_TENANT, ours=True)
    return Place(folder, store, f"demo-{uuid.uuid4().hex[:8]}", ours=False)


async def _play_scenes(stage: Stage) -> str | None:
    """What stopped the story; None when it came to its end."""
    try:
        async with asyncio.timeout(STORY_MOST_S):
            for scene in SCENES:
                await scene(stage)
    except TimeoutError:
        return f"The story did not come to its end within {STORY_MOST_S:.0f} s."
    except DemoStopped as stopped:
        return str(stopped)
    except TollhouseError as error:
        return f"{error.code}: {error.cause}"
    return None


async def report_of(stage: Stage, problem: str | None) -> Report:
    """Read the ledger and the receiver's book as they are now, and compare them."""
    calls = [await stage.house.get(call.key) for call in await stage.house.list(limit=None)]
    verdict, rows = compare(SCENARIOS, calls, stage.receiver.effects(), stage.receiver.requests())
    return Report(verdict, rows, SCENARIOS, stage.kills, stage.elapsed_s, problem)
