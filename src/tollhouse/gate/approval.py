"""The gate of approvals: what a contract requires people to agree to."""

from __future__ import annotations

from typing import Any

from tollhouse.contract.terms import ApprovalTerms
from tollhouse.contract.tool import Tool
from tollhouse.gate.verdicts import PASS, Asked, Hold, Verdict
from tollhouse.ledger.approvals import approval_for
from tollhouse.ledger.record import Approval, CallRecord


class ApprovalCheck:
    """Holds every call of a tool whose contract requires approval."""

    name = "approval"
    sees_arguments = False

    def check(self, asked: Asked) -> Verdict:
        terms = asked.tool.terms.approval
        return PASS if terms is None else Hold("the contract requires approval", terms)


def question(
    holds: list[Hold],
    tool: Tool[Any],
    digest: str,
    now_us: int,
    *,
    repeat_of: str | None = None,
    again: str | None = None,
) -> Approval:
    """One question to people from all gates that hold: the largest quorum, the earliest end, approvers all accept.

    ``again``: why they are asked once more about a call that they had approved.
    """
    terms = [hold.terms for hold in holds] or [ApprovalTerms()]
    reasons = [hold.reason for hold in holds]
    if again is not None:
        reasons.insert(0, again)
    if repeat_of is not None:
        reasons.append(f"it repeats {repeat_of}")
    approvers = _approvers(terms)
    return approval_for(
        "; ".join(reasons),
        max(t.quorum for t in terms),
        min(t.expires_s for t in terms),
        None if approvers is None else tuple(sorted(approvers)),
        digest,
        tool.terms.version,
        now_us,
        covers_repeat=repeat_of is not None,
    )


def lapsed(record: CallRecord, tool: Tool[Any], holds: list[Hold]) -> str | None:
    """Why the approval on record does not cover what would run now; None when it does."""
    approval = record.approval
    if approval is None:
        return "people must agree to it now" if holds else None
    if approval.contract_version != tool.terms.version:
        return "the tool's contract changed since it was approved"
    if approval.digest != record.digest:
        return "the arguments changed since it was approved"
    approvers = _approvers([hold.terms for hold in holds])
    counted = [vote for vote in approval.votes if approvers is None or vote.by in approvers]
    if holds and max(hold.terms.quorum for hold in holds) > len(counted):
        return "more people must agree to it now, or others"
    return None


def _approvers(terms: list[ApprovalTerms]) -> set[str] | None:
    """Those whom all accept; None: anybody but the requester."""
    named = [set(t.approvers) for t in terms if t.approvers is not None]
    return set.intersection(*named) if named else None
