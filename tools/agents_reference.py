"""The sections of the docs about agents' files: fields from the JSON Schema, reasons of a production check."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tollhouse.operations.production import REASONS
from tollhouse.runs.agent_schema import schema
from tools.markdown import code, sentence, table

_PARTS = {
    "The file": (),
    "An agent": ("$defs", "agent"),
    "limits": ("$defs", "limits"),
    "model_settings": ("$defs", "model_settings"),
    "An approval": ("$defs", "approval"),
    "questions": ("$defs", "questions"),
    "verifier": ("$defs", "verifier"),
    "defaults": ("$defs", "defaults"),
    "An endpoint": ("$defs", "endpoint"),
}
"""Headings, and where in the schema their fields are."""


def agents_file() -> str:
    """Every field of an agents' file, by the mapping that it stands in."""
    return "\n\n".join(f"## {heading}\n\n{_fields(path)}" for heading, path in _PARTS.items())


def field_names() -> Iterator[str]:
    """Every field that the schema knows."""
    for path in _PARTS.values():
        yield from _at(path)["properties"]


def production() -> str:
    """Every code that a production check may refuse with."""
    rows = [[code(name), reason.kind, reason.meaning, reason.remedy] for name, reason in REASONS.items()]
    return table(["Code", "About", "Why it is a shortcut", "What to do instead"], rows)


def _at(path: tuple[str, ...]) -> Mapping[str, Any]:
    part: Mapping[str, Any] = schema()
    for name in path:
        part = part[name]
    return part


def _fields(path: tuple[str, ...]) -> str:
    part = _at(path)
    required = part.get("required", ())
    rows = [
        [code(name), _takes(field), "required" if name in required else _default(field), sentence(field["description"])]
        for name, field in ((name, _resolved(field)) for name, field in part["properties"].items())
    ]
    intro = f"{sentence(part['description'])}\n\n" if path and "description" in part else ""
    return intro + table(["Field", "Takes", "Default", "Meaning"], rows)


def _resolved(field: Mapping[str, Any]) -> Mapping[str, Any]:
    if "$ref" not in field:
        return field
    return {**schema()["$defs"][field["$ref"].removeprefix("#/$defs/")], **field}


_KINDS = {
    "array": "list",
    "boolean": "true or false",
    "integer": "whole number",
    "null": "null",
    "number": "number",
    "object": "mapping",
    "string": "text",
}


def _takes(field: Mapping[str, Any]) -> str:
    if "const" in field:
        return code(str(field["const"]))
    if "enum" in field:
        return ", ".join(map(code, field["enum"]))
    kinds = field["type"] if isinstance(field["type"], list) else [field["type"]]
    return ", ".join(_KINDS[kind] for kind in kinds)


def _default(field: Mapping[str, Any]) -> str:
    if "default" not in field:
        return ""
    value = field["default"]
    return code(str(value).lower() if isinstance(value, bool) else str(value))


SECTIONS: dict[str, Callable[[], str]] = {"agents-file": agents_file, "production": production}
