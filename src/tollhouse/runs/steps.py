"""Every step of a run's life as a pure function from one record to the next, with the events that tell of it.

``advance`` decides which step is next; the service writes those of people. Each looks its transition up in the table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tollhouse.errors import RunNotAllowed
from tollhouse.ledger.change import Draft
from tollhouse.ledger.record import replace
from tollhouse.ledger.run_record import RunRecord
from tollhouse.ledger.value import value_type
from tollhouse.models.port import ModelFailed, ModelReply, attempt_as_json, message_as_json
from tollhouse.runs.agents import Limits
from tollhouse.runs.body import (
    STATE_OF,
    Body,
    Spent,
    Waiting,
    body_of,
    limits_as_json,
    spending_as_json,
    spent_as_json,
    waiting_as_json,
)
from tollhouse.runs.results import Result, asked
from tollhouse.runs.states import FINISHED, RUN_TABLE, RunEvent, RunState

_E, _S = RunEvent, RunState

INLINE_OUTPUT_MOST = 16 * 1024
"""An output of more characters is in the journal only, so that lists of runs stay light."""
PURGED_CAUSE = "What was said of it was purged."


@value_type
class RunChange:
    """One step: ``before`` (None for a new run), ``record`` after it, and the events that tell of it."""

    before: RunRecord | None
    record: RunRecord
    drafts: tuple[Draft, ...]

    def then(self, change: RunChange) -> RunChange:
        """A further step on top, in the same commit: one version, both events."""
        version = self.record.version
        return RunChange(self.before, replace(change.record, version=version), self.drafts + change.drafts)


AHEAD_US = 1_000_000


def at_once(now_us: int) -> int:
    """When a run is due that may go on now: a little ago, as a process may think the store's clock ahead of what it is,
    and the next look at the store would find nothing."""
    return now_us - AHEAD_US


def started(record: RunRecord, facts: Mapping[str, Any]) -> RunChange:
    """A new run. ``record`` is queued, of version 1."""
    _check(None, _E.STARTED, RunState(record.state))
    return RunChange(None, record, (Draft(_E.STARTED, {"state": record.state, **facts}),))


def claimed(before: RunRecord, owner: str, continues: str | None, now_us: int) -> RunChange:
    """A driver takes it, once nobody else drives it. ``continues``: the run of its thread before it."""
    body = body_of(before)
    kept = body if body.continues == continues else replace(body, continues=continues)
    return _moved(before, _E.CLAIMED, _S.RUNNING, now_us, {"owner": owner}, kept, owner=owner, due_at_us=None)


def released(before: RunRecord, now_us: int) -> RunChange:
    """Its driver hands it over: whoever comes next goes on at once."""
    return _moved(before, _E.RELEASED, _S.QUEUED, now_us, {}, owner=None, due_at_us=at_once(now_us))


def model_answered(before: RunRecord, reply: ModelReply, turn: int, now_us: int) -> RunChange:
    """Recorded before any of its calls runs."""
    body = body_of(before)
    message = asked(reply, before.id, turn)
    spent = replace(body.spent.with_attempts(reply.attempts), turns=turn, calls=body.spent.calls + len(reply.asks))
    facts = {
        "turn": turn,
        "model": reply.model,
        "message": message_as_json(message),
        "finish_reason": reply.finish_reason,
        "attempts": [attempt_as_json(attempt) for attempt in reply.attempts],
    }
    kept = replace(body, spent=spent, failures=0, waiting=())
    return _moved(before, _E.MODEL_ANSWERED, _S.RUNNING, now_us, facts, kept)


def model_failed(before: RunRecord, failure: ModelFailed, turn: int, again_at_us: int | None, now_us: int) -> RunChange:
    """No model answered. ``again_at_us``: when it is asked again; None: the run has failed."""
    body = body_of(before)
    facts = {
        "turn": turn,
        "code": failure.code,
        "cause": failure.cause,
        "transient": failure.transient,
        "attempts": [attempt_as_json(attempt) for attempt in failure.attempts],
        "again_at_us": again_at_us,
    }
    body = replace(body, spent=body.spent.with_attempts(failure.attempts), failures=body.failures + 1)
    if again_at_us is None:
        return _finished(before, _E.MODEL_FAILED, _S.FAILED, now_us, facts, failure.code, failure.cause, body)
    wait = Waiting("time", f"{before.id}:{turn}", now_us, again_at_us, failure.cause)
    body = replace(body, waiting=(wait,))
    return _moved(before, _E.MODEL_FAILED, _S.AWAITING_TIME, now_us, facts, body, owner=None, due_at_us=again_at_us)


def calls_settled(
    before: RunRecord, turn: int, results: Sequence[Result], waiting: tuple[Waiting, ...], now_us: int
) -> RunChange:
    """Some calls of the turn have their answers, and nobody is asked about them any more; ``waiting``: what is known of
    all that were open before. What their children spent is the run's own from now on."""
    body = body_of(before)
    for result in results:
        if result.spent is not None:
            body = body.with_children(body.by_children.plus(result.spent))
    ended = {result.key for result in results}
    answers = {key: said for key, said in (body.answers or {}).items() if key not in ended}
    still = tuple(each for each in waiting if each.id not in ended)
    facts = {"turn": turn, "results": [result.as_json for result in results]}
    return _moved(
        before, _E.CALLS_SETTLED, _S.RUNNING, now_us, facts, replace(body, waiting=still, answers=answers or None)
    )


def paused(before: RunRecord, waiting: tuple[Waiting, ...], latest_us: int | None, now_us: int) -> RunChange:
    """Nothing more can be done now: the run becomes rows only. ``latest_us``: the end of its time; None: no end.

    An answer that a person gave in this very moment makes it due at once.
    """
    body = body_of(before)
    drafts: tuple[Draft, ...] = ()
    due = [each for each in waiting if each.due_at_us is not None and each.due_at_us <= now_us]
    answered = [at_once(now_us) for each in waiting if each.id in (body.answers or {})]
    ids = [each.id for each in due if each.kind in ("approval", "answer") and not each.reminded]
    if ids:
        waiting = tuple(replace(each, reminded=True) if each.id in ids else each for each in waiting)
        _check(RunState(before.state), _E.REMINDED, RunState(before.state))
        drafts = (Draft(_E.REMINDED, {"state": before.state, "ids": ids}),)
    state = next(STATE_OF[kind] for kind in STATE_OF if any(each.kind == kind for each in waiting))
    times = [at_us for at_us in (latest_us, *answered, *(each.due_at_us for each in waiting)) if at_us is not None]
    change = _moved(
        before,
        _E.WAITING,
        state,
        now_us,
        {"waiting": waiting_as_json(waiting)},
        replace(body, waiting=waiting),
        owner=None,
        due_at_us=min(times, default=None),
    )
    return RunChange(change.before, change.record, drafts + change.drafts)


def waits_meanwhile(before: RunRecord, waiting: tuple[Waiting, ...], now_us: int) -> RunChange:
    """A person is asked something while other calls of the turn still run: it is to be seen, and answered, at once."""
    facts = {"waiting": waiting_as_json(waiting)}
    return _moved(before, _E.WAITING, _S.RUNNING, now_us, facts, replace(body_of(before), waiting=waiting))


def question_answered(before: RunRecord, question_id: str, text: str, by: str, now_us: int) -> RunChange:
    """A person's answer, kept until the run takes it up."""
    body = body_of(before)
    answers = {**(body.answers or {}), question_id: {"text": text, "by": by}}
    facts = {"id": question_id, "text": text, "by": by}
    if before.state == _S.RUNNING:
        return _moved(before, _E.QUESTION_ANSWERED, _S.RUNNING, now_us, facts, replace(body, answers=answers))
    kept = replace(body, answers=answers)
    return _moved(before, _E.QUESTION_ANSWERED, _S.QUEUED, now_us, facts, kept, due_at_us=at_once(now_us))


def limit_reached(before: RunRecord, limit: str, most: str, now_us: int) -> RunChange:
    """Stopped at one of its limits, with nothing cut off: what the model asked for and what is awaited stay open."""
    body = body_of(before)
    reason = {"code": f"limit_{limit}", "cause": f"The run reached its limit of {most} {_LIMIT_WORDS[limit]}."}
    facts = {"limit": limit, "most": most, "spent": spending_as_json(body)}
    return _moved(
        before,
        _E.LIMIT_REACHED,
        _S.LIMIT_REACHED,
        now_us,
        facts,
        replace(body, reason=reason),
        owner=None,
        due_at_us=None,
    )


_LIMIT_WORDS = {
    "turns": "model answers",
    "calls": "tool calls",
    "tokens": "tokens",
    "cost": "US dollars",
    "wall_s": "seconds since its start",
}


def limits_raised(before: RunRecord, limits: Limits, by: str, now_us: int) -> RunChange:
    """A named person lets it go on."""
    body = replace(body_of(before), limits=limits, reason=None)
    facts = {"limits": limits_as_json(limits), "by": by}
    return _moved(before, _E.LIMITS_RAISED, _S.QUEUED, now_us, facts, body, due_at_us=at_once(now_us))


def verified(before: RunRecord, check: str, passed: bool, text: str, attempts: Sequence[Any], now_us: int) -> RunChange:
    """What ``check`` (schema or verifier) said of the final answer; if it did not pass, the model hears ``text``.

    A verifier that answers ends a row of failures, and whatever was waited for since.
    """
    body = body_of(before)
    kept = replace(body, spent=body.spent.with_attempts(tuple(attempts)), failures=0, waiting=())
    told = [attempt_as_json(attempt) for attempt in attempts]
    facts = {"check": check, "passed": passed, "text": text, "attempts": told}
    return _moved(before, _E.VERIFIED, _S.RUNNING, now_us, facts, kept)


def succeeded(before: RunRecord, output: Any, now_us: int) -> RunChange:
    """Finished with an output."""
    fits = len(json.dumps(output)) <= INLINE_OUTPUT_MOST
    body = replace(body_of(before), output=output if fits else None, waiting=(), reason=None)
    due_at_us = at_once(now_us) if before.parent_key is not None else None
    return _moved(
        before,
        _E.SUCCEEDED,
        _S.SUCCEEDED,
        now_us,
        {"output": output},
        body,
        owner=None,
        due_at_us=due_at_us,
        finished=True,
    )


def failed(before: RunRecord, code: str, cause: str, now_us: int) -> RunChange:
    """Ended without an output."""
    return _finished(before, _E.FAILED, _S.FAILED, now_us, {"code": code, "cause": cause}, code, cause)


def cancelled(before: RunRecord, by: str, reason: str, left: Sequence[Mapping[str, Any]], now_us: int) -> RunChange:
    """Stopped by name, at once: the driver's next commit finds the version gone. ``left``: what had been sent."""
    facts = {"by": by, "reason": reason, "left": list(left)}
    return _finished(before, _E.CANCELLED, _S.CANCELLED, now_us, facts, "cancelled", f"{by}: {reason}")


def tidied(
    before: RunRecord,
    cancelled_keys: Sequence[str],
    left: Sequence[Mapping[str, Any]],
    told: str | None,
    now_us: int,
    by_children: Spent | None = None,
) -> RunChange:
    """Nothing is left to do about a finished run. ``told``: the call of the parent that its end was reported to.

    ``left``: what of a cancelled run had been sent, now that nothing of it departs any more. ``by_children``: what its
    children spent, those included whose calls it did not wait for; None: as it was counted.
    """
    facts: dict[str, Any] = {"cancelled": list(cancelled_keys), "left": list(left), "told": told}
    body = body_of(before)
    if by_children is not None and by_children != body.by_children:
        facts["by_children"] = spent_as_json(by_children)
        body = body.with_children(by_children)
    return _moved(before, _E.TIDIED, RunState(before.state), now_us, facts, body, due_at_us=None)


def purged(before: RunRecord, now_us: int) -> RunChange:
    """What was said in it is erased: messages, results, output, reasons. Who ran what, how it ended and what it spent
    stay; so does the time of its last change, since it did not change."""
    body = body_of(before)
    reason = None if body.reason is None else {"code": body.reason["code"], "cause": PURGED_CAUSE}
    kept = replace(body, output=None, reason=reason, answers=None, waiting=(), purged_at_us=now_us)
    change = _moved(before, _E.PURGED, RunState(before.state), now_us, {"erased": before.head_seq}, kept)
    record = replace(change.record, updated_at_us=before.updated_at_us)
    return RunChange(change.before, record, change.drafts)


def _finished(
    before: RunRecord,
    event: RunEvent,
    state: RunState,
    now_us: int,
    facts: Mapping[str, Any],
    code: str,
    cause: str,
    body: Body | None = None,
) -> RunChange:
    kept = replace(body or body_of(before), reason={"code": code, "cause": cause}, waiting=())
    return _moved(before, event, state, now_us, facts, kept, owner=None, due_at_us=at_once(now_us), finished=True)


def _moved(
    before: RunRecord,
    event: RunEvent,
    state: RunState,
    now_us: int,
    facts: Mapping[str, Any],
    body: Body | None = None,
    **fields: Any,
) -> RunChange:
    _check(RunState(before.state), event, state)
    record = replace(
        before,
        version=before.version + 1,
        updated_at_us=max(before.updated_at_us, now_us),
        state=state.value,
        body=before.body if body is None else body.text,
        **fields,
    )
    return RunChange(before, record, (Draft(event, {"state": state.value, **facts}),))


def _check(source: RunState | None, event: RunEvent, target: RunState) -> None:
    row = RUN_TABLE.get((source, event))
    if row is None or target not in row.targets:
        was = "finished" if source in FINISHED else f"in state {source}"
        raise RunNotAllowed(f"A run that is {was} allows no {event.replace('_', ' ')}.")
