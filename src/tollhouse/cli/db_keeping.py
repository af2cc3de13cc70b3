"""``tollhouse db purge`` and ``db restored``: what is done to a ledger in its place. ``operations`` does the work."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Annotated

import typer

from tollhouse.cli.failures import OK, UsageMistake
from tollhouse.cli.ledger import existing, run
from tollhouse.cli.options import By, Json, OptionalReason, Store, Tenant, decider
from tollhouse.cli.screen import Screen
from tollhouse.cli.words import count
from tollhouse.ledger.keys import DEFAULT_TENANT, check_tenant
from tollhouse.ledger.record import SETTLED, State
from tollhouse.operations.purge import Purged
from tollhouse.operations.purge import purge as purge_calls
from tollhouse.operations.purge_runs import PurgedRuns, purge_runs
from tollhouse.operations.restored import end_restored, mark_restored
from tollhouse.runs.states import FINISHED, RunState

_SETTLED = ", ".join(sorted(SETTLED))
_FINISHED = ", ".join(sorted(FINISHED))
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_AGE_MOST_S = 365_000 * 86400.0


def purge(
    older_than: Annotated[
        str,
        typer.Option("--older-than", metavar="AGE", help="Last changed longer ago: 90d, 12h.", show_default=False),
    ],
    state: Annotated[
        str | None,
        typer.Option("--state", metavar="STATES", help=f"Of {_SETTLED} (runs: {_FINISHED}) only these, by commas."),
    ] = None,
    of_runs: Annotated[
        bool, typer.Option("--runs", help="Purge what was said in runs of agents that have ended, not calls.")
    ] = False,
    results_only: Annotated[
        bool, typer.Option("--results-only", help="Purge what came back; keep arguments and history.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count what would be purged, and change nothing.")] = False,
    store: Store = None,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: Json = False,
) -> int:
    """Take the contents of old settled calls or runs out of a ledger.

    Keys of calls stay taken for ever: the same key again hears how its call ended, and is never sent. Calls that are
    unsettled or contradicted are never purged, nor runs that have such calls or have not ended. With --runs messages,
    results and outputs go; that the runs were there, how they ended and their chains stay. Works in small steps beside
    running processes.
    """
    screen, age_s = Screen(as_json=as_json), _seconds(older_than)
    if of_runs and results_only:
        raise UsageMistake("--results-only is about calls.", remedy="Purge runs whole, or leave out --runs.")
    chosen = _run_states(state) if of_runs else frozenset[RunState]()
    states = frozenset[State]() if of_runs else _states(state)

    async def work() -> Purged | PurgedRuns:
        url, name = await existing(store), check_tenant(tenant)
        if of_runs:
            return await purge_runs(url, name, older_than_s=age_s, states=chosen, dry_run=dry_run)
        return await purge_calls(
            url, name, older_than_s=age_s, states=states, results_only=results_only, dry_run=dry_run
        )

    purged = run(work())
    by_state = purged.runs if isinstance(purged, PurgedRuns) else purged.calls
    total, noun = sum(by_state.values()), "run" if of_runs else "call"
    if as_json:
        told = {"purged": total, "by_state": by_state, "bodies": purged.bodies, "dry_run": dry_run}
        screen.document(told | {"results_only": results_only})
        return OK
    what = "Would purge" if dry_run else "Purged"
    screen.line(f"{what} {count(total, noun)}{''.join(f', {n:,} {name}' for name, n in sorted(by_state.items()))}.")
    return OK


def restored(
    end: Annotated[bool, typer.Option("--end", help="End the mode: new calls depart again.")] = False,
    reason: OptionalReason = None,
    by: By = None,
    store: Store = None,
    as_json: Json = False,
) -> int:
    """Say that a ledger came back from a backup or a late replica.

    It has forgotten what departed since. Until --end, an effect departs only when its tool's look-up says that it did
    not happen, or a person approves. Stop every process that used the lost ledger first.
    """
    screen, name = Screen(as_json=as_json), decider(by)

    async def work() -> bool:
        url = await existing(store)
        if end:
            return await end_restored(url, by=name, reason=reason)
        await mark_restored(url, by=name, reason=reason)
        return True

    changed = run(work())
    if as_json:
        screen.document({"restored": not end, "changed": changed, "by": name})
    elif end:
        screen.line("New calls depart again." if changed else "It was not marked as restored.")
    else:
        screen.line("Marked as restored: effects are looked up first, or held, until `tollhouse db restored --end`.")
    return OK


def _seconds(age: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", age.strip())
    if found is None:
        raise UsageMistake(f"{age!r} is no age.", remedy="Give a number and s, m, h or d, as in 90d.")
    if (age_s := float(found[1]) * _UNITS_S[found[2]]) > _AGE_MOST_S:
        raise UsageMistake(f"{age} is before every clock.", remedy="Give 1000 years (365000d) at most.")
    return age_s


def _states(given: str | None) -> frozenset[State]:
    return frozenset(map(State, _among(SETTLED, given, f"Only settled calls are purged: {_SETTLED}.")))


def _run_states(given: str | None) -> frozenset[RunState]:
    return frozenset(map(RunState, _among(FINISHED, given, f"Only runs that have ended are purged: {_FINISHED}.")))


def _among(allowed: Collection[str], given: str | None, remedy: str) -> list[str]:
    names = [name.strip() for name in given.split(",") if name.strip()] if given else list(allowed)
    if wrong := [name for name in names if name not in allowed]:
        raise UsageMistake(f"{wrong[0]!r} is no state to purge.", remedy=remedy)
    return names
