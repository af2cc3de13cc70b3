"""`calls proof` writes a bundle, `proof verify` judges it with exit codes, `proof key` shows what to verify with."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import Run, Shop


def test_proof_of_a_call_is_written_and_passes(run: Run, filled: Shop, tmp_path: Path) -> None:
    """To the file, with what to do with it; the anchors of the ledger reach as far."""
    filled.credit("order-1", "ok")
    file = tmp_path / "proof.json"
    made = run("calls", "proof", "order-1", "-o", str(file), *filled.at)
    assert made.exit_code == 0, made
    assert made.stdout == f"Wrote {file}. Verify it anywhere:\n    tollhouse proof verify {file}\n"
    shown = run("proof", "key", "--json", "--store", filled.url)
    public = tmp_path / "public.pem"
    public.write_text(shown.json["public_key"])
    done = run("proof", "verify", str(file), "--key", str(public), "--anchors", shown.json["anchors"])
    assert (done.exit_code, done.stdout.splitlines()[0]) == (0, "pass: call order-1"), done
    assert "Note" not in done.stdout


def test_command_that_is_offered_verifies_the_file(run: Run, filled: Shop, tmp_path: Path) -> None:
    """Whatever the file is called."""
    filled.credit("order-1", "ok")
    made = run("calls", "proof", "order-1", "-o", str(tmp_path / "the proof.json"), *filled.at)
    _, *words = shlex.split(made.stdout.splitlines()[-1])
    assert run(*words).exit_code == 0


def test_proof_on_stdout_is_the_bundle(run: Run, filled: Shop, tmp_path: Path) -> None:
    """The same text as in a file, for a pipe."""
    filled.credit("order-1", "ok")
    file = tmp_path / "proof.json"
    run("calls", "proof", "order-1", "-o", str(file), *filled.at)
    assert run("calls", "proof", "order-1", *filled.at).stdout == file.read_text()


def test_doubt_exits_with_3_and_says_what_is_open(run: Run, filled: Shop, tmp_path: Path) -> None:
    """Whole, and not over."""
    filled.credit("order-1", "lost")
    file = tmp_path / "proof.json"
    run("calls", "proof", "order-1", "-o", str(file), *filled.at)
    done = run("proof", "verify", str(file), "--json")
    assert (done.exit_code, done.json["result"], done.json["first"]) == (3, "incomplete", None)
    assert done.json["open"][0]["record"] == "call order-1"
    assert "self-asserted" in done.json["notes"][0]


def test_altered_proof_exits_with_1_and_names_the_record(run: Run, filled: Shop, tmp_path: Path) -> None:
    """The first thing that is wrong is the first that is shown."""
    filled.credit("order-1", "ok")
    file = tmp_path / "proof.json"
    run("calls", "proof", "order-1", "-o", str(file), *filled.at)
    bundle = json.loads(file.read_text())
    bundle["contents"]["streams"][0]["events"][1]["data"] = "{}"
    file.write_text(json.dumps(bundle))
    done = run("proof", "verify", str(file), "--json")
    assert (done.exit_code, done.json["result"]) == (1, "fail")
    assert (done.json["first"]["stream"], done.json["first"]["seq"]) == ("call:order-1", 2)
    assert "Wrong, the first first" in run("proof", "verify", str(file)).stdout


@pytest.mark.parametrize("words", [("nothing.json",), ("FILE", "--key", "nothing.pem")])
def test_missing_file_is_a_mistake_in_the_command(
    run: Run, filled: Shop, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """Told by its name, with exit code 2."""
    file = tmp_path / "proof.json"
    file.write_text("{}")
    done = run("proof", "verify", *(str(file) if word == "FILE" else word for word in words))
    assert done.exit_code == 2, done
    assert "nothing" in done.stderr


def test_what_is_no_proof_is_told(run: Run, tmp_path: Path) -> None:
    """With a stable code, and never a traceback."""
    file = tmp_path / "proof.json"
    file.write_text("[]")
    done = run("proof", "verify", str(file), "--json")
    assert (done.exit_code, done.json["error"]["code"]) == (1, "proof_unreadable")


def test_proof_of_a_call_that_nobody_recorded_is_told(run: Run, filled: Shop) -> None:
    """Nothing is written."""
    done = run("calls", "proof", "nobody", *filled.at, "--json")
    assert (done.exit_code, done.json["error"]["code"]) == (1, "unknown_call")
