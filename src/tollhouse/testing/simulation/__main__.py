"""The command line of the simulation: ``python -m tollhouse.testing.simulation``.

Exit code 0: nothing was found and every mutant was caught. 1: otherwise.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from tollhouse.testing.mutants import MUTANTS, VARIANTS
from tollhouse.testing.simulation import simulate
from tollhouse.testing.simulation.campaign import SELF_CHECK_MOST, Tally, play_many, self_check
from tollhouse.testing.simulation.model import VERDICTS

SHOWN = 10


def main(arguments: list[str] | None = None) -> int:
    """Play histories as the command line says, print what came of them, and return the exit code."""
    asked = _parser().parse_args(arguments)
    if asked.seed is not None and asked.seeds is None:
        return _one(asked.seed, asked.mutant, as_json=asked.json)
    began = time.monotonic()
    tally = _play(asked.seed or 0, asked.seeds or 1000, asked.mutant)
    mutants = self_check() if asked.mutant is None and not asked.no_self_check else {}
    result = _result(tally, mutants, time.monotonic() - began)
    _say(json.dumps(result) if asked.json else _text(result))
    if tally.failed and not asked.json:
        _say(simulate(tally.failed[0], asked.mutant).trace)
    return 0 if not tally.failed and None not in mutants.values() else 1


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tollhouse.testing.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, metavar="N", help="how many histories, from --seed (0) on")
    parser.add_argument("--seed", type=int, metavar="S", help="alone: play this one and print its history")
    parser.add_argument("--mutant", choices=[*MUTANTS, *VARIANTS], help="with this rule broken")
    parser.add_argument("--no-self-check", action="store_true", help="do not check that every mutant is caught")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    return parser


def _one(seed: int, mutant: str | None, *, as_json: bool) -> int:
    report = simulate(seed, mutant)
    found = [{"verdict": v.verdict, "key": v.key, "what": v.what} for v in report.violations]
    if as_json:
        told = {"seed": seed, "scene": report.scene, "violations": found, "defects": list(report.defects)}
        _say(json.dumps({**told, "history": report.trace.splitlines()}))
    else:
        _say(report.trace)
        _say("\n".join([*(f"{v['verdict']}: {v['key']}: {v['what']}" for v in found), *report.defects]))
    return 0 if report.ok else 1


def _play(first: int, count: int, mutant: str | None) -> Tally:
    total, began = Tally(), time.monotonic()
    for part in play_many(first, count, mutant):
        total.add(part)
        rate = total.seeds / (time.monotonic() - began)
        line = f"{total.seeds:>8,} of {count:,}  {rate:,.0f}/s  failed {len(total.failed)}"
        sys.stderr.write(f"{line}\n" if total.seeds == count else f"{line}\r")
        sys.stderr.flush()
    total.failed.sort()
    return total


def _result(tally: Tally, mutants: dict[str, int | None], seconds: float) -> dict[str, Any]:
    return {
        "seeds": tally.seeds,
        "calls": tally.calls,
        **{verdict: tally.verdicts[verdict] for verdict in VERDICTS},
        "defects": tally.defects,
        "residual": tally.residual,
        "seed_failed": tally.failed,
        "mutants": mutants,
        "self_check": bool(mutants) and None not in mutants.values(),
        "seconds": round(seconds, 1),
    }


def _text(result: dict[str, Any]) -> str:
    lines = [f"{name:<12} {result[name]:>8,}" for name in ("seeds", "calls", *VERDICTS, "defects", "residual")]
    if result["seed_failed"]:
        lines.append(f"failed seeds: {', '.join(map(str, result['seed_failed'][:SHOWN]))}")
    for name, needed in result["mutants"].items():
        said = f"caught within {needed} seeds" if needed else f"MISSED in {SELF_CHECK_MOST} seeds"
        lines.append(f"{name:<36} {said}")
    return "\n".join([*lines, f"{result['seconds']} s"])


if __name__ == "__main__":
    sys.exit(main())
