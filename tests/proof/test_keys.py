"""The signing key: made once, outside the database, for this user alone."""

from __future__ import annotations

import os
import pwd
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.proof.scenes import TOOLS, bundle_of_call, forged, pay, signer_of
from tests.support.houses import OpenHouse, on_one_store
from tollhouse.errors import ProofUnreadable, SigningKeyUnusable
from tollhouse.runs.proof.keys import PRIVATE, PUBLIC, home_of, open_signer
from tollhouse.runs.proof.verdict import Result
from tollhouse.runs.proof.verify import read_bundle, verify

posix = pytest.mark.skipif(os.name != "posix", reason="permissions are those of POSIX")


@posix
def test_key_is_made_once_and_for_this_user_alone(tmp_path: Path) -> None:
    """The private half has mode 0600 in a folder of mode 0700; the public half may be read."""
    home = tmp_path / "deep" / "keys"
    first = open_signer(home)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (home, home / PRIVATE, home / PUBLIC)]
    assert modes == [0o700, 0o600, 0o644]
    again = open_signer(home)
    assert again.key_id == first.key_id
    assert (home / PUBLIC).read_text() == first.public_pem
    assert sorted(path.name for path in home.iterdir()) == [PRIVATE, PUBLIC]


@posix
def test_user_without_a_home_is_told_to_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs under a number which nobody has; a ledger in a file has a folder all the same."""

    def nobody(_uid: int) -> Any:
        raise KeyError("no such user")

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    with pytest.raises(SigningKeyUnusable) as refused:
        home_of("postgresql://db/ledger", {})
    assert refused.value.remedy == "Set TOLLHOUSE_HOME."
    assert home_of("postgresql://db/ledger", {"TOLLHOUSE_HOME": "/keys"}) == Path("/keys")
    assert home_of("sqlite:////data/l.db", {}) == Path("/data/keys")


def test_public_half_is_that_of_the_key(tmp_path: Path) -> None:
    """A key that was moved away leaves its public half behind; it is not taken for that of the next one."""
    first = open_signer(tmp_path)
    (tmp_path / PRIVATE).rename(tmp_path / "moved.key")
    second = open_signer(tmp_path)
    assert second.key_id != first.key_id
    assert (tmp_path / PUBLIC).read_text() == second.public_pem


def test_processes_that_start_at_once_get_one_key(tmp_path: Path) -> None:
    """Whoever is second takes the first one's."""
    with ThreadPoolExecutor(16) as pool:
        made = list(pool.map(lambda _: open_signer(tmp_path / "keys").key_id, range(16)))
    assert len(set(made)) == 1


@posix
def test_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    """What others may have copied proves nothing; the remedy is a command."""
    home = tmp_path / "keys"
    open_signer(home)
    (home / PRIVATE).chmod(0o640)
    with pytest.raises(SigningKeyUnusable) as refused:
        open_signer(home)
    assert refused.value.remedy.startswith("Run: chmod 600")


@pytest.mark.parametrize("text", ["", "no key", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
def test_file_that_is_no_key_is_refused(tmp_path: Path, text: str) -> None:
    """It is never overwritten: it may be a key that somebody damaged by mistake."""
    path = tmp_path / PRIVATE
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(SigningKeyUnusable):
        open_signer(tmp_path)
    assert path.read_text() == text


def test_home_is_beside_the_file_or_in_the_users_state(tmp_path: Path) -> None:
    """``TOLLHOUSE_HOME`` decides where it is set."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    assert home_of(url, {}) == tmp_path / "keys"
    assert home_of(url, {"TOLLHOUSE_HOME": "/srv/keys"}) == Path("/srv/keys")
    assert home_of("postgresql://db/ledger", {}) == Path.home() / ".local" / "state" / "tollhouse"
    assert home_of("postgresql://db/ledger", {"XDG_STATE_HOME": "/state"}) == Path("/state/tollhouse")
    assert home_of("sqlite:///:memory:", {"XDG_STATE_HOME": "/state"}) == Path("/state/tollhouse")


@on_one_store
async def test_bundle_by_another_key_fails_where_the_key_is_pinned(open_house: OpenHouse, tmp_path: Path) -> None:
    """Without a pinned key the verdict says that anybody may have made it."""
    house, signer = await open_house(*TOOLS), signer_of(tmp_path)
    await house.call(pay, {"to": "ada"}, key="k")
    bundle = await bundle_of_call(house, "k", signer)
    another = open_signer(tmp_path / "another")
    theirs = forged(bundle, lambda _bundle: None, another)
    verdict = verify(theirs, key=signer.public_pem)
    assert verdict.result is Result.FAIL
    assert verdict.first is not None
    assert verdict.first.record == "envelope"
    alone = verify(theirs)
    assert (alone.result, alone.pinned, alone.key_id) == (Result.PASS, False, another.key_id)
    assert "only self-asserted" in alone.notes[0]
    swapped = bundle | {"public_key": another.public_pem}
    assert verify(swapped).result is Result.FAIL


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"contents": 1}', '{"a": 1, "a": 2}', "[" * 100_000, "NaN"])
def test_what_is_no_bundle_is_refused(text: str) -> None:
    """Never a traceback, whatever was handed over."""
    with pytest.raises(ProofUnreadable):
        verify(read_bundle(text))


@on_one_store
async def test_key_that_is_none_is_refused(open_house: OpenHouse, tmp_path: Path) -> None:
    """A mistyped file is not silently no key."""
    house, signer = await open_house(*TOOLS), signer_of(tmp_path)
    await house.call(pay, {"to": "ada"}, key="k")
    with pytest.raises(ProofUnreadable):
        verify(await bundle_of_call(house, "k", signer), key="-----BEGIN PUBLIC KEY-----")
