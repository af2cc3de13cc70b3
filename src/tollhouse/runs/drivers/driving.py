"""What every driver does with a run it has claimed: step after step until it waits or ends, whatever goes wrong."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress

from tollhouse.errors import ExtraMissing, HouseClosed, StoreUnavailable, TollhouseError
from tollhouse.runs.advance import Drive, Lost, Step
from tollhouse.runs.service import Runs
from tollhouse.runs.states import RunState

log = logging.getLogger("tollhouse")

PAUSE_FIRST_S, PAUSE_MOST_S = 0.05, 5.0
STALE_S = 10.0
"""A driver that has not looked at the store for so long does not work."""
DEFECTS_MOST = 3
"""Steps in a row that end in an error nobody foresaw before the run fails with it."""


def never() -> bool:
    """A driver that is not stopped."""
    return False


async def see_through(
    runs: Runs, drive: Drive, *, stopping: Callable[[], bool] = never, most_steps: int | None = None
) -> Step:
    """Advance until the run waits or ends; what it stands at then.

    ``stopping``: asked between steps; once it says so, or after ``most_steps``, the run is handed over as it stands
    (``continue``). Cancelling hands it over in the middle of a step. Raises :class:`Lost`, or
    :class:`StoreUnavailable` when the store is away while it is stopped.
    """
    try:
        made, step = 1, await _step(drive, stopping)
        while step.kind == "continue" and not stopping() and made != most_steps:
            made, step = made + 1, await _step(drive, stopping)
        if step.kind == "continue":
            await drive.release()
    except asyncio.CancelledError:
        if drive.record.state == RunState.RUNNING:
            with suppress(Lost, TollhouseError):
                await drive.release()
        raise
    return Step("done", await runs.tidy(drive.record)) if drive.record.finished else Step(step.kind, drive.record)


async def _step(drive: Drive, stopping: Callable[[], bool]) -> Step:
    """One step, however long the store is away meanwhile: asking again is always right."""
    pause_s, defects = PAUSE_FIRST_S, 0
    while True:
        try:
            return await drive.step()
        except (Lost, HouseClosed, asyncio.CancelledError):
            raise
        except StoreUnavailable as away:
            if stopping():
                raise
            log.warning("run_waits_for_store run=%s code=%s", drive.record.id, away.code)
        except ExtraMissing as missing:
            return await drive.fail(missing.code, str(missing))
        except Exception as error:
            defects += 1
            log.exception("run_step_failed run=%s", drive.record.id)
            if defects == DEFECTS_MOST:
                return await drive.fail("internal_error", f"The loop met {type(error).__name__}.")
        await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
        pause_s = min(PAUSE_MOST_S, pause_s * 2)
