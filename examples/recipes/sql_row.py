"""A row in one's own database: the key stands in the same transaction, so the database recognises it for ever."""

import os
import sqlite3
from contextlib import closing

from tollhouse import CallContext, dedup, did_not_happen, happened, tool, write

SCHEMA = """
CREATE TABLE IF NOT EXISTS credits (key TEXT PRIMARY KEY, account TEXT NOT NULL, cents INTEGER NOT NULL)
"""


def connect() -> sqlite3.Connection:
    """The shop's own database."""
    return sqlite3.connect(os.environ["SHOP_DB"], timeout=10)


def find_credit(idempotency_key):
    """The row is there or it is not: the transaction that wrote it is either committed or gone."""
    with closing(connect()) as shop:
        row = shop.execute("SELECT account, cents FROM credits WHERE key = ?", (idempotency_key,)).fetchone()
    return happened(row[1]) if row else did_not_happen("no such row")


def take_back(record, ctx: CallContext):
    """Undo a credit by a row of its own, under the key of the undoing call."""
    return _credit(ctx, record.arguments["account"], -record.arguments["cents"])


@tool(
    write(dedup=dedup.by_key(hours=24 * 365), departs="at_confirm"),
    reconcile=find_credit,
    compensate=take_back,
)
def credit(account: str, cents: int, ctx: CallContext) -> int:
    """Credit an account, and return what was credited."""
    return _credit(ctx, account, cents)


def _credit(ctx: CallContext, account: str, cents: int) -> int:
    ctx.confirm_sync()
    with closing(connect()) as shop:
        shop.execute(
            "INSERT INTO credits VALUES (?, ?, ?) ON CONFLICT (key) DO NOTHING", (ctx.idempotency_key, account, cents)
        )
        shop.commit()
    return cents
