"""Words and numbers as the command line shows them."""

from __future__ import annotations

import json
from typing import Any, Protocol


class Bounds(Protocol):
    """What bounds the sendings of a call: its own limits, or those of its contract."""

    @property
    def max_attempts(self) -> int: ...

    @property
    def attempt_timeout_s(self) -> float: ...

    @property
    def deadline_s(self) -> float: ...


def bounds(of: Bounds) -> str:
    """``at most 3 a round, 30 s each, 2 min together``."""
    each, together = length(of.attempt_timeout_s), length(of.deadline_s)
    return f"at most {of.max_attempts} a round, {each} each, {together} together"


def clean(text: str) -> str:
    """Text of others on one line, with every control and invisible character spelled out."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def clean_lines(text: str) -> str:
    """The same, with its lines kept."""
    return "\n".join(clean(line) for line in text.split("\n"))


def compact(value: Any, most: int | None = None) -> str:
    """A value as JSON on one line; ``most``: cut after so many characters, and say so."""
    text = json.dumps(value, ensure_ascii=False)
    if most is None or len(text) <= most:
        return text
    return f"{text[:most]}… ({len(text):,} characters)"


_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def span(seconds: float) -> str:
    """A length of time in one unit, as a person says it: ``45 s``, ``12 min``, ``3 h``, ``9 d``."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"


def length(seconds: float) -> str:
    """A length of time without loss, in the largest unit that takes it whole: ``90 s``, ``2 min``, ``24 h``."""
    for size, unit in _UNITS[1:]:
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"


def count(number: int, thing: str) -> str:
    """``1 call``, ``2 calls``."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
