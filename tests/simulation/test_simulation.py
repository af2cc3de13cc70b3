"""The simulation: thousands of histories keep every promise, every broken rule is noticed, and a seed repeats."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from tollhouse.testing.mutants import MUTANTS, VARIANTS
from tollhouse.testing.simulation import VERDICTS, history, model, simulate
from tollhouse.testing.simulation.campaign import SELF_CHECK_MOST, play_range, seeds_needed
from tollhouse.testing.simulation.history import play_scene, simulated_machine
from tollhouse.testing.simulation.scenes import DIRECTED, KEY, choose
from tollhouse.testing.simulation.world import Errand, World

NAMES = [*MUTANTS, *VARIANTS]
PARTS = 4
PART = 600


@pytest.mark.parametrize("part", range(PARTS))
def test_no_history_breaks_a_promise(part: int) -> None:
    """Whatever crashes, freezes, gets lost or is decided, no verdict falls and nothing raises that should not."""
    tally = play_range(range(part * PART, (part + 1) * PART))
    assert tally.seeds == PART
    assert tally.failed == [], simulate(tally.failed[0]).trace


@pytest.mark.parametrize("name", NAMES)
def test_every_broken_rule_is_noticed(name: str) -> None:
    """With one rule broken, a verdict falls within the stated number of seeds."""
    assert seeds_needed(name) is not None, f"{name} was not noticed in {SELF_CHECK_MOST} seeds"


def test_every_verdict_falls_for_some_broken_rule() -> None:
    """No verdict is one that could never fall; *stuck* has a test of its own."""
    fallen: Counter[str] = Counter()
    for name in ("send_before_commit_1", "key_minted_per_attempt", "approval_survives_its_round", "stale_owner_writes"):
        fallen += play_range(range(80), name).verdicts
    fallen += play_range(range(160), "no_store_fence_at_check").verdicts
    assert {verdict for verdict in VERDICTS if fallen[verdict]} >= set(VERDICTS) - {"stuck"}


def test_a_doubt_that_nobody_ends_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deliberately failing history: people stay away, and the harness says so."""
    monkeypatch.setattr(history, "next_deed", lambda _world, _record: None)

    def never_answered(world: World) -> float:
        world.kind = "unchecked"
        world.errands = [Errand(fate="dropped")]
        world.looks = [(0.0, True)] * 20
        world.at(0.0, world.call, "a", KEY)
        return 20.0

    with simulated_machine() as ear:
        report = play_scene(1, Random(1), "unchecked", never_answered, ear)
    assert {violation.verdict for violation in report.violations} == {"stuck"}


def test_a_seed_repeats_its_history_in_another_process() -> None:
    """Everything follows from the seed: not from hashes, clocks, or what was played before."""
    program = "from tollhouse.testing.simulation import simulate; print([simulate(s).trace for s in range(25)])"
    told = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hashes},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for hashes in ("1", "2")
    }
    told.add(f"{[simulate(seed).trace for seed in reversed(range(25))][::-1]}\n")
    assert len(told) == 1


def test_every_directed_scene_is_played() -> None:
    """Each scene has its share of the seeds, so that none is only written down."""
    scenes = Counter(choose(Random(seed))[1].__name__ for seed in range(900))
    assert min(scenes[scene.__name__] for scene in DIRECTED) >= 5
    assert min(scenes["wild"], scenes["restless"]) > 200


def test_the_model_shares_no_rule_with_the_code() -> None:
    """The model may know what a record looks like, and nothing of how the rules judge it."""
    assert model.__file__ is not None
    tree = ast.parse(Path(model.__file__).read_text(encoding="utf-8"))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    ledger = {name for name in imported if name.startswith("tollhouse.") and "testing" not in name}
    assert ledger == {"tollhouse.ledger.record", "tollhouse.ledger.store"}


def _command(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tollhouse.testing.simulation", *arguments]
    return subprocess.run(command, capture_output=True, check=False, text=True)


def test_the_command_reports_what_was_played_as_json() -> None:
    """One count for each verdict, and exit code 0 where nothing was found."""
    done = _command("--seeds", "40", "--no-self-check", "--json")
    said = json.loads(done.stdout)
    assert done.returncode == 0
    assert said["seeds"] == 40
    assert all(said[verdict] == 0 for verdict in VERDICTS)
    assert said["seed_failed"] == []


def test_the_command_prints_the_history_of_a_failing_seed() -> None:
    """A seed that fails is named, told line by line, and makes the exit code 1."""
    done = _command("--seeds", "5", "--mutant", "send_before_commit_1")
    assert done.returncode == 1
    assert "failed seeds: " in done.stdout
    assert "LOST: k1" in done.stdout
    assert "sends and no row says that it departed" in done.stdout
