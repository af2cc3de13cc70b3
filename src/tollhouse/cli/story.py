"""The story of a call: each event of its history told as one or two lines of plain words, in order.

Called by ``calls show``. An event is told from its own facts alone, so the story stays true whatever the row says now;
facts that were erased leave a line that says when something of that kind happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from tollhouse.cli.words import compact
from tollhouse.gate.view import HistoryLine
from tollhouse.ledger.plain import moment
from tollhouse.ledger.record import AttemptOutcome

Facts = Mapping[str, Any]

EVIDENCE_LENGTH_MOST = 400

_GOOD, _BAD, _DOUBT, _WAITS = "green", "red", "bold yellow", "cyan"


class Told(NamedTuple):
    """One line: a word that says what kind of thing happened, its style, and the sentence."""

    word: str
    style: str
    text: str


def tell(line: HistoryLine) -> list[Told]:
    """The lines that one event is told in; at least one."""
    teller = TELLERS.get(line.kind)
    if teller is None or not line.facts:
        return [Told(line.kind.replace("_", " "), "dim", "" if line.facts else "(its details were erased)")]
    return list(teller(line.facts))


# -- asking --------------------------------------------------------------------------------------------------------


def _asked(facts: Facts) -> Iterator[Told]:
    """Who asked, and what the gates said; nothing where the event is not about an asking."""
    if "tool" in facts:
        yield Told("asked", "bold", f"{facts['by']} asked for {facts['tool']}{_because(facts)}{_gates(facts)}")
    elif facts.get("gates"):
        yield Told("asked", "bold", f"{facts['by']} asked again{_gates(facts)}")


def _gates(facts: Facts) -> str:
    said = [f"{gate} said {verdict}" for gate, verdict in (facts.get("gates") or {}).items()]
    return f"; {', '.join(said)}" if said else ""


def _departed(facts: Facts) -> Iterator[Told]:
    yield from _asked(facts)
    if facts.get("assumed"):
        yield Told("assumed", _DOUBT, "the ledger was restored from a backup and may have forgotten that it was sent")
    else:
        yield _sent(facts, "sent")


def _resent(facts: Facts) -> Iterator[Told]:
    yield _sent(facts, "sent again")


def _sent(facts: Facts, word: str) -> Told:
    by = {"owner": ", by the process that has it", "reconciler": ", by the reconciler, with the same key"}
    who = "" if facts.get("gates") else by.get(facts.get("by", ""), "")
    until = clock_time(facts["send_by_us"])
    return Told(
        word,
        "blue",
        f"attempt {facts['number']}{_round(facts)}{who}; owner {facts['owner']}, fence {facts['fence']}, "
        f"may leave until {until}",
    )


def _round(facts: Facts) -> str:
    return f" (round {facts['round']})" if facts.get("round", 1) > 1 else ""


def _held(facts: Facts) -> Iterator[Told]:
    yield from _asked(facts)
    yield Told("held", _WAITS, f"waits for people: {facts['reason']}")


def _refused(facts: Facts) -> Iterator[Told]:
    yield from _asked(facts)
    yield Told("refused", _BAD, _error(facts))


def _recorded(facts: Facts) -> Iterator[Told]:
    yield from _asked(facts)
    attempts = facts["attempts"]
    outcome = "a result came back" if facts["outcome"] == AttemptOutcome.HAPPENED else "no result"
    yield Told("ran", _GOOD if facts["state"] == "succeeded" else _BAD, f"{attempts} of its attempts ran; {outcome}")


# -- what came back ------------------------------------------------------------------------------------------------

_OUTCOME_STYLES = {
    AttemptOutcome.HAPPENED: _GOOD,
    AttemptOutcome.ACCEPTED: "blue",
    AttemptOutcome.UNKNOWN: _DOUBT,
    AttemptOutcome.REJECTED: _BAD,
    AttemptOutcome.NOT_SENT: "dim",
}


def _outcome(facts: Facts) -> Iterator[Told]:
    outcome = AttemptOutcome(facts["outcome"])
    yield Told(outcome.value, _OUTCOME_STYLES[outcome], f"attempt {facts['number']}: {_meaning(outcome)}{_more(facts)}")


def _late_outcome(facts: Facts) -> Iterator[Told]:
    outcome = AttemptOutcome(facts["outcome"])
    text = f"attempt {facts['number']} ended after all: {_meaning(outcome)}{_more(facts)}"
    yield Told(f"late {outcome.value}", _OUTCOME_STYLES[outcome], text)


def _meaning(outcome: AttemptOutcome) -> str:
    unknown = outcome is AttemptOutcome.UNKNOWN
    return "whether it took effect is not known" if unknown else outcome.sentence


def _more(facts: Facts) -> str:
    parts = [_error(facts)] if "error" in facts else []
    parts += [f"reference {facts['reference']}"] if facts.get("reference") else []
    parts += [f"cost {facts['cost']}"] if facts.get("cost") else []
    return f" ({'; '.join(parts)})" if parts else ""


def _error(facts: Facts) -> str:
    error = facts.get("error") or {}
    return f"{error.get('type', 'error')}: {error.get('message', '')}"


def _wait_ended(facts: Facts) -> Iterator[Told]:
    why = "its time was up" if facts["why"] == "timeout" else "the caller gave up"
    yield Told("wait ended", _DOUBT, f"{why}; the attempt may still be running, and its result will be taken in")


def _owner_lost(facts: Facts) -> Iterator[Told]:
    proof = "its process is gone" if facts["proof"] == "dead" else "its lease ended unrenewed"
    yield Told("owner lost", _DOUBT, f"{facts['owner']} was set aside: {proof}; it cannot send any more")


def _owner_proven_dead(facts: Facts) -> Iterator[Told]:
    yield Told("owner gone", "dim", f"the process of {facts['owner']} is proven not to exist any more")


def _deadline_passed(_facts: Facts) -> Iterator[Told]:
    yield Told("overdue", _DOUBT, "the accepted work did not end by its deadline")


# -- evidence and decisions ----------------------------------------------------------------------------------------

_FINDINGS = {"happened": "it happened", "did_not_happen": "it did not happen"}


def _looked_up(facts: Facts) -> Iterator[Told]:
    answers = {
        "no_hook": "the tool has no look-up; nobody could be asked",
        "not_resent": "it could not be sent again",
        "did_not_happen": "the look-up found nothing, which does not count yet",
        "happened": "the look-up says it happened, which could not be taken in",
    }
    text = answers.get(facts["answer"], "the look-up could not tell")
    note = f" ({facts['note']})" if facts.get("note") else ""
    next_us = facts.get("next_us")
    yield Told("looked up", "dim", f"{text}{note}{'' if next_us is None else f'; next look {clock_time(next_us)}'}")


def _settled(facts: Facts) -> Iterator[Told]:
    style = _GOOD if facts["finding"] == "happened" else _BAD
    force = ", with force" if facts.get("force") else ""
    yield Told("settled", style, f"{_source(facts)} says {_FINDINGS[facts['finding']]}{force}{_grounds(facts)}")


def _found(facts: Facts) -> Iterator[Told]:
    text = f"{_source(facts)} says {_FINDINGS[facts['finding']]}; kept beside what is settled{_grounds(facts)}"
    yield Told("found", "yellow", text)


def _source(facts: Facts) -> str:
    by = facts.get("by") or "somebody"
    if facts.get("via") == "hook":
        return f"the look-up of {by.removeprefix('hook:')}"
    return "the receiver's callback" if facts.get("via") == "callback" else by


def _grounds(facts: Facts) -> str:
    parts = [_quoted(facts)] if facts.get("reason") else []
    parts += [f"reference {facts['reference']}"] if facts.get("reference") else []
    parts += [f"job {facts['job_status']}"] if facts.get("job_status") else []
    if facts.get("evidence") is not None and facts["evidence"] != facts.get("reason"):
        parts.append(f"evidence {compact(facts['evidence'], EVIDENCE_LENGTH_MOST)}")
    return f": {'; '.join(parts)}" if parts else ""


def _quoted(facts: Facts) -> str:
    return f"“{facts['reason']}”"


def _because(facts: Facts) -> str:
    return f": {_quoted(facts)}" if facts.get("reason") else ""


def _forced(facts: Facts) -> Iterator[Told]:
    yield Told("forced", _DOUBT, f"{facts['by']} set aside the attempt that was out{_because(facts)}")


def _voted(facts: Facts) -> Iterator[Told]:
    yield Told(
        "approved", _WAITS, f"{facts['by']} agreed; {facts['votes']} of {facts['quorum']} needed{_because(facts)}"
    )


def _approved(facts: Facts) -> Iterator[Told]:
    yield Told(
        "approved", _GOOD, f"{facts['by']} agreed, the last of {facts['quorum']} needed; it may go{_because(facts)}"
    )


def _edited(facts: Facts) -> Iterator[Told]:
    changed = [
        f"{name}: {compact(change.get('old'), 100)} → {compact(change.get('new'), 100)}"
        for name, change in (facts.get("difference") or {}).items()
    ]
    what = "; ".join(changed) or "nothing"
    yield Told(
        "edited", _WAITS, f"{facts['by']} changed the arguments ({what}); approvals before are void{_because(facts)}"
    )


def _denied(facts: Facts) -> Iterator[Told]:
    yield Told("denied", _BAD, f"{facts['by']} said no{_because(facts)}")


def _expired(_facts: Facts) -> Iterator[Told]:
    yield Told("expired", _BAD, "nobody decided, or sent it, in time")


def _cancelled(facts: Facts) -> Iterator[Told]:
    yield Told("cancelled", _BAD, f"{facts['by']} cancelled it before anything was sent{_because(facts)}")


def _cancel_asked(facts: Facts) -> Iterator[Told]:
    text = f"{facts['by']} asked to cancel it{_because(facts)}; what was sent stands, and it is not sent again"
    yield Told("cancel asked", _WAITS, text)


def _lapsed(facts: Facts) -> Iterator[Told]:
    yield Told(
        "lapsed", _WAITS, f"the approval does not cover what would run now ({facts['why']}); people are asked anew"
    )


def _retried(facts: Facts) -> Iterator[Told]:
    yield Told("retried", "bold", f"{facts['by']} opened round {facts['round']}{_because(facts)}")


def _overturned(facts: Facts) -> Iterator[Told]:
    yield Told("overturned", _DOUBT, f"{facts['by']} reversed {facts['from']}{_grounds(facts)}")


def _upheld(facts: Facts) -> Iterator[Told]:
    yield Told("upheld", _GOOD, f"{facts['by']} confirmed it in view of what contradicts it{_because(facts)}")


def _decision_refused(facts: Facts) -> Iterator[Told]:
    yield Told("not allowed", "dim", f"{facts['by']} tried to {facts['verb']}: {facts['why']}")


def _contradiction_opened(_facts: Facts) -> Iterator[Told]:
    yield Told("contradicted", "bold red", "what was settled and what was found disagree; a person must decide")


def _compensated(facts: Facts) -> Iterator[Told]:
    yield Told("compensated", "magenta", f"undone by the call {facts['by_key']}")


def _bookkeeping_gap(facts: Facts) -> Iterator[Told]:
    yield Told(
        "gap", "dim", f"its {facts['what']} could not be computed ({facts['error_type']}); a worker comes back to it"
    )


def _results_purged(_facts: Facts) -> Iterator[Told]:
    yield Told("purged", "dim", "what came back was taken out of the ledger")


def _gap_repaired(facts: Facts) -> Iterator[Told]:
    yield Told("gap closed", "dim", f"its {facts['what']} was computed after all")


TELLERS: dict[str, Callable[[Facts], Iterator[Told]]] = {
    "approved": _approved,
    "bookkeeping_gap": _bookkeeping_gap,
    "cancel_asked": _cancel_asked,
    "cancelled": _cancelled,
    "compensated": _compensated,
    "contradiction_opened": _contradiction_opened,
    "deadline_passed": _deadline_passed,
    "decision_refused": _decision_refused,
    "denied": _denied,
    "departed": _departed,
    "edited": _edited,
    "expired": _expired,
    "forced": _forced,
    "found": _found,
    "gap_repaired": _gap_repaired,
    "held": _held,
    "lapsed": _lapsed,
    "late_outcome": _late_outcome,
    "looked_up": _looked_up,
    "outcome": _outcome,
    "overturned": _overturned,
    "owner_lost": _owner_lost,
    "owner_proven_dead": _owner_proven_dead,
    "recorded": _recorded,
    "refused": _refused,
    "resent": _resent,
    "results_purged": _results_purged,
    "retried": _retried,
    "settled": _settled,
    "upheld": _upheld,
    "voted": _voted,
    "wait_ended": _wait_ended,
}
"""How each kind of event is told; a test holds it against the kinds that the rules write."""


def clock_time(at_us: int) -> str:
    """The time of day in UTC, to the millisecond."""
    return (moment(at_us) or "")[11:23]


def day(at_us: int) -> str:
    """The date in UTC."""
    return (moment(at_us) or "")[:10]
