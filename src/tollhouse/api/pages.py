"""Cursors of lists: where the next page begins, bound to the list that it was made for.

A cursor is opaque to clients. It holds nothing secret, and nothing that a reader of the list could not ask for; it
carries a digest of the filters, so that a cursor of another list is told, not followed.
"""

from __future__ import annotations

import base64
import binascii
import json
from hashlib import sha256
from typing import Annotated, Any

from fastapi import Query
from pydantic import StringConstraints

from tollhouse.errors import InvalidCursor

LIMIT_MOST = 500

Limit = Annotated[int, Query(ge=1, le=LIMIT_MOST, description="At most so many.")]
Cursor = Annotated[
    Annotated[str, StringConstraints(max_length=1000)] | None,
    Query(description="The `next` of the page before; only with the same filters."),
]


def cursor_of(place: tuple[int, str], *about: Any) -> str:
    """The cursor of what comes after this place. ``about``: which list it is, with its filters."""
    text = json.dumps([*place, _digest(about)], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def place_of(cursor: str | None, *about: Any) -> tuple[int, str] | None:
    """Where the page begins; None: at the beginning. Raises :class:`InvalidCursor`."""
    if cursor is None:
        return None
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        number, name, digest = json.loads(text)
    except (ValueError, binascii.Error, TypeError, RecursionError):
        raise InvalidCursor("The cursor is none that this server made.") from None
    if digest != _digest(about):
        raise InvalidCursor("The cursor belongs to another list or to other filters.")
    well_formed = type(number) is int and 0 <= number < 2**62 and isinstance(name, str) and name.isascii()
    if not well_formed or "\0" in name or len(name) > 300:
        raise InvalidCursor("The cursor is none that this server made.")
    return number, name


def _digest(about: tuple[Any, ...]) -> str:
    return sha256(json.dumps(about, default=str).encode()).hexdigest()[:12]
