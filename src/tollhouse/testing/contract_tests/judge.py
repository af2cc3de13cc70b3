"""What each observation says about the promises of a contract."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from tollhouse.contract.answers import Answer
from tollhouse.contract.tool import Tool
from tollhouse.doubt.compensation import compensation_key
from tollhouse.doubt.hooks import ask
from tollhouse.errors import TollhouseError
from tollhouse.gate.context import Context, DepartureRefused
from tollhouse.gate.http import KEY_HEADER
from tollhouse.ledger.record import AttemptOutcome, State
from tollhouse.testing.contract_tests.breaches import Breach
from tollhouse.testing.contract_tests.probe import Watch
from tollhouse.testing.contract_tests.scenarios import Scenario
from tollhouse.testing.contract_tests.trial import Trial
from tollhouse.testing.receiver import SeenRequest

REFUSALS = (401, 402, 404, 500)
"""Answers of a look-up that say nothing about the call it asks for."""


def judge_call(scenario: Scenario, trial: Trial, watch: Watch) -> list[Breach]:
    """What the call itself shows."""
    record = trial.record
    assert record is not None
    if trial.is_read and trial.sends:
        return [Breach("read_writes", scenario.name, f"it sent {trial.sends[0].method} {trial.sends[0].path}")]
    found: list[tuple[str, str]] = []
    sent_attempts = [a for a in record.attempts if a.outcome is not AttemptOutcome.NOT_SENT]
    posts = [request for request in trial.sends if request.collection == trial.collection]
    if scenario.fault is None and record.state not in (State.SUCCEEDED, State.ACCEPTED):
        found.append(("does_not_work", str(trial.error)))
    if len(posts) > max(1, len(sent_attempts)) * trial.probe_sends:
        found.append(("own_retries", f"{len(posts)} requests in {len(sent_attempts)} attempt(s)"))
    elif scenario.fault is None and (twins := _twins(trial.sends)):
        found.append(("own_retries", f"{twins} requests just like another in {len(sent_attempts)} attempt(s)"))
    if scenario.fault == "redirect" and len(trial.sends) > len(posts):
        found.append(("followed_redirect", f"a request reached {trial.sends[-1].path}"))
    found += _honesty(scenario, trial)
    found += _keys(trial)
    if watch.mutated is not None:
        found.append(("mutates_arguments", f"{watch.mutated} was changed"))
    return [Breach(code, scenario.name, seen) for code, seen in found]


def _twins(sends: list[SeenRequest]) -> int:
    """How many requests say the same as an earlier one: even where a tool needs several, no two of them are alike."""
    return len(sends) - len({(each.method, each.path, each.key, each.body_sha256) for each in sends})


def _honesty(scenario: Scenario, trial: Trial) -> list[tuple[str, str]]:
    record = trial.record
    assert record is not None
    state, effects = record.state.value, len(trial.effects)
    seen = f"the call is {state}, the receiver holds {effects} effect(s)"
    found = []
    if effects and record.state is State.FAILED:
        found.append(("wrong_rejection", seen))
    if effects and record.state is State.READY:
        found.append(("wrong_not_sent", seen))
    if not effects and state not in scenario.honest and not (trial.is_read and scenario.readable):
        found.append(("swallowed_error", seen))
    if effects > trial.probe_effects and trial.tool.terms.dedup.kind == "by_key" and len(record.attempts) > 1:
        found.append(("dedup_untrue", f"{effects} effects after {len(record.attempts)} attempts"))
    return found


def _keys(trial: Trial) -> list[tuple[str, str]]:
    if trial.tool.terms.dedup.kind != "by_key":
        return []
    record = trial.record
    assert record is not None
    wire = record.idempotency_key
    bare = [r for r in trial.sends if not (r.key or "").startswith(wire)]
    if bare:
        return [("key_not_forwarded", f"{bare[0].method} {bare[0].path} carried {KEY_HEADER}: {bare[0].key!r}")]
    bodies: dict[tuple[str, str, str | None], str] = {}
    for each in trial.sends:
        if bodies.setdefault((each.method, each.path, each.key), each.body_sha256) != each.body_sha256:
            return [("body_changes", f"{each.method} {each.path} carried another body under the same key")]
    return []


# -- the look-up ---------------------------------------------------------------------------------------------------


async def judge_hook(scenario: Scenario, trial: Trial) -> list[Breach]:
    """What the reconcile hook answers about a call whose truth the book knows: that it took effect, or that it did not.

    A hook is asked in both cases: one that creates what it does not find writes only when there is nothing.
    """
    if trial.tool.reconcile is None or trial.record is None:
        return []
    took_effect, sends_before = bool(trial.effects), len(trial.sends)
    answer = await _answer(trial)
    found = await _refused_look_ups(trial) if scenario.fault == "reset_after_effect" else []
    if len(trial.sends) > sends_before:
        found.append(("hook_writes", f"it sent {trial.sends[-1].method} {trial.sends[-1].path}"))
    elif answer is not None and answer.finding == ("did_not_happen" if took_effect else "happened"):
        code = "hook_denies_effect" if took_effect else "hook_claims_effect"
        found.insert(0, (code, f"it answered {answer.finding}, the receiver holds {len(trial.effects)} effect(s)"))
    return [Breach(code, scenario.name, seen) for code, seen in found]


async def _refused_look_ups(trial: Trial) -> list[tuple[str, str]]:
    for status in REFUSALS:
        trial.receiver.fault("error_before_effect", times=20, method="GET", status=status)
        answer = await _answer(trial)
        trial.receiver.clear_faults()
        if answer is not None and answer.finding == "did_not_happen":
            return [("hook_trusts_refusal", f"the look-up was answered {status}, and it said did_not_happen")]
    return []


async def _answer(trial: Trial) -> Answer | None:
    """What the hook says; an error is *unknown*, which is honest."""
    assert trial.tool.reconcile is not None
    record = await trial.house.get(trial.key)
    try:
        answer = await ask(trial.core, trial.tool.reconcile, record)
    except Exception:
        return None
    return answer if isinstance(answer, Answer) else None


# -- the check -----------------------------------------------------------------------------------------------------


async def judge_confirm(trial: Trial, arguments: Mapping[str, Any]) -> list[Breach]:
    """Refuse every check, and see whether anything was sent."""
    real, real_sync = Context.check, Context.check_sync

    async def refuse(self: Context) -> None:
        if self.started:
            raise DepartureRefused("The contract test refuses the check.")
        await real(self)

    def refuse_sync(self: Context) -> None:
        if self.started:
            raise DepartureRefused("The contract test refuses the check.")
        real_sync(self)

    setattr(Context, "check", refuse)  # noqa: B010 - for the length of this call only
    setattr(Context, "check_sync", refuse_sync)  # noqa: B010
    try:
        await trial.call(arguments)
    finally:
        setattr(Context, "check", real)  # noqa: B010
        setattr(Context, "check_sync", real_sync)  # noqa: B010
    if trial.sends:
        seen = f"{trial.sends[0].method} {trial.sends[0].path} left although the check said no"
        return [Breach("sends_before_confirm", "check_refuses", seen)]
    return []


# -- the compensation ----------------------------------------------------------------------------------------------


async def judge_compensation(trial: Trial) -> list[Breach]:
    """Undo the call, then carry the same undoing out again with the same key, as after a lost reply."""
    if trial.tool.terms.compensate is None or trial.record is None or trial.record.state is not State.SUCCEEDED:
        return []
    before = len(trial.effects)
    try:
        await trial.house.compensate(trial.key, by="contract-tests", reason="contract test")
    except TollhouseError as error:
        return [Breach("does_not_work", "compensation", str(error))]
    once = len(trial.effects) - before
    undo = next(tool for tool in trial.house.tools if tool.name == trial.tool.terms.compensate)
    _recognise_keys(trial, before)
    await _again(trial, undo)
    twice = len(trial.effects) - before
    if twice > once:
        return [Breach("compensation_repeats", "compensation", f"{once} effect(s), then {twice} with the same key")]
    return []


def _recognise_keys(trial: Trial, before: int) -> None:
    for effect in trial.effects[before:]:
        trial.receiver.mode(effect.collection, keyed=True)


async def _again(trial: Trial, undo: Tool[Any]) -> None:
    """The compensating tool's function once more, in the context of the recorded compensation."""
    record = await trial.house.get(compensation_key(trial.key))
    core, raw = trial.core, record.raw
    attempt = raw.attempts[-1]
    context = _OpenContext(core, raw, attempt)
    arguments = undo.schema.validate(record.arguments)
    if undo.schema.context_parameter is not None:
        arguments[undo.schema.context_parameter] = context
    try:
        if undo.is_async:
            await undo.fn(**arguments)
        else:
            await core.threads.run(undo.fn, **arguments)
    except Exception:
        return  # what it left in the book is what counts


class _OpenContext(Context):
    """The context of a recorded attempt, as it would be for a second delivery: the check says yes."""

    def __init__(self, core: Any, record: Any, attempt: Any) -> None:
        super().__init__(
            core,
            record,
            attempt,
            acknowledged_local_us=core.local_us(),
            loop=asyncio.get_running_loop(),
            principal="contract-tests",
        )
        self._send_by_local_us = core.local_us() + 10_000_000

    async def check(self) -> None:
        return None

    def check_sync(self) -> None:
        return None
