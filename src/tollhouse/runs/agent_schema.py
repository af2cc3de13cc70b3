"""The shape of an agents' file: its published JSON Schema, and what a file that does not follow it is told.

``tollhouse.schema.json`` beside this module is the one statement of every field; the docs, ``tollhouse check --schema``
and editors show the same text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from itertools import islice
from typing import Any

from tollhouse.errors import ExtraMissing, Mistake
from tollhouse.runs.yaml_reader import MAX_MISTAKES, Document, Path, words_of

Schema = Mapping[str, Any]

SHOWN = 60
"""Characters of a user's value that an error shows."""


@cache
def schema_text() -> str:
    """The schema as it is published."""
    return files("tollhouse.runs").joinpath("tollhouse.schema.json").read_text(encoding="utf-8")


@cache
def schema() -> dict[str, Any]:
    """The schema as a value."""
    whole: dict[str, Any] = json.loads(schema_text())
    return whole


def mistakes_of_shape(document: Document) -> list[Mistake]:
    """What the schema forbids of the document, with line, column and remedy; no more than anybody reads."""
    found = (mistake for error in _validator().iter_errors(document.value) for mistake in _told(error, document))
    return list(islice(found, MAX_MISTAKES))


def schema_problem(candidate: Schema) -> str | None:
    """Why a user's own JSON Schema is none; None: it is one. Nothing is fetched to find out."""
    rules = _rules()
    try:
        rules.meta.validate({"$schema": schema()["$schema"], **candidate})
        rules.validator_for({"$schema": schema()["$schema"], **candidate}, retriever=_nothing_is_fetched)
    except (rules.ValidationError, rules.ReferencingError, ValueError) as error:
        place = words_of(tuple(getattr(error, "instance_path", ())))
        said = " ".join(str(getattr(error, "message", error)).split())
        said = (said.partition("ValueError: ")[2] or said)[:200]
        return f"{said} (at {place})" if place else said
    return None


def known_fields(path: Path) -> list[str]:
    """The fields that may stand at that place of a file."""
    return list(_at(path).get("properties", ()))


def like(name: str, names: Iterable[str]) -> str:
    """``Did you mean 'model'? `` where a name that exists is near, else nothing."""
    near = get_close_matches(name, list(names), n=1, cutoff=0.6)
    return f"Did you mean {near[0]!r}? " if near else ""


def listed(names: Iterable[str], *, none: str = "none") -> str:
    """Names for a sentence; of many, the first ones."""
    every = list(names)
    more = f" and {len(every) - 20} more" if len(every) > 20 else ""
    return (", ".join(every[:20]) or none) + more


def _rules() -> Any:
    try:
        import jsonschema_rs
    except ImportError:
        raise ExtraMissing(
            "Agents' files need packages that are not installed.", remedy="Run pip install 'tollhouse[server]'."
        ) from None
    return jsonschema_rs


@cache
def _validator() -> Any:
    return _rules().Draft202012Validator(schema())


def _nothing_is_fetched(uri: str) -> Any:
    raise ValueError(f"{uri} is not part of the file")


# -- a schema's verdict in a person's words ------------------------------------------------------------------------


def _told(error: Any, document: Document) -> Iterator[Mistake]:
    path = tuple(error.instance_path)
    kind = type(error.kind).__name__
    says = _SAYS.get(kind)
    if kind == "AdditionalProperties":
        for name in error.kind.unexpected:
            yield _unknown_field(name, path, document)
    elif kind == "PropertyNames":
        wrong = error.kind.as_dict()["error"].instance
        cause = f"{_short(wrong)} is no name for one of {_words(path)}."
        yield _mistake(document, (*path, wrong), cause, _remedy(_at(path)["propertyNames"]), of_key=True)
    else:
        cause = says(error, path) if says else f"{_words(path)} is not what it must be."
        at = (*path, error.kind.property) if kind == "Required" else path  # what is missing, not what lacks it
        remedy = _remedy(_at(at)) if at else _SEE_SCHEMA  # the file as a whole says what it is, not how to mend it
        yield _mistake(document, path, cause, remedy, of_key=kind == "Required")


def _mistake(document: Document, path: Path, cause: str, remedy: str, *, of_key: bool = False) -> Mistake:
    line, column = document.place(path, of_key=of_key)
    return Mistake(line, column, words_of(path), cause, remedy)


def _unknown_field(name: str, path: Path, document: Document) -> Mistake:
    fields = known_fields(path)
    where = "The file" if not path else _words(path)
    remedy = f"{like(name, fields)}There are: {', '.join(fields)}."
    return _mistake(document, (*path, name), f"{where} has no field {_short(name)}.", remedy, of_key=True)


_TYPES = {
    "array": "a list",
    "boolean": "true or false",
    "integer": "a whole number",
    "null": "null",
    "number": "a number",
    "object": "a mapping of names to values",
    "string": "text",
}


def _type(error: Any, path: Path) -> str:
    wanted = " or ".join(_TYPES[name] for name in error.kind.types)
    return f"{_words(path)} is {_what(error.instance)}, not {wanted}."


def _what(value: Any) -> str:
    match value:
        case None:
            return "empty"
        case bool():
            return str(value).lower()
        case int() | float():
            return f"the number {value}"
        case str():
            return "text"
        case list():
            return "a list"
        case _:
            return "a mapping"


def _bound(words: str) -> Callable[[Any, Path], str]:
    return lambda error, path: f"{_words(path)} is {words} {error.kind.limit:,}."


def _enum(error: Any, path: Path) -> str:
    near = like(str(error.instance), map(str, error.kind.options))
    choices = listed(map(str, error.kind.options))
    return f"{_words(path)} is {_short(error.instance)}, which is none of {choices}. {near}".strip()


_SAYS: dict[str, Callable[[Any, Path], str]] = {
    "Type": _type,
    "Enum": _enum,
    "Constant": lambda error, path: f"{_words(path)} is {_short(error.instance)}, which this release does not read.",
    "Required": lambda error, path: f"{_words(path)} has no {error.kind.property}.",
    "Pattern": lambda _error, path: f"{_words(path)} is not written as it must be.",
    "Minimum": _bound("less than"),
    "Maximum": _bound("more than"),
    "ExclusiveMinimum": _bound("not more than"),
    "MinLength": lambda _error, path: f"{_words(path)} is empty.",
    "MaxLength": _bound("longer than"),
    "MinItems": lambda _error, path: f"{_words(path)} is empty.",
    "MaxItems": _bound("longer than"),
    "MaxProperties": _bound("longer than"),
    "UniqueItems": lambda _error, path: f"{_words(path)} names something twice.",
    "Not": lambda _error, path: f"{_words(path)} cannot be false: an approval that a contract asks for stays.",
}


def _words(path: Path) -> str:
    return words_of(path) or "The file"


_SEE_SCHEMA = "See `tollhouse check --schema`."


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _remedy(at: Schema) -> str:
    return str(at.get("description") or _SEE_SCHEMA)


def _at(path: Path) -> Schema:
    """The part of the schema that a place of the file is held to, with what a reference adds."""
    here = _resolved(schema())
    for part in path:
        inner = here.get("items") if isinstance(part, int) else here.get("properties", {}).get(part)
        if inner is None:
            inner = here.get("additionalProperties")
        here = _resolved(inner) if isinstance(inner, Mapping) else {}
    return here


def _resolved(part: Schema) -> Schema:
    if "$ref" not in part:
        return part
    return {**schema()["$defs"][part["$ref"].removeprefix("#/$defs/")], **part}
