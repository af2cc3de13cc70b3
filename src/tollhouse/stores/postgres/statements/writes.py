"""The guarded writes: one statement, one round trip and one commit each, alone or for many callers at once.

Every statement inserts or updates calls, appends the events of those it changed, and returns which they were. What it
did not change was refused, and is told apart by a later statement (``calls.STANDING``), whose snapshot is younger.

The forms for many bind one array for each column and pick from them by position: as tables they would cost more than
the rows. Every update looks its rows up by their keys and changes them where they lie. Joined to the keys, or asked for
``= ANY`` of them, a plan made for the empty table walks all calls, on one version of the server or another. A row that
moves meanwhile has another version, which the update sees when it has waited for it. Whoever binds the forms for many
sorts the items alike, so that two batches never wait for each other in a circle.

``plain``: each write has one event, of its call's own stream, and what the call says of its head is not bound again.
"""

from __future__ import annotations

from functools import cache

from tollhouse.ledger.rows import COLUMNS, EDITABLE, MUTABLE
from tollhouse.stores.postgres.statements import blobs, calls, events, owners
from tollhouse.stores.postgres.statements.numbered import Numbered

_NAMES = ", ".join(COLUMNS)
_ARRAYS = calls.KINDS | {"state": "text"}
_CAST = {"state": "::@call_state"}
_GUARD_KINDS = {"tenant": "text", "key": "text", "expected": "bigint"}
_HEAD = "tenant, key, head_seq, updated_at_us, head_hash"
_PLAIN = (
    f"{events.INTO} SELECT p.tenant, 'call:' || p.key, p.head_seq, p.updated_at_us, {{facts}}, p.head_hash,"
    " {write_id} FROM put p"
)

# -- one call --------------------------------------------------------------------------------------------------------


@cache
def insert_one(*, lines: int, plain: bool, owner: bool, repeat: bool, bodies: bool) -> str:
    """Insert a call with ``lines`` events. Binds: the call, each event, owner, repeat check, arrays of blobs."""
    number = Numbered()
    call = number.many(calls.KINDS)
    told = _told_one(number, lines, plain)
    live = _live_one(number, owner)
    source = " FROM live" if owner else ""
    if repeat:
        values = {name: number.one(kind) for name, kind in calls.REPEAT_KINDS.items()}
        source += f" WHERE NOT EXISTS (SELECT FROM @calls c WHERE {calls.twin('$1', values)})"
    put = f"put AS (INSERT INTO @calls ({_NAMES}) SELECT {call}{source} ON CONFLICT DO NOTHING RETURNING {_HEAD})"
    return _whole(live, put, told, _kept_one(number, bodies), "SELECT 1 FROM put")


@cache
def update_one(*, lines: int, plain: bool, owner: bool, arguments: bool, bodies: bool) -> str:
    """Replace a version. Binds: tenant, key and version, the columns, each event, owner, arrays of blobs."""
    number = Numbered()
    tenant, key, version = (number.one(kind) for kind in _GUARD_KINDS.values())
    columns = EDITABLE + MUTABLE if arguments else MUTABLE
    changes = ", ".join(f"{name} = {number.one(calls.KINDS[name])}" for name in columns)
    told = _told_one(number, lines, plain)
    live = _live_one(number, owner)
    source = " FROM live" if owner else ""
    put = (
        f"put AS (UPDATE @calls c SET {changes}{source}"
        f" WHERE c.ctid = (SELECT c.ctid {calls.by_key(tenant, key)}) AND c.version = {version} RETURNING {_of('c')})"
    )
    return _whole(live, put, told, _kept_one(number, bodies), "SELECT 1 FROM put")


def _live_one(number: Numbered, owner: bool) -> str:
    return f"live AS ({owners.LIVE.format(tenant='= $1', owner='= ' + number.one('text'))})" if owner else ""


def _told_one(number: Numbered, lines: int, plain: bool) -> str:
    if not lines:
        return ""
    if plain:
        *facts, write_id = (number.one(kind) for kind in events.PLAIN_KINDS.values())
        return f"told AS ({_PLAIN.format(facts=', '.join(facts), write_id=write_id)})"
    selects = " UNION ALL ".join(f"SELECT $1, {number.many(events.KINDS)} FROM put" for _ in range(lines))
    return f"told AS ({events.INTO} {selects})"


def _kept_one(number: Numbered, bodies: bool) -> str:
    if not bodies:
        return ""
    source = number.table("b", blobs.KINDS)
    return f"kept AS ({blobs.INTO} SELECT $1, b.digest, b.data FROM put, {source} {blobs.IF_NEW})"


# -- many calls ------------------------------------------------------------------------------------------------------


@cache
def insert_many(*, plain: bool, owner: bool, repeat: bool, bodies: bool) -> str:
    """Insert calls, no two of one key. Binds arrays: calls, owners, repeat checks, then events and blobs."""
    number = Numbered()
    columns = _picked(number, _ARRAYS)
    terms = ["true"]
    live = ""
    if owner:
        array = number.one("text[]")
        live = _live_many(array)
        terms.append(_OWNER_LIVES.format(tenant=columns["tenant"], owner=_at(array, "i.at")))
    if repeat:
        check = _picked(number, calls.REPEAT_KINDS)
        twin = calls.twin(columns["tenant"], check)
        terms.append(f"({check['tool']} IS NULL OR NOT EXISTS (SELECT FROM @calls c WHERE {twin}))")
    put = (
        f"put AS (INSERT INTO @calls ({_NAMES}) SELECT {', '.join(columns.values())} FROM {_POSITIONS}"
        f" WHERE {' AND '.join(terms)} ON CONFLICT DO NOTHING"
        f" RETURNING {_HEAD}, array_position($2::text[], key) AS at)"
    )
    return _whole(live, put, _told_many(number, plain), _kept_many(number, bodies), "SELECT tenant, key FROM put")


@cache
def update_many(*, plain: bool, owner: bool, bodies: bool) -> str:
    """Replace versions, no two of one key. Binds arrays: tenant, key, version, columns, owners, events, blobs."""
    number = Numbered()
    guard = _picked(number, _GUARD_KINDS)
    columns = _picked(number, {name: _ARRAYS[name] for name in MUTABLE}, "f.at")
    changes = ", ".join(f"{name} = {value}" for name, value in columns.items())
    row = f"SELECT c.ctid {calls.by_key(guard['tenant'], guard['key'])}"
    found = f"found AS MATERIALIZED (SELECT i.at, {guard['expected']} AS expected, ({row}) AS row FROM {_POSITIONS})"
    terms = ["c.ctid = f.row", "c.version = f.expected"]
    live = ""
    if owner:
        array = number.one("text[]")
        live = _live_many(array)
        terms.append(_OWNER_LIVES.format(tenant="c.tenant", owner=_at(array, "f.at")))
    put = f"put AS (UPDATE @calls c SET {changes} FROM found f WHERE {' AND '.join(terms)} RETURNING {_of('c')}, f.at)"
    return _whole(
        live, found, put, _told_many(number, plain), _kept_many(number, bodies), "SELECT tenant, key FROM put"
    )


_POSITIONS = "generate_subscripts($2::text[], 1) i(at)"
_OWNER_LIVES = "({owner} IS NULL OR EXISTS (SELECT FROM live l WHERE l.tenant = {tenant} AND l.id = {owner}))"


def _picked(number: Numbered, kinds: dict[str, str], at: str = "i.at") -> dict[str, str]:
    """For each column the value at that position of its array."""
    return {name: _at(number.one(f"{kind}[]"), at) + _CAST.get(name, "") for name, kind in kinds.items()}


def _at(array: str, at: str) -> str:
    """The value at a position, or the only one there is: a column whose values are all the same is bound as one."""
    return f"({array})[least({at}, cardinality({array}))]"


def _live_many(owner_array: str) -> str:
    found = owners.LIVE.format(tenant="= ANY ($1::text[])", owner=f"= ANY ({owner_array})")
    return f"live AS MATERIALIZED ({found})"


def _told_many(number: Numbered, plain: bool) -> str:
    if plain:
        *facts, write_id = _picked(number, events.PLAIN_KINDS, "p.at").values()
        return f"told AS ({_PLAIN.format(facts=', '.join(facts), write_id=write_id)})"
    names = ", ".join(f"e.{name}" for name in events.KINDS)
    source = number.table("e", {"at": "integer"} | events.KINDS)
    return f"told AS ({events.INTO} SELECT p.tenant, {names} FROM {source} JOIN put p ON p.at = e.at)"


def _kept_many(number: Numbered, bodies: bool) -> str:
    if not bodies:
        return ""
    source = number.table("b", {"at": "integer"} | blobs.KINDS)
    joined = f"{source} JOIN put p ON p.at = b.at"
    return f"kept AS ({blobs.INTO} SELECT p.tenant, b.digest, b.data FROM {joined} ORDER BY 1, 2 {blobs.IF_NEW})"


def _of(table: str) -> str:
    return ", ".join(f"{table}.{name}" for name in _HEAD.split(", "))


def _whole(*parts: str) -> str:
    *steps, answer = parts
    return f"WITH {', '.join(step for step in steps if step)} {answer}"
