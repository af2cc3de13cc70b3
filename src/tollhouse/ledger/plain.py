"""Users' values as plain JSON, for people, models and programs that read them; the lossless form is ``codec``'s.

A date is its ISO string and a tuple an array, as in arguments. What JSON has no word for stands in the ledger's marked
form, such as ``{"$float": "nan"}``.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from tollhouse.errors import InvalidArguments
from tollhouse.ledger.codec import to_tree

_LONG_INT_BITS = 14_000
"""Integers beyond this have more decimal digits than JSON readers and writers take."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment(at_us: int | None) -> str | None:
    """A time of the store's clock as an ISO 8601 string in UTC, to the microsecond; None stays None."""
    if at_us is None:
        return None
    return (_EPOCH + timedelta(microseconds=at_us)).isoformat(timespec="microseconds").replace("+00:00", "Z")


def plain_json(value: Any) -> Any:
    """A user's value as JSON; see the module's docstring. Never raises for what the ledger kept."""
    try:
        tree = to_tree(value, lossless=False)
    except InvalidArguments:
        tree = to_tree(value, lossless=True)
    return _readable(tree)


def _readable(tree: Any) -> Any:
    """The tree with the user's own keys as the user wrote them, and no integer that a JSON reader chokes on."""
    if isinstance(tree, dict):
        return {key[1:] if key.startswith("$$") else key: _readable(member) for key, member in tree.items()}
    if isinstance(tree, list):
        return [_readable(member) for member in tree]
    if isinstance(tree, int) and tree.bit_length() > _LONG_INT_BITS:
        return {"$int": hex(tree)}
    return tree
