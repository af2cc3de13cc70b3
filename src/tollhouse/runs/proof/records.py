"""What a bundle holds, record by record: each has a name and a digest, and the signed statement lists them in order.

So a verifier can say which record is missing, added, altered or out of place before it reads any of them. Shared by
whoever makes a bundle and whoever verifies one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

FORMAT = "tollhouse-proof/1"
MEMBERS = ("about", "streams", "runs", "calls", "children", "definitions", "blobs")
"""The members of a bundle's contents, in order."""

Contents = dict[str, Any]


def records_of(contents: Contents) -> Iterator[tuple[str, Any]]:
    """Every record with its name, in order. A record that does not say its name is named ``None``.

    Raises AttributeError, KeyError or TypeError for contents of another shape.
    """
    yield "about", contents["about"]
    for stream in contents["streams"]:
        name, events = _said(stream, "stream"), _said(stream, "events")
        chain = isinstance(stream, dict)
        yield f"head {name}", {each: stream[each] for each in stream if each != "events"} if chain else stream
        for event in events if isinstance(events, list) else ():
            yield event_name(name, _said(event, "seq")), event
    for kind, field in (("runs", "id"), ("calls", "key"), ("children", "id"), ("definitions", "digest")):
        for row in contents[kind]:
            yield f"{_SINGULAR[kind]} {_said(row, field)}", row
    for blob in contents["blobs"]:
        yield f"blob {_said(blob, 'digest')}", blob


def _said(record: Any, member: str) -> Any:
    return record.get(member) if isinstance(record, dict) else None


_SINGULAR = {"runs": "run", "calls": "call", "children": "child", "definitions": "definition"}


def event_name(stream: object, seq: object) -> str:
    """What names an event."""
    return f"event {stream} {seq}"


def digest_of(record: Any) -> str:
    """SHA-256 of a record's JSON: sorted names, no blanks, ASCII."""
    text = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return sha256(text.encode()).hexdigest()


def listed(contents: Contents) -> list[list[str]]:
    """Name and digest of every record: what the statement's predicate says."""
    return [[name, digest_of(record)] for name, record in records_of(contents)]


def subjects_of(contents: Contents) -> list[tuple[str, str]]:
    """What the statement is about: the heads of all chains, rows, definitions and bodies, by SHA-256."""
    heads = [(s["stream"], s["head"]["hash"]) for s in contents["streams"] if s["head"]["hash"]]
    rows = [(f"run {row['id']}", digest_of(row)) for row in contents["runs"]]
    rows += [(f"call {row['key']}", digest_of(row)) for row in contents["calls"]]
    definitions = [(f"definition {each['digest']}", each["digest"]) for each in contents["definitions"]]
    return heads + rows + definitions + [(f"blob {blob['digest']}", blob["digest"]) for blob in contents["blobs"]]
