"""Statements on ``owners``."""

from __future__ import annotations

_COLUMNS = "tenant, id, host, pid, pid_started, label, lease_until_us, started_at_us, ended_at_us, proven_dead"

END = "UPDATE owners SET ended_at_us = ? WHERE tenant = ? AND id = ? AND ended_at_us IS NULL"

END_DEAD = "UPDATE owners SET ended_at_us = coalesce(ended_at_us, ?), proven_dead = 1 WHERE tenant = ? AND id = ?"

END_EXPIRED = "UPDATE owners SET ended_at_us = ? WHERE tenant = ? AND ended_at_us IS NULL AND lease_until_us <= ?"

EXPIRED = "SELECT 1 FROM owners WHERE tenant = ? AND ended_at_us IS NULL AND lease_until_us <= ? LIMIT 1"

GET = f"SELECT {_COLUMNS} FROM owners WHERE tenant = ? AND id = ?"

IS_LIVE = "SELECT 1 FROM owners WHERE tenant = ? AND id = ? AND ended_at_us IS NULL"

# A registration that is repeated finds its own row.
REGISTER = (
    f"INSERT INTO owners ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, NULL, 0) ON CONFLICT (tenant, id) DO NOTHING"
)

RENEW = "UPDATE owners SET lease_until_us = ? WHERE tenant = ? AND id = ? AND ended_at_us IS NULL"
