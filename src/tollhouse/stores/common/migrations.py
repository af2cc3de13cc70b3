"""Numbered migrations and the one rule of which schema a release works with; the engines only execute.

Each engine keeps ``migrations/0001_name.sql``, ``0002_…`` (append-only: a released file never changes) beside
``schema.sql``, the whole current schema for reading. A database says two numbers about itself in its ``meta`` table:

* ``schema_version``: the last migration applied;
* ``min_release_schema``: the oldest release that may still work on it, named by that release's last migration.

A migration that only expands leaves the second as it is, so the release before goes on beside the new one. One that
contracts raises it by its first line, ``-- min_release_schema: N``. A release in turn declares the oldest schema that
it works with: between the two floors old and new work together, and nothing is upgraded unasked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files

from tollhouse.errors import StoreSchema

_FILE = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")
_FLOOR = re.compile(r"-- min_release_schema: (\d+)\n")


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema. ``min_release_schema``: what it raises that floor to; None leaves it as it is."""

    number: int
    name: str
    sql: str
    min_release_schema: int | None = None


@dataclass(frozen=True, slots=True)
class SchemaReport:
    """How a database stands to this release. ``version`` None: it is empty, and created when opened.

    ``pending``: names of migrations that an upgrade would apply. ``problem``: why this release cannot work on it, as a
    sentence; None when it can.
    """

    version: int | None
    latest: int
    pending: tuple[str, ...] = ()
    problem: str | None = None

    @property
    def usable(self) -> bool:
        """Whether a house can be opened on it."""
        return self.problem is None


@dataclass(frozen=True, slots=True)
class Schema:
    """What this release knows of an engine's schema. ``oldest_usable``: the oldest version that it works with."""

    migrations: tuple[Migration, ...]
    oldest_usable: int = 1

    @property
    def latest(self) -> int:
        return self.migrations[-1].number

    def pending(self, version: int | None) -> tuple[Migration, ...]:
        """Migrations that a database of this version lacks; all of them for an empty one."""
        return tuple(m for m in self.migrations if m.number > (version or 0))

    def report(self, version: int | None, min_release_schema: int | None) -> SchemaReport:
        """The verdict on a database that says these two numbers of itself (both None when it is empty)."""
        problem = None
        if version is not None and version < self.oldest_usable:
            problem = (
                f"The store's schema is too old: version {version}; this release needs {self.oldest_usable} or later."
            )
        elif min_release_schema is not None and min_release_schema > self.latest:
            problem = (
                f"The store's schema is too new: it needs a release that knows version {min_release_schema}, "
                f"and this one knows {self.latest}."
            )
        return SchemaReport(version, self.latest, tuple(m.name for m in self.pending(version)), problem)

    def require(self, version: int | None, min_release_schema: int | None, *, for_upgrade: bool = False) -> None:
        """Raise :class:`~tollhouse.errors.StoreSchema` unless this release works on such a database.

        ``for_upgrade``: too old is what an upgrade is for.
        """
        problem = self.report(version, min_release_schema).problem
        too_old = version is not None and version < self.oldest_usable
        if problem is None or (for_upgrade and too_old):
            return
        remedy = "Run `tollhouse db upgrade`." if too_old else "Install the release that upgraded it, or a later one."
        raise StoreSchema(problem, remedy=remedy)


def load(package: str, *, oldest_usable: int = 1) -> Schema:
    """The migrations in the ``migrations`` folder of an engine's package, in order, numbered 1, 2, 3 without gaps."""
    found = sorted(
        (entry.name, entry.read_text(encoding="utf-8"))
        for entry in (files(package) / "migrations").iterdir()
        if _FILE.fullmatch(entry.name)
    )
    migrations = tuple(_migration(name, sql) for name, sql in found)
    assert [m.number for m in migrations] == list(range(1, len(migrations) + 1)), "a migration is missing"
    return Schema(migrations, oldest_usable)


def schema_text(package: str) -> str:
    """The engine's ``schema.sql``: what all migrations together amount to."""
    return (files(package) / "schema.sql").read_text(encoding="utf-8")


def _migration(name: str, sql: str) -> Migration:
    floor = _FLOOR.match(sql)
    return Migration(int(name[:4]), name.removesuffix(".sql"), sql, int(floor.group(1)) if floor else None)
