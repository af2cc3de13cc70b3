"""Fixtures of the command line's tests: a ledger, its receiver's book, and a way to run commands."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.cli import shop
from tollhouse import Tollhouse
from tollhouse.cli.app import app
from tollhouse.errors import TollhouseError
from tollhouse.house.sync import SyncTollhouse


class Ran:
    """What a command came to."""

    def __init__(self, exit_code: int, stdout: str, stderr: str) -> None:
        self.exit_code, self.stdout, self.stderr = exit_code, stdout, stderr

    @property
    def json(self) -> Any:
        """The one document on stdout."""
        return json.loads(self.stdout)

    def __repr__(self) -> str:
        return f"exit {self.exit_code}\n{self.stdout}\n-- stderr --\n{self.stderr}"


Run = Callable[..., Ran]
"""``run("calls", "list", "--json")``."""


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No setting of the developer's own reaches a test, and each has a book of its own."""
    for name in ("STORE", "TENANT", "TOOLS", "PRINCIPAL", "LEASE_S", "HOME", "DRIVER"):
        monkeypatch.delenv(f"TOLLHOUSE_{name}", raising=False)
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(shop.BOOK, str(tmp_path / "book.jsonl"))
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A ledger that nobody has opened."""
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture
def run() -> Run:
    """Runs a command in this process. A defect in it is raised, not hidden."""

    def run(*arguments: str, env: dict[str, str] | None = None, stdin: str | None = None) -> Ran:
        done = CliRunner().invoke(app, list(arguments), env=env, input=stdin, catch_exceptions=False)
        return Ran(done.exit_code, done.stdout, done.stderr)

    return run


class Shop:
    """A ledger with a house to fill it. ``at`` is the options that lead a command there."""

    def __init__(self, url: str, house: SyncTollhouse) -> None:
        self.url, self.house = url, house
        self.at = ("--store", url)

    def call(self, tool: str, key: str, **arguments: Any) -> None:
        """Call a tool; whatever it comes to is in the ledger."""
        scope = arguments.pop("scope", None)
        with suppress(TollhouseError):
            self.house.call(tool, arguments, key=key, by="agent-7", scope=scope)

    def credit(self, key: str, account_id: str = "a1", amount_cents: int = 2500, **options: Any) -> None:
        """Call the tool that most tests are about."""
        self.call("issue_credit", key, account_id=account_id, amount_cents=amount_cents, **options)


@pytest.fixture
def filled(url: str) -> Iterator[Shop]:
    """A shop over a SQLite ledger, without background work."""
    with Tollhouse.open_sync(url, tools=shop.TOOLS, background=False) as house:
        yield Shop(url, house)


@pytest.fixture
def filled_postgres(postgres_url: str) -> Iterator[Shop]:
    """The same over PostgreSQL."""
    with Tollhouse.open_sync(postgres_url, tools=shop.TOOLS, background=False) as house:
        yield Shop(postgres_url, house)
