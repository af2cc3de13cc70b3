"""Identifiers that the house mints: ``<prefix>_<uuid7 in base32>``, in the order of their making.

Whoever inserts a row asks an :class:`Ids` for its id. The source is a parameter of the house, so that a run of the
simulation or the drill repeats exactly from its seed (:class:`SeededIds`).

The prefix names the table. The rest is a UUID of version 7 in lower-case Crockford base32: 26 characters, none of
them ``i l o u``, which sort as the UUIDs do, so an index grows at its end.
"""

from __future__ import annotations

import itertools
import random
from enum import StrEnum
from typing import Final, Protocol

import uuid_utils


class Prefix(StrEnum):
    """The prefix of each kind of id, and with it the table where the id is found."""

    ATTEMPT = "att"  # one sending of a call
    DECISION = "dec"  # a settlement or another decision about a call, by a person or a hook
    OWNER = "own"  # a process incarnation and its lease
    RUN = "run"  # one execution of an agent or workflow


class Ids(Protocol):
    """A source of identifiers. No two results are equal, and later ones sort after earlier ones of the same prefix."""

    def new(self, prefix: str) -> str:
        """An id that was never given before: ``<prefix>_`` and 26 characters."""

    def mint_key(self) -> str:
        """A key for a call whose caller gave none, which only a read may do: ``read-`` and 26 characters."""


class SystemIds:
    """Ids from the system's clock and randomness. Safe across threads, and in a forked child."""

    def new(self, prefix: str) -> str:
        return f"{prefix}_{base32(uuid_utils.uuid7().int)}"

    def mint_key(self) -> str:
        return f"read-{base32(uuid_utils.uuid7().int)}"


class SeededIds:
    """Ids that follow from a seed alone: the nth of one run is the nth of every run with the same ``random.Random``.

    Well-formed UUIDs of version 7, whose clock is a count of the ids given out, one millisecond for each.
    """

    def __init__(self, randomness: random.Random, *, start_ms: int = 1_700_000_000_000) -> None:
        self._randomness = randomness
        self._clock_ms = itertools.count(start_ms)

    def new(self, prefix: str) -> str:
        return f"{prefix}_{base32(self._uuid7())}"

    def mint_key(self) -> str:
        return f"read-{base32(self._uuid7())}"

    def _uuid7(self) -> int:
        random_a, random_b = self._randomness.getrandbits(12), self._randomness.getrandbits(62)
        return next(self._clock_ms) << 80 | 0x7 << 76 | random_a << 64 | 0b10 << 62 | random_b


_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS: Final = [high + low for high in _ALPHABET for low in _ALPHABET]
_SHIFTS: Final = tuple(range(120, -1, -10))


def base32(number: int) -> str:
    """128 bits in lower-case Crockford base32: 26 characters that sort as the numbers do."""
    return "".join([_PAIRS[number >> shift & 1023] for shift in _SHIFTS])
