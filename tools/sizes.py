"""Keeps functions and modules small; `make check` calls it.

A ratchet: the limits below may be tightened to the worst of today, never loosened. A function's lines are
counted without its decorators and docstring, so that promising more in the docstring costs nothing.
"""

from __future__ import annotations

import ast
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FUNCTION_LINES_MAX = 70
FUNCTION_LINES_MAX_OF_NINE_IN_TEN = 50
MODULE_LINES_MAX = 500
MODULE_LINES_WORTH_A_LOOK = 450
LISTS = {"src/tollhouse/errors.py"}
"""Modules that are one list, each entry a few lines: every error has its code there, so that no code is used twice."""

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


class Size(NamedTuple):
    """How long something is, and where it stands (`path:line name`)."""

    lines: int
    place: str


def function_lines(node: FunctionNode) -> int:
    assert node.end_lineno is not None
    lines = node.end_lineno - node.lineno + 1
    if ast.get_docstring(node, clean=False) is not None:
        docstring = node.body[0]
        assert docstring.end_lineno is not None
        lines -= docstring.end_lineno - docstring.lineno + 1
    return lines


def functions_of(path: Path) -> Iterator[Size]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, FunctionNode):
            yield Size(function_lines(node), f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")


def modules_below(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def too_long(kind: str, sizes: list[Size], limit: int) -> list[str]:
    return [f"{size.place}: {kind} of {size.lines} lines, {limit} at most" for size in sizes if size.lines > limit]


def main() -> int:
    functions = [size for path in modules_below("src", "tests", "tools") for size in functions_of(path)]
    modules = [
        Size(len(path.read_text(encoding="utf-8").splitlines()), str(path.relative_to(ROOT)))
        for path in modules_below("src")
        if str(path.relative_to(ROOT)) not in LISTS
    ]
    faults = too_long("function", functions, FUNCTION_LINES_MAX) + too_long("module", modules, MODULE_LINES_MAX)
    lengths = sorted(size.lines for size in functions)
    nine_in_ten = lengths[len(lengths) * 9 // 10]
    if nine_in_ten > FUNCTION_LINES_MAX_OF_NINE_IN_TEN:
        faults.append(f"one function in ten is longer than {nine_in_ten} lines")
    for fault in faults:
        print(fault)
    median = statistics.median(lengths)
    print(f"functions: median {median:.0f} lines, nine in ten up to {nine_in_ten}, longest {lengths[-1]}")
    for size in modules:
        if MODULE_LINES_WORTH_A_LOOK < size.lines <= MODULE_LINES_MAX:
            print(f"{size.place}: {size.lines} lines; is there a second module in it?")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
