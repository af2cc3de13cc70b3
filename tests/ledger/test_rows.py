"""Rows: a record survives its columns and its body, whatever it holds."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tollhouse.ledger import rows
from tollhouse.ledger.record import (
    Approval,
    Attempt,
    AttemptOutcome,
    CallRecord,
    Limits,
    Lost,
    Settlement,
    State,
    Stored,
    Vote,
)
from tollhouse.testing.conformance.scenes import CONTRADICTED, HAUNTED, PLAIN
from tollhouse.testing.conformance.story import Story


def made(kind: type[Any], /, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Records of that kind with every field tried: one that joins later must be given here."""
    assert set(fields) == {field.name for field in dataclasses.fields(kind)}
    return st.builds(kind, **fields)


TEXT = st.text(max_size=12)
NAME = st.text(min_size=1, max_size=12)
BIG = st.integers(-(2**63), 2**63 - 1)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | FINITE | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
ERROR = st.none() | st.dictionaries(TEXT, JSON, max_size=3)
STORED = made(
    Stored,
    text=st.none() | TEXT,
    blob=st.none() | NAME,
    size=st.integers(0, 2**40),
    problem=st.none() | NAME,
    detail=st.none() | NAME,
)
ATTEMPT = made(
    Attempt,
    id=NAME,
    round=st.integers(1, 9),
    number=st.integers(1, 9),
    owner=NAME,
    fence=BIG,
    started_at_us=BIG,
    send_by_us=BIG,
    outcome=st.none() | st.sampled_from(AttemptOutcome),
    ended_at_us=st.none() | BIG,
    lost=st.none() | st.sampled_from(Lost),
    judged=st.none() | st.sampled_from(AttemptOutcome),
    reference=st.none() | NAME,
    error=ERROR,
    late=st.booleans(),
    late_result=st.none() | STORED,
    cost=st.none() | NAME,
)
SETTLEMENT = made(
    Settlement,
    id=NAME,
    kind=st.sampled_from(["evidence", "finding", "overturn", "uphold"]),
    via=st.sampled_from(["hook", "person", "callback"]),
    finding=st.none() | st.sampled_from(["happened", "did_not_happen"]),
    by=st.none() | TEXT,
    reason=st.none() | TEXT,
    round=st.integers(1, 9),
    at_us=BIG,
    covers=st.dictionaries(
        NAME, st.none() | st.sampled_from([outcome.value for outcome in AttemptOutcome]), max_size=3
    ),
    evidence=JSON,
    reference=st.none() | NAME,
    result=st.none() | STORED,
)
APPROVAL = made(
    Approval,
    reason=TEXT,
    quorum=st.integers(1, 9),
    expires_at_us=BIG,
    digest=NAME,
    contract_version=NAME,
    approvers=st.none() | st.lists(NAME, max_size=3).map(tuple),
    votes=st.lists(st.builds(Vote, by=NAME, at_us=BIG, digest=NAME), max_size=3).map(tuple),
    granted_at_us=st.none() | BIG,
    consumed_round=st.none() | st.integers(1, 9),
    covers_repeat=st.booleans(),
)
RECORD = made(
    CallRecord,
    tenant=NAME,
    key=NAME,
    wire_key=NAME,
    tool=NAME,
    effect=st.sampled_from(["read", "write", "external", "destructive"]),
    request_digest=NAME,
    requested_by=TEXT,
    contract=TEXT,
    limits=st.builds(
        Limits, max_attempts=st.integers(1, 100), attempt_timeout_s=FINITE, deadline_s=FINITE | st.integers(1, 99)
    ),
    digest=NAME,
    arguments=TEXT,
    state=st.sampled_from(State),
    created_at_us=BIG,
    updated_at_us=BIG,
    version=BIG,
    fence=BIG,
    round=st.integers(1, 9),
    attempts=st.lists(ATTEMPT, max_size=3).map(tuple),
    settlements=st.lists(SETTLEMENT, max_size=3).map(tuple),
    approval=st.none() | APPROVAL,
    contradicted=st.booleans(),
    cancel_asked=st.booleans(),
    departed_at_us=st.none() | BIG,
    deadline_at_us=st.none() | BIG,
    due_at_us=st.none() | BIG,
    looks=st.integers(0, 99),
    scope=st.none() | TEXT,
    group=st.none() | TEXT,
    repeat_of=st.none() | TEXT,
    repeat_slot=st.none() | TEXT,
    compensates=st.none() | TEXT,
    compensated_by=st.none() | TEXT,
    run_when_approved=st.booleans(),
    result=st.none() | STORED,
    error=ERROR,
    head_seq=BIG,
    head_hash=TEXT,
    extra=st.dictionaries(TEXT, JSON, max_size=3),
)


def row_of(record: CallRecord) -> dict[str, Any]:
    """The columns as a store keeps them."""
    values = (*rows.immutable_values(record), record.digest, record.arguments, *rows.mutable_values(record))
    return dict(zip(rows.COLUMNS, values, strict=True))


@given(RECORD)
def test_any_record_survives(record: CallRecord) -> None:
    """Every field, set or not, in whatever combination."""
    assert rows.record_of(row_of(record)) == record


def test_every_life_survives_at_every_step() -> None:
    """Records that real steps made, with the types that they had."""
    for scenes in (PLAIN, HAUNTED, CONTRADICTED):
        for scene in scenes.values():
            for change in scene(Story()).changes:
                read = rows.record_of(row_of(change.record))
                assert read == change.record
                assert type(read.state) is State
                assert all(type(a.outcome) in (AttemptOutcome, type(None)) for a in read.attempts)


def test_a_store_that_keeps_booleans_as_numbers_reads_the_same() -> None:
    """SQLite has no other."""
    row = row_of(Story().depart().cancel().record)
    assert rows.record_of(row | {"contradicted": 0, "cancel_asked": 1}) == rows.record_of(row)


def test_columns_are_what_statements_look_at() -> None:
    """No column twice, none without a value, and what guards read is a column."""
    assert len(set(rows.COLUMNS)) == len(rows.COLUMNS)
    assert set(rows.IMMUTABLE).isdisjoint(rows.MUTABLE)
    assert {"state", "version", "fence", "open_owners", "due_at_us", "repeat_slot"} <= set(rows.MUTABLE)
    row = row_of(Story().depart("own_a").end_wait().resend("own_b").record)
    assert row["open_owners"] == "own_a own_b"


def test_the_body_is_plain_ascii() -> None:
    """Any text column holds it: no NUL, no lone surrogate, no letter that a database must know."""
    story = Story().depart().end(AttemptOutcome.UNKNOWN, error={"message": "\x00\ud800 \U0001f9fe"})
    assert rows.dump_body(story.record).isascii()
