"""The command line. ``main`` is what the installed command ``tollhouse`` runs; everything else is loaded when used."""

from __future__ import annotations


def main() -> None:
    """Run the command that the process was started with, and exit with its code."""
    from tollhouse.cli.app import app

    app(prog_name="tollhouse")
