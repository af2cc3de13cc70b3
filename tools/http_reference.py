"""The HTTP API as its own OpenAPI document describes it; `tools/surface_reference.py` makes the page of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

from tollhouse.api.app import create_app


class Path(NamedTuple):
    """One operation: method and path, and what the document says of it."""

    method: str
    path: str
    says: dict[str, Any]


def document() -> dict[str, Any]:
    """The document of a server that has runs and asks for keys; no house is opened for it."""
    nobody: Any = SimpleNamespace(tenant="", principal="", store=None)
    keys: Any = SimpleNamespace(open=False)
    return create_app(nobody, runs=SimpleNamespace(), access=keys).openapi()


def paths(found: dict[str, Any]) -> Iterator[Path]:
    """Every operation, in the order of its tags."""
    every = [
        Path(method.upper(), path, says)
        for path, operations in found["paths"].items()
        for method, says in operations.items()
    ]
    for tag in found["tags"]:
        yield from (one for one in every if tag["name"] in one.says["tags"])


def resolved(schema: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """The schema that a reference means."""
    name = schema.get("$ref", "").rpartition("/")[2]
    named: dict[str, Any] = found["components"]["schemas"][name] if name else schema
    return named


def kind(schema: dict[str, Any]) -> str:
    """What a value is, in a few words."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        return " or ".join(dict.fromkeys(kind(choice) for choice in choices))
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"])
    of = schema.get("items", {})
    return f"array of {kind(of)}" if schema.get("type") == "array" and of else str(schema.get("type", "any JSON"))


def example(schema: dict[str, Any], found: dict[str, Any]) -> str | None:
    """The first example of a schema, as JSON; None: it has none."""
    whole = resolved(schema, found)
    choices = whole.get("oneOf") or whole.get("anyOf") or ()
    for one in (whole, *(resolved(choice, found) for choice in choices)):
        if one.get("examples"):
            return json.dumps(one["examples"][0], indent=2)
    return None
