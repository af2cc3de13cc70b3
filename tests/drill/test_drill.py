"""The drill itself, small: it passes over both stores, repeats a seed's script, and notices what is broken."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from typing import Any

import pytest

from tollhouse.testing.drill.checker import VERDICTS, judge
from tollhouse.testing.drill.directed import DIRECTED, plot_of
from tollhouse.testing.drill.plots import script_of
from tollhouse.testing.drill.run import MUTANT_SEEDS, drill
from tollhouse.testing.drill.story import story
from tollhouse.testing.mutants import MUTANTS

from .forged import Forger

STORES = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]
SEEDS = 120


def played(*options: str) -> tuple[int, dict[str, Any]]:
    """Exit code and document of `tollhouse drill --json`."""
    command = [sys.executable, "-m", "tollhouse", "drill", "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


@pytest.mark.crash
@pytest.mark.timeout(300)
@pytest.mark.parametrize("store", STORES)
def test_seeds_over_real_processes_keep_every_promise(store: str) -> None:
    """Nothing is repeated, lost or left unexplained, with workers that are killed and stopped."""
    code, told = played("--store", store, "--seeds", str(SEEDS), "--no-mutants")
    assert {name: told[name] for name in VERDICTS} == dict.fromkeys(VERDICTS, 0), told["seed_failed"]
    assert (code, told["seeds"], told["seed_failed"]) == (0, SEEDS, [])
    assert told["kills"] > 0
    assert told["self_check"] is None


@pytest.mark.crash
@pytest.mark.timeout(300)
@pytest.mark.parametrize("store", STORES)
async def test_a_broken_rule_is_noticed(store: str) -> None:
    """With a key minted for each attempt the receiver counts two effects, and the run fails."""
    result = await drill(store, 0, only="key_minted_per_attempt")
    needed = result.mutants["key_minted_per_attempt"]
    assert needed is not None
    assert needed <= MUTANT_SEEDS
    assert {"repeated", "lost"} <= set(result.noticed_by["key_minted_per_attempt"])


def test_a_seed_repeats_its_script() -> None:
    """Everything about a call follows from its seed."""
    for seed in range(200):
        first, second = (random.Random(f"seed {seed}") for _ in range(2))
        assert plot_of(first) is plot_of(second)
        assert script_of(seed, first, server=True) == script_of(seed, second, server=True)


def test_every_mutant_has_a_plot() -> None:
    """All eighteen rules are broken by name, each with a history that shows it."""
    assert set(DIRECTED) == set(MUTANTS)


def test_a_failed_seed_tells_its_history_and_what_the_receiver_saw() -> None:
    """Who reads a failure needs the ledger's lines beside the receiver's."""
    forged = Forger()
    forged.sent("a1")
    forged.sends("a1")
    forged.effect("a1")
    forged.ended("a1", "happened", "succeeded")
    told = "\n".join(story(judge(forged.case())))
    for part in ("repeated: 2 effects, 1 permitted", "ledger: departed", "receiver: request 1", "book: effect 2"):
        assert part in told
