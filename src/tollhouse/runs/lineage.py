"""Reruns, and what their lineage did already: no effect of another run of the same origin is repeated unseen."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from tollhouse.contract.terms import ApprovalTerms, Effect
from tollhouse.gate.verdicts import ABSTAIN, PASS, Asked, Deny, Hold, Verdict
from tollhouse.ledger.ids import Prefix
from tollhouse.ledger.record import CallRecord, State
from tollhouse.ledger.run_record import RunRecord
from tollhouse.runs.agents import AGENT, Agent, agent_of
from tollhouse.runs.body import body_of
from tollhouse.runs.journal import JournalStore, calls_of, runs_of
from tollhouse.runs.states import RunState

_MAY_HAPPEN = (State.SUCCEEDED, State.IN_DOUBT, State.DEPARTED, State.ACCEPTED, State.HELD, State.READY)
"""States of a call that took effect, may have, or may yet: what waits in a run at a limit can still be approved."""
_WAITS = (State.HELD, State.READY)
_RUN = f"{Prefix.RUN}_"


async def twins(store: JournalStore, run: RunRecord, tool: str, digest: str) -> AsyncIterator[CallRecord]:
    """Calls with that tool and those arguments that took effect, or may, of the other runs of this one's origin.

    All of them, however many runs that are: one that is passed over would be repeated unseen. Those of the run that it
    reruns come first.
    """
    async for part in _kin(store, run):
        async for call in _calls_with(store, run.tenant, part, tool, digest):
            if call.state in _MAY_HAPPEN:
                yield call


async def _kin(store: JournalStore, run: RunRecord) -> AsyncIterator[str]:
    """The runs that this one reruns, the nearest first, each with what its calls started and what else reruns it, all
    the way down. What this run started itself is not among them."""
    seen, source = {run.id}, run.source_run_id
    while source is not None:
        near = [source]
        for each in near:
            if each not in seen:
                seen.add(each)
                yield each
                near += [child.id async for child in runs_of(store, run.tenant, parent=each)]
                near += [rerun.id async for rerun in runs_of(store, run.tenant, source=each)]
        earlier = await store.run(run.tenant, source)
        source = None if earlier is None else earlier.source_run_id


async def _calls_with(
    store: JournalStore, tenant: str, run_id: str, tool: str, digest: str
) -> AsyncIterator[CallRecord]:
    """Calls of a run that have these arguments, and those that had them before people changed them."""
    async for call in calls_of(store, tenant, run_id, tool=tool, digest=digest):
        yield call
    async for call in calls_of(store, tenant, run_id, tool=tool, request_digest=digest):
        if call.digest != digest:
            yield call


async def _line(store: JournalStore, run: RunRecord) -> list[RunRecord]:
    """The run and those that it is part of, up to the one that somebody started."""
    line = [run]
    while line[-1].parent_run_id is not None:
        parent = await store.run(run.tenant, line[-1].parent_run_id)
        if parent is None:
            break
        line.append(parent)
    return line


class RunCheck:
    """The gate of runs: what an agent's file wants people to agree to, and effects that a rerun would repeat.

    Nothing of a cancelled run departs any more, or of what it had other agents do, whoever was about to send it.
    """

    name = "run"
    sees_arguments = False

    def __init__(self, store: Any) -> None:
        self._store: JournalStore = store
        self._agents: dict[tuple[str, str], Agent] = {}

    def check(self, asked: Asked) -> Any:
        """Passes at once what belongs to no run."""
        return self._of_run(asked) if asked.scope is not None and asked.scope.startswith(_RUN) else ABSTAIN

    async def _of_run(self, asked: Asked) -> Verdict:
        run = await self._store.run(asked.tenant, asked.scope or "")
        if run is None:
            return PASS
        line = await _line(self._store, run)
        cancelled = next((each for each in line if each.state == RunState.CANCELLED), None)
        if cancelled is not None:
            return Deny(f"its run {cancelled.id} was cancelled", code="run_cancelled")
        agent = await self._agent(run)
        wanted = None if agent is None else agent.approvals.get(asked.tool.name)
        repeated = await self._repeated(line[-1], asked)
        reasons = [] if wanted is None else [f"the agent {run.agent} needs approval for it"]
        reasons += [] if repeated is None else [f"a rerun would repeat {repeated.key}, which is {repeated.state}"]
        if not reasons:
            return PASS
        terms = ApprovalTerms() if wanted is None else ApprovalTerms(wanted.quorum, wanted.expires_s, wanted.approvers)
        return Hold("; ".join(reasons), terms)

    async def _repeated(self, first: RunRecord, asked: Asked) -> CallRecord | None:
        """What the call would do again. ``first``: the run that somebody started; its choice holds for all below it."""
        if first.source_run_id is None or asked.tool.effect is Effect.READ or body_of(first).effects == "repeat":
            return None
        async for twin in twins(self._store, first, asked.tool.name, asked.digest):
            if twin.state not in _WAITS or await self._came_first(twin, asked):
                return twin
        return None

    async def _came_first(self, twin: CallRecord, asked: Asked) -> bool:
        """What only waits holds up what was asked for after it, not before it: no two calls wait for each other."""
        own = None if asked.key is None else await self._store.get(asked.tenant, asked.key)
        return own is None or (twin.created_at_us, twin.key) < (own.created_at_us, own.key)

    async def _agent(self, run: RunRecord) -> Agent | None:
        known = (run.tenant, run.agent_version)
        if known not in self._agents:
            kept = await self._store.definition(*known)
            if kept is None or kept.kind != AGENT:
                return None
            self._agents[known] = agent_of(kept.body)
        return self._agents[known]
