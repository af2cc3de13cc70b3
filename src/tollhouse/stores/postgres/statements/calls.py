"""Readings of ``calls``. Conditions repeat those of the partial indexes word for word, or the planner ignores them."""

from __future__ import annotations

from functools import cache

from tollhouse.ledger.record import SETTLED
from tollhouse.ledger.rows import COLUMNS
from tollhouse.stores.postgres.statements.meta import NOW, SERVER_US

STATE = "text::@call_state"

KINDS = dict.fromkeys(COLUMNS, "text") | {
    "created_at_us": "bigint", "state": STATE, "version": "bigint", "fence": "bigint", "round": "integer",
    "due_at_us": "bigint", "contradicted": "boolean", "cancel_asked": "boolean", "updated_at_us": "bigint",
    "head_seq": "bigint",
}  # fmt: skip
"""Columns and the types they are bound as; a state is text to the driver, which need not learn our type."""

_SELECT = "SELECT " + ", ".join("c.state::text AS state" if name == "state" else f"c.{name}" for name in COLUMNS)
_SETTLED = ", ".join(f"'{state}'" for state in sorted(SETTLED))
_RARE = "c.state NOT IN ('departed', 'succeeded')"
_SHARED = "c.open_owners LIKE '% %'"


def by_key(tenant: str, key: str) -> str:
    """What finds the call ``c`` under a key. The order rules out every index but the primary key's.

    To a plan made for the empty table, the index of ages looks as good as that one, and through it each look-up would
    walk all calls of the tenant. An equation alone leaves nothing to order.
    """
    return f"FROM @calls c WHERE c.tenant = {tenant} AND c.key BETWEEN {key} AND {key} ORDER BY c.key LIMIT 1"


GET = f"{_SELECT} {by_key('$1', '$2')}"

FENCE = f"SELECT c.fence, c.cancel_asked {by_key('$1', '$2')}"

DUE = (
    f"{_SELECT} FROM @calls c WHERE c.tenant = $1 AND c.due_at_us IS NOT NULL AND c.due_at_us <= ({NOW})"
    " AND ($3::text[] IS NULL OR c.tool = ANY ($3::text[]))"
    " AND ($4::text[] IS NULL OR c.state::text = ANY ($4::text[]))"
    " ORDER BY c.due_at_us, c.key LIMIT $2"
)

# Attempts of several owners in one row are few: they are looked through.
ORPHANS = (
    f"({_SELECT} FROM @calls c WHERE c.tenant = $1 AND c.open_owners = $2 LIMIT $3) UNION ALL"
    f" ({_SELECT} FROM @calls c WHERE c.tenant = $1 AND c.open_owners IS NOT NULL AND {_SHARED}"
    " AND $2 = ANY (string_to_array(c.open_owners, ' ')) LIMIT $3) LIMIT $3"
)

# The total comes from an index, and what is rare from its own: the rows of most calls are not looked at.
COUNT = (
    "SELECT 'total' AS state, count(*) AS n FROM @calls WHERE tenant = $1 UNION ALL"
    " SELECT 'departed', count(*) FROM @calls WHERE tenant = $1 AND open_owners IS NOT NULL AND state = 'departed'"
    f" UNION ALL SELECT c.state::text, count(*) FROM @calls c WHERE c.tenant = $1 AND {_RARE} GROUP BY c.state"
)

# Every value that stands in `open_owners`, each found by one step down the index, however many calls have it.
_OPEN = (
    "WITH RECURSIVE open(owners) AS ("
    " (SELECT open_owners FROM @calls WHERE tenant = $1 AND open_owners IS NOT NULL ORDER BY open_owners LIMIT 1)"
    " UNION ALL SELECT (SELECT c.open_owners FROM @calls c WHERE c.tenant = $1 AND c.open_owners IS NOT NULL"
    " AND c.open_owners > open.owners ORDER BY c.open_owners LIMIT 1) FROM open WHERE open.owners IS NOT NULL)"
)
OPEN_OWNERS = f"{_OPEN} SELECT DISTINCT unnest(string_to_array(owners, ' ')) AS id FROM open WHERE owners IS NOT NULL"

BY_SLOT = f"{_SELECT} FROM @calls c WHERE c.tenant = $1 AND c.repeat_slot = $2"

# For writes that were refused: what stands under their keys, and whether an earlier try of the same write put it there.
# One look-up for each: a join, or EXISTS, may be planned as a walk through all calls or all events.
STANDING = (
    f"{_SELECT}, i.at AS item, (SELECT true FROM @events e WHERE e.tenant = i.tenant AND e.stream = i.stream"
    " AND e.write_id = i.write_id LIMIT 1) IS NOT NULL AS applied"
    " FROM unnest($1::integer[], $2::text[], $3::text[], $4::text[], $5::text[]) i(at, tenant, key, stream, write_id)"
    f" LEFT JOIN LATERAL (SELECT c.* {by_key('i.tenant', 'i.key')}) c ON true"
)


def twin(tenant: str, values: dict[str, str]) -> str:
    """The condition that a call ``c`` is a twin. ``values``: scope, tool, digest, call_group and within_us, as SQL."""
    recent = f"c.state <> 'refused' AND c.updated_at_us >= {SERVER_US} - {values['within_us']}"
    # The tenant is compared in a way that rules out every index but that of the twins.
    return (
        f"c.tenant || '' = {tenant} AND c.scope = {values['scope']} AND c.tool = {values['tool']}"
        f" AND c.digest = {values['digest']}"
        f" AND ({values['call_group']} IS NULL OR c.call_group IS NULL OR c.call_group <> {values['call_group']})"
        f" AND (c.state NOT IN ({_SETTLED}) OR ({recent}))"
    )


REPEAT_KINDS = {"scope": "text", "tool": "text", "digest": "text", "call_group": "text", "within_us": "bigint"}
"""What a repeat check is bound as."""

_BOUND = {name: f"${number}::{kind}" for number, (name, kind) in enumerate(REPEAT_KINDS.items(), start=2)}
# The sum keeps the planner from walking all calls by age until it meets a twin.
TWIN = f"{_SELECT} FROM @calls c WHERE {twin('$1', _BOUND)} ORDER BY c.created_at_us + 0 DESC, c.key DESC LIMIT 1"


@cache
def find(columns: tuple[str, ...], *, contradicted: bool, rare: bool, departed: bool, after: bool) -> str:
    """Newest first: ``columns`` equal to parameters from $2 on, then the limit, and the end of the page before.

    ``contradicted``, ``rare`` and ``departed``: conditions with a small index of their own.
    """
    terms = ["c.tenant = $1"]
    for number, column in enumerate(columns, start=2):
        terms.append(f"c.{column} = ${number}::{KINDS[column]}")
    terms += ["c.contradicted"] * contradicted + [_RARE] * rare + ["c.open_owners IS NOT NULL"] * departed
    limit = len(columns) + 2
    if after:
        terms.append(f"(c.created_at_us, c.key) < (${limit + 1}::bigint, ${limit + 2}::text)")
    return (
        f"{_SELECT} FROM @calls c WHERE {' AND '.join(terms)} ORDER BY c.created_at_us DESC, c.key DESC LIMIT ${limit}"
    )
