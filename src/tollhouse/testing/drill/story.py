"""A failed seed in words: what was found, the history of its call, and the receiver's lines beside it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from tollhouse.testing.drill.checker import Judgement
from tollhouse.testing.drill.evidence import Case


def story(judgement: Judgement) -> Iterator[str]:
    """Lines about one failed call, times in milliseconds from its first line."""
    case = judgement.case
    yield f"seed {case.seed}, call {case.key}, plot {case.plot}: {_script(case)}"
    for verdict, told in judgement.found.items():
        for sentence in told:
            yield f"  {verdict}: {sentence}"
    lines = sorted(_lines(case), key=lambda line: line[0])
    began_us = lines[0][0] if lines else 0
    for at_us, text in lines:
        yield f"  {(at_us - began_us) / 1000:10.1f} ms  {text}"
    for effect in case.effects:
        undone = ", cancelled" if effect.undone else ""
        yield f"  book: effect {effect.sequence} under {effect.wire_key}{undone} {effect.attempt}"


def _script(case: Case) -> str:
    script = case.facts.get("script")
    facts: dict[str, Any] = asdict(script) if script is not None else {"tool": case.facts.get("tool")}
    return ", ".join(f"{name} {value}" for name, value in facts.items() if value not in (None, False, "none", []))


def _lines(case: Case) -> Iterator[tuple[int, str]]:
    for line in case.history:
        facts = " ".join(f"{name}={value}" for name, value in line.facts.items() if name not in ("tool", "gates"))
        yield line.at_us + case.skew_us, f"ledger: {line.kind} {facts}"
    for check in case.checks:
        yield check.at_us, f"sender: {check.attempt} passed its check"
    for request in case.requests:
        yield request.at_us, f"receiver: request {request.sequence} of {request.attempt} under {request.wire_key}"
    for decided in case.decisions:
        accepted = "accepted" if decided.accepted else "refused"
        yield decided.at_us, f"person: {decided.by} {decided.verb} {decided.finding or ''} {accepted}"
