"""What may name a call, and what its receiver gets: keys, tenants, wire keys, subkeys.

The gate checks every key that a caller gives before it looks anything up; the stores keep the wire key at insert and
never form it again. Each of these strings is ASCII without spaces, so it fits an HTTP header as it is.

Key, tenant and subkey names draw on different alphabets, so that joining them can never make two calls look alike:
a tenant has no ``:``, and a key has no ``/``.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from tollhouse.errors import InvalidKey, InvalidSetting

WIRE_KEY_LENGTH_MAX: Final = 255
"""Longest wire key or subkey, in characters. Receivers commonly accept idempotency keys of up to 255."""

DEFAULT_TENANT: Final = "default"

_KEY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,199}")
_TENANT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,53}")  # with a key of 200 and the colon: 255
_SUBKEY_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,63}")
_SHOWN_LENGTH_MAX: Final = 40


def check_key(key: object) -> str:
    """The key, when it is one: 1 to 200 of ``A-Z a-z 0-9 . _ : @ -``, the first a letter or digit.

    Raises :class:`InvalidKey` for everything else, None and the empty string too; its text shows at most the first
    40 characters.
    """
    if isinstance(key, str) and (match := _KEY.fullmatch(key)):
        return match.group()
    raise InvalidKey(f"The key {_fault(key, 200)}.")


def check_tenant(tenant: object) -> str:
    """The tenant, when it is one: 1 to 54 of ``A-Z a-z 0-9 . _ -``, the first a letter or digit.

    Raises :class:`InvalidSetting` for everything else.
    """
    if isinstance(tenant, str) and (match := _TENANT.fullmatch(tenant)):
        return match.group()
    raise InvalidSetting(
        f"The tenant {_fault(tenant, 54)}.",
        remedy="Give 1 to 54 characters: letters, digits and . _ -, starting with a letter or digit.",
    )


def wire_key(tenant: str, key: str) -> str:
    """What the receiver gets as idempotency key: ``<tenant>:<key>``, at most 255 characters.

    Both parts are checked already. Different calls have different wire keys, since a tenant holds no colon.
    """
    return f"{tenant}:{key}"


def subkey(wire: str, name: str) -> str:
    """The idempotency key for a further send of the same call: ``<wire key>/<name>``, at most 255 characters.

    The same wire key and name always give the same subkey, and never one that another call or name has. A pair too
    long to be written out ends in the SHA-256 of the whole instead. ``name`` is 1 to 64 characters of a key's
    alphabet; raises :class:`InvalidKey` otherwise.
    """
    if not _is_subkey_name(name):
        raise InvalidKey(
            f"The subkey's name {_fault(name, 64)}.",
            remedy="Give 1 to 64 characters: letters, digits and . _ : @ -, starting with a letter or digit.",
        )
    whole = f"{wire}/{name}"
    if len(whole) <= WIRE_KEY_LENGTH_MAX:
        return whole
    # Two slashes mark a shortened subkey, since no written-out one has them.
    return f"{wire[: WIRE_KEY_LENGTH_MAX - 66]}//{hashlib.sha256(whole.encode()).hexdigest()}"


def _is_subkey_name(name: object) -> bool:
    return isinstance(name, str) and _SUBKEY_NAME.fullmatch(name) is not None


def _fault(given: object, length_max: int) -> str:
    """What is wrong with a name, as the rest of a sentence; never more of it than a few words."""
    if given is None:
        return "is missing"
    if not isinstance(given, str):
        return f"is of type {type(given).__name__}, not a string"
    if not given:
        return "is empty"
    if len(given) > length_max:
        return f"has {len(given)} characters, {length_max} at most: {given[:_SHOWN_LENGTH_MAX]!a}..."
    shown = ascii(given[:_SHOWN_LENGTH_MAX]) + ("..." if len(given) > _SHOWN_LENGTH_MAX else "")
    return f"has characters that are not allowed there: {shown}"
