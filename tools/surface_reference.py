"""The sections of the docs about what programs and people use from outside: the command line and the HTTP API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tollhouse.api.problems import STATUS
from tools import cli_reference, http_reference
from tools.markdown import code, inline, prose, sentence, table
from tools.reference import error_classes

# -- the command line ----------------------------------------------------------------------------------------


def command_index() -> str:
    """One line for each command."""
    rows = [
        [f"[`{shown.line}`](#{shown.line.replace(' ', '-')})", prose(shown.command.help).split("\n")[0]]
        for shown in cli_reference.commands()
    ]
    return table(["Command", "What it does"], rows)


def command_entries() -> str:
    """Usage, text and options of each command."""
    return "\n\n".join(_command(shown) for shown in cli_reference.commands())


def _command(shown: cli_reference.Shown) -> str:
    rows = [
        [code(cli_reference.takes(option)), cli_reference.default(option), inline(option.help or "")]
        for option in cli_reference.options(shown.command)
    ]
    usage = f"```text\n{cli_reference.usage(shown)}\n```"
    told = table(["Option", "Where it is not given", "Meaning"], rows) if rows else ""
    return "\n\n".join([f"### {shown.line}", usage, prose(shown.command.help), told]).rstrip()


_IN_FILE = {"--store": "`store`", "--tools": "`tools`"}
"""Options of which the agents' file has a field."""


def serve_settings() -> str:
    """What `tollhouse serve` can be told, and where."""
    shown = next(shown for shown in cli_reference.commands() if shown.line == "tollhouse serve")
    rows = [
        [
            code(cli_reference.takes(option)),
            code(option.envvar) if option.envvar else "",
            _IN_FILE.get(option.opts[0], ""),
            code(str(option.default)) if option.default is not None and not option.is_flag else "",
            inline(option.help or ""),
        ]
        for option in cli_reference.options(shown.command)
    ]
    return table(["Flag", "Environment", "`tollhouse.yaml`", "Default", "What it does"], rows)


# -- the HTTP API --------------------------------------------------------------------------------------------


_ANYWHERE = {"401", "408", "413", "415", "421"}
"""Statuses that the page tells of once, for all paths."""


def http_index() -> str:
    """One line for each path."""
    found = http_reference.document()
    rows = [
        [f"[`{one.method} {one.path}`](#{one.says['operationId']})", one.says["summary"], _scope(one.says)]
        for one in http_reference.paths(found)
    ]
    return table(["Path", "What it does", "Scope"], rows)


def _scope(says: dict[str, Any]) -> str:
    return code(says["x-scope"]) if "x-scope" in says else "none"


def http_entries() -> str:
    """Parameters, body and answers of each path, by its group."""
    found = http_reference.document()
    told = []
    for tag in found["tags"]:
        own = [one for one in http_reference.paths(found) if one.says["tags"][0] == tag["name"]]
        told += [f"## {sentence(tag['name'])[:-1]}", sentence(tag["description"]), *(_path(one, found) for one in own)]
    return "\n\n".join(told)


def _path(one: http_reference.Path, found: dict[str, Any]) -> str:
    says = one.says
    parts = [f"### {says['operationId']}", f"```text\n{one.method} {one.path}\n```", says.get("description", "")]
    if parameters := says.get("parameters"):
        parts.append(table(["Parameter", "In", "Type", "Meaning"], [_http_parameter(each) for each in parameters]))
    if body := says.get("requestBody"):
        parts.append(_http_body(body["content"]["application/json"]["schema"], found))
    told = {status: each for status, each in sorted(says["responses"].items()) if status not in _ANYWHERE}
    answers = [_http_answer(status, each) for status, each in told.items()]
    parts.append(table(["Status", "Body", "Meaning"], answers))
    return "\n\n".join(part for part in parts if part)


def _http_parameter(each: dict[str, Any]) -> list[str]:
    name = code(each["name"]) + ("" if each.get("required") else " (optional)")
    return [name, each["in"], http_reference.kind(each["schema"]), each.get("description", "")]


def _http_body(schema: dict[str, Any], found: dict[str, Any]) -> str:
    names = [http_reference.kind(schema)] if "$ref" in schema else http_reference.kind(schema).split(" or ")
    linked = " or ".join(f"[`{name}`](#{name.lower()})" for name in names if name != "null")
    shown = http_reference.example(schema, found)
    return f"Body: {linked}." + (f"\n\n```json\n{shown}\n```" if shown else "")


def _http_answer(status: str, each: dict[str, Any]) -> list[str]:
    content = each.get("content", {})
    kinds = [_http_kind(media, says) for media, says in content.items()]
    return [status, ", ".join(kinds), each["description"]]


def _http_kind(media: str, says: dict[str, Any]) -> str:
    name = http_reference.kind(says.get("schema", {}))
    if media == "application/json" and "$ref" in says.get("schema", {}):
        return f"[`{name}`](#{name.lower()})"
    return code(media.partition(";")[0])


def http_documents() -> str:
    """The members of each document."""
    found = http_reference.document()
    return "\n\n".join(_http_document(name, schema) for name, schema in sorted(found["components"]["schemas"].items()))


def _http_document(name: str, schema: dict[str, Any]) -> str:
    required = set(schema.get("required", ()))
    rows = [
        [
            code(member) + ("" if member in required else " (optional)"),
            http_reference.kind(of),
            of.get("description", ""),
        ]
        for member, of in schema.get("properties", {}).items()
    ]
    told = table(["Member", "Type", "Meaning"], rows) if rows else ""
    return "\n\n".join(part for part in (f"### {name}", schema.get("description", ""), told) if part)


def http_statuses() -> str:
    """The status of each code."""
    rows = [[f"[`{error.code}`](errors.md#{error.code})", str(STATUS[error.code])] for error in error_classes()]
    return table(["Code", "Status"], rows)


SECTIONS: dict[str, Callable[[], str]] = {
    "command-index": command_index,
    "commands": command_entries,
    "serve-settings": serve_settings,
    "http-index": http_index,
    "http-entries": http_entries,
    "http-documents": http_documents,
    "http-statuses": http_statuses,
}
