"""Statements on ``blobs``."""

from __future__ import annotations

GET = "SELECT data FROM blobs WHERE tenant = ? AND digest = ?"

# Bytes of one digest are the same bytes, whoever brings them.
KEEP = "INSERT INTO blobs (tenant, digest, data) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
