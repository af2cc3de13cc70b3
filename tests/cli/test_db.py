"""`db` asks a store about its schema and upgrades it."""

from __future__ import annotations

import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import Run, Shop
from tollhouse.runs.proof.keys import open_signer


def test_upgrade_creates_a_ledger_and_is_idempotent(run: Run, url: str) -> None:
    """The second time there is nothing to do."""
    first = run("db", "upgrade", "--store", url, "--json")
    assert first.exit_code == 0
    assert first.json["applied"][0] == "0001_ledger"
    second = run("db", "upgrade", "--store", url, "--json")
    assert (second.exit_code, second.json["applied"]) == (0, [])
    assert second.json["version"] == second.json["latest"] == len(first.json["applied"])
    assert "Up to date" in run("db", "upgrade", "--store", url).stdout


def test_check_says_that_a_ledger_works(run: Run, filled: Shop) -> None:
    """In words and as JSON."""
    done = run("db", "check", *filled.at, "--json")
    assert done.exit_code == 0
    assert set(done.json) == {
        "store",
        "exists",
        "version",
        "latest",
        "pending",
        "usable",
        "problem",
        "fence",
        "restored",
    }
    assert (done.json["usable"], done.json["problem"], done.json["pending"]) == (True, None, [])
    assert "works with this release" in run("db", "check", *filled.at).stdout


def test_check_of_nothing_fails_and_creates_nothing(run: Run, url: str, tmp_path: Path) -> None:
    """It says how to create one."""
    done = run("db", "check", "--store", url)
    assert done.exit_code == 1
    assert "tollhouse db upgrade" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_schema_of_a_later_release_is_refused_with_a_clear_error(run: Run, filled: Shop) -> None:
    """Checking reports it; every other command ends with the store's own error."""
    filled.house.close()
    with closing(sqlite3.connect(filled.url.removeprefix("sqlite:///"))) as connection:
        connection.execute("UPDATE meta SET value = '999' WHERE name IN ('schema_version', 'min_release_schema')")
        connection.commit()
    done = run("db", "check", *filled.at, "--json")
    assert done.exit_code == 1
    assert "too new" in done.json["problem"]
    for command in (["db", "upgrade"], ["calls", "list"], ["worker", "--once"]):
        refused = run(*command, *filled.at, "--json")
        assert (refused.exit_code, refused.json["error"]["code"]) == (1, "store_schema")


@pytest.mark.postgres
def test_postgresql_is_upgraded_and_checked_alike(run: Run, postgres_url: str) -> None:
    """The same words and exit codes."""
    assert run("db", "check", "--store", postgres_url).exit_code == 1
    assert run("db", "upgrade", "--store", postgres_url, "--json").json["applied"][0].startswith("0001")
    done = run("db", "check", "--store", postgres_url, "--json")
    assert (done.exit_code, done.json["usable"]) == (0, True)


def test_backup_into_a_folder_that_is_not_there_is_a_usage_error(run: Run, filled: Shop, tmp_path: Path) -> None:
    """It is the folder that is told, not the ledger."""
    done = run("db", "backup", str(tmp_path / "none" / "x.db"), *filled.at)
    assert (done.exit_code, str(tmp_path / "none") in done.stderr) == (2, True), done


def test_copy_moves_a_ledger_and_check_names_the_new_one(run: Run, filled: Shop, tmp_path: Path) -> None:
    """The source says where it went, and every command that would write to it ends with the store's own error."""
    filled.credit("k1")
    target = f"sqlite:///{tmp_path / 'new.db'}"
    done = run("db", "copy", "--from", filled.url, "--to", target, "--json")
    assert (done.exit_code, done.json["rows"]["calls"], done.json["resumed"]) == (0, 1, False)
    assert "fenced for good" in run("db", "copy", "--from", filled.url, "--to", target).stdout
    checked = run("db", "check", *filled.at, "--json")
    assert (checked.exit_code, checked.json["fence"]["to"]) == (1, target)
    assert target in run("db", "check", *filled.at).stdout
    assert run("calls", "show", "k1", *filled.at).exit_code == 0
    refused = run("worker", "--once", *filled.at, "--json")
    assert (refused.exit_code, refused.json["error"]["code"]) == (1, "store_fenced")
    assert run("calls", "show", "k1", "--store", target, "--json").json["state"] == "succeeded"


def test_copy_says_how_to_take_key_and_anchors_along(run: Run, filled: Shop, tmp_path: Path) -> None:
    """Done so, proofs of the new ledger are by the same key, and reach as far as was anchored before."""
    filled.credit("order-1", "ok")
    before = run("calls", "proof", "order-1", *filled.at)
    filled.house.close()
    target = f"sqlite:///{tmp_path / 'other place' / 'new.db'}"
    (tmp_path / "other place").mkdir()
    copied = run("db", "copy", "--from", filled.url, "--to", target, "--json")
    assert (copied.exit_code, copied.json["rows"]["calls"]) == (0, 1)
    for command in copied.stderr.splitlines()[1:]:
        subprocess.run(command, shell=True, check=True)
    assert (tmp_path / "other place" / "keys").stat().st_mode & 0o777 == 0o700
    assert run("proof", "key", "--store", target).stdout == run("proof", "key", "--store", filled.url).stdout
    anchors = run("proof", "key", "--json", "--store", target).json["anchors"]
    proof = tmp_path / "old.json"
    proof.write_text(before.stdout)
    done = run("proof", "verify", str(proof), "--anchors", anchors, "--json")
    assert not any("anchored" in note for note in done.json["notes"]), done


def test_copy_to_where_another_key_is_says_so(run: Run, filled: Shop, tmp_path: Path) -> None:
    """What it anchored cannot go on in the other one's file."""
    filled.credit("order-1", "ok")
    run("calls", "proof", "order-1", *filled.at)
    filled.house.close()
    (tmp_path / "new").mkdir()
    open_signer(tmp_path / "new" / "keys")
    copied = run("db", "copy", "--from", filled.url, "--to", f"sqlite:///{tmp_path}/new/new.db")
    assert copied.stderr == f"Proofs of the new ledger are signed by another key, {tmp_path}/new/keys/signing.pub.\n"


def test_copy_that_never_finished_can_be_abandoned_by_name(run: Run, filled: Shop, tmp_path: Path) -> None:
    """Never a finished one, and never without a name."""
    filled.credit("k1")
    taken = f"sqlite:///{tmp_path / 'new.db'}"
    run("db", "copy", "--from", filled.url, "--to", taken)
    place = ("--from", filled.url, "--to", taken, "--abandon", "--json")
    assert run("db", "copy", *place).json["error"]["code"] == "usage"
    refused = run("db", "copy", *place, "--by", "ada")
    assert (refused.exit_code, refused.json["error"]["code"]) == (1, "copy_refused")


def test_backup_is_a_whole_ledger_made_while_it_is_in_use(run: Run, filled: Shop, tmp_path: Path) -> None:
    """It opens, has every call, and never overwrites a file."""
    filled.credit("k1")
    file = tmp_path / "backup.db"
    done = run("db", "backup", str(file), *filled.at, "--json")
    assert (done.exit_code, done.json) == (0, {"file": str(file), "calls": 1})
    shown = run("calls", "show", "k1", "--store", f"sqlite:///{file}", "--json")
    assert shown.json["state"] == "succeeded"
    assert run("db", "backup", str(file), *filled.at, "--json").json["error"]["code"] == "usage"


@pytest.mark.postgres
def test_backup_of_postgresql_is_left_to_its_own_tools(run: Run, filled_postgres: Shop, tmp_path: Path) -> None:
    """It says which."""
    done = run("db", "backup", str(tmp_path / "b.db"), *filled_postgres.at, "--json")
    assert done.exit_code == 2
    assert "pg_dump" in done.json["error"]["remedy"]


def test_purge_takes_old_calls_out_and_shows_what_is_left(run: Run, filled: Shop) -> None:
    """First counted, then done; the call still says how it ended."""
    filled.credit("k1")
    place = ("--older-than", "0s", *filled.at, "--json")
    assert run("db", "purge", *place, "--dry-run").json == {
        "purged": 1, "by_state": {"succeeded": 1}, "bodies": 0, "dry_run": True, "results_only": False,
    }  # fmt: skip
    assert run("calls", "show", "k1", *filled.at, "--json").json["purged_at"] is None
    assert run("db", "purge", *place).json["purged"] == 1
    assert "Purged 0 calls" in run("db", "purge", "--older-than", "0s", *filled.at).stdout
    shown = run("calls", "show", "k1", *filled.at)
    assert shown.exit_code == 0
    assert "purged" in shown.stdout
    assert run("calls", "show", "k1", *filled.at, "--json").json["state"] == "succeeded"


@pytest.mark.parametrize(
    "wrong",
    [
        ("--older-than", "soon"),
        ("--older-than", "99999999999999999999d"),
        ("--older-than", "1d", "--state", "in_doubt"),
        ("--older-than", "1d", "--runs", "--state", "limit_reached"),
        ("--older-than", "1d", "--runs", "--results-only"),
    ],
)
def test_purge_of_what_is_not_over_is_a_mistake(run: Run, filled: Shop, wrong: tuple[str, ...]) -> None:
    """An age has a unit; only settled calls are purged, and runs that have ended, those whole."""
    done = run("db", "purge", *wrong, *filled.at, "--json")
    assert (done.exit_code, done.json["error"]["code"]) == (2, "usage")


def test_restored_is_marked_and_ended_by_name(run: Run, filled: Shop) -> None:
    """While it lasts, `db check` says so, and a call of a tool without a look-up is held."""
    assert run("db", "restored", *filled.at, "--json").json["error"]["code"] == "usage"
    place = (*filled.at, "--by", "ada")
    assert run("db", "restored", *place, "--reason", "the disk died", "--json").json == {
        "restored": True, "changed": True, "by": "ada",
    }  # fmt: skip
    assert run("db", "check", *filled.at, "--json").json["restored"]["reason"] == "the disk died"
    assert "restored by ada" in run("db", "check", *filled.at).stdout
    assert "depart again" in run("db", "restored", "--end", *place).stdout
    assert run("db", "check", *filled.at, "--json").json["restored"] is None
    assert run("db", "restored", "--end", *place, "--json").json["changed"] is False
