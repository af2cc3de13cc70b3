"""Contracts that contradict themselves, found at import: every rule names its field and the remedy."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, NamedTuple

from tollhouse.contract.effects import Declaration, Rejects, Settings
from tollhouse.contract.terms import ApprovalTerms, Dedup, Effect, RepeatTerms
from tollhouse.errors import ContractError

TOOL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")

ATTEMPT_TIMEOUT_S = 30.0
DEADLINE_SLACK_S = 30.0
"""Without a ``deadline_s`` of its own a contract gets room for all its attempts and this much for the waits."""
JOB_DEADLINE_S = 86_400.0
LEAST_ABSENCE_S = 60.0
LEAST_MARGIN_S = 300.0
TIME_MOST_S = 100 * 365 * 86_400.0
"""A century: what is meant to be longer has no end, and every wait has one."""

_SAYS_NOTHING = frozenset(
    {"TimeoutError", "CancelledError", "ConnectionResetError", "BrokenPipeError", "ReadTimeout", "ReadError"}
)
"""Exceptions, of Python and of HTTP clients, after which the request may have arrived."""


class Completed(NamedTuple):
    """A declaration with every default filled in and every contradiction ruled out."""

    dedup: Dedup
    max_attempts: int
    attempt_timeout_s: float
    deadline_s: float
    absent_after_s: float
    departs: str
    accepts: bool
    job_deadline_s: float
    resend_margin_s: float
    approval: ApprovalTerms | None
    on_repeat: RepeatTerms
    rejects: tuple[Rejects, ...]


def merged(declaration: object, extra: Settings) -> Declaration:
    """The declaration with ``tool()``'s own settings; the same field given twice must say the same."""
    if not isinstance(declaration, Declaration):
        raise ContractError(
            "A tool must declare its effect first.",
            field="effect",
            remedy="Write @tool(read()), @tool(write()), @tool(external()) or @tool(destructive()).",
        )
    both: dict[str, Any] = dict(declaration.settings)
    for name, value in extra.items():
        if name in both and both[name] != value:
            raise ContractError(f"{name} is given twice, with different values.", field=name)
        both[name] = value
    for name in both:
        if name not in Settings.__annotations__:
            known = ", ".join(sorted(Settings.__annotations__))
            raise ContractError(f"A contract has no field {name!r}.", field=name, remedy=f"Its fields: {known}.")
    return Declaration(declaration.effect, Settings(**both))  # type: ignore[typeddict-item]


def complete(declaration: Declaration, *, has_reconcile: bool, has_compensate: bool, has_context: bool) -> Completed:
    """Fill in defaults; raise :class:`ContractError` at the first contradiction."""
    given, effect = declaration.settings, declaration.effect
    dedup = _dedup(effect, given)
    if effect is Effect.READ:
        _nothing_to_undo(given, has_reconcile, has_compensate)
    _cost(given.get("cost"))
    attempts = _attempts(effect, dedup, given)
    timeout = _seconds(given, "attempt_timeout_s", ATTEMPT_TIMEOUT_S)
    deadline = _seconds(given, "deadline_s", attempts * timeout + DEADLINE_SLACK_S)
    if timeout > deadline:
        if "attempt_timeout_s" in given:
            raise ContractError(
                f"attempt_timeout_s ({timeout:g}) is longer than deadline_s ({deadline:g}).",
                field="deadline_s",
                remedy="Give deadline_s room for at least one attempt.",
            )
        timeout = deadline
    margin = _seconds(given, "resend_margin_s", max(LEAST_MARGIN_S, timeout), zero=True)
    _window(dedup, margin)
    return Completed(
        dedup=dedup,
        max_attempts=attempts,
        attempt_timeout_s=timeout,
        deadline_s=deadline,
        absent_after_s=_seconds(given, "absent_after_s", max(LEAST_ABSENCE_S, timeout), zero=True),
        departs=_departs(given, has_context),
        accepts=bool(given.get("accepts", False)),
        job_deadline_s=_seconds(given, "job_deadline_s", JOB_DEADLINE_S),
        resend_margin_s=margin,
        approval=_approval(given.get("approval", effect is Effect.DESTRUCTIVE)),
        on_repeat=_repeat(given.get("on_repeat", "hold")),
        rejects=_rejects(given.get("rejects", ())),
    )


def check_name(name: object) -> str:
    """The tool's name, if it is one that models, URLs and files accept."""
    if isinstance(name, str) and TOOL_NAME.fullmatch(name):
        return name
    raise ContractError(
        f"{name!r} is no name for a tool.",
        field="name",
        remedy="Use 1 to 64 letters, digits and _ . -, starting with a letter or _.",
    )


def _dedup(effect: Effect, given: Settings) -> Dedup:
    dedup = given.get("dedup", Dedup("natural" if effect is Effect.READ else "none"))
    if not isinstance(dedup, Dedup):
        raise ContractError(
            f"dedup={dedup!r} is not a kind of dedup.",
            field="dedup",
            remedy="Use dedup.none, dedup.by_key(hours=...) or dedup.natural.",
        )
    if effect is Effect.READ and dedup.kind != "natural":
        raise ContractError("A read is harmless to repeat, so it declares no dedup.", field="dedup")
    return dedup


def _attempts(effect: Effect, dedup: Dedup, given: Settings) -> int:
    attempts: Any = given.get("max_attempts", 3 if dedup.allows_resend else 1)
    if isinstance(attempts, bool) or not isinstance(attempts, int) or not 1 <= attempts <= 100:
        raise ContractError(
            f"max_attempts={attempts!r} is no number of sendings.", field="max_attempts", remedy="Give 1 to 100."
        )
    if attempts > 1 and effect is not Effect.READ and not dedup.allows_resend:
        raise ContractError(
            f"max_attempts={attempts} would repeat the effect: the receiver does not recognise a repeat.",
            field="max_attempts",
            remedy="Declare dedup.by_key(hours=...) or dedup.natural if that is true, or leave max_attempts at 1.",
        )
    return attempts


def _window(dedup: Dedup, margin_s: float) -> None:
    if dedup.hours is not None and dedup.hours * 3600 <= margin_s:
        raise ContractError(
            f"The dedup window ({dedup.hours:g} h) is no longer than resend_margin_s ({margin_s:g} s).",
            field="dedup",
            remedy="Nothing could ever be sent again: declare dedup.none, or the margin the network really needs.",
        )


def _nothing_to_undo(given: Settings, has_reconcile: bool, has_compensate: bool) -> None:
    for field, present in (
        ("reconcile", has_reconcile),
        ("compensate", has_compensate),
        ("accepts", bool(given.get("accepts"))),
    ):
        if present:
            raise ContractError(
                f"A read is never in doubt and changes nothing, so it has no {field}.",
                field=field,
                remedy="Remove it, or declare the effect that the tool really has.",
            )


def _seconds(given: Settings, name: str, default: float, *, zero: bool = False) -> float:
    value: Any = given.get(name, default)
    if not _is_time(value, zero=zero):
        raise ContractError(
            f"{name}={value!r} is no length of time.",
            field=name,
            remedy="Give seconds, more than 0, a century at most.",
        )
    return float(value)


def _is_time(value: object, *, zero: bool = False) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return number and (0 < value <= TIME_MOST_S or (value == 0 and zero))  # type: ignore[operator]


def _departs(given: Settings, has_context: bool) -> str:
    departs = given.get("departs", "at_start")
    if departs not in ("at_start", "at_confirm"):
        raise ContractError(f"departs={departs!r} is neither 'at_start' nor 'at_confirm'.", field="departs")
    if departs == "at_confirm" and not has_context:
        raise ContractError(
            "departs='at_confirm' needs somebody to confirm, but the tool takes no context.",
            field="departs",
            remedy="Add a parameter `ctx: CallContext` and call `await ctx.confirm()`, or use ctx.http.",
        )
    return departs


def _approval(given: object) -> ApprovalTerms | None:
    if given is False or given is None:
        return None
    terms: Any = ApprovalTerms() if given is True else given
    if not isinstance(terms, ApprovalTerms):
        raise ContractError(
            f"approval={given!r} is not understood.",
            field="approval",
            remedy="Use True, False or approval(quorum=...).",
        )
    names: tuple[Any, ...] | None = terms.approvers
    if any(not isinstance(name, str) or not name.strip() for name in names or ()):
        raise ContractError("Every approver needs a name.", field="approval")
    quorum: Any = terms.quorum
    counted = isinstance(quorum, int) and not isinstance(quorum, bool)
    if not counted or quorum < 1 or (names is not None and quorum > len(set(names))):
        raise ContractError(f"A quorum of {quorum!r} cannot be reached.", field="approval")
    if not _is_time(terms.expires_s):
        raise ContractError("Every hold expires: expires_s must be more than 0, a century at most.", field="approval")
    return terms


def _repeat(given: object) -> RepeatTerms:
    terms = RepeatTerms(given) if given in ("hold", "allow") else given
    if not isinstance(terms, RepeatTerms):
        raise ContractError(
            f"on_repeat={given!r} is not understood.",
            field="on_repeat",
            remedy="Use 'hold', 'allow' or hold_repeats(within_s=...).",
        )
    if terms.mode not in ("hold", "allow") or (terms.within_s is not None and not _is_time(terms.within_s)):
        raise ContractError(
            f"hold_repeats(within_s={terms.within_s!r}) is no length of time.",
            field="on_repeat",
            remedy="Give seconds, more than 0, or leave within_s out: then only unsettled calls are looked at.",
        )
    return terms


def _cost(given: object) -> None:
    """Raise unless a cost is a number that can stand in books, or a function of arguments and result."""
    if given is None or callable(given):
        return
    number = isinstance(given, int | float | Decimal) and not isinstance(given, bool)
    if not number or not math.isfinite(given):  # type: ignore[arg-type]
        raise ContractError(
            f"cost={given!r} is no amount.",
            field="cost",
            remedy="Give a number, or a function of the arguments and the result.",
        )


def _rejects(given: Any) -> tuple[Rejects, ...]:
    rules = (given,) if isinstance(given, int | type) or callable(given) else given
    if not isinstance(rules, Iterable):
        raise ContractError(f"rejects={given!r} is not understood.", field="rejects")
    rules = tuple(rules)
    for rule in rules:
        status = isinstance(rule, int) and not isinstance(rule, bool) and 400 <= rule <= 599
        if not status and not callable(rule):
            raise ContractError(
                f"rejects contains {rule!r}, which names no rejection.",
                field="rejects",
                remedy="List HTTP statuses (400 to 599), exception types or predicates on the exception.",
            )
        if isinstance(rule, type) and (silent := _says_nothing(rule)) is not None:
            raise ContractError(
                f"rejects contains {rule.__name__}, so a {silent} would count as a rejection; it says nothing.",
                field="rejects",
                remedy="Name the exceptions by which the receiver itself says that it did nothing.",
            )
    return rules


def _says_nothing(kind: type[Any]) -> str | None:
    """The name of an exception that this type covers though no receiver says anything by it; None: there is none."""
    if kind.__name__ in _SAYS_NOTHING:
        return kind.__name__
    below: list[type[Any]] = type.__subclasses__(kind)
    return next((name for each in below if (name := _says_nothing(each)) is not None), None)
