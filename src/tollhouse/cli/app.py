"""The root of the command line: which commands there are, how they are loaded, and what every one of them ends with.

A command is one line in :data:`COMMANDS`. Its module is imported when the command is used, not for ``--help`` of the
root, so that no command makes another one slow. A target is a Typer app (a group) or a function (a command); either
returns its exit code, None meaning 0.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, NamedTuple, cast

import typer
from typer.core import TyperGroup
from typer.main import get_command

from tollhouse import __version__
from tollhouse.cli.failures import UsageMistake, ending
from tollhouse.cli.screen import flush, write_anything
from tollhouse.cli.words import clean
from tollhouse.errors import ExtraMissing


class Command(NamedTuple):
    """A line of the table: what it is called, where it is (``module:attribute``), what it does in one sentence."""

    name: str
    target: str
    help: str


COMMANDS = (
    Command("demo", "tollhouse.cli.demo:demo", "Kill workers at the worst moments and show what became of every call."),
    Command(
        "drill", "tollhouse.cli.drill:drill", "Crash, pause and cut off real processes over many seeds, and judge."
    ),
    Command(
        "check", "tollhouse.cli.check:check", "Say what tools promise and what agents may do, and prove their file."
    ),
    Command("serve", "tollhouse.cli.serve:serve", "Drive runs of agents, settle doubts and answer over HTTP."),
    Command(
        "worker", "tollhouse.cli.worker:worker", "Settle doubts, expire holds and run approved calls until stopped."
    ),
    Command("calls", "tollhouse.cli.calls:app", "Look at recorded calls, and decide about them."),
    Command("proof", "tollhouse.cli.proofs:app", "Verify proofs of runs and calls, and show the key that signs them."),
    Command("keys", "tollhouse.cli.keys:app", "Make, list and revoke the keys that callers of the HTTP API show."),
    Command("runs", "tollhouse.cli.runs:app", "Start runs of agents, watch them, and decide about them."),
    Command("bench", "tollhouse.cli.bench:bench", "Measure calls against raw commits on this machine."),
    Command("db", "tollhouse.cli.db:app", "Check, upgrade and look after a ledger as a whole."),
)
"""Every command, in the order in which help lists them."""


class Loaded(Mapping[str, Any]):
    """The commands by name, each imported when first asked for."""

    def __init__(self, table: Sequence[Command]) -> None:
        self._table = {command.name: command for command in table}
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _load(self._table[name])
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)


def _load(command: Command) -> Any:
    module, _, attribute = command.target.partition(":")
    target = getattr(_imported(command, module), attribute)
    if isinstance(target, typer.Typer):
        loaded = get_command(target)
    else:
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        alone.command(command.name)(target)
        loaded = get_command(alone)
    loaded.name = command.name
    return loaded


def _imported(command: Command, module: str) -> ModuleType:
    """The module of a command; where a package of an extra is missing, that is said and not traced."""
    try:
        return import_module(module)
    except ModuleNotFoundError as missing:
        if (missing.name or "tollhouse").partition(".")[0] == "tollhouse":
            raise
        cause = f"`tollhouse {command.name}` needs the package {missing.name}, which the base install leaves out."
        raise ExtraMissing(cause, remedy="Run pip install 'tollhouse[all]'.") from None


class Root(TyperGroup):
    """The group of all commands. Turns whatever a command ends with into output and an exit code."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = cast(Any, Loaded(COMMANDS))

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(command.name, command.help) for command in COMMANDS])

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run one command. Exits with its code; with ``standalone_mode`` False returns the code instead."""
        given = sys.argv[1:] if args is None else list(args)
        write_anything()

        def command() -> Any:
            _require_text(given)
            code = super(Root, self).main(
                given, prog_name or "tollhouse", complete_var, False, windows_expand_args, **extra
            )
            flush()
            return code

        code = ending(command, as_json="--json" in given)
        flush()
        return sys.exit(code) if standalone_mode else code


def _require_text(given: Sequence[str]) -> None:
    """Refuse bytes that are no text, which no ledger takes; files may be called so."""
    for word in given:
        try:
            word.encode()
        except UnicodeEncodeError:
            if not Path(word).exists():
                cause = f"What was given as {clean(word)} is no text in the encoding of this terminal."
                raise UsageMistake(cause, remedy="Give it in UTF-8.") from None


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"tollhouse {__version__}")
        raise typer.Exit


app = typer.Typer(
    cls=Root,
    name="tollhouse",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """The gate for the tool calls of AI agents.

    No effect is repeated without evidence or a named decision, and every doubt is visible.

    Commands exit with 0 when all is well, 1 when something failed, 2 for a mistake in the command itself, and 3 when
    something is in doubt or waits for a person.
    """
