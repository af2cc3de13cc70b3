"""Values on the path of every call: frozen for the reader and the type checker, quick to make.

A frozen dataclass sets each field by a call of its own, five times as slow as a plain one, and a call makes some twenty
of them. So their being frozen is checked where the types are, not while calls run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value_type(cls: type[T]) -> type[T]:
    """``@dataclass(frozen=True, slots=True)`` in all but the runtime check; compared and hashed by its fields."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
