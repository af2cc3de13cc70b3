"""Runs as text for a person: the list, one run with its story, and what can be done next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tollhouse.cli.failures import FAILED, IN_DOUBT, OK
from tollhouse.cli.next_steps import SOMEBODY, Place
from tollhouse.cli.run_story import dollars, shortened, tell_event, used
from tollhouse.cli.screen import Screen
from tollhouse.cli.words import compact, count
from tollhouse.ledger.plain import moment
from tollhouse.runs.body import Spent
from tollhouse.runs.rehearse import Rehearsal
from tollhouse.runs.states import PAUSED, RunState
from tollhouse.runs.view import RunView

RUN_STYLES = {
    RunState.SUCCEEDED: "green",
    RunState.FAILED: "red",
    RunState.CANCELLED: "red",
    RunState.AWAITING_RECONCILIATION: "bold yellow",
    RunState.LIMIT_REACHED: "bold yellow",
    RunState.RUNNING: "blue",
    RunState.QUEUED: "blue",
}

Line = tuple[int, int, str, dict[str, Any]]
"""Number, moment, kind and facts of an event."""


def exit_code_of(*runs: RunView) -> int:
    """0 when all is well, 1 when a run failed or was cancelled, 3 when one waits for people or is in doubt."""
    states = {run.state for run in runs}
    if states & {RunState.FAILED, RunState.CANCELLED}:
        return FAILED
    waits_for_people = PAUSED - {RunState.AWAITING_WORK, RunState.AWAITING_TIME}
    return IN_DOUBT if states & waits_for_people else OK


def show_runs(screen: Screen, runs: Sequence[RunView], *, more: bool) -> None:
    """A table, newest first."""
    if not runs:
        screen.line("No runs.")
        return
    headings = ("ID", "STATE", "AGENT", "STARTED", "TURNS", "CALLS", "COST")
    screen.table(headings, [_row(run) for run in runs], dispensable=(6, 4, 5, 3))
    if more:
        screen.line("There are more: raise --limit.", "dim")


def _row(run: RunView) -> list[tuple[str, str | None]]:
    spent = run.spent
    return [
        (run.id, None),
        (run.state.value + (" (purged)" if run.purged_at_us else ""), RUN_STYLES.get(run.state, "cyan")),
        (run.agent, None),
        (str(moment(run.record.created_at_us))[:19], "dim"),
        (str(spent.turns), None),
        (str(spent.calls), None),
        (cost_of(run), None),
    ]


def cost_of(run: RunView) -> str:
    """What the run cost so far; what has no known price is said, never counted as nothing."""
    return dollars(run.spent)


def show_run(screen: Screen, run: RunView, lines: Sequence[Line], place: Place) -> None:
    """One run: how it stands, its story, what can be done."""
    record = run.record
    screen.line(f"{record.id}  {record.state}: {run.state.sentence}", RUN_STYLES.get(run.state, "cyan"))
    if run.reason is not None:
        screen.line(f"{run.reason['cause']} [{run.reason['code']}]")
    spent, by_children = run.spent, run.by_children
    rows = [
        ("agent", f"{record.agent} {record.agent_version[:12]}"),
        ("asked by", record.requested_by),
        ("spent", f"{count(spent.turns, 'turn')}, {count(spent.calls, 'call')}, {used(spent)}"),
        *([("of children", used(by_children))] if by_children != Spent() else []),
        ("limits", ", ".join(f"{name} {value}" for name, value in _limits(run).items())),
    ]
    rows += [("purged", f"messages, results and output, {moment(run.purged_at_us)}")] if run.purged_at_us else []
    rows += [("thread", record.thread)] if record.thread else []
    rows += [("reruns", record.source_run_id)] if record.source_run_id else []
    rows += [("parent", record.parent_run_id)] if record.parent_run_id else []
    screen.pairs(rows)
    screen.heading("What happened")
    for _seq, at_us, kind, facts in lines:
        show_event(screen, at_us, record.created_at_us, kind, facts)
    if run.output is not None:
        screen.heading("Output")
        screen.line(run.output if isinstance(run.output, str) else compact(run.output))
    steps = list(next_steps(run, place))
    if steps:
        screen.heading("What you can do")
        for meaning, command in steps:
            screen.line(meaning)
            screen.command(command)


def _limits(run: RunView) -> dict[str, Any]:
    limits = run.limits
    named = {"turns": limits.turns, "calls": limits.calls, "tokens": limits.tokens, "cost": limits.cost}
    return {name: value for name, value in {**named, "wall_s": limits.wall_s}.items() if value is not None}


def show_event(screen: Screen, at_us: int, began_us: int, kind: str, facts: dict[str, Any]) -> None:
    """The lines of one event, with the time since the run was started."""
    since = f"+{(at_us - began_us) / 1e6:.3f}s"
    rows = []
    for number, told in enumerate(tell_event(kind, facts)):
        rows.append([(since if number == 0 else "", "dim"), (told.word, told.style), (told.text, None)])
    width = max(10, *(len(row[1][0]) for row in rows))
    padded = [[(row[0][0].rjust(10), row[0][1]), (row[1][0].ljust(width), row[1][1]), row[2]] for row in rows]
    screen.grid(padded)


def show_rehearsal(screen: Screen, played: Rehearsal) -> None:
    """What was the same, and what was not."""
    screen.line(f"Rehearsed {played.run_id} with {played.agent} {played.agent_version[:12]} on {played.model}.")
    screen.line(f"It would end {played.state}, after {count(played.turns, 'turn')} and {played.spent.tokens:,} tokens.")
    if not played.differences:
        screen.line("Everything went as recorded.", "green")
    for each in played.differences:
        screen.line(f"turn {each.turn}: {each.sentence}" if each.turn else each.sentence, "bold yellow")
        rows = [("recorded", each.recorded), ("now", each.now)]
        screen.pairs([(name, shortened(compact(value))) for name, value in rows if value is not None])


def next_steps(run: RunView, place: Place) -> Iterator[tuple[str, str]]:
    """What a person can do about the run as it stands, with the exact commands."""
    tail = place.tail
    for each in run.waiting:
        if each.kind == "answer":
            yield (
                f"Answer: {shortened(each.text)}",
                f"tollhouse runs answer {run.id} {each.id} --text TEXT --by {SOMEBODY}{tail}",
            )
        elif each.kind == "approval":
            yield "Decide about the call:", f"tollhouse calls show {each.id}{tail}"
        elif each.kind == "reconciliation":
            yield "Settle the doubt:", f"tollhouse calls show {each.id}{tail}"
    if run.state is RunState.LIMIT_REACHED:
        limit = str((run.reason or {}).get("code", "")).removeprefix("limit_")
        yield "Let it go on:", f"tollhouse runs limits {run.id} --set {limit}=N --by {SOMEBODY}{tail}"
    if run.purged_at_us is not None:
        return
    if run.record.finished:
        yield "Run it again:", f"tollhouse runs rerun {run.id} --by {SOMEBODY}{tail}"
    else:
        yield "Stop it:", f"tollhouse runs cancel {run.id} --by {SOMEBODY}{tail}"
