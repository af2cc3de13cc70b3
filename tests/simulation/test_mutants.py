"""The mutants themselves: they break what they say from outside, leave no trace, and production cannot reach them."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import pytest

import tollhouse
from tollhouse.testing.mutants import MUTANTS, VARIANTS, mutant

SOURCE = Path(tollhouse.__file__).parent
NAMES = [*MUTANTS, *VARIANTS]


def _everything() -> dict[tuple[str, str], Any]:
    """Every attribute of every loaded module and class of Tollhouse."""
    held: dict[tuple[str, str], Any] = {}
    for place, module in list(sys.modules.items()):
        if place.split(".")[0] != "tollhouse" or module is None:
            continue
        for name, value in vars(module).items():
            held[place, name] = value
            if isinstance(value, type) and value.__module__.startswith("tollhouse"):
                held |= {(f"{place}.{name}", inner): own for inner, own in vars(value).items()}
    return held


def test_there_are_eighteen_and_each_says_what_it_breaks() -> None:
    """One mutant for each rule of the list, with one sentence."""
    assert len(MUTANTS) == 18
    assert all(each.name == name and each.sentence.endswith(".") for name, each in {**MUTANTS, **VARIANTS}.items())


@pytest.mark.parametrize("name", NAMES)
def test_a_mutant_changes_something_and_puts_all_of_it_back(name: str) -> None:
    """What a mutant replaced stands again when its block is left, even by an error."""
    before = _everything()

    def changed() -> set[tuple[str, str]]:
        now = _everything()
        return {place for place, value in before.items() if now.get(place) is not value}

    with pytest.raises(RuntimeError, match="left"), mutant(name):
        assert changed()
        raise RuntimeError("left")
    assert not changed()


def test_an_unknown_mutant_is_refused() -> None:
    """A misspelt name must not pass for a mutant that nobody caught."""
    with pytest.raises(KeyError), mutant("send_before_commit"):
        pass


def _imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def test_nothing_outside_the_testing_package_imports_a_mutant() -> None:
    """Production has no switch for a mutant: no module outside `tollhouse.testing` can reach one."""
    production = [path for path in SOURCE.rglob("*.py") if "testing" not in path.relative_to(SOURCE).parts]
    assert len(production) > 50
    guilty = [p for p in production if any(name.startswith("tollhouse.testing.mutants") for name in _imports(p))]
    assert guilty == []
