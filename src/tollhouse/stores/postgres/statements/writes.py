"""The guarded writes: one statement, one round trip and one commit each, alone or for many callers at once.

Every statement inserts or updates calls, appends the events of those it changed, and returns which they were. What it
did not change was refused, and is told apart by a later statement (``calls.STANDING``), whose snapshot is younger.

An update of many finds its rows by ``= ANY`` and its values by ``array_position``: joined to the arrays instead, a plan
made for the empty table walks all calls, or compares every row with every item. Whoever binds the forms for many sorts
the rows alike, so that two batches never wait for each other in a circle.
"""

from __future__ import annotations

from functools import cache

from tollhouse.ledger.rows import COLUMNS, EDITABLE, MUTABLE
from tollhouse.stores.postgres.statements import blobs, calls, events, owners
from tollhouse.stores.postgres.statements.numbered import Numbered

_NAMES = ", ".join(COLUMNS)
_ARRAYS = calls.KINDS | {"state": "text"}
_GUARD_KINDS = {"tenant": "text", "key": "text", "expected": "bigint"}
_CAST = {"state": "::@call_state"}
_OWNER = {"owner": "text"}
_REPEAT = {f"r_{name}": kind for name, kind in calls.REPEAT_KINDS.items()}
_OF_CALL = {"tenant": "text", "call": "text"}

# -- one call --------------------------------------------------------------------------------------------------------


@cache
def insert_one(*, lines: int, owner: bool, repeat: bool, bodies: bool) -> str:
    """Insert a call with ``lines`` events. Binds: the call, each event, owner, repeat check, arrays of blobs."""
    number = Numbered()
    call = number.many(calls.KINDS)
    told = _told_one(number, lines)
    live = _live_one(number, owner)
    source = " FROM live" if owner else ""
    if repeat:
        values = {name: number.one(kind) for name, kind in calls.REPEAT_KINDS.items()}
        source += f" WHERE NOT EXISTS (SELECT FROM @calls c WHERE {calls.twin('$1', values)})"
    put = f"put AS (INSERT INTO @calls ({_NAMES}) SELECT {call}{source} ON CONFLICT DO NOTHING RETURNING 1)"
    return _whole(live, put, told, _kept_one(number, bodies), "SELECT 1 FROM put")


@cache
def update_one(*, lines: int, owner: bool, arguments: bool, bodies: bool) -> str:
    """Replace a version. Binds: tenant, key and version, the columns, each event, owner, arrays of blobs."""
    number = Numbered()
    tenant, key, version = (number.one(kind) for kind in _GUARD_KINDS.values())
    columns = EDITABLE + MUTABLE if arguments else MUTABLE
    changes = ", ".join(f"{name} = {number.one(calls.KINDS[name])}" for name in columns)
    told = _told_one(number, lines)
    live = _live_one(number, owner)
    source = " FROM live" if owner else ""
    put = (
        f"put AS (UPDATE @calls c SET {changes}{source}"
        f" WHERE c.tenant = {tenant} AND c.key = {key} AND c.version = {version} RETURNING 1)"
    )
    return _whole(live, put, told, _kept_one(number, bodies), "SELECT 1 FROM put")


def _live_one(number: Numbered, owner: bool) -> str:
    return f"live AS ({owners.LIVE.format(tenant='= $1', owner='= ' + number.one('text'))})" if owner else ""


def _told_one(number: Numbered, lines: int) -> str:
    if not lines:
        return ""
    selects = " UNION ALL ".join(f"SELECT $1, {number.many(events.KINDS)} FROM put" for _ in range(lines))
    return f"told AS ({events.INTO} {selects})"


def _kept_one(number: Numbered, bodies: bool) -> str:
    if not bodies:
        return ""
    source = number.table("b", blobs.KINDS)
    return f"kept AS ({blobs.INTO} SELECT $1, b.digest, b.data FROM put, {source} {blobs.IF_NEW})"


# -- many calls ------------------------------------------------------------------------------------------------------


@cache
def insert_many(*, owner: bool, repeat: bool, bodies: bool) -> str:
    """Insert calls. Binds arrays: the calls, owners, repeat checks, then events and blobs with their call."""
    number = Numbered()
    kinds = _ARRAYS | (_OWNER if owner else {}) | (_REPEAT if repeat else {})
    source = number.table("i", kinds)
    values = ", ".join(f"i.{name}{_CAST.get(name, '')}" for name in COLUMNS)
    terms = ["true"]
    if owner:
        terms.append(_OWNER_LIVES.format(tenant="i.tenant", owner="i.owner"))
    if repeat:
        columns = {name: f"i.r_{name}" for name in calls.REPEAT_KINDS}
        twin = calls.twin("i.tenant", columns)
        terms.append(f"(i.r_tool IS NULL OR NOT EXISTS (SELECT FROM @calls c WHERE {twin}))")
    put = (
        f"put AS (INSERT INTO @calls ({_NAMES}) SELECT {values} FROM {source} WHERE {' AND '.join(terms)}"
        " ON CONFLICT DO NOTHING RETURNING tenant, key)"
    )
    live = _live_many(f"${len(COLUMNS) + 1}::text[]") if owner else ""
    return _whole(live, put, _told_many(number), _kept_many(number, bodies), "SELECT tenant, key FROM put")


@cache
def update_many(*, owner: bool, bodies: bool) -> str:
    """Replace versions, no two of one key. Binds arrays: tenant, key, version and columns, owners, events, blobs."""
    number = Numbered()
    tenants, keys, versions = (number.one(f"{kind}[]") for kind in _GUARD_KINDS.values())
    at = f"[array_position({keys}, c.key)]"
    changes = ", ".join(f"{name} = ({number.one(f'{_ARRAYS[name]}[]')}){at}{_CAST.get(name, '')}" for name in MUTABLE)
    terms = [f"c.tenant = ANY ({tenants})", f"c.key = ANY ({keys})"]
    terms += [f"c.tenant = ({tenants}){at}", f"c.version = ({versions}){at}"]
    live = ""
    if owner:
        array = number.one("text[]")
        live = _live_many(array)
        terms.append(_OWNER_LIVES.format(tenant="c.tenant", owner=f"({array}){at}"))
    put = f"put AS (UPDATE @calls c SET {changes} WHERE {' AND '.join(terms)} RETURNING c.tenant, c.key)"
    return _whole(live, put, _told_many(number), _kept_many(number, bodies), "SELECT tenant, key FROM put")


_OWNER_LIVES = "({owner} IS NULL OR EXISTS (SELECT FROM live l WHERE l.tenant = {tenant} AND l.id = {owner}))"


def _live_many(owner_array: str) -> str:
    found = owners.LIVE.format(tenant="= ANY ($1::text[])", owner=f"= ANY ({owner_array})")
    return f"live AS MATERIALIZED ({found})"


def _told_many(number: Numbered) -> str:
    names = ", ".join(f"e.{name}" for name in events.KINDS)
    source = number.table("e", _OF_CALL | events.KINDS)
    return f"told AS ({events.INTO} SELECT e.tenant, {names} FROM {source} JOIN put p ON {_JOIN.format('e')})"


def _kept_many(number: Numbered, bodies: bool) -> str:
    if not bodies:
        return ""
    source = number.table("b", _OF_CALL | blobs.KINDS)
    joined = f"{source} JOIN put p ON {_JOIN.format('b')}"
    return f"kept AS ({blobs.INTO} SELECT b.tenant, b.digest, b.data FROM {joined} ORDER BY 1, 2 {blobs.IF_NEW})"


_JOIN = "p.tenant = {0}.tenant AND p.key = {0}.call"


def _whole(*parts: str) -> str:
    *steps, answer = parts
    return f"WITH {', '.join(step for step in steps if step)} {answer}"
