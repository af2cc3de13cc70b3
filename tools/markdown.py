"""The Markdown that the generated parts of the docs are made of."""

from __future__ import annotations

import inspect
import re
from typing import Any

from tollhouse import errors


def table(heads: list[str], rows: list[list[str]]) -> str:
    """A table; bars inside cells are escaped."""
    lines = [heads, ["---"] * len(heads), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def code(text: str) -> str:
    """The text as code, whatever backticks are in it."""
    fence = "``" if "`" in text else "`"
    return f"{fence}{text}{fence}"


_ROLE = re.compile(r":\w+:`~?([\w.]+)`")
_LITERAL = re.compile(r"``(.+?)``")


def prose(docstring: str | None) -> str:
    """A docstring as Markdown: paragraphs on one line each, errors linked to their reference."""
    paragraphs = inspect.cleandoc(docstring or "").split("\n\n")
    return "\n\n".join(inline(" ".join(part.split())) for part in paragraphs)


def inline(text: str) -> str:
    """A line of a docstring: literals as code, errors linked to their reference."""
    return _ROLE.sub(lambda found: _linked(found[1].rsplit(".", 1)[-1]), _LITERAL.sub(r"`\1`", text))


def _linked(name: str) -> str:
    error = getattr(errors, name, None)
    if isinstance(error, type) and issubclass(error, errors.TollhouseError) and error.code != "error":
        return f"[`{name}`](errors.md#{error.code})"
    return f"`{name}`"


def sentence(text: str) -> str:
    """With a capital and a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def annotation(hint: Any) -> str:
    """A type as readers of the source see it."""
    text = hint if isinstance(hint, str) else getattr(hint, "__forward_arg__", None) or inspect.formatannotation(hint)
    return text.replace("builtins.", "")
