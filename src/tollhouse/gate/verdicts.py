"""The common shape of gates: each looks at one request and lets it pass, holds it for people, or denies it.

A gate is one small module with one entry point. Secrets, egress, limits, budgets and policy are added by passing more
of them to the house; the core knows only this shape.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tollhouse.contract.terms import ApprovalTerms
from tollhouse.contract.tool import Tool
from tollhouse.ledger.value import value_type


@value_type
class Asked:
    """What a gate sees: who wants which tool, with which validated arguments, and how often it was sent before."""

    tenant: str
    principal: str
    tool: Tool[Any]
    key: str | None
    arguments: Mapping[str, Any]
    scope: str | None
    digest: str
    sent_before: int = 0


@dataclass(frozen=True, slots=True)
class Pass:
    """Nothing against it. ``silent``: the gate had nothing to judge here, and the call's history need not name it."""

    silent: bool = False


@dataclass(frozen=True, slots=True)
class Deny:
    """No. ``stored`` False: only audited, no row is written and the key stays free (a rate limit, say)."""

    cause: str
    code: str = "denied"
    stored: bool = True


@dataclass(frozen=True, slots=True)
class Hold:
    """People must agree first."""

    reason: str
    terms: ApprovalTerms = field(default_factory=ApprovalTerms)


Verdict = Pass | Deny | Hold
PASS = Pass()
ABSTAIN = Pass(silent=True)


class Check(Protocol):
    """One gate. ``check`` may be sync or async; an exception it raises denies the call (deny by default).

    The arguments it is shown are not the objects that the tool gets. A gate that never looks at them may say
    ``sees_arguments = False``, which saves making them twice.
    """

    name: str

    def check(self, asked: Asked) -> Verdict | Awaitable[Verdict]: ...
