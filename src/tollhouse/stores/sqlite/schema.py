"""Creating, judging and upgrading the schema of an SQLite ledger."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from tollhouse.errors import StoreSchema
from tollhouse.stores.common.migrations import Migration, load
from tollhouse.stores.sqlite.statements import meta

SCHEMA = load("tollhouse.stores.sqlite")


def versions(connection: sqlite3.Connection) -> tuple[int | None, int | None]:
    """What the database says of itself: ``schema_version`` and ``min_release_schema``; None and None when empty."""
    if not connection.execute(meta.EXISTS).fetchall():
        return None, None
    return _number(connection, "schema_version"), _number(connection, "min_release_schema")


def create_if_empty(connection: sqlite3.Connection) -> None:
    """Give an empty database the whole schema, at once or not at all; whoever comes second finds it there."""
    connection.execute("BEGIN IMMEDIATE")
    if versions(connection)[0] is None:
        _apply(connection, SCHEMA.migrations)
    else:
        connection.execute("ROLLBACK")


def upgrade(connection: sqlite3.Connection) -> list[str]:
    """Apply what is missing, each migration in a transaction of its own; their names. The lock file is held."""
    version, floor = versions(connection)
    SCHEMA.require(version, floor, for_upgrade=True)
    pending = SCHEMA.pending(version)
    for migration in pending:
        connection.execute("BEGIN IMMEDIATE")
        _apply(connection, (migration,))
    return [migration.name for migration in pending]


def _apply(connection: sqlite3.Connection, migrations: Sequence[Migration]) -> None:
    """Run the migrations in the open transaction and commit it."""
    try:
        for statement in _statements("\n".join(migration.sql for migration in migrations)):
            connection.execute(statement)
        connection.execute(meta.PUT, ("schema_version", str(migrations[-1].number)))
        floor = max((m.min_release_schema for m in migrations if m.min_release_schema is not None), default=None)
        if floor is not None or migrations[0].number == 1:
            connection.execute(meta.PUT, ("min_release_schema", str(floor or 1)))
        connection.execute("COMMIT")
    except sqlite3.Error as raw:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        if "already exists" in str(raw):
            raise StoreSchema(
                f"The database holds something of another application under a name the ledger needs: {raw}.",
                remedy="Give the ledger a file of its own.",
            ) from raw
        raise


def _statements(script: str) -> list[str]:
    """The statements of a script, one by one: ``executescript`` would commit by itself."""
    found, pending = [], ""
    for line in script.splitlines(keepends=True):
        pending += line
        if line.rstrip().endswith(";") and sqlite3.complete_statement(pending):
            found.append(pending)
            pending = ""
    assert not pending.strip(), "a migration ends inside a statement"
    return found


def _number(connection: sqlite3.Connection, name: str) -> int:
    try:
        rows = connection.execute(meta.GET, (name,)).fetchall()
        return int(rows[0][0])
    except (sqlite3.OperationalError, IndexError, ValueError) as raw:
        if isinstance(raw, sqlite3.OperationalError) and "no such column" not in str(raw):
            raise
        raise StoreSchema(
            f"The database has a table `meta` that is not the ledger's (it has no {name}).",
            remedy="Give the ledger a file of its own.",
        ) from raw
