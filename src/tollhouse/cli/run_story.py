"""The story of a run: each event of its journal told as one or two lines of plain words.

Called by ``runs show`` and, live, by ``runs watch``. An event is told from its own facts alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tollhouse.cli.story import Told
from tollhouse.cli.words import compact, count
from tollhouse.ledger.plain import moment
from tollhouse.runs.body import Spent, spent_of
from tollhouse.runs.states import RunEvent

Facts = Mapping[str, Any]

TEXT_LENGTH_MOST = 300

_GOOD, _BAD, _DOUBT, _WAITS = "green", "red", "bold yellow", "cyan"


def tell_event(kind: str, facts: Facts) -> list[Told]:
    """The lines that one event is told in; at least one."""
    teller = TELLERS.get(kind)
    if teller is None or not facts:
        return [Told(kind.replace("_", " "), "dim", "" if facts else "(its details were erased)")]
    return list(teller(facts))


def shortened(text: Any) -> str:
    """A text on one line, cut where it is long: the journal has all of it."""
    whole = " ".join(str(text).split())
    return whole if len(whole) <= TEXT_LENGTH_MOST else f"{whole[:TEXT_LENGTH_MOST]}… ({len(whole):,} characters)"


def used(spent: Spent) -> str:
    """Tokens and cost in words."""
    return f"{spent.tokens:,} tokens, {dollars(spent)}"


def dollars(spent: Spent) -> str:
    """The cost in words: what has no known price is said, never counted as nothing."""
    known = f"${spent.cost:f}"
    return f"{known} + {spent.unpriced} unpriced" if spent.unpriced else known


def _started(facts: Facts) -> Iterator[Told]:
    version = facts["agent_version"][:12]
    what = f"{facts['by']} started the agent {facts['agent']} ({version})"
    if facts.get("source_run_id"):
        what += f", as attempt {facts['attempt_no']} of {facts['source_run_id']}; effects: {facts['effects']}"
    if facts.get("parent_run_id"):
        what += f", for {facts['parent_run_id']}"
    yield Told("started", "bold", what)
    for message in facts["messages"][-1:]:
        yield Told("input", "dim", shortened(message["text"]))


def _claimed(facts: Facts) -> Iterator[Told]:
    yield Told("driven", "dim", f"by the process {facts['owner']}")


def _released(_facts: Facts) -> Iterator[Told]:
    yield Told("released", "dim", "its driver was shut down and handed it over")


def _answered(facts: Facts) -> Iterator[Told]:
    message = facts["message"]
    if message["text"]:
        yield Told("model", "bold", shortened(message["text"]))
    for ask in message["asks"]:
        arguments = compact(ask["arguments"]) if ask["arguments"] is not None else ask.get("raw", "")
        yield Told("asks", "blue", f"{ask['tool']} {shortened(arguments)}  [{ask['key']}]")
    yield from _attempts(facts)


def _attempts(facts: Facts) -> Iterator[Told]:
    attempts = facts["attempts"]
    if not attempts:
        return
    tokens = sum((a["input_tokens"] or 0) + (a["output_tokens"] or 0) for a in attempts)
    costs = [a["cost"] for a in attempts]
    cost = "at an unknown price" if None in costs else f"for ${' + $'.join(costs)}"
    failed = [a["error_code"] for a in attempts if a["error_code"] is not None]
    told = f"{count(len(attempts), 'request')}, {tokens:,} tokens, {cost}"
    yield Told("spent", "dim", told + (f"; failed: {', '.join(failed)}" if failed else ""))


def _model_failed(facts: Facts) -> Iterator[Told]:
    again = facts.get("again_at_us")
    then = f"; asked again at {moment(again)}" if again is not None else "; the run has failed"
    yield Told("no answer", _BAD, f"{facts['cause']} [{facts['code']}]{then}")
    yield from _attempts(facts)


def _settled(facts: Facts) -> Iterator[Told]:
    for result in facts["results"]:
        state = result["call_state"] or result["code"] or "answered"
        style = _BAD if result["failed"] else _GOOD
        replayed = ", from the record" if result["replayed"] else ""
        yield Told("result", style, f"{result['tool']}: {state}{replayed}: {shortened(result['text'])}")
        if "spent" in result:
            yield Told("spent", "dim", f"by that run: {used(spent_of(result['spent']))}")


_WAIT_WORDS = {
    "reconciliation": ("in doubt", _DOUBT, "the outcome of {id} is unknown: {text}"),
    "approval": ("waits", _WAITS, "for a decision about {id}: {text}"),
    "answer": ("asks", _WAITS, "{text}  [{id}]"),
    "work": ("waits", _WAITS, "for long work under way: {id}"),
    "time": ("waits", _WAITS, "{text}"),
}


def _waiting(facts: Facts) -> Iterator[Told]:
    for each in facts["waiting"]:
        word, style, text = _WAIT_WORDS[each["kind"]]
        until = f" (until {moment(each['until_us'])})" if each["until_us"] is not None else ""
        yield Told(word, style, text.format(id=each["id"], text=shortened(_why(each))) + until)


def _why(waiting: Facts) -> str:
    """Why it waits, without the beginning that the line has already."""
    why, key = waiting["text"] or "", waiting["id"]
    return str(why).removeprefix(f"{key} waits for people: ").removeprefix(f"The outcome of {key} is unknown: ")


def _question_answered(facts: Facts) -> Iterator[Told]:
    yield Told("answer", _GOOD, f"{facts['by']}: {shortened(facts['text'])}")


def _reminded(facts: Facts) -> Iterator[Told]:
    yield Told("reminder", _WAITS, f"still waiting for people: {', '.join(facts['ids'])}")


def _limit(facts: Facts) -> Iterator[Told]:
    yield Told("limit", _DOUBT, f"{facts['limit']} reached its limit of {facts['most']}; raise it to go on")


def _raised(facts: Facts) -> Iterator[Told]:
    yield Told("raised", "bold", f"{facts['by']} set the limits to {compact(facts['limits'])}")


def _verified(facts: Facts) -> Iterator[Told]:
    if facts["passed"]:
        yield Told("checked", _GOOD, "the answer passed")
    else:
        yield Told("checked", _BAD, shortened(facts["text"]))


def _succeeded(facts: Facts) -> Iterator[Told]:
    output = facts["output"]
    yield Told("succeeded", _GOOD, shortened(output if isinstance(output, str) else compact(output)))


def _failed(facts: Facts) -> Iterator[Told]:
    yield Told("failed", _BAD, f"{facts['cause']} [{facts['code']}]")


def _cancelled(facts: Facts) -> Iterator[Told]:
    yield Told("cancelled", _BAD, f"by {facts['by']}: {facts['reason']}")
    for call in facts["left"]:
        yield Told("had left", _DOUBT, f"{call['key']} of {call['tool']}, {call['call_state']}")


def _tidied(facts: Facts) -> Iterator[Told]:
    forbidden = f"{count(len(facts['cancelled']), 'call')} forbidden" if facts["cancelled"] else ""
    told = f"{facts['told']} was told" if facts["told"] else ""
    yield Told("tidied", "dim", "; ".join(part for part in (forbidden, told) if part) or "nothing was left to do")
    if "by_children" in facts:
        yield Told("spent", "dim", f"by its children in all: {used(spent_of(facts['by_children']))}")


def _purged(facts: Facts) -> Iterator[Told]:
    yield Told("purged", _WAITS, f"the details of {count(facts['erased'], 'event')}, and the output")


TELLERS: Mapping[str, Callable[[Facts], Iterator[Told]]] = {
    RunEvent.STARTED: _started,
    RunEvent.CLAIMED: _claimed,
    RunEvent.RELEASED: _released,
    RunEvent.MODEL_ANSWERED: _answered,
    RunEvent.MODEL_FAILED: _model_failed,
    RunEvent.CALLS_SETTLED: _settled,
    RunEvent.WAITING: _waiting,
    RunEvent.QUESTION_ANSWERED: _question_answered,
    RunEvent.REMINDED: _reminded,
    RunEvent.LIMIT_REACHED: _limit,
    RunEvent.LIMITS_RAISED: _raised,
    RunEvent.VERIFIED: _verified,
    RunEvent.SUCCEEDED: _succeeded,
    RunEvent.FAILED: _failed,
    RunEvent.CANCELLED: _cancelled,
    RunEvent.TIDIED: _tidied,
    RunEvent.PURGED: _purged,
}
