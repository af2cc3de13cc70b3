"""Statements on ``events``."""

from __future__ import annotations

APPEND = (
    "INSERT INTO events (tenant, stream, seq, at_us, kind, data, salt, payload_digest, hash, write_id)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)

AFTER = (
    "SELECT stream, seq, at_us, kind, data, salt, payload_digest, hash, write_id FROM events"
    " WHERE tenant = ? AND stream = ? AND seq > ? ORDER BY seq LIMIT ?"
)

# Walks the stream from its end. Asked only by writes that were refused, so it has no index of its own.
WRITTEN_BY = "SELECT 1 FROM events WHERE tenant = ? AND stream = ? AND write_id = ? ORDER BY seq DESC LIMIT 1"
