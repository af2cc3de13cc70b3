"""Every kind of event that a rule writes can be told."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import tollhouse
from tollhouse.cli.story import TELLERS, tell
from tollhouse.gate.view import HistoryLine

SOURCE = Path(tollhouse.__file__).parent
FOLDERS = ("ledger", "gate", "doubt", "operations")
KIND_AT = {"advance": 2, "Draft": 0, "_refused": 2, "_sent": 2}
"""Which argument of these functions is the kind of the event that they write."""


def kinds_written() -> Iterator[str]:
    """Every constant that a rule passes as the kind of an event."""
    for folder in FOLDERS:
        for path in sorted((SOURCE / folder).glob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KIND_AT:
                    place = KIND_AT[node.func.id]
                    if len(node.args) > place:
                        yield from (str(c.value) for c in ast.walk(node.args[place]) if isinstance(c, ast.Constant))


def test_every_kind_of_event_has_its_teller() -> None:
    """What a rule writes can be told."""
    assert set(kinds_written()) <= set(TELLERS)


def test_every_teller_is_for_a_kind_that_is_written() -> None:
    """No words are kept for what cannot happen."""
    sources = "".join(path.read_text() for folder in FOLDERS for path in (SOURCE / folder).glob("*.py"))
    assert [kind for kind in TELLERS if f'"{kind}"' not in sources] == []


@pytest.mark.parametrize("kind", sorted(TELLERS))
def test_event_whose_details_were_erased_leaves_a_line(kind: str) -> None:
    """Erasing a person's data must not make a call unreadable."""
    (told,) = tell(HistoryLine(1, 0, kind, {}))
    assert told.text == "(its details were erased)"


def test_event_of_a_later_release_is_named_at_least() -> None:
    """An older command line beside a newer worker."""
    (told,) = tell(HistoryLine(1, 0, "moved_to_mars", {"by": "ada"}))
    assert told.word == "moved to mars"
