"""Whatever a file says, it is either an agents' file or refused with places; nothing else comes out of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.runs.agents.files import TOOLS, written
from tollhouse.errors import AgentFileInvalid
from tollhouse.runs.agent_files import AgentsFile, read_file
from tollhouse.runs.agent_schema import schema
from tollhouse.runs.agents import agent_of

WORDS = ["pay", "look", "a", "b", "openai:x", "scripted:s", "e:x", "30m", "0s", "1.5", "http://[x", "http://h:99999999/",
         "../x", "\0", "pause", "sqlite:///x.db", "\ud800", "x" * 300, ""]  # fmt: skip
NAMES = st.sampled_from(["a", "b", "pay", "say", "$ref"])
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.floats(-1, 3) | st.sampled_from(WORDS) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)


OF_TYPE: dict[str, st.SearchStrategy[Any]] = {
    "array": st.lists(st.sampled_from(["pay", "look", "a", "b"]), max_size=2, unique=True),
    "boolean": st.booleans(),
    "integer": st.integers(1, 3),
    "null": st.none(),
    "number": st.sampled_from([1, 1.5]),
    "object": st.just({"type": "string"}),
    "string": st.sampled_from(["openai:x", "scripted:s", "30m", "1.5", "http://h/", "NAME", "pay", "told.txt"]),
}


def fitting(part: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that mostly fit a part of the schema, so that what comes after the schema is reached too."""
    return st.integers(0, 60).flatmap(lambda number: ANYTHING if number == 0 else _fitting(part))


def _fitting(part: dict[str, Any]) -> st.SearchStrategy[Any]:
    if "$ref" in part:
        return fitting(schema()["$defs"][part["$ref"].removeprefix("#/$defs/")])
    if "enum" in part:
        return st.sampled_from(part["enum"])
    kinds = part["type"] if isinstance(part["type"], list) else [part["type"]]
    fits = [OF_TYPE[kind] for kind in kinds if kind != "object"]
    if "properties" in part:
        needed = {name: st.just("openai:x") for name in ("model", "instructions") if name in part["properties"]}
        fields = {name: fitting(inner) for name, inner in part["properties"].items() if name not in needed}
        fits.append(st.fixed_dictionaries(needed, optional=fields))
    elif isinstance(inner := part.get("additionalProperties"), dict):
        fits.append(st.dictionaries(st.sampled_from(["a", "b", "pay", "s", "e"]), fitting(inner), max_size=3))
    elif "object" in kinds:
        fits.append(OF_TYPE["object"])
    return st.one_of(fits)


PARTS = {name: fitting(part) for name, part in schema()["properties"].items() if name not in ("version", "scripts")}
SCRIPTS = st.just({"s": ["Hello."]}) | ANYTHING
FILES = st.fixed_dictionaries(
    {"version": st.just(1), "agents": PARTS.pop("agents")}, optional={**PARTS, "scripts": SCRIPTS}
)


@pytest.mark.parametrize("tools", [TOOLS, None])
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(said=FILES)
def test_any_file_is_read_or_refused_with_places(tmp_path: Path, tools: tuple[str, ...] | None, said: Any) -> None:
    """And what is read survives the store."""
    file, error = outcome(written(tmp_path, json.dumps(said)), tools)
    if file is not None:
        assert all(agent_of(agent.text) == agent for agent in file.agents.values())
        file.book()
    if error is not None:
        assert error.mistakes
        assert all(mistake.line == 1 and mistake.column >= 1 for mistake in error.mistakes)
        assert all(mistake.cause and mistake.remedy for mistake in error.mistakes)


def outcome(path: Path, tools: tuple[str, ...] | None) -> tuple[AgentsFile | None, AgentFileInvalid | None]:
    """The file, or why it is none."""
    try:
        return read_file(path, tools=tools), None
    except AgentFileInvalid as error:
        return None, error
