"""The command line as it stands, for the reference and for the check of the docs: every command, every option."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from typer.main import get_command

from tollhouse.cli.app import app


class Shown(NamedTuple):
    """A command as its users type it, and the parser's own object for it."""

    line: str
    command: Any


def commands() -> Iterator[Shown]:
    """Every command that does something, in the order of the help."""
    yield from _below("tollhouse", get_command(app))


def _below(line: str, command: Any) -> Iterator[Shown]:
    if not hasattr(command, "commands"):
        yield Shown(line, command)
        return
    for name, inner in command.commands.items():
        yield from _below(f"{line} {name}", inner)


def options(command: Any) -> Iterator[Any]:
    """The options of a command, without its arguments and without hidden ones."""
    return (p for p in command.params if p.opts[0].startswith("-") and not p.hidden)


def usage(shown: Shown) -> str:
    """The line to type: arguments, then what is required, then the rest."""
    arguments = [_named(p) for p in shown.command.params if not p.opts[0].startswith("-")]
    required = [f"{p.opts[0]} {_named(p)}" for p in options(shown.command) if p.required]
    rest = ["[OPTIONS]"] if any(not p.required for p in options(shown.command)) else []
    return " ".join([shown.line, *arguments, *required, *rest])


def takes(option: Any) -> str:
    """How an option is written."""
    return option.opts[0] if option.is_flag else f"{option.opts[0]} {_named(option)}"


def default(option: Any) -> str:
    """What holds where an option is not given; empty where nothing does."""
    parts = [f"`{option.envvar}`"] if option.envvar else []
    if option.default is not None and not option.is_flag:
        parts.append(f"`{option.default}`")
    return "required" if option.required else ", else ".join(parts)


def _named(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())
