"""Running the gates over a request, in order: those that deny first, those that hold after.

A gate that raises denies: nobody passes because a check was broken.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import field
from typing import Any, cast

from tollhouse.gate.core import Core, failed
from tollhouse.gate.verdicts import Asked, Check, Deny, Hold, Pass, Verdict
from tollhouse.ledger.value import value_type


@value_type
class Judgement:
    """What all gates said: a denial (with the gate's name), or the holds; neither means pass. ``said`` is history."""

    denied_by: str | None = None
    denial: Deny | None = None
    holds: list[Hold] = field(default_factory=list)
    said: dict[str, str] = field(default_factory=dict)

    @property
    def error(self) -> dict[str, Any]:
        """The denial as it is kept on the row."""
        assert self.denial is not None
        return {"type": self.denial.code, "message": f"{self.denied_by} denied it: {self.denial.cause}"}


async def judge(core: Core, asked: Asked) -> Judgement:
    """Ask every gate. The first denial ends it; all holds are collected into one question."""
    holds: list[Hold] = []
    said: dict[str, str] = {}
    for gate in core.gates:
        verdict = await _ask(gate, asked)
        if isinstance(verdict, Deny):
            said[gate.name] = f"deny: {verdict.cause}"
            return Judgement(gate.name, verdict, said=said)
        if isinstance(verdict, Hold):
            holds.append(verdict)
            said[gate.name] = f"hold: {verdict.reason}"
        elif not verdict.silent:
            said[gate.name] = "pass"
    return Judgement(holds=holds, said=said)


_VERDICTS = (Pass, Deny, Hold)


async def _ask(gate: Check, asked: Asked) -> Verdict:
    try:
        verdict: Verdict | Awaitable[Verdict] = gate.check(asked)
        if not isinstance(verdict, _VERDICTS):
            verdict = await verdict
        if isinstance(cast(object, verdict), _VERDICTS):
            return verdict
        return Deny(f"the gate itself failed (it answered {type(verdict).__name__})", code="gate_failed")
    except Exception as error:
        failed("gate_failed", error, gate=gate.name)
        return Deny(f"the gate itself failed ({type(error).__name__})", code="gate_failed")
