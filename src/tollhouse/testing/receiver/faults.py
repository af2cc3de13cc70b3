"""What can go wrong at a receiver, as a table of names; the service applies it, tests choose from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self


class Fault(StrEnum):
    """One way to misbehave. `before` means that nothing takes effect; `after` that it has, durably."""

    sentence: str
    defaults: Mapping[str, Any]

    def __new__(cls, name: str, sentence: str, defaults: Mapping[str, Any] | None = None) -> Self:
        """Make the member's value its name, and hang the rest of the row on it."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.sentence = sentence
        member.defaults = defaults or {}
        return member

    @classmethod
    def named(cls, name: str) -> Fault:
        """The fault of that name. Raises ValueError when there is none."""
        try:
            return cls[name.upper()]
        except KeyError:
            raise ValueError(f"no fault is named {name}") from None

    DELAY_BEFORE_EFFECT = (
        "delay_before_effect",
        "Waits, then takes effect and answers, though the sender may have gone.",
        {"seconds": 0.5},
    )
    DELAY_AFTER_EFFECT = "delay_after_effect", "Takes effect, waits, then answers.", {"seconds": 0.5}
    HOLD_BEFORE_EFFECT = (
        "hold_before_effect",
        "Waits for a release, then takes effect and answers: a request delayed on its way.",
    )
    HOLD_AFTER_EFFECT = "hold_after_effect", "Takes effect, waits for a release, then answers: a late reply."
    CLOSE_BEFORE_EFFECT = "close_before_effect", "Closes the connection; nothing takes effect."
    RESET_BEFORE_EFFECT = "reset_before_effect", "Resets the connection (RST); nothing takes effect."
    CLOSE_AFTER_EFFECT = "close_after_effect", "Takes effect, then closes the connection without a reply."
    RESET_AFTER_EFFECT = "reset_after_effect", "Takes effect, then resets the connection (RST)."
    CLOSE_AFTER_REPLY = (
        "close_after_reply",
        "Takes effect, answers well, then closes without a word: the connection's next use fails.",
    )
    TRUNCATED_BODY = (
        "truncated_body",
        "Takes effect, promises a Content-Length, sends half of it and closes.",
    )
    TRUNCATED_CHUNKS = (
        "truncated_chunks",
        "Takes effect, sends half of a chunked body and closes before the last chunk.",
    )
    SLOW_DRIP = (
        "slow_drip",
        "Takes effect and sends the reply's body byte by byte, `seconds` between two.",
        {"seconds": 0.05},
    )
    GARBAGE = "garbage", "Takes effect and answers 201 with a body that says JSON and is none."
    NOT_UTF8 = "not_utf8", "Takes effect and answers 201 with JSON in bytes that are no UTF-8."
    WRONG_SHAPE = "wrong_shape", "Takes effect and answers 201 with a JSON list where an object is due."
    HUGE_BODY = (
        "huge_body",
        "Takes effect and answers 201 with a JSON object of `size_bytes`.",
        {"size_bytes": 16 * 1024 * 1024},
    )
    ERROR_AFTER_EFFECT = (
        "error_after_effect",
        "Takes effect, then answers with an error status (500, 502, 504).",
        {"status": 500},
    )
    ERROR_BEFORE_EFFECT = (
        "error_before_effect",
        "Answers with an error status (500, 409, 401, 402, 422); nothing takes effect.",
        {"status": 500},
    )
    RATE_LIMITED = (
        "rate_limited",
        "Answers 429 with Retry-After; nothing takes effect.",
        {"retry_after_s": 1, "status": 429},
    )
    REDIRECT = (
        "redirect",
        "Answers 302 (or `status`) with a Location; nothing takes effect here.",
        {"location": "/v1/elsewhere", "status": 302},
    )


@dataclass
class Planned:
    """A fault laid out for the next `times` requests of a method, and of a collection and a key if given."""

    fault: Fault
    times: int = 1
    collection: str | None = None
    method: str = "POST"
    key: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Fill in the row's defaults. Raises ValueError for an option that the fault does not have."""
        unknown = set(self.options) - set(self.fault.defaults)
        if unknown:
            raise ValueError(f"{self.fault.value} takes no {', '.join(sorted(unknown))}")
        if self.times < 1:
            raise ValueError("times is at least 1")
        self.options = {**self.fault.defaults, **self.options}

    def fits(self, method: str, collection: str, key: str | None) -> bool:
        """Whether a request is one of those that the plan names."""
        return self.method == method and self.collection in (None, collection) and self.key in (None, key)


class FaultPlan:
    """The faults still to come, oldest first; each request takes at most one."""

    def __init__(self) -> None:
        self._planned: list[Planned] = []

    def add(self, planned: Planned) -> None:
        """Append a fault."""
        self._planned.append(planned)

    def clear(self) -> None:
        """Behave well from now on."""
        self._planned.clear()

    def take(self, method: str, collection: str, key: str | None) -> Planned | None:
        """The first fault that fits, used up once; None to behave well."""
        planned = next((each for each in self._planned if each.fits(method, collection, key)), None)
        if planned is not None:
            planned.times -= 1
            if planned.times == 0:
                self._planned.remove(planned)
        return planned
