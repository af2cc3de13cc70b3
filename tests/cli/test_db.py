"""`db` asks a store about its schema and upgrades it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import Run, Shop


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
    assert set(done.json) == {"store", "exists", "version", "latest", "pending", "usable", "problem"}
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
