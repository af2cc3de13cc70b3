"""How a receiver treats a repeated request: ``dedup.none``, ``dedup.by_key(hours=24)``, ``dedup.natural``."""

from __future__ import annotations

import math

from tollhouse.contract.terms import Dedup
from tollhouse.errors import ContractError

none = Dedup("none")
"""A second request is a second effect. The default."""

natural = Dedup("natural")
"""Repeating is harmless by nature (set to a value, delete by id); an unknown call may be sent again in its deadline."""


def by_key(*, hours: float) -> Dedup:
    """The receiver recognises the idempotency key for ``hours`` from the first request (more than 0, finite)."""
    given: object = hours
    number = isinstance(given, int | float) and not isinstance(given, bool)
    if not number or not math.isfinite(hours) or hours <= 0:
        raise ContractError(
            f"dedup.by_key(hours={hours!r}) is no length of time.",
            field="dedup",
            remedy="Give the hours for which the receiver promises to recognise the key, more than 0.",
        )
    return Dedup("by_key", float(hours))
