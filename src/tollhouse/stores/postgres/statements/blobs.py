"""Statements on ``blobs``."""

from __future__ import annotations

KINDS = {"digest": "text", "data": "bytea"}
"""Columns and their types, the tenant apart."""

INTO = "INSERT INTO @blobs (tenant, digest, data)"

# Bytes of one digest are the same bytes, whoever brings them.
IF_NEW = "ON CONFLICT DO NOTHING"

GET = "SELECT data FROM @blobs WHERE tenant = $1 AND digest = $2"
