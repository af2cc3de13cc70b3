"""`tollhouse keys`: made once, shown once, listed without secrets, revoked for ever."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tollhouse.house.access import digest_of
from tollhouse.stores import open_store

CREATE = ("keys", "create", "--principal", "ada", "--scope", "calls:read", "--scope", "calls:decide")


@pytest.fixture
def ledger(url: str) -> str:
    """A ledger that exists."""

    async def make() -> None:
        await (await open_store(url)).close()

    asyncio.run(make())
    return url


def test_key_is_shown_once_and_kept_as_a_digest(run: Run, ledger: str, tmp_path: Path) -> None:
    """The token is printed when it is made and stands nowhere else."""
    made = run(*CREATE, "--store", ledger, "--json").json
    assert re.fullmatch(r"thk_[0-9a-f]{16}_[A-Za-z0-9_-]{43}", made["token"])
    assert made["scopes"] == ["calls:read", "calls:decide"]
    listed = run("keys", "list", "--store", ledger, "--json")
    secret = made["token"][21:]
    assert [(key["id"], key["valid"]) for key in listed.json["keys"]] == [(made["id"], True)]
    assert secret not in listed.stdout
    with sqlite3.connect(tmp_path / "ledger.db") as kept:
        text = "\n".join(kept.iterdump())
    kept.close()
    assert digest_of(secret) in text
    assert secret not in text


def test_text_says_that_it_is_shown_once(run: Run, ledger: str) -> None:
    """With how to send it, and when it ends."""
    made = run(*CREATE, "--store", ledger, "--expires-days", "30")
    assert "only time" in made.stdout
    assert "Authorization: Bearer" in made.stdout
    assert re.search(r"expires +20\d\d-", made.stdout)
    listed = run("keys", "list", "--store", ledger)
    assert re.search(r"ada +calls:read, calls:decide +yes", listed.stdout)


def test_revoked_and_expired_keys_are_listed_as_ended(run: Run, ledger: str) -> None:
    """They stay on the record."""
    key = run(*CREATE, "--store", ledger, "--json").json
    revoked = run("keys", "revoke", key["id"], "--store", ledger, "--json").json
    assert revoked["revoked_at"] is not None
    assert run("keys", "revoke", key["id"], "--store", ledger, "--json").json == revoked, (
        "a second time changes nothing"
    )
    run(*CREATE, "--store", ledger, "--expires-days", "0.0000001")
    shown = run("keys", "list", "--store", ledger).stdout
    assert "revoked" in shown
    assert "expired" in shown


@pytest.mark.parametrize(
    ("arguments", "exit_code", "told"),
    [
        (("keys", "create", "--principal", "ada", "--scope", "everything"), 2, "Known scopes"),
        (("keys", "create", "--principal", "ada"), 2, "--scope"),
        (("keys", "create", "--scope", "admin"), 2, "--principal"),
        (("keys", "create", "--principal", " ", "--scope", "admin"), 2, "principal"),
        (("keys", "create", "--principal", "ada", "--scope", "admin", "--expires-days", "0"), 2, "expire"),
        (("keys", "revoke", "0123"), 2, "keys list"),
    ],
)
def test_mistakes_are_told(run: Run, ledger: str, arguments: tuple[str, ...], exit_code: int, told: str) -> None:
    """With what would be right; no key is made."""
    ended = run(*arguments, "--store", ledger)
    assert ended.exit_code == exit_code, ended
    assert told in ended.stderr
    assert run("keys", "list", "--store", ledger, "--json").json == {"keys": []}


def test_ledger_is_never_made_by_asking_for_a_key(run: Run, url: str, tmp_path: Path) -> None:
    """A mistyped path is told and leaves nothing behind."""
    assert run(*CREATE, "--store", url).exit_code == 2
    assert not (tmp_path / "ledger.db").exists()


def test_keys_of_another_tenant_are_not_listed(run: Run, ledger: str) -> None:
    """Everything is scoped by tenant."""
    run(*CREATE, "--store", ledger, "--tenant", "other")
    assert run("keys", "list", "--store", ledger, "--json").json == {"keys": []}
    assert "loopback" in run("keys", "list", "--store", ledger).stdout
