"""Attempts in this process's name that it is not running: ended here, so that no call stays *departed* for nobody.

The gate and :class:`~tollhouse.gate.sending.Sending` write every commit that begins an attempt through :func:`begin`.
Where its acknowledgement never comes, or its caller leaves before it does, nothing of the attempt was sent, whatever
the store holds; what the store holds is then ended as *not sent*.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tollhouse.errors import HouseClosed, StoreUnavailable
from tollhouse.gate.core import Core
from tollhouse.ledger.change import Change
from tollhouse.ledger.lifecycle import Forbidden
from tollhouse.ledger.record import AttemptOutcome, CallRecord, Lost, State
from tollhouse.ledger.steps import Ending, end_attempt, end_wait, owner_lost
from tollhouse.ledger.transact import OwnerGone, Stale, commit, transact

T = TypeVar("T")

PAUSE_FIRST_S = 0.1
PAUSE_MOST_S = 5.0
_NEVER_STARTED = Ending(
    AttemptOutcome.NOT_SENT, error={"type": "never_started", "message": "Its departure was not acknowledged."}
)


async def begin(core: Core, key: str, attempt_id: str, write: Callable[[], Awaitable[T]]) -> T:
    """Commit the beginning of an attempt; ``write`` may be repeated, under the same write id.

    While it is under way nobody here takes the attempt for a leftover. Its caller starts the attempt without awaiting
    anything in between. Raises :class:`HouseClosed` where the lease was given up meanwhile: it must not start then.
    """
    core.beginning.add(attempt_id)
    try:
        written = await write()
    except StoreUnavailable:
        put_back_later(core, key, attempt_id)
        raise
    except asyncio.CancelledError:
        put_back_later(core, key, attempt_id, write)
        raise
    finally:
        core.beginning.discard(attempt_id)
    if core.left:
        raise HouseClosed("The house was closed before this attempt could begin.", key=key, sent="maybe")
    return written


def put_back_later(core: Core, key: str, attempt_id: str, write: Callable[[], Awaitable[object]] | None = None) -> None:
    """Have an attempt ended as never started, in the background, in case the store holds it."""
    core.note_never_started(attempt_id)
    if not core.closed:
        core.spawn(_put_back(core, key, attempt_id, write))


async def _put_back(core: Core, key: str, attempt_id: str, write: Callable[[], Awaitable[object]] | None) -> None:
    """End the attempt as never started once the store answers. ``write``: its caller left, and it may still be under
    way; repeating it tells when it has been applied."""
    pause_s = PAUSE_FIRST_S
    while not core.closed:
        try:
            if write is not None:
                await write()
            record = await core.store.get(core.tenant, key)
            if record is not None and record.attempt(attempt_id) is not None:
                await _end_unstarted(core, record, attempt_id, cancelled=write is not None)
            return
        except (Stale, OwnerGone, Forbidden):
            return  # it was never applied, or somebody ended it
        except StoreUnavailable:
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_MOST_S)


async def _end_unstarted(core: Core, record: CallRecord, attempt_id: str, *, cancelled: bool) -> None:
    def step(current: CallRecord) -> Change:
        now_us = core.clock.now_us()
        if not cancelled or current.state is not State.DEPARTED:
            return end_attempt(current, attempt_id, _NEVER_STARTED, now_us)
        change = end_wait(current, attempt_id, "cancel", now_us, cancel=True)
        return change.then(lambda doubt: end_attempt(doubt, attempt_id, _NEVER_STARTED, now_us))

    before, after = await transact(core.store, record, step, f"{attempt_id}:put-back")
    core.never_started.pop(attempt_id, None)
    core.tell_of(before, after)


async def end_leftover(core: Core, record: CallRecord) -> CallRecord | None:
    """End one attempt of the call that is in this process's name and not running: never started is *not sent*, else
    *unknown*. Returns the record as it then stands; None when there is no such attempt."""
    for attempt in record.attempts:
        if not attempt.running or attempt.owner != core.owner_id or core.is_at(attempt.id):
            continue
        now_us = core.clock.now_us()
        # Each decision has a write id of its own: an earlier one is never taken for a repeat of this.
        if attempt.id in core.never_started:
            change, why = end_attempt(record, attempt.id, _NEVER_STARTED, now_us), "leftover"
        else:
            change, why = owner_lost(record, attempt.owner, now_us, Lost.DEAD, now_us), "lost"
        try:
            after = await commit(core.store, change, f"{attempt.id}:{why}")
        except Stale as stale:
            return stale.record
        core.never_started.pop(attempt.id, None)
        core.tell_of(record, after)
        return after
    return None
