"""Everything the command line writes: text for a person on a terminal or in a pipe, or one JSON document.

Colours are for terminals and follow NO_COLOR; output in a pipe is plain and as wide as it needs to be, so that a line
stays a line for ``grep``. What users and receivers wrote is shown without control characters, since whoever decides
on what a screen shows must not be shown something else by it.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import IO, TYPE_CHECKING, Any

from tollhouse.cli.words import clean, clean_lines

if TYPE_CHECKING:
    from rich.console import Console

WIDTH_LEAST = 20
UNBOUNDED_WIDTH = 100_000
"""Columns of a pipe: no line is broken."""

GAP = 2
"""Blanks between columns."""

Cell = tuple[str, str | None]
"""A text and its style."""

STATE_STYLES = {
    "held": "bold cyan",
    "ready": "cyan",
    "departed": "blue",
    "accepted": "blue",
    "in_doubt": "bold yellow",
    "succeeded": "green",
    "failed": "red",
    "refused": "red",
    "compensated": "magenta",
}


class Screen:
    """Where one command writes. Make it before anything else may write: it keeps the streams it was made with."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self._out, self._err = sys.stdout, sys.stderr
        self._consoles: dict[bool, Console] = {}

    # -- JSON --------------------------------------------------------------------------------------------

    def document(self, value: Any, *, indent: int | None = 2) -> None:
        """One JSON document on stdout, in ASCII so that no terminal or locale can spoil it."""
        _write(self._out, json.dumps(value, indent=indent) + "\n")

    # -- text --------------------------------------------------------------------------------------------

    def line(self, text: str = "", style: str | None = None) -> None:
        """One line of text, wrapped where the terminal ends."""
        self._console().print(clean(text), style=style, markup=False, highlight=False, soft_wrap=False)

    def command(self, text: str) -> None:
        """A command to copy: never broken, whatever the width."""
        self._console().print(f"    {clean(text)}", style="cyan", markup=False, highlight=False, soft_wrap=True)

    def heading(self, text: str) -> None:
        """A line that begins a part."""
        self.line()
        self.line(text, style="bold")

    def pairs(self, rows: Iterable[tuple[str, str]], *, style: str = "dim") -> None:
        """Names and what they are, side by side."""
        self.grid([((name, style), (text, None)) for name, text in rows], indent=2)

    def grid(self, rows: Sequence[Sequence[Cell]], *, indent: int = 0) -> None:
        """Rows of (text, style) in columns; only the last column wraps."""
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        if not rows:
            return
        grid = Table.grid(padding=(0, GAP, 0, 0))
        last = len(rows[0]) - 1
        for number in range(last + 1):
            grid.add_column(no_wrap=number != last, overflow="fold")
        for row in rows:
            grid.add_row(*(Text(clean(text), style=style or "") for text, style in row))
        self._print(Padding(grid, (0, 0, 0, indent), expand=False))

    def table(
        self,
        headings: Sequence[str],
        rows: Sequence[Sequence[Cell]],
        *,
        dispensable: Sequence[int] = (),
    ) -> None:
        """A table of (text, style) cells, the first column being what names a row.

        Where the terminal is too narrow, columns are left out in the order of ``dispensable``; the first one is broken
        over lines rather than cut, since half of a name is none.
        """
        from rich.table import Table
        from rich.text import Text

        shown = self._that_fit(headings, rows, dispensable)
        first = min(shown)
        table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim", show_edge=False)
        for number in shown:
            folds = number == first
            table.add_column(headings[number], overflow="fold" if folds else "ellipsis", no_wrap=not folds)
        for row in rows:
            table.add_row(*(Text(clean(row[number][0]), style=row[number][1] or "") for number in shown))
        self._print(table)

    def _that_fit(
        self, headings: Sequence[str], rows: Sequence[Sequence[Cell]], dispensable: Sequence[int]
    ) -> list[int]:
        from rich.cells import cell_len

        columns = [[heading, *(clean(row[n][0]) for row in rows)] for n, heading in enumerate(headings)]
        widths = [max(map(cell_len, column)) + GAP for column in columns]
        shown, spare = list(range(len(headings))), list(dispensable)
        while spare and sum(widths[number] for number in shown) > self._console().width + GAP:
            shown.remove(spare.pop(0))
        return shown

    def _print(self, renderable: Any) -> None:
        """On a terminal as it is; elsewhere without the blanks that fill up a column."""
        console = self._console()
        if console.is_terminal:
            console.print(renderable)
            return
        with console.capture() as capture:
            console.print(renderable)
        for line in capture.get().splitlines():
            console.print(line.rstrip(), markup=False, highlight=False, soft_wrap=True)

    def error(self, cause: str, code: str) -> None:
        """The first line of an error, on stderr."""
        from rich.text import Text

        text = Text.assemble(("error: ", "bold red"), clean(cause), (f"  [{code}]", "dim"))
        self._console(err=True).print(text, soft_wrap=True)

    def error_detail(self, name: str, text: str) -> None:
        """A further line of it."""
        from rich.text import Text

        self._console(err=True).print(Text.assemble((f"  {name + ':':<8}", "dim"), clean(text)), soft_wrap=True)

    def note(self, text: str) -> None:
        """Something to know that is no part of the answer, on stderr; said with ``--json`` too."""
        self._console(err=True).print(clean_lines(text), markup=False, highlight=False, soft_wrap=True)

    def flush(self) -> None:
        """Write out what is buffered, for whoever waits for it."""
        flush(self._out)

    def _console(self, *, err: bool = False) -> Console:
        if err not in self._consoles:
            self._consoles[err] = _console(self._err if err else self._out)
        return self._consoles[err]


def _console(stream: IO[str]) -> Console:
    from rich.console import Console

    class Forgiving(Console):
        def on_broken_pipe(self) -> None:
            self.quiet = True
            drop(stream)

    return Forgiving(file=stream, width=_width(stream), highlight=False, emoji=False)


def _width(stream: IO[str]) -> int | None:
    """As COLUMNS says, where 0 says nothing; None: as wide as the terminal is at the time.

    With less than a few columns there would be no room for a letter.
    """
    told = os.environ.get("COLUMNS")
    if stream.isatty() and told is None:
        return None
    if not stream.isatty() and not (told and told.isdecimal() and int(told)):
        return UNBOUNDED_WIDTH
    return max(WIDTH_LEAST, shutil.get_terminal_size().columns)


def write_anything() -> None:
    """Spell out what the terminal's encoding has no letter for, rather than fail at it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


# -- streams whose reader has gone -------------------------------------------------------------------------------


def _write(stream: IO[str], text: str) -> None:
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        drop(stream)


def flush(*streams: IO[str]) -> None:
    """Write out what is buffered, so that nothing is left for the interpreter to fail at; none named: both streams."""
    for stream in streams or (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            drop(stream)


def drop(stream: IO[str]) -> None:
    """Whoever read the stream has gone: the rest goes nowhere, and the command ends as it would have."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
