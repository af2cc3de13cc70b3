"""Tollhouse: every tool call an agent makes passes one gate, takes effect once, and every doubt is visible.

This is the public SDK. ``@tool(external())`` declares what a function does to the world; ``Tollhouse.open(...)`` opens
a house over a store; ``house.call(...)`` passes a call through the gate.
"""

from tollhouse.contract import dedup
from tollhouse.contract.answers import Accepted, Answer, NotSent, Rejected, did_not_happen, happened, unknown
from tollhouse.contract.context import CallContext
from tollhouse.contract.effects import approval, destructive, external, hold_repeats, read, write
from tollhouse.contract.tool import Tool, tool
from tollhouse.gate.http import guard, never_sent
from tollhouse.gate.outcome import Outcome
from tollhouse.gate.verdicts import Asked, Check, Deny, Hold, Pass
from tollhouse.gate.view import RecordedCall
from tollhouse.house import Tollhouse
from tollhouse.ledger.record import AttemptOutcome, State

__version__ = "0.1.0"

__all__ = [
    "Accepted",
    "Answer",
    "Asked",
    "AttemptOutcome",
    "CallContext",
    "Check",
    "Deny",
    "Hold",
    "NotSent",
    "Outcome",
    "Pass",
    "RecordedCall",
    "Rejected",
    "State",
    "Tollhouse",
    "Tool",
    "approval",
    "dedup",
    "destructive",
    "did_not_happen",
    "external",
    "guard",
    "happened",
    "hold_repeats",
    "never_sent",
    "read",
    "tool",
    "unknown",
    "write",
]
