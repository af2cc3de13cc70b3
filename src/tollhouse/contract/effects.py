"""The four effects as a tool author writes them: ``read()``, ``write()``, ``external()``, ``destructive()``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal, TypedDict, Unpack

from tollhouse.contract.terms import ApprovalTerms, Dedup, Effect, RepeatTerms
from tollhouse.errors import ContractError

Rejects = int | type[BaseException] | Callable[[BaseException], bool]
"""What counts as a definite rejection: an HTTP status, an exception type, or a predicate on the exception."""

Cost = int | float | Decimal | Callable[[Mapping[str, Any], Any], int | float | Decimal]
"""What one sending costs, in the currency of your books: a number, or a function of the arguments and the result."""


def approval(*, quorum: int = 1, expires_s: float = 86_400.0, approvers: Iterable[str] | None = None) -> ApprovalTerms:
    """Who must agree. ``quorum``: how many different people; ``approvers`` None: anybody but the requester."""
    if isinstance(approvers, str):
        raise ContractError(f"approvers={approvers!r} is one text, not a list of names.", field="approval")
    return ApprovalTerms(quorum, expires_s, None if approvers is None else tuple(approvers))


def hold_repeats(*, within_s: float | None = None) -> RepeatTerms:
    """Hold a repeat of an unsettled call of the same scope; with ``within_s`` also of one settled that recently."""
    return RepeatTerms("hold", within_s)


class Settings(TypedDict, total=False):
    """What both an effect and ``tool()`` accept. Times in seconds.

    ``dedup``: how the receiver treats a repeat. ``max_attempts``: total sendings of a round (1 = never again).
    ``attempt_timeout_s`` bounds one sending, ``deadline_s`` all of them with their waits. ``departs``: ``"at_confirm"``
    says that nothing leaves before ``ctx.confirm()`` or ``ctx.http``. ``approval``: True, False or :func:`approval`.
    ``on_repeat``: ``"hold"``, ``"allow"`` or :func:`hold_repeats`. ``cost``: see :data:`Cost`. ``rejects``: see
    :data:`Rejects`. ``absent_after_s``: how long silence must have lasted before a look-up's absence counts (default
    ``max(60, attempt_timeout_s)``). ``accepts``: the tool may answer :class:`Accepted`; ``job_deadline_s`` bounds that
    work (default one day). ``resend_margin_s``: the greatest network delay, taken off the dedup window (default
    ``max(300, attempt_timeout_s)``).
    """

    dedup: Dedup
    max_attempts: int
    attempt_timeout_s: float
    deadline_s: float
    departs: Literal["at_start", "at_confirm"]
    approval: bool | ApprovalTerms
    on_repeat: Literal["hold", "allow"] | RepeatTerms
    cost: Cost
    rejects: Rejects | Iterable[Rejects]
    absent_after_s: float
    accepts: bool
    job_deadline_s: float
    resend_margin_s: float


@dataclass(frozen=True, slots=True)
class Declaration:
    """An effect with its settings, as given; ``tool()`` checks and completes them."""

    effect: Effect
    settings: Settings = field(default_factory=Settings)


def read(**settings: Unpack[Settings]) -> Declaration:
    """Changes nothing. May run three times on transient errors, and again after a crash; never in doubt."""
    return Declaration(Effect.READ, settings)


def write(**settings: Unpack[Settings]) -> Declaration:
    """Changes something of one's own. Sent once; in doubt after a crash or timeout."""
    return Declaration(Effect.WRITE, settings)


def external(**settings: Unpack[Settings]) -> Declaration:
    """Changes something of somebody else's (a payment, an e-mail). Sent once; in doubt after a crash or timeout."""
    return Declaration(Effect.EXTERNAL, settings)


def destructive(**settings: Unpack[Settings]) -> Declaration:
    """Cannot be taken back (a deletion). As ``external``, and needs a person's approval by default."""
    return Declaration(Effect.DESTRUCTIVE, settings)
