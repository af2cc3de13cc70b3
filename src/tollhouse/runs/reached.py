"""Which of its limits a run has reached. ``advance`` looks before it asks a model, passes calls on, or waits."""

from __future__ import annotations

from tollhouse.ledger.run_record import RunRecord
from tollhouse.runs.body import body_of

Reached = tuple[str, object]
"""The name of a limit, and its value."""
_US = 1_000_000


def before_asking(run: RunRecord, now_us: int) -> Reached | None:
    """The limit that forbids another turn."""
    body = body_of(run)
    return ("turns", body.limits.turns) if body.spent.turns >= body.limits.turns else used_up(run, now_us)


def before_calling(run: RunRecord, now_us: int, *, begins_children: bool) -> Reached | None:
    """The limit that forbids the calls of the last answer. ``begins_children``: others are to ask models for it."""
    body = body_of(run)
    if body.limits.calls is not None and body.spent.calls > body.limits.calls:
        return "calls", body.limits.calls
    return used_up(run, now_us) if begins_children else out_of_time(run, now_us)


def used_up(run: RunRecord, now_us: int) -> Reached | None:
    """The limit that forbids another request to any model."""
    body = body_of(run)
    limits, spent = body.limits, body.spent
    if limits.tokens is not None and spent.tokens >= limits.tokens:
        return "tokens", limits.tokens
    if limits.cost is not None and spent.cost >= limits.cost:
        return "cost", limits.cost
    return out_of_time(run, now_us)


def out_of_time(run: RunRecord, now_us: int) -> Reached | None:
    """The limit of time, once that is over."""
    end_us = latest_us(run)
    return ("wall_s", body_of(run).limits.wall_s) if end_us is not None and now_us >= end_us else None


def latest_us(run: RunRecord) -> int | None:
    """The end of the run's time; None: no end."""
    wall_s = body_of(run).limits.wall_s
    return None if wall_s is None else run.created_at_us + round(wall_s * _US)
