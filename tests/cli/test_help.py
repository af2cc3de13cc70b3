"""Every command and every option says in one sentence what it is; the reference in the docs is made of that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from tests.cli.conftest import Run
from tollhouse.cli.app import COMMANDS, app


def walk(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command below, with its path, as the docs build sees them."""
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        yield (*path, name), command
        if hasattr(command, "list_commands"):
            yield from walk(command, (*path, name))


ALL = list(walk(get_command(app)))


@pytest.mark.parametrize(("path", "command"), ALL, ids=[" ".join(path) for path, _ in ALL])
def test_command_and_its_options_have_a_sentence_each(path: tuple[str, ...], command: Any) -> None:
    """It begins with a capital and ends with a full stop."""
    sentence = command.help.split("\n\n")[0]
    assert sentence[0].isupper()
    assert sentence.endswith(".")
    for parameter in command.params:
        if parameter.name != "help":
            text = parameter.help.split("  [")[0]
            assert text[0].isupper(), parameter.name
            assert text.endswith("."), parameter.name


@pytest.mark.parametrize("line", COMMANDS, ids=[line.name for line in COMMANDS])
def test_help_of_the_root_says_what_the_command_says_of_itself(line: Any) -> None:
    """It is written twice so that it can be shown without loading the command; it must not differ."""
    command = get_command(app).get_command(None, line.name)  # type: ignore[attr-defined]
    assert command.help.split("\n\n")[0].replace("\n", " ") == line.help


@pytest.mark.parametrize(("path", "command"), ALL, ids=[" ".join(path) for path, _ in ALL])
def test_every_command_but_groups_takes_json(path: tuple[str, ...], command: Any) -> None:
    """Whatever a person can see, a program can read."""
    if not hasattr(command, "list_commands"):
        assert any("--json" in parameter.opts for parameter in command.params)


def test_lists_of_commands_cut_no_sentence(run: Run) -> None:
    """In 80 columns each fits its line."""
    for arguments in ((), ("calls",), ("runs",), ("db",)):
        shown = run(*arguments, "--help").stdout
        assert "..." not in shown.split("Commands:")[1]


def test_help_is_there_for_every_command(run: Run) -> None:
    """By either name of the option, without a ledger."""
    for path, _ in ALL:
        done = run(*path, "--help")
        assert done.exit_code == 0
        assert done.stdout.startswith(f"Usage: tollhouse {' '.join(path)}")
