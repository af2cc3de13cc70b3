"""YAML into plain values, with the line and column of each: what ``agent_files`` reads a user's file with.

It takes what JSON could say and nothing else: no tags, no keys but text, no two keys of one name, one document. Scalars
follow the core schema of YAML 1.2, so ``yes``, ``no`` and ``on`` are text. Everything is bounded, since a file may come
from anywhere: its size, its depth, and what it holds once every alias is written out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tollhouse.errors import ExtraMissing, Mistake

MAX_BYTES = 1_000_000
MAX_DEPTH = 64
MAX_VALUES = 100_000
MAX_MISTAKES = 100
"""So many are noted at most: whoever mends those reads the file again."""

Path = tuple[str | int, ...]
"""Where a value stands: keys and numbers from the root down."""


class Place(NamedTuple):
    """Counted from 1, as editors do."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Document:
    """What the text says. ``value`` None where it could not be read to its end; then there are ``mistakes``."""

    value: Any = None
    places: Mapping[Path, Place] = field(default_factory=dict)
    keys: Mapping[Path, Place] = field(default_factory=dict)
    mistakes: tuple[Mistake, ...] = ()

    def place(self, path: Path, *, of_key: bool = False) -> Place:
        """Where the value (or its key) stands; what an alias stands for is where the alias is."""
        while path not in self.places:
            path, of_key = path[:-1], False
        return self.keys.get(path, self.places[path]) if of_key else self.places[path]


def read(data: bytes) -> Document:
    """The document in the text of a file. Raises :class:`~tollhouse.errors.ExtraMissing` without a YAML parser."""
    try:
        from ruamel.yaml import YAML
        from ruamel.yaml.error import MarkedYAMLError, YAMLError
    except ImportError:
        raise ExtraMissing(
            "Agents' files need packages that are not installed.", remedy="Run pip install 'tollhouse[server]'."
        ) from None
    if len(data) > MAX_BYTES:
        return _broken(1, 1, f"The file is larger than {MAX_BYTES:,} bytes.", "Keep long instructions in files.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        column = len(before) - before.rfind(b"\n")
        return _broken(before.count(b"\n") + 1, column, "The file is not UTF-8 text here.", "Save it as UTF-8.")
    reader = _Reader(YAML(typ="safe", pure=True).parse(text))
    try:
        value = reader.document()
    except _TooMuch as stop:
        return _broken(*stop.place, stop.cause, stop.remedy)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (1, 1) if mark is None else (mark.line + 1, mark.column + 1)
        return _broken(line, column, _sentence("This is no YAML", error.problem), "Correct the line.")
    except YAMLError as error:
        place = _place_of(text, getattr(error, "position", 0))
        return _broken(*place, _sentence("This is no YAML", getattr(error, "reason", None)), "Correct the line.")
    return Document(value, reader.places, reader.keys, tuple(reader.mistakes))


def _broken(line: int, column: int, cause: str, remedy: str) -> Document:
    return Document(mistakes=(Mistake(line, column, "", cause, remedy),))


def _sentence(start: str, problem: object) -> str:
    """The parser's own words, on one line."""
    words = " ".join(str(problem or "").split())
    return f"{start}: {words}." if words else f"{start}."


def _place_of(text: str, position: int) -> Place:
    before = text[:position]
    return Place(before.count("\n") + 1, len(before) - before.rfind("\n"))


class _TooMuch(Exception):
    """Reading cannot go on from here."""

    def __init__(self, place: Place, cause: str, remedy: str) -> None:
        super().__init__(cause)
        self.place, self.cause, self.remedy = place, cause, remedy


class _Reader:
    """Builds the values of one document from the parser's events, and notes every mistake it can go on after."""

    def __init__(self, events: Iterator[Any]) -> None:
        self._events = events
        self.places: dict[Path, Place] = {}
        self.keys: dict[Path, Place] = {}
        self.mistakes: list[Mistake] = []
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._values = 0

    def document(self) -> Any:
        next(self._events)
        start = next(self._events)
        if _kind(start) == "StreamEnd":
            raise _TooMuch(Place(1, 1), "The file is empty.", "Begin it with `version: 1`.")
        if getattr(start, "version", None) not in (None, (1, 2)):
            raise _TooMuch(_start(start), "The file is not YAML 1.2.", "Leave out the %YAML line.")
        value = self._node(next(self._events), ())
        next(self._events)
        if _kind(more := next(self._events)) != "StreamEnd":
            raise _TooMuch(_start(more), "A second document begins here.", "Keep one document in one file.")
        return value

    def _node(self, event: Any, path: Path) -> Any:
        place = _start(event)
        self.places[path] = place
        if len(path) > MAX_DEPTH:
            raise _TooMuch(place, f"Values are nested more than {MAX_DEPTH} deep.", "Nest them less deeply.")
        if _kind(event) == "Alias":
            return self._alias(event, path)
        self._count(1, place)
        if event.tag is not None:
            self._note(path, f"The tag {event.tag} has no meaning here.", "Leave it out: text goes in quotes.")
        before = self._values
        match _kind(event):
            case "MappingStart":
                value: Any = self._mapping(path)
            case "SequenceStart":
                value = self._sequence(path)
            case _:
                value = self._scalar(event, path)
        if event.anchor is not None:
            self._anchors[event.anchor] = (value, self._values - before + 1)
        return value

    def _mapping(self, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while _kind(event := next(self._events)) != "MappingEnd":
            place = _start(event)
            key = self._text(event, path) if _kind(event) == "Scalar" else None
            if key is None or (_is_plain(event) and not isinstance(_resolved(key), str)):
                self._note(path, "A key is text.", "Put it in quotes.", place)
            inner = (*path, key if isinstance(key, str) else f"?{len(found)}")
            if key is None:
                self._node(event, inner)
            if key in found:
                self._note(inner, f"{key!r} is given twice.", "Keep one of them.", place)
            self.keys[inner] = place
            value = self._node(next(self._events), inner)
            if isinstance(key, str):
                found[key] = value
        return found

    def _sequence(self, path: Path) -> list[Any]:
        found: list[Any] = []
        while _kind(event := next(self._events)) != "SequenceEnd":
            found.append(self._node(event, (*path, len(found))))
        return found

    def _scalar(self, event: Any, path: Path) -> Any:
        if not _is_plain(event):
            return self._text(event, path)
        value = _resolved(event.value)
        if isinstance(value, float) and not math.isfinite(value):
            self._note(path, f"{event.value[:40]} is no finite number.", "Give a number, or leave it out.")
            return 0
        return value

    def _text(self, event: Any, path: Path) -> str:
        """The text of a scalar. Escapes may spell a character in two halves, as JSON does; one alone is none."""
        text: str = event.value
        if not _HALF.search(text):
            return text
        try:
            return text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            self._note(path, "The text holds half a character.", "Write the whole character.", _start(event))
            return _HALF.sub("\ufffd", text)

    def _alias(self, event: Any, path: Path) -> Any:
        """The value again. It counts in full, so that a few lines cannot stand for millions of values."""
        if event.anchor not in self._anchors:
            self._note(path, f"Nothing before this is marked &{event.anchor}.", "Mark it first, or write it out.")
            return None
        value, size = self._anchors[event.anchor]
        self._count(size, _start(event))
        return value

    def _count(self, values: int, place: Place) -> None:
        self._values += values
        if self._values > MAX_VALUES:
            raise _TooMuch(place, f"The file holds more than {MAX_VALUES:,} values.", "Say less, or split it.")

    def _note(self, path: Path, cause: str, remedy: str, place: Place | None = None) -> None:
        if len(self.mistakes) == MAX_MISTAKES:
            return
        line, column = place or self.places[path]
        self.mistakes.append(Mistake(line, column, words_of(path), cause, remedy))


def words_of(path: Path) -> str:
    """The path as people write it: ``agents.refund.tools[0]``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def _kind(event: Any) -> str:
    return type(event).__name__.removesuffix("Event")


def _start(event: Any) -> Place:
    return Place(event.start_mark.line + 1, event.start_mark.column + 1)


def _is_plain(event: Any) -> bool:
    return bool(event.implicit[0]) and event.tag is None


_HALF = re.compile("[\ud800-\udfff]")
_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"[-+]?[0-9]{1,18}|0o[0-7]{1,18}|0x[0-9a-fA-F]{1,15}")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NO_NUMBER = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")


def _resolved(text: str) -> Any:
    """A plain scalar by the core schema of YAML 1.2."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text, 0 if text[:2] in ("0o", "0x") else 10)
    if _FLOAT.fullmatch(text):
        return float(text)
    return math.nan if _NO_NUMBER.fullmatch(text) else text
