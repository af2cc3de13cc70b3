"""Statements on ``events``."""

from __future__ import annotations

KINDS = {
    "stream": "text", "seq": "bigint", "at_us": "bigint", "kind": "text", "data": "text", "salt": "text",
    "payload_digest": "text", "hash": "text", "write_id": "text",
}  # fmt: skip
"""Columns and their types, the tenant apart."""

PLAIN_KINDS = {name: KINDS[name] for name in ("kind", "data", "salt", "payload_digest", "write_id")}
"""What an event has of its own when it is the last of its call's own stream: the rest stands in the call."""

_NAMES = ", ".join(KINDS)

INTO = f"INSERT INTO @events (tenant, {_NAMES})"

AFTER = f"SELECT {_NAMES} FROM @events WHERE tenant = $1 AND stream = $2 AND seq > $3 ORDER BY seq LIMIT $4"
