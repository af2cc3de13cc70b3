"""Digests of trees and of a call's arguments: they notice drift and bind approvals; they are never an identity.

The gate encodes the arguments of every call once, at its start; the same text is then stored, hashed, shown to
approvers and, decoded by :func:`tollhouse.ledger.codec.from_tree`, handed to the tool.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

from tollhouse.errors import InvalidArguments
from tollhouse.ledger.canonical import JsonTree, Unencodable, canonical
from tollhouse.ledger.codec import invalid_argument, loads, to_tree


class EncodedArguments(NamedTuple):
    """Arguments as they are kept: ``tree`` is what ``text`` parses to, ``digest`` the SHA-256 of ``text``."""

    tree: JsonTree
    text: str
    digest: str


def digest(tree: object) -> str:
    """SHA-256 of the tree's canonical JSON, in 64 lower-case hexadecimal digits.

    Equal trees have equal digests. Raises :class:`tollhouse.ledger.canonical.Unencodable` where a tree has no
    canonical form, so that no two such trees are ever taken for one.
    """
    return hashlib.sha256(canonical(tree)).hexdigest()


def encode_arguments(arguments: Mapping[str, object]) -> EncodedArguments:
    """Encode a call's arguments as given, before coercion and defaults.

    The tree is parsed back from the text, so it shares nothing with the caller's objects, and the first attempt runs
    on the very value that a later one decodes from the store: keys in canonical order, ``1.0`` as ``1``.

    Raises :class:`InvalidArguments`, naming the path, for what JSON cannot say (see the table in ``encodings``).
    """
    if not isinstance(arguments, Mapping):
        raise InvalidArguments(
            f"The arguments are of type {type(arguments).__name__}, not a mapping of names to values.", path="$"
        )
    tree = to_tree(arguments, lossless=False)
    try:
        encoded = canonical(tree)
    except Unencodable as error:
        raise invalid_argument(error.path, error.problem) from None
    text = encoded.decode()
    return EncodedArguments(loads(text), text, hashlib.sha256(encoded).hexdigest())
