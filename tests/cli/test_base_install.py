"""The base install: small, and without the packages of any extra everything that needs none of them works."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PACKAGES_MOST = 20
EXAMPLES = Path(__file__).parents[2] / "examples"

BLOCKER = """
import sys

class Without:
    def __init__(self, finder):
        self._finder = finder

    def __getattr__(self, name):
        return getattr(self._finder, name)

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in {names!r} else self._finder.find_spec(name, path, target)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
"""


def _closure(requirement: Requirement) -> set[str]:
    """The distributions that a requirement brings to this machine, with those that they need in turn."""
    found: set[str] = set()
    waiting, seen = [requirement], set()
    while waiting:
        wanted = waiting.pop()
        if (key := (canonicalize_name(wanted.name), *sorted(wanted.extras))) in seen:
            continue
        seen.add(key)
        found.add(key[0])
        needs = (Requirement(line) for line in metadata.requires(wanted.name) or ())
        waiting += [need for need in needs if _applies(need, wanted.extras)]
    return found


def _applies(need: Requirement, extras: set[str]) -> bool:
    return need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in ("", *extras))


@pytest.fixture(scope="module")
def base_env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which processes, and those that they start, find the packages of the base install only."""
    base = _closure(Requirement("tollhouse"))
    owners = metadata.packages_distributions()
    names = {module for module, who in owners.items() if not base & {canonicalize_name(name) for name in who}}
    folder = tmp_path_factory.mktemp("base")
    (folder / "sitecustomize.py").write_text(BLOCKER.format(names=names))
    env = {name: value for name, value in os.environ.items() if not name.startswith("TOLLHOUSE_")}
    return env | {"PYTHONPATH": str(folder), "COLUMNS": "200"}


class Base:
    """Runs Python as the base install would, in a folder of its own."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self._folder, self._env = folder, env

    def python(self, *arguments: str, ends: int = 0) -> str:
        """What it printed, stderr included."""
        done = subprocess.run(
            [sys.executable, *arguments], cwd=self._folder, env=self._env, text=True, timeout=60, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert done.returncode == ends, f"{arguments} ended with {done.returncode}:\n{done.stdout}"
        return done.stdout

    def tollhouse(self, *arguments: str, ends: int = 0) -> str:
        """What the command printed."""
        return self.python("-m", "tollhouse", *arguments, ends=ends)


@pytest.fixture
def base(tmp_path: Path, base_env: dict[str, str]) -> Base:
    """A base install, with nothing in its folder."""
    return Base(tmp_path, base_env)


def test_base_install_is_small() -> None:
    """At most twenty packages are installed without an extra."""
    base = _closure(Requirement("tollhouse")) - {"tollhouse"}
    assert {"pydantic", "typer", "httpx2"} <= base
    assert len(base) <= PACKAGES_MOST, sorted(base)


def test_packages_of_extras_are_absent_in_these_tests(base: Base) -> None:
    """The environment of these tests hides what it should, in child processes too."""
    for name in ("fastapi", "asyncpg", "cryptography", "ruamel.yaml", "temporalio", "pydantic_ai"):
        assert "ModuleNotFoundError" in base.python("-c", f"import {name}", ends=1)


def test_library_works_without_extras(base: Base) -> None:
    """The example of the README runs on SQLite."""
    assert "succeeded 2500 cents for order 7 True 1" in base.python(str(EXAMPLES / "readme.py"))


def test_ledger_is_looked_at_and_settled_without_extras(base: Base) -> None:
    """Calls, runs and keys of a ledger are shown, and workers settle, by the base install."""
    store = ("--store", "sqlite:///ledger.db")
    base.tollhouse("db", "upgrade", *store)
    assert "No calls." in base.tollhouse("calls", "list", *store)
    assert "No runs." in base.tollhouse("runs", "list", *store)
    assert "Looked at 0 calls" in base.tollhouse("worker", "--once", *store)
    assert "thk_" in base.tollhouse("keys", "create", "--principal", "ada", "--scope", "admin", *store)


NEEDY = {
    "serve": (("serve",), "server", 1),
    "proof": (("proof", "verify", "tollhouse.yaml"), "server", 1),
    "check": (("check",), "server", 1),
    "bench": (("bench", "--store", "sqlite"), "all", 1),
    "postgres": (("db", "check", "--store", "postgresql://127.0.0.1:1/x"), "postgres", 1),
}


@pytest.mark.parametrize("needy", NEEDY)
def test_command_that_needs_an_extra_names_it(base: Base, tmp_path: Path, needy: str) -> None:
    """What to install is said, and no traceback is shown."""
    command, extra, ends = NEEDY[needy]
    (tmp_path / "tollhouse.yaml").write_text("version: 1\n")
    said = base.tollhouse(*command, ends=ends)
    assert f"pip install 'tollhouse[{extra}]'." in said
    assert "[extra_missing]" in said
    assert "Traceback" not in said


def test_help_of_every_other_command_needs_no_extra(base: Base) -> None:
    """Whoever reads what a command does need not install anything."""
    for command in ("demo", "drill", "check", "serve", "worker", "calls", "proof", "keys", "runs", "db"):
        assert "Usage:" in base.tollhouse(command, "--help")
