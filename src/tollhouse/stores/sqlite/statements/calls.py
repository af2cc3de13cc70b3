"""Statements on ``calls``. Conditions repeat those of the partial indexes word for word: the planner compares text."""

from __future__ import annotations

from tollhouse.ledger.record import SETTLED, State
from tollhouse.ledger.rows import COLUMNS, EDITABLE, IMMUTABLE, MUTABLE

_NAMES = ", ".join(COLUMNS)
_MARKS = ", ".join("?" * len(COLUMNS))
_SETTLED = ", ".join(f"'{state}'" for state in sorted(SETTLED))
_SELECT = f"SELECT {_NAMES} FROM calls"
_RARE = "state NOT IN ('departed', 'succeeded')"
_SHARED = "open_owners IS NOT NULL AND instr(open_owners, ' ') > 0"

# Parameters: tenant, scope, tool, digest, group, group, earliest settlement that still counts (None: none does).
_TWIN = (
    "tenant = ? AND scope = ? AND tool = ? AND digest = ?"
    " AND (? IS NULL OR call_group IS NULL OR call_group <> ?)"
    f" AND (state NOT IN ({_SETTLED}) OR (state <> 'refused' AND updated_at_us >= ?))"
)


def _update(columns: tuple[str, ...]) -> str:
    assignments = ", ".join(f"{column} = ?" for column in columns)
    return f"UPDATE calls SET {assignments} WHERE tenant = ? AND key = ? AND version = ?"


# The total comes from an index that covers it, what is rare from its own: no row is read but the departed ones.
COUNT_ALL = "SELECT count(*) FROM calls WHERE tenant = ?"
COUNT_DEPARTED = (
    "SELECT count(*) FROM calls INDEXED BY calls_open_owners"
    " WHERE tenant = ? AND open_owners IS NOT NULL AND state = 'departed'"
)
COUNT_RARE = f"SELECT state, count(*) FROM calls WHERE tenant = ? AND {_RARE} GROUP BY state"

FENCE = "SELECT fence, cancel_asked FROM calls WHERE tenant = ? AND key = ?"

GET = f"{_SELECT} WHERE tenant = ? AND key = ?"

# A key or a repeat slot that is taken changes no row, and is told apart afterwards.
INSERT = f"INSERT INTO calls ({_NAMES}) VALUES ({_MARKS}) ON CONFLICT DO NOTHING"

INSERT_UNLESS_TWIN = (
    f"INSERT INTO calls ({_NAMES}) SELECT {_MARKS} WHERE NOT EXISTS (SELECT 1 FROM calls WHERE {_TWIN})"
    " ON CONFLICT DO NOTHING"
)

OPEN_OWNERS = "SELECT DISTINCT open_owners FROM calls WHERE tenant = ? AND open_owners IS NOT NULL"

# Rows with several owners are few; they are looked through.
ORPHANS = (
    f"{_SELECT} WHERE tenant = ? AND open_owners = ?"
    f" UNION ALL {_SELECT} WHERE tenant = ? AND {_SHARED} AND instr(' ' || open_owners || ' ', ' ' || ? || ' ') > 0"
    " LIMIT ?"
)

SLOT = f"{_SELECT} WHERE tenant = ? AND repeat_slot = ?"

TWIN = f"{_SELECT} WHERE {_TWIN} ORDER BY created_at_us DESC, key DESC LIMIT 1"

UPDATE = _update(MUTABLE)

UPDATE_WITH_ARGUMENTS = _update(EDITABLE + MUTABLE)


def due(tools: int | None, states: int | None) -> str:
    """Most overdue first: of this many tools and states, or of any (None)."""
    terms = ["tenant = ?", "due_at_us <= ?"]
    for column, number in (("tool", tools), ("state", states)):
        if number is not None:
            terms.append(f"{column} IN ({', '.join('?' * number)})")
    return f"{_SELECT} WHERE {' AND '.join(terms)} ORDER BY due_at_us, key LIMIT ?"


def find(filters: dict[str, object], *, after: bool) -> str:
    """Newest first: these columns equal to parameters, ``after`` a (``created_at_us``, key) of the page before.

    Each rare condition walks its own small index, however many calls there are.
    """
    source, terms = "calls", ["tenant = ?", *(f"{column} = ?" for column in filters)]
    if filters.get("contradicted"):
        terms.append("contradicted = 1")
    elif (state := filters.get("state")) == State.DEPARTED:
        source, terms = "calls INDEXED BY calls_open_owners", [*terms, "open_owners IS NOT NULL"]
    elif state is not None and state != State.SUCCEEDED:
        terms.append(_RARE)
    if after:
        terms.append("(created_at_us, key) < (?, ?)")
    return f"SELECT {_NAMES} FROM {source} WHERE {' AND '.join(terms)} ORDER BY created_at_us DESC, key DESC LIMIT ?"


assert COLUMNS == IMMUTABLE + EDITABLE + MUTABLE, "inserts bind the columns in this order"
