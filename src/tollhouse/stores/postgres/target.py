"""What a ``postgresql://`` URL names. Read once by ``open_store``; the rest of the engine asks a :class:`Target`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from tollhouse.errors import StoreURLInvalid
from tollhouse.stores.common.urls import without_password

CONNECT_TIMEOUT_S = 5.0
"""How long one attempt to connect may take, unless the URL says otherwise."""

_SCHEMA = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


@dataclass(frozen=True, slots=True)
class Target:
    """A database, and how to speak to it.

    ``dsn`` goes to the driver, ``url`` may be shown. ``schema`` None: tables are found by the role's search path.
    ``statement_cache`` False: every transaction may meet another server connection, so nothing is kept on one.
    ``patience_s``: how long a write is repeated, and a read tried again, before the store counts as unavailable.
    """

    dsn: str
    url: str
    schema: str | None = None
    connect_timeout_s: float = CONNECT_TIMEOUT_S
    statement_cache: bool = True
    patience_s: float = 10.0

    @property
    def try_s(self) -> float:
        """How long one statement may take: a connection that went silent leaves time for another."""
        return max(self.patience_s / 3, 0.1)

    def text(self, statement: str) -> str:
        """A statement for this database. ``@`` stands before each name of ours: a search path would be lost behind a
        pooler, and could be changed under us."""
        return statement.replace("@", f'"{self.schema}".' if self.schema else "")


def parse(url: str, *, statement_cache: bool = True, patience_s: float = 10.0) -> Target:
    """Read a URL as libpq does, several hosts and ``target_session_attrs`` included.

    Parameters of our own: ``schema``, and ``pgbouncer=1`` where a pooler in transaction mode stands before the server.
    Raises :class:`~tollhouse.errors.StoreURLInvalid`, never showing a password.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        raise StoreURLInvalid("The store's URL cannot be read: its host is ill-formed.") from None
    parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
    schema = parameters.pop("schema", None)
    if schema is not None and not _SCHEMA.fullmatch(schema):
        raise StoreURLInvalid("schema is the name of a schema: letters, digits and _, not starting with a digit.")
    statement_cache = statement_cache and not _switch(parameters.pop("pgbouncer", "0"))
    connect_timeout_s = _seconds(parameters.pop("connect_timeout", None))
    dsn = urlunsplit(parts._replace(query=urlencode(parameters), fragment=""))
    return Target(dsn, without_password(url), schema, connect_timeout_s, statement_cache, patience_s)


def _switch(text: str) -> bool:
    if text not in ("0", "1"):
        raise StoreURLInvalid("pgbouncer is 1 behind a pooler in transaction mode, else 0.")
    return text == "1"


def _seconds(text: str | None) -> float:
    """libpq's ``connect_timeout``; the driver would take it for a setting of the server."""
    if text is None:
        return CONNECT_TIMEOUT_S
    if not text.isdecimal() or not int(text):
        raise StoreURLInvalid("connect_timeout is a whole number of seconds above 0.")
    return float(text)
