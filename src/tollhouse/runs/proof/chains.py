"""Whether the chains of a bundle are whole, end where their heads say, and hold the bodies that they name."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Any

from tollhouse.ledger.events import GENESIS, Event, chain_hash, first_break
from tollhouse.ledger.purging import bodies_of
from tollhouse.ledger.rows import record_of
from tollhouse.runs.proof.envelope import exact_base64
from tollhouse.runs.proof.records import Contents, event_name
from tollhouse.runs.proof.verdict import Findings

NAMED_BODY = re.compile(r'"\$blob":"([0-9a-f]{64})"')
"""Where a payload of a run names a body that is kept elsewhere."""


def check_chains(contents: Contents, found: Findings) -> None:
    """Every stream, from its first event to its head."""
    for stream in contents["streams"]:
        _check_stream(stream["stream"], stream["head"], [Event(**raw) for raw in stream["events"]], found)


def check_bodies(contents: Contents, found: Findings) -> None:
    """Bodies are what their digests say, and every one that is named is there or was left out on purpose."""
    left_out = contents["about"]["blobs"] == "left out"
    for blob in contents["blobs"]:
        name = f"blob {blob['digest']}"
        if blob["data"] is None:
            if not left_out:
                found.problem(name, "The body is missing.")
            continue
        data = exact_base64(blob["data"])
        if sha256(data).hexdigest() != blob["digest"] or len(data) != blob["size"]:
            found.problem(name, "The body is not what its digest says.")
    if left_out and contents["blobs"]:
        found.note("Bodies were left out of this bundle; only their digests are proven.")
    there = {blob["digest"] for blob in contents["blobs"]}
    for digest, where in named_bodies(contents):
        if digest not in there:
            found.problem(where, f"It names the body {digest}, which is missing.")


def check_definitions(contents: Contents, found: Findings) -> None:
    """What a run ran under is what its digest says, and there."""
    there = {each["digest"] for each in contents["definitions"]}
    for each in contents["definitions"]:
        if sha256(each["body"].encode()).hexdigest() != each["digest"]:
            found.problem(f"definition {each['digest']}", "The definition is not what its digest says.")
    for run in contents["runs"]:
        for digest in needed_definitions(run, _events_of(contents, f"run:{run['id']}")):
            if digest not in there:
                found.problem(f"run {run['id']}", f"It ran under the definition {digest}, which is missing.")


def needed_definitions(run: dict[str, Any], events: list[Event]) -> list[str]:
    """Digests of the agent's version and the catalogue of tools that a run was started with."""
    started = next((e.facts for e in events if e.kind == "run_started"), {})
    named = [run["agent_version"], started.get("catalogue")]
    return [digest for digest in dict.fromkeys(named) if digest]


def named_bodies(contents: Contents) -> list[tuple[str, str]]:
    """Every body that events and rows name, with the name of the record."""
    named = []
    for stream in contents["streams"]:
        for event in stream["events"] if stream["stream"].startswith("run:") else ():
            record = event_name(stream["stream"], event["seq"])
            named += [(digest, record) for digest in NAMED_BODY.findall(event["data"])]
    for row in contents["calls"]:
        named += [(digest, f"call {row['key']}") for digest in bodies_of(record_of(row))]
    return named


def _events_of(contents: Contents, stream: str) -> list[Event]:
    return [Event(**raw) for each in contents["streams"] if each["stream"] == stream for raw in each["events"]]


def _check_stream(stream: str, head: dict[str, Any], events: list[Event], found: Findings) -> None:
    for event in events:
        if event.data == "":
            found.was_erased(event_name(stream, event.seq))
    broken = first_break(events)
    foreign = next((e for e in events if e.stream != stream), None)
    if head["stream"] != stream:
        found.problem(f"head {stream}", "Its head is that of another chain.", stream)
    elif foreign is not None:
        found.problem(event_name(stream, foreign.seq), "It belongs to another stream.", stream, foreign.seq)
    elif broken is not None:
        _tell_break(stream, broken, events, found)
    elif (len(events), events[-1].hash if events else GENESIS) != (head["seq"], head["hash"]):
        _tell_end(stream, head, events, found)


def _tell_break(stream: str, seq: int, events: list[Event], found: Findings) -> None:
    event = events[seq - 1]
    if event.seq != seq:
        missing = "missing" if event.seq > seq else "out of place"
        found.problem(event_name(stream, seq), f"Event {seq} is {missing}: {event.seq} stands there.", stream, seq)
        return
    payload = not event.data or sha256((event.salt + event.data).encode()).hexdigest() == event.payload_digest
    previous = events[seq - 2].hash if seq > 1 else GENESIS
    linked = event.hash == chain_hash(previous, stream, seq, event.at_us, event.kind, event.payload_digest)
    what = "Its payload was altered." if linked and not payload else "It does not follow from the event before it."
    found.problem(event_name(stream, seq), what, stream, seq)


def _tell_end(stream: str, head: dict[str, Any], events: list[Event], found: Findings) -> None:
    if len(events) < head["seq"]:
        seq = len(events) + 1
        found.problem(event_name(stream, seq), f"Missing: the chain ends at {head['seq']}.", stream, seq)
    else:
        found.problem(f"head {stream}", "The chain does not end at its head.", stream, len(events))
