"""The options that commands share: one declaration each, so that a name means the same everywhere."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from tollhouse.cli.failures import UsageMistake

STORE_ENV, TENANT_ENV, TOOLS_ENV, PRINCIPAL_ENV = (
    "TOLLHOUSE_STORE",
    "TOLLHOUSE_TENANT",
    "TOLLHOUSE_TOOLS",
    "TOLLHOUSE_PRINCIPAL",
)

DEFAULT_FILE = "tollhouse.yaml"
"""The agents' file of a folder."""

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else.")]

Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        envvar=STORE_ENV,
        help="The ledger: sqlite:///file.db or postgresql://user@host/database.",
    ),
]

Tenant = Annotated[
    str, typer.Option("--tenant", metavar="NAME", envvar=TENANT_ENV, help="Whose calls: everything is scoped by it.")
]

Tools = Annotated[
    list[str] | None,
    typer.Option(
        "--tools",
        metavar="MODULE",
        help="Where tools are: package.module or path/to/file.py, with :name for one of them; may be repeated."
        f"  [env var: {TOOLS_ENV}, separated by commas]",
    ),
]

File = Annotated[
    str | None,
    typer.Option(
        "--file",
        metavar="PATH",
        help=f"The agents' file, for what is not given here; {DEFAULT_FILE} in this folder where none is named.",
    ),
]

By = Annotated[
    str | None,
    typer.Option(
        "--by", metavar="NAME", envvar=PRINCIPAL_ENV, help="Who asks or decides; kept on the record. Required."
    ),
]

Key = Annotated[str, typer.Argument(metavar="KEY", help="The key of the call.", show_default=False)]

Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; kept on the record.", show_default=False)]

OptionalReason = Annotated[
    str | None, typer.Option("--reason", metavar="TEXT", help="Why; kept on the record.", show_default=False)
]

Version = Annotated[
    int | None,
    typer.Option(
        "--version",
        metavar="N",
        min=1,
        show_default=False,
        help="Decide only if the call is still at this version, the one that was shown.",
    ),
]

Volatile = Annotated[
    bool,
    typer.Option("--volatile", help="Accept a ledger that may forget what it confirmed after a power cut."),
]


def named_tools(given: list[str] | None) -> list[str]:
    """Where tools are, from the option or else from the environment."""
    sources = given or [os.environ.get(TOOLS_ENV, "")]
    return [name.strip() for source in sources for name in source.split(",") if name.strip()]


def decider(by: str | None) -> str:
    """Who decides. Never guessed: a decision under a name that nobody gave would be nobody's."""
    if by is None or not by.strip():
        raise UsageMistake(
            "A decision needs the name of who takes it.", remedy=f"Give --by NAME, or set {PRINCIPAL_ENV}."
        )
    return by


def json_value(option: str, text: str) -> Any:
    """The value of an option that takes JSON, ``@path`` for a file or ``@-`` for standard input."""
    try:
        source = text
        if text.startswith("@"):
            source = sys.stdin.read() if text == "@-" else Path(text[1:]).read_text(encoding="utf-8")
        return json.loads(source, object_pairs_hook=_without_repeats)
    except (ValueError, OSError, RecursionError) as error:
        raise UsageMistake(
            f"{option} is no JSON: {error}.", remedy="Give JSON in single quotes, or @file with JSON in it."
        ) from None


def json_object(option: str, text: str) -> dict[str, Any]:
    """The same for an option that takes one object."""
    value = json_value(option, text)
    if not isinstance(value, dict):
        raise UsageMistake(f"{option} is a JSON {type(value).__name__}, not an object.", remedy='Give {"name": value}.')
    return value


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; of two members of one name a reader would keep one, and nobody would know which was meant."""
    whole = dict(pairs)
    if len(whole) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(n for n in names if names.count(n) > 1)!r} is given twice")
    return whole
