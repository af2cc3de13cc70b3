"""Statements on ``meta``: the schema's two numbers, and the greatest time that an owner was ever judged by."""

from __future__ import annotations

EXISTS = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'meta'"

GET = "SELECT value FROM meta WHERE name = ?"

PUT = "INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
