"""The scenarios: one row for each way in which a receiver misbehaves, with what every tool must make of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ALL = frozenset({"succeeded", "failed", "in_doubt", "ready", "accepted"})
HONEST_ABOUT_EFFECT = frozenset({"succeeded", "in_doubt", "accepted"})
"""States in which a call may stand that took effect."""
HONEST_ABOUT_NOTHING = frozenset({"failed", "in_doubt", "ready"})
"""States in which a call may stand that took no effect."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One row. ``fault`` None: the receiver behaves. ``takes_effect``: whether its effect is in the book.

    ``times``: how many requests are hit; more than the attempts of any contract for a fault that stays.
    """

    name: str
    sentence: str
    fault: str | None
    takes_effect: bool
    options: Mapping[str, Any] = field(default_factory=dict)
    times: int = 50

    @property
    def waits(self) -> bool:
        """Whether the reply is held back until the attempt's time is over."""
        return self.fault == "hold_after_effect"

    @property
    def readable(self) -> bool:
        """Whether a read may succeed: there is an answer of some kind, or another place to ask."""
        return self.fault is None or self.takes_effect or self.fault == "redirect"

    @property
    def honest(self) -> frozenset[str]:
        """The states in which an honest tool's call can stand afterwards."""
        return HONEST_ABOUT_EFFECT if self.takes_effect else HONEST_ABOUT_NOTHING


SCENARIOS: tuple[Scenario, ...] = (
    Scenario("behaves", "The receiver behaves well.", None, True),
    Scenario("refused_500", "500 before anything took effect.", "error_before_effect", False, {"status": 500}),
    Scenario("refused_409", "409 before anything took effect.", "error_before_effect", False, {"status": 409}),
    Scenario("refused_422", "422: the receiver did nothing.", "error_before_effect", False, {"status": 422}),
    Scenario("rate_limited", "429 with Retry-After.", "rate_limited", False),
    Scenario("redirected", "A redirect to another place.", "redirect", False, {"location": "/v1/elsewhere"}),
    Scenario("reset_before", "The connection is reset before the effect.", "reset_before_effect", False),
    Scenario("reset_after", "The connection is reset after the effect.", "reset_after_effect", True),
    Scenario("closed_after", "The connection closes after the effect, without a reply.", "close_after_effect", True),
    Scenario("error_500_after", "500 after the effect.", "error_after_effect", True, {"status": 500}),
    Scenario("error_502_after", "502 after the effect.", "error_after_effect", True, {"status": 502}),
    Scenario("error_409_after", "409 after the effect.", "error_after_effect", True, {"status": 409}),
    Scenario("broken_body", "The reply's body breaks off.", "truncated_body", True),
    Scenario("garbage", "The reply is no JSON.", "garbage", True),
    Scenario("slow", "The reply comes after the attempt's time.", "hold_after_effect", True),
)
