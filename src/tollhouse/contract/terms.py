"""The terms of a contract: the part of a tool's declaration that the rules of a call's life depend on.

Terms are stored as JSON text on every call, so that what was promised when a call departed still binds it after
the tool was redeployed with other promises, or was removed.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Literal

US = 1_000_000
"""Microseconds in a second."""


class Effect(StrEnum):
    """What a tool does to the world."""

    READ = "read"
    WRITE = "write"
    EXTERNAL = "external"
    DESTRUCTIVE = "destructive"


@dataclass(frozen=True, slots=True)
class Dedup:
    """How the receiver treats a second request with the same key.

    ``none``: as a new one. ``by_key``: it recognises the key for ``hours`` (counted from the first departure).
    ``natural``: repeating is harmless by nature.
    """

    kind: Literal["none", "by_key", "natural"] = "none"
    hours: float | None = None

    @property
    def allows_resend(self) -> bool:
        return self.kind != "none"


@dataclass(frozen=True, slots=True)
class ApprovalTerms:
    """Who must agree before a call departs. ``approvers`` None: anybody but the requester."""

    quorum: int = 1
    expires_s: float = 86_400.0
    approvers: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class RepeatTerms:
    """What happens to a second call with the same tool and arguments in one scope.

    ``hold``: a person decides. ``allow``: it runs. ``within_s`` None: only while the first is unsettled.
    """

    mode: Literal["hold", "allow"] = "hold"
    within_s: float | None = None


@dataclass(frozen=True, slots=True)
class Terms:
    """All that the lifecycle needs of a contract. ``version`` changes whenever any promise or the schema changes."""

    tool: str
    effect: Effect
    version: str
    dedup: Dedup
    max_attempts: int
    attempt_timeout_s: float
    deadline_s: float
    absent_after_s: float
    departs: Literal["at_start", "at_confirm"]
    accepts: bool
    job_deadline_s: float
    resend_margin_s: float
    approval: ApprovalTerms | None
    on_repeat: RepeatTerms
    has_reconcile: bool
    compensate: str | None
    guarantee: str

    @property
    def sends_checked(self) -> bool:
        """Whether every send passes a check of the fence (``ctx.confirm``, ``ctx.http``, an adapter)."""
        return self.departs == "at_confirm"

    def dumps(self) -> str:
        """The terms as compact JSON text."""
        return json.dumps(asdict(self), separators=(",", ":"), ensure_ascii=True)

    @staticmethod
    def loads(text: str) -> Terms:
        """The terms in ``text``; cached, since all calls of one tool share one text."""
        return _loads(text)


@lru_cache(maxsize=1024)
def _loads(text: str) -> Terms:
    raw = json.loads(text)
    raw["effect"] = Effect(raw["effect"])
    raw["dedup"] = Dedup(**raw["dedup"])
    raw["on_repeat"] = RepeatTerms(**raw["on_repeat"])
    if (approval := raw["approval"]) is not None:
        names = approval.pop("approvers")
        raw["approval"] = ApprovalTerms(**approval, approvers=None if names is None else tuple(names))
    return Terms(**raw)
